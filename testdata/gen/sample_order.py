"""Golden places for tests/train/test_data_permutation.c.

Written from the description in train/data_permutation.h, sharing nothing with the C code. Prints the
rows of the table in the test.
"""
M0, M1, W0, W1, MASK = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = M0 * c[0], M1 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & MASK, (p >> 32) ^ c[3] ^ k[1], p & MASK]
        k = [(k[0] + W0) & MASK, (k[1] + W1) & MASK]
    return c


def network(number, bits, seed, epoch):
    left, right = number // 2**bits, number % 2**bits
    for turn in range(12):
        word = philox([right, turn, epoch % 2**32, epoch // 2**32], [seed % 2**32, seed // 2**32])[0]
        left, right = right, left ^ (word % 2**bits)
    return left * 2**bits + right


def place(count, seed, epoch, index):
    bits = 0
    while 4**bits < count:
        bits += 1
    index = network(index, bits, seed, epoch)
    while index >= count:
        index = network(index, bits, seed, epoch)
    return index


for count, seed, epoch in [(1, 1, 0), (2, 1, 0), (3, 7, 1), (10, 1, 0), (10, 1, 1), (10, 2, 0),
                           (1000003, 1, 0), (2**32 + 1, 2**62 + 3, 2**33 + 5), (2**62, 1, 0)]:
    indices = sorted({i for i in (0, 1, 2, 5, 9, count // 2, count - 1) if i < count})
    for index in indices:
        print("    {%d, UINT64_C(%d), UINT64_C(%d), %d, %d}," %
              (count, seed, epoch, index, place(count, seed, epoch, index)))
