/* Attention, forward: softmax block by block of keys, with the largest score so far taken out. */
#include "kernels/cpu/isa/attention.h"

#include "kernels/cpu/isa/operations.h"

typedef struct forward {
    pl_attention_shape shape;
    const pl_attention_arguments *a;
} forward;

/* A worker's scratch. */
typedef struct forward_scratch {
    float packed[PL_MOST_HEAD_DIM * PL_QUERY_BLOCK]; /* queries times scale */
    float sum[PL_MOST_HEAD_DIM * PL_QUERY_BLOCK];    /* of values times weights */
    float tile[PL_KEY_BLOCK * PL_QUERY_BLOCK];       /* scores, then weights */
    float largest[PL_QUERY_BLOCK], total[PL_QUERY_BLOCK];
} forward_scratch;

static float *tile_row(forward_scratch *scratch, pl_key_range range, int64_t key, int64_t v)
{
    return scratch->tile + (key - range.begin) * PL_QUERY_BLOCK + v * PL_LANES;
}

static void mask_square(forward_scratch *scratch, const pl_query_block *b, pl_key_range range,
                        int64_t v)
{
    pl_key_range seen = pl_rows_seen(b, range, v);
    for (int64_t key = pl_first_masked(b, range, v); key < seen.end; ++key) {
        float *row = tile_row(scratch, range, key, v);
        pl_store(row, pl_choose(pl_lanes_that_see(b, v, key), pl_load(row), pl_splat(-INFINITY)));
    }
}

/* Scores of vector V become weights exp(score - largest); what was summed for its queries before
 * is brought to the same largest score. */
static void weigh(forward_scratch *scratch, const pl_query_block *b, pl_key_range range, int64_t v,
                  int64_t head_dim)
{
    pl_key_range seen = pl_rows_seen(b, range, v);
    if (seen.begin >= seen.end) return;
    float *row = tile_row(scratch, range, seen.begin, v);
    int64_t rows = seen.end - seen.begin, r = 0;
    pl_floats largest = pl_load(scratch->largest + v * PL_LANES), before = largest;
    pl_floats other = pl_load(row);
    for (; r + 2 <= rows; r += 2) {
        largest = pl_larger(largest, pl_load(row + r * PL_QUERY_BLOCK));
        other = pl_larger(other, pl_load(row + (r + 1) * PL_QUERY_BLOCK));
    }
    if (r < rows) largest = pl_larger(largest, pl_load(row + r * PL_QUERY_BLOCK));
    largest = pl_larger(largest, other);
    pl_floats total = pl_splat(0);
    for (r = 0; r < rows; ++r) {
        float *at = row + r * PL_QUERY_BLOCK;
        pl_floats weight = pl_exp(pl_load(at) - largest);
        pl_store(at, weight);
        total += weight;
    }
    pl_store(scratch->largest + v * PL_LANES, largest);
    float *totals = scratch->total + v * PL_LANES;
    if (range.begin == 0) {
        pl_store(totals, total);
        return;
    }
    pl_floats factor = pl_exp(before - largest);
    pl_store(totals, pl_load(totals) * factor + total);
    for (int64_t d = 0; d < head_dim; ++d) {
        float *sum = scratch->sum + d * PL_QUERY_BLOCK + v * PL_LANES;
        pl_store(sum, pl_load(sum) * factor);
    }
}

/* log(x) for x >= 1 from pl_exp: a first guess from the exponent's bits, then two steps of
 * Halley's rule, y += 2 (x - e^y) / (x + e^y), each of which cubes the error. */
static pl_floats logarithm(pl_floats x)
{
    pl_integers bits;
    memcpy(&bits, &x, sizeof bits);
    pl_floats y = __builtin_convertvector(bits - 0x3f7a0000, pl_floats) * pl_splat(8.2629582e-8f);
    for (int i = 0; i < 2; ++i) {
        pl_floats power = pl_exp(y);
        y += pl_splat(2) * (x - power) / (x + power);
    }
    return y;
}

