"""Golden bits of initial weights for tests/common/test_philox.c.

Written from the formula in common/initial_values.h, sharing nothing with the C code: Philox4x32-10
from the paper, XXH3-64 from the Python package xxhash (pip install xxhash), doubles rounded to
floats by struct. Prints the rows of the table in the test.
"""
import struct
import xxhash

M0, M1, W0, W1, MASK = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = M0 * c[0], M1 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & MASK, (p >> 32) ^ c[3] ^ k[1], p & MASK]
        k = [(k[0] + W0) & MASK, (k[1] + W1) & MASK]
    return c


def value(seed, name, index, initializer_range):
    h = xxhash.xxh3_64_intdigest(name.encode(), seed)
    block = philox([index & MASK, index >> 32, 0, 0], [h & MASK, h >> 32])
    halves = [half for word in block for half in (word & 0xFFFF, word >> 16)]
    centred = sum((half + 0.5) / 65536 for half in halves) - 4
    root = 1.5 ** 0.5
    return struct.unpack("<I", struct.pack("<f", (initializer_range * root) * centred))[0]


LAYER = "model.layers.%d.%s"
CASES = [
    ("embedding", 0, "model.embed_tokens.weight", 0.02, [0, 1, 63, 64, 4095]),
    ("attention", 1, LAYER % (3, "self_attn.q_proj.weight"), 0.02, [0, 1, 47, 48, 3071]),
    ("routed", 1, LAYER % (0, "mlp.experts.gate_proj.weight"), 0.01, [0, 5 * 16 * 64, 8 * 16 * 64 - 1]),
    ("routed", 1 << 62, LAYER % (0, "mlp.experts.gate_proj.weight"), 0.01, [0, 5 * 16 * 64, 8 * 16 * 64 - 1]),
    ("wide", 1, "lm_head.weight", 0.02, [((1 << 20) - 1) * (1 << 13), (1 << 33) - 1]),
]

for kind, seed, name, spread, indices in CASES:
    for index in indices:
        print('    {%s, %d, %s, %d, 0x%08X},' % ("&" + kind, seed, spread, index, value(seed, name, index, spread)))
