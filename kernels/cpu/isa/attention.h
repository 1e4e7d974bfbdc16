/* What attention's forward and backward share: how the work is cut, and how it lies in scratch.
 *
 * A block is up to PL_QUERY_BLOCK queries of one head, whole vectors of them; it meets the keys in
 * blocks of PL_KEY_BLOCK. Tiles of scores are held with keys as rows and queries as lanes, so that
 * softmax runs down the lanes, keys and values are read where they stand, and the causal mask
 * leaves out whole vectors: only squares of PL_LANES on the diagonal are masked.
 */
#ifndef PL_KERNELS_CPU_ISA_ATTENTION_H
#define PL_KERNELS_CPU_ISA_ATTENTION_H

#include "common/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/small_product.h"

enum {
    PL_QUERY_BLOCK = 48, /* lanes of a row in scratch */
    PL_QUERY_VECTORS = PL_QUERY_BLOCK / PL_LANES,
    PL_KEY_BLOCK = 64,
    PL_MOST_HEAD_DIM = 256
};

typedef struct pl_attention_shape {
    int64_t sequences, sequence, heads, kv_heads, head_dim;
    int64_t group;         /* query heads of a key-value head */
    int64_t q_row, kv_row; /* floats from a token to the next */
    int64_t vectors;       /* of queries in a sequence */
    int64_t blocks;        /* of queries in a sequence */
    int64_t key_blocks;
    float scale;
} pl_attention_shape;

typedef struct pl_query_block {
    int64_t first, queries; /* real ones; the last vector may have lanes without a query */
    int64_t vectors;
    int64_t key_end; /* keys from here on are seen by none of them */
} pl_query_block;

typedef struct pl_key_range {
    int64_t begin, end;
} pl_key_range;

static inline int64_t pl_smaller_count(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes of queries, keys and statistics; FLOPs of one product of uncut scores. */
typedef struct pl_attention_totals {
    int64_t query_bytes, key_bytes, lse_bytes, flops;
} pl_attention_totals;

/* Check the sizes given in OUT and work out the others. GIVEN: no pointer is missing. */
static pl_status pl_attention_cut(pl_attention_shape *out, pl_attention_totals *totals,
                                  const pl_device *device, const char *what, bool given)
{
    pl_attention_shape s = *out;
    int64_t tokens = 0, queries = 0, keys = 0, statistics = 0, scores = 0;
    PL_TRY(pl_cpu_require(
        device, what, s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0,
        "heads are a multiple of key-value heads, and none is empty"));
    if (s.head_dim > PL_MOST_HEAD_DIM)
        return pl_cpu_refuse(device, PL_UNSUPPORTED, what,
                             "head_dim is %lld; the CPU backend does 1 to %d",
                             (long long)s.head_dim, PL_MOST_HEAD_DIM);
    PL_TRY(pl_cpu_elements(device, what, &tokens, s.sequences, s.sequence, 1));
    PL_TRY(pl_cpu_elements(device, what, &statistics, tokens, s.heads, 1));
    PL_TRY(pl_cpu_elements(device, what, &queries, tokens, s.heads, s.head_dim));
    PL_TRY(pl_cpu_elements(device, what, &keys, tokens, s.kv_heads, s.head_dim));
    PL_TRY(pl_cpu_elements(device, what, &scores, queries, s.sequence, 1));
    PL_TRY(pl_cpu_require(device, what, tokens == 0 || given, "all arrays are given"));
    s.group = s.heads / s.kv_heads;
    s.q_row = s.heads * s.head_dim;
    s.kv_row = s.kv_heads * s.head_dim;
    s.vectors = pl_divide_up(s.sequence, PL_LANES);
    s.blocks = pl_divide_up(s.vectors, PL_QUERY_VECTORS);
    s.key_blocks = pl_divide_up(s.sequence, PL_KEY_BLOCK);
    *out = s;
    *totals = (pl_attention_totals){.query_bytes = queries * (int64_t)sizeof(float),
                                    .key_bytes = keys * (int64_t)sizeof(float),
                                    .lse_bytes = statistics * (int64_t)sizeof(float),
                                    .flops = 2 * scores};
    return PL_OK;
}

/* Blocks of nearly equal size, so that none is left with a single vector. */
static inline pl_query_block pl_query_block_at(const pl_attention_shape *s, int64_t block)
{
    int64_t begin = block * s->vectors / s->blocks, end = (block + 1) * s->vectors / s->blocks;
    pl_query_block b = {.first = begin * PL_LANES, .vectors = end - begin};
    b.key_end = pl_smaller_count(end * PL_LANES, s->sequence);
    b.queries = b.key_end - b.first;
    return b;
}

static inline pl_key_range pl_key_block_at(const pl_query_block *b, int64_t key_block)
{
    int64_t begin = key_block * PL_KEY_BLOCK;
    return (pl_key_range){begin, pl_smaller_count(begin + PL_KEY_BLOCK, b->key_end)};
}

/* Keys of RANGE that vector V of the block sees and the vectors before it do not: these rows of a
 * tile begin with that vector. */
static inline pl_key_range pl_rows_from(const pl_query_block *b, pl_key_range range, int64_t v)
{
    int64_t diagonal = b->first + v * PL_LANES;
    if (v > 0 && range.begin < diagonal) range.begin = diagonal;
    range.end = pl_smaller_count(range.end, diagonal + PL_LANES);
    return range;
}

/* Keys of RANGE that vector V sees at all, and from which on some of its lanes do not. */
static inline pl_key_range pl_rows_seen(const pl_query_block *b, pl_key_range range, int64_t v)
{
    range.end = pl_smaller_count(range.end, b->first + (v + 1) * PL_LANES);
    return range;
}

static inline int64_t pl_first_masked(const pl_query_block *b, pl_key_range range, int64_t v)
{
    int64_t diagonal = b->first + v * PL_LANES;
    return diagonal > range.begin ? diagonal : range.begin;
}

/* All ones in the lanes of vector V that see KEY, which is in its square of the diagonal. */
static inline pl_integers pl_lanes_that_see(const pl_query_block *b, int64_t v, int64_t key)
{
    pl_integers lane;
    for (int i = 0; i < PL_LANES; ++i) lane[i] = i;
    return lane >= (int32_t)(key - b->first - v * PL_LANES);
}

/* Bring the lines of ROWS rows into the cache while there is other work: at the end of a block, to
 * wait for each of them costs a twentieth of the whole. */
static inline void pl_expect_writes(const float *to, int64_t row, int64_t rows, int64_t count)
{
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < count; j += 16) __builtin_prefetch(to + i * row + j, 1);
}

