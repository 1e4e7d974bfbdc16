"""Indexes of checkpoints (index.h5) as h5py sees them.

index_reader.py compare REFERENCE   reads paths of other indexes from standard input, and answers
                                    each with a line: "equal: N datasets", or what differs
index_reader.py export INDEX FOLDER compares the parameters with the safetensors files in FOLDER,
                                    read here by hand: "equal: N tensors"; status 1 otherwise
"""

import glob
import json
import re
import sys

import h5py

TYPES = {"float32": "F32", "uint16": "BF16"}


def datasets(path):
    """Name to type, shape and bytes, in the order of the file."""
    with h5py.File(path, "r") as opened:
        return {
            f"{kind}/{name}": (str(data.dtype), data.shape, data[...].tobytes())
            for kind, group in opened.items()
            for name, data in group.items()
        }


def difference(reference, other):
    if list(reference) != list(other):
        return f"other datasets: {sorted(reference.keys() ^ other.keys())[:3]}"
    for name, value in reference.items():
        if value != other[name]:
            return f"{name} differs"
        if not any(value[2]) and not name.startswith("adam"):
            return f"{name} is all zeroes: a source was not found"
    return f"equal: {len(reference)} datasets"


def compare(reference):
    expected = datasets(reference)
    for line in sys.stdin:
        try:
            print(difference(expected, datasets(line.rstrip("\n"))), flush=True)
        except OSError as error:
            print(error, flush=True)


def safetensors(folder):
    tensors = {}
    for path in glob.glob(folder + "/*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            data = file.read()
        header.pop("__metadata__", None)
        for name, facts in header.items():
            begin, end = facts["data_offsets"]
            tensors[name] = (facts["dtype"], tuple(facts["shape"]), data[begin:end])
    return tensors


def export(index, folder):
    """The index has the experts of a layer one below the other, in one dataset."""
    values = datasets(index)
    tensors = safetensors(folder)
    experts = {}
    for name in tensors:
        number = re.search(r"\.experts\.(\d+)\.", name)
        if number:
            stack = name.replace(number.group(0), ".experts.")
            experts[stack] = max(experts.get(stack, 0), int(number.group(1)) + 1)
    seen = set()
    for name, (dtype, shape, data) in tensors.items():
        number = re.search(r"\.experts\.(\d+)\.", name)
        stack = name.replace(number.group(0), ".experts.") if number else name
        kind, whole, held = values[f"param/{stack}"]
        seen.add(f"param/{stack}")
        if number:
            rows, at = whole[0] // experts[stack], int(number.group(1)) * len(data)
            whole, held = (rows,) + whole[1:], held[at : at + len(data)]
        if TYPES.get(kind) != dtype or whole != shape or held != data:
            sys.exit(f"{name} differs")
    rest = [name for name in values if name.startswith("param/") and name not in seen]
    if rest or not tensors:
        sys.exit(f"not in the export: {rest[:3]}")
    print(f"equal: {len(tensors)} tensors")


if __name__ == "__main__":
    {"compare": compare, "export": export}[sys.argv[1]](*sys.argv[2:])