/* Divide by the totals; results go to their rows. */
static void finish(forward_scratch *scratch, const pl_attention_shape *s, const pl_query_block *b,
                   float *out, float *lse)
{
    for (int64_t v = 0; v < b->vectors; ++v) {
        pl_floats total = pl_load(scratch->total + v * PL_LANES);
        pl_floats factor = pl_splat(1) / total;
        for (int64_t d = 0; d < s->head_dim; ++d) {
            float *sum = scratch->sum + d * PL_QUERY_BLOCK + v * PL_LANES;
            pl_store(sum, pl_load(sum) * factor);
        }
        float *largest = scratch->largest + v * PL_LANES;
        pl_store(largest, pl_load(largest) + logarithm(total));
    }
    pl_transpose(scratch->sum, PL_QUERY_BLOCK, s->head_dim, b->queries, 1, out, s->q_row);
    for (int64_t i = 0; i < b->queries; ++i) lse[i * s->heads] = scratch->largest[i];
}

/* One block of queries of one head; the last block of a head first, it is the longest. */
static void forward_block(void *context, int64_t index, void *memory)
{
    const forward *f = context;
    const pl_attention_shape *s = &f->shape;
    const pl_attention_arguments *a = f->a;
    forward_scratch *scratch = memory;
    pl_query_block b = pl_query_block_at(s, s->blocks - 1 - index % s->blocks);
    int64_t head = index / s->blocks % s->heads;
    int64_t token = index / s->blocks / s->heads * s->sequence;
    int64_t kv_place = token * s->kv_row + head / s->group * s->head_dim;
    int64_t q_place = (token + b.first) * s->q_row + head * s->head_dim;
    const float *k = (const float *)a->k + kv_place, *v = (const float *)a->v + kv_place;
    float *out = (float *)a->out + q_place, *lse = a->lse + (token + b.first) * s->heads + head;
    pl_expect_writes(out, s->q_row, b.queries, s->head_dim);
    pl_expect_writes(lse, s->heads, b.queries, 1);
    pl_pack_queries(s, &b, (const float *)a->q + q_place, s->scale, scratch->packed);
    for (int i = 0; i < PL_QUERY_BLOCK; ++i) scratch->largest[i] = -INFINITY;
    for (int64_t block = 0; block * PL_KEY_BLOCK < b.key_end; ++block) {
        pl_key_range range = pl_key_block_at(&b, block);
        pl_score_tile(s, &b, range, k, scratch->packed, scratch->tile);
        for (int64_t i = 0; i < b.vectors; ++i) {
            mask_square(scratch, &b, range, i);
            weigh(scratch, &b, range, i, s->head_dim);
        }
        pl_gather_tile(s, &b, range, v, scratch->tile, scratch->sum);
    }
    finish(scratch, s, &b, out, lse);
}

pl_status PL_ISA(pl_cpu_attention)(pl_device *device, pl_stream stream,
                                   const pl_attention_arguments *a)
{
    PL_TRY(pl_cpu_require_fp32(device, "attention", a->dtype));
    forward f = {.a = a,
                 .shape = {.sequences = a->sequences,
                           .sequence = a->sequence,
                           .heads = a->heads,
                           .kv_heads = a->kv_heads,
                           .head_dim = a->head_dim,
                           .scale = (float)a->scale}};
    pl_attention_totals totals = {0};
    PL_TRY(pl_attention_cut(&f.shape, &totals, device, "attention",
                            a->q && a->k && a->v && a->out && a->lse));
    const pl_touch touches[] = {
        pl_touch_read(a->q, totals.query_bytes), pl_touch_read(a->k, totals.key_bytes),
        pl_touch_read(a->v, totals.key_bytes), pl_touch_write(a->out, totals.query_bytes),
        pl_touch_write(a->lse, totals.lse_bytes)};
    pl_device_note(device, stream, "attention", 2 * totals.flops, touches, 5);
    int64_t tasks = f.shape.sequences * f.shape.heads * f.shape.blocks;
    return pl_pool_run(pl_cpu_pool(device), tasks, sizeof(forward_scratch), forward_block, &f);
}