/* to[head_dim][PL_QUERY_BLOCK] = factor * the block's rows, transposed; lanes without a query
 * are zero. ROWS is the first row of the block. */
static void pl_pack_queries(const pl_attention_shape *s, const pl_query_block *b, const float *rows,
                            float factor, float *to)
{
    if (b->queries < b->vectors * PL_LANES)
        memset(to, 0, (size_t)s->head_dim * PL_QUERY_BLOCK * sizeof *to);
    pl_transpose(rows, s->q_row, b->queries, s->head_dim, factor, to, PL_QUERY_BLOCK);
}

/* tile[key][query] = keys (of RANGE, as rows of KV) times packed queries, where they are seen. */
static void pl_score_tile(const pl_attention_shape *s, const pl_query_block *b, pl_key_range range,
                          const float *kv, const float *packed, float *tile)
{
    for (int64_t v = 0; v < b->vectors; ++v) {
        pl_key_range rows = pl_rows_from(b, range, v);
        if (rows.begin >= rows.end) continue;
        pl_product_small(&(pl_small_product){
            .a = kv + rows.begin * s->kv_row,
            .a_row = s->kv_row,
            .a_step = 1,
            .b = packed + v * PL_LANES,
            .b_row = PL_QUERY_BLOCK,
            .c = tile + (rows.begin - range.begin) * PL_QUERY_BLOCK + v * PL_LANES,
            .c_row = PL_QUERY_BLOCK,
            .m = rows.end - rows.begin,
            .n = (b->vectors - v) * PL_LANES,
            .k = s->head_dim});
    }
}

/* sum[head_dim][query] (+)= transposed keys or values times TILE, where they are seen. */
static void pl_gather_tile(const pl_attention_shape *s, const pl_query_block *b, pl_key_range range,
                           const float *kv, const float *tile, float *sum)
{
    for (int64_t v = 0; v < b->vectors; ++v) {
        pl_key_range rows = pl_rows_from(b, range, v);
        if (rows.begin >= rows.end) continue;
        pl_product_small(&(pl_small_product){
            .a = kv + rows.begin * s->kv_row,
            .a_row = 1,
            .a_step = s->kv_row,
            .b = tile + (rows.begin - range.begin) * PL_QUERY_BLOCK + v * PL_LANES,
            .b_row = PL_QUERY_BLOCK,
            .c = sum + v * PL_LANES,
            .c_row = PL_QUERY_BLOCK,
            .m = s->head_dim,
            .n = (b->vectors - v) * PL_LANES,
            .k = rows.end - rows.begin,
            .add = rows.begin > 0});
    }
}

#endif
