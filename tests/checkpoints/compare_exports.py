"""Compare an exported folder with the original, as safetensors and transformers see them.

Usage: compare_exports.py [--trained] ORIGINAL EXPORTED. Prints what was found; status 1 when they
differ. With --trained the values must differ, and nothing else.
"""

import glob
import sys

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def tensors(folder):
    out = {}
    for file in sorted(glob.glob(folder + "/model*.safetensors")):
        with safe_open(file, "pt") as opened:
            out.update((name, opened.get_tensor(name)) for name in opened.keys())
    return out


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def logits(folder, problems):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder,
        output_loading_info=True,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    problems += [f"{what}: {sorted(names)[:3]}" for what, names in info.items() if names]
    with torch.no_grad():
        return model.eval()(torch.arange(32)[None] % model.config.vocab_size).logits


def main(arguments):
    trained = arguments[0] == "--trained"
    first, second = arguments[-2:]
    one, two, problems = tensors(first), tensors(second), []
    if one.keys() != two.keys():
        problems.append(f"names differ: {sorted(one.keys() ^ two.keys())[:3]}")
    shared = one.keys() & two.keys()
    for name in shared:
        if one[name].shape != two[name].shape or one[name].dtype != two[name].dtype:
            problems.append(f"{name}: another shape or type")
    moved = [name for name in shared if not torch.equal(bits(one[name]), bits(two[name]))]
    if bool(moved) != trained:
        problems.append(f"{len(moved)} tensors differ in value")
    if torch.equal(logits(first, problems), logits(second, problems)) == trained:
        problems.append("the logits are not as they should be")
    value = f"{len(moved)} moved" if trained else "bit-equal, logits equal"
    print("; ".join(problems) or f"{len(one)} tensors, {value}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
