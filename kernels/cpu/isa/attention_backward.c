/* Attention, backward: weights are made again from lse, tile by tile.
 *
 * With p = exp(scale q k^T - lse) and delta = rows of dout . out, dv = p^T dout,
 * ds = scale p (dout v^T - delta), dq = ds k, dk = ds^T q. The scale is in the packed copies.
 *
 * A key-value head of a sequence is one task: its query heads in order, their blocks of queries in
 * order, the blocks of keys in order. Where that makes too few tasks for the workers, blocks of
 * queries (dq) and blocks of keys (dk, dv) are tasks of their own; tiles are then made twice, and
 * every sum is that of the first way, bit for bit.
 */
#include "kernels/cpu/isa/attention.h"

#include "kernels/cpu/isa/operations.h"

typedef struct backward {
    pl_attention_shape shape;
    const pl_attention_backward_arguments *a;
} backward;

/* A worker's scratch. */
typedef struct backward_scratch {
    float q[PL_MOST_HEAD_DIM * PL_QUERY_BLOCK];    /* packed, times scale */
    float dout[PL_MOST_HEAD_DIM * PL_QUERY_BLOCK]; /* packed, times scale */
    float dq[PL_MOST_HEAD_DIM * PL_QUERY_BLOCK];   /* transposed sum */
    float weights[PL_KEY_BLOCK * PL_QUERY_BLOCK], dscores[PL_KEY_BLOCK * PL_QUERY_BLOCK];
    float lse[PL_QUERY_BLOCK], delta[PL_QUERY_BLOCK]; /* delta times scale */
} backward_scratch;

/* Where the rows of a head of a sequence begin. */
typedef struct head_rows {
    int64_t q, kv, lse;
} head_rows;

static head_rows rows_of_head(const pl_attention_shape *s, int64_t sequence, int64_t head)
{
    int64_t token = sequence * s->sequence;
    return (head_rows){.q = token * s->q_row + head * s->head_dim,
                       .kv = token * s->kv_row + head / s->group * s->head_dim,
                       .lse = token * s->heads + head};
}

static pl_floats dot_lanes(const float *x, const float *y, int64_t count)
{
    pl_floats sum = pl_splat(0);
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) sum += pl_load(x + i) * pl_load(y + i);
    if (i < count) sum += pl_load_part(x + i, count - i) * pl_load_part(y + i, count - i);
    return sum;
}

/* delta[i] = factor * x[i] . y[i] over the block's rows: products by lanes, then, columns of them
 * being loaded, their sums. */
static void dot_rows(const pl_attention_shape *s, const pl_query_block *b, const float *x,
                     const float *y, float factor, float *delta)
{
    float products[PL_LANES * PL_LANES];
    for (int64_t v = 0; v < b->vectors; ++v) {
        for (int64_t i = 0, row = v * PL_LANES; i < PL_LANES; ++i, ++row)
            pl_store(products + i * PL_LANES,
                     row < b->queries
                         ? dot_lanes(x + row * s->q_row, y + row * s->q_row, s->head_dim)
                         : pl_splat(0));
        pl_floats sum = pl_splat(0);
        for (int lane = 0; lane < PL_LANES; lane += 4) {
            pl_floats column[4];
            pl_load_columns(products + lane, PL_LANES, column);
            sum += (column[0] + column[1]) + (column[2] + column[3]);
        }
        pl_store(delta + v * PL_LANES, factor * sum);
    }
}

static void prepare(const backward *f, backward_scratch *scratch, const pl_query_block *b,
                    head_rows rows)
{
    const pl_attention_shape *s = &f->shape;
    int64_t place = rows.q + b->first * s->q_row;
    const float *dout = (const float *)f->a->dout + place;
    pl_expect_writes((const float *)f->a->dq + place, s->q_row, b->queries, s->head_dim);
    pl_pack_queries(s, b, (const float *)f->a->q + place, s->scale, scratch->q);
    pl_pack_queries(s, b, dout, s->scale, scratch->dout);
    dot_rows(s, b, dout, (const float *)f->a->out + place, s->scale, scratch->delta);
    const float *lse = f->a->lse + rows.lse + b->first * s->heads;
    for (int64_t i = 0; i < b->vectors * PL_LANES; ++i)
        scratch->lse[i] = i < b->queries ? lse[i * s->heads] : 0;
}

/* Rows of vector V of the tiles: scores become weights, products with values become gradients of
 * scores; both are 0 where a key is not seen. */
static void weigh(backward_scratch *scratch, const pl_query_block *b, pl_key_range range, int64_t v)
{
    pl_key_range seen = pl_rows_seen(b, range, v);
    const pl_floats lse = pl_load(scratch->lse + v * PL_LANES);
    const pl_floats delta = pl_load(scratch->delta + v * PL_LANES);
    int64_t masked = pl_smaller_count(pl_first_masked(b, range, v), seen.end);
    int64_t place = v * PL_LANES, key = range.begin;
    for (; key < masked; ++key, place += PL_QUERY_BLOCK) {
        pl_floats weight = pl_exp(pl_load(scratch->weights + place) - lse);
        pl_store(scratch->weights + place, weight);
        pl_store(scratch->dscores + place, weight * (pl_load(scratch->dscores + place) - delta));
    }
    for (; key < seen.end; ++key, place += PL_QUERY_BLOCK) {
        const pl_integers seen_by = pl_lanes_that_see(b, v, key);
        pl_floats weight = pl_exp(pl_load(scratch->weights + place) - lse);
        weight = pl_choose(seen_by, weight, pl_splat(0));
        pl_store(scratch->weights + place, weight);
        pl_store(scratch->dscores + place, weight * (pl_load(scratch->dscores + place) - delta));
    }
}

static void make_tiles(const backward *f, backward_scratch *scratch, const pl_query_block *b,
                       pl_key_range range, head_rows rows)
{
    pl_score_tile(&f->shape, b, range, (const float *)f->a->k + rows.kv, scratch->q,
                  scratch->weights);
    pl_score_tile(&f->shape, b, range, (const float *)f->a->v + rows.kv, scratch->dout,
                  scratch->dscores);
    for (int64_t v = 0; v < b->vectors; ++v) weigh(scratch, b, range, v);
}

/* to[key] += TILE times the block's rows, FROM being the first of them. */
static void spread_tile(const pl_attention_shape *s, const pl_query_block *b, pl_key_range range,
                        const float *tile, const float *from, float *to)
{
    for (int64_t v = 0; v < b->vectors; ++v) {
        pl_key_range rows = pl_rows_from(b, range, v);
        if (rows.begin >= rows.end) continue;
        pl_product_small(&(pl_small_product){
            .a = tile + (rows.begin - range.begin) * PL_QUERY_BLOCK + v * PL_LANES,
            .a_row = PL_QUERY_BLOCK,
            .a_step = 1,
            .b = from + v * PL_LANES * s->q_row,
            .b_row = s->q_row,
            .c = to + rows.begin * s->kv_row,
            .c_row = s->kv_row,
            .m = rows.end - rows.begin,
            .n = s->head_dim,
            .k = b->queries - v * PL_LANES,
            .add = true});
    }
}

static void add_to_keys(const backward *f, const backward_scratch *scratch, const pl_query_block *b,
                        pl_key_range range, head_rows rows)
{
    const pl_attention_shape *s = &f->shape;
    int64_t place = rows.q + b->first * s->q_row;
    spread_tile(s, b, range, scratch->weights, (const float *)f->a->dout + place,
                (float *)f->a->dv + rows.kv);
    spread_tile(s, b, range, scratch->dscores, (const float *)f->a->q + place,
                (float *)f->a->dk + rows.kv);
}

static void store_queries(const backward *f, const backward_scratch *scratch,
                          const pl_query_block *b, head_rows rows)
{
    const pl_attention_shape *s = &f->shape;
    pl_transpose(scratch->dq, PL_QUERY_BLOCK, s->head_dim, b->queries, 1,
                 (float *)f->a->dq + rows.q + b->first * s->q_row, s->q_row);
}

static void clear_row(float *row, int64_t count)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) pl_store(row + i, pl_splat(0));
    if (i < count) pl_store_part(row + i, pl_splat(0), count - i);
}

static void clear_keys(const backward *f, head_rows rows, int64_t begin, int64_t end)
{
    const pl_attention_shape *s = &f->shape;
    for (int64_t key = begin; key < end; ++key) {
        clear_row((float *)f->a->dk + rows.kv + key * s->kv_row, s->head_dim);
        clear_row((float *)f->a->dv + rows.kv + key * s->kv_row, s->head_dim);
    }
}

/* All of a key-value head of a sequence. */
static void whole_head(void *context, int64_t index, void *memory)
{
    const backward *f = context;
    const pl_attention_shape *s = &f->shape;
    backward_scratch *scratch = memory;
    int64_t sequence = index / s->kv_heads, first_head = index % s->kv_heads * s->group;
    clear_keys(f, rows_of_head(s, sequence, first_head), 0, s->sequence);
    for (int64_t i = 0; i < s->group * s->blocks; ++i) {
        head_rows rows = rows_of_head(s, sequence, first_head + i / s->blocks);
        pl_query_block b = pl_query_block_at(s, i % s->blocks);
        prepare(f, scratch, &b, rows);
        for (int64_t block = 0; block * PL_KEY_BLOCK < b.key_end; ++block) {
            pl_key_range range = pl_key_block_at(&b, block);
            make_tiles(f, scratch, &b, range, rows);
            pl_gather_tile(s, &b, range, (const float *)f->a->k + rows.kv, scratch->dscores,
                           scratch->dq);
            add_to_keys(f, scratch, &b, range, rows);
        }
        store_queries(f, scratch, &b, rows);
    }
}

/* dq of one block of queries of one head. */
static void queries_only(void *context, int64_t index, void *memory)
{
    const backward *f = context;
    const pl_attention_shape *s = &f->shape;
    backward_scratch *scratch = memory;
    pl_query_block b = pl_query_block_at(s, s->blocks - 1 - index % s->blocks);
    head_rows rows = rows_of_head(s, index / s->blocks / s->heads, index / s->blocks % s->heads);
    prepare(f, scratch, &b, rows);
    for (int64_t block = 0; block * PL_KEY_BLOCK < b.key_end; ++block) {
        pl_key_range range = pl_key_block_at(&b, block);
        make_tiles(f, scratch, &b, range, rows);
        pl_gather_tile(s, &b, range, (const float *)f->a->k + rows.kv, scratch->dscores,
                       scratch->dq);
    }
    store_queries(f, scratch, &b, rows);
}

/* dk and dv of one block of keys of one key-value head. */
static void keys_only(void *context, int64_t index, void *memory)
{
    const backward *f = context;
    const pl_attention_shape *s = &f->shape;
    backward_scratch *scratch = memory;
    int64_t block = index % s->key_blocks, head = index / s->key_blocks;
    int64_t sequence = head / s->kv_heads, first_head = head % s->kv_heads * s->group;
    int64_t begin = block * PL_KEY_BLOCK;
    clear_keys(f, rows_of_head(s, sequence, first_head), begin,
               pl_smaller_count(begin + PL_KEY_BLOCK, s->sequence));
    for (int64_t i = 0; i < s->group * s->blocks; ++i) {
        head_rows rows = rows_of_head(s, sequence, first_head + i / s->blocks);
        pl_query_block b = pl_query_block_at(s, i % s->blocks);
        if (b.key_end <= begin) continue;
        pl_key_range range = pl_key_block_at(&b, block);
        prepare(f, scratch, &b, rows);
        make_tiles(f, scratch, &b, range, rows);
        add_to_keys(f, scratch, &b, range, rows);
    }
}

/* Whole heads take 5 products of a tile, the finer tasks 7, but these leave no worker idle. */
static bool finer_is_faster(const pl_attention_shape *s, int64_t workers)
{
    int64_t tasks = s->sequences * s->kv_heads;
    return 5 * pl_divide_up(tasks, workers) * workers > 7 * tasks;
}

static pl_status run(backward *f, pl_pool *pool)
{
    const pl_attention_shape *s = &f->shape;
    const size_t bytes = sizeof(backward_scratch);
    if (!finer_is_faster(s, pl_pool_workers(pool)))
        return pl_pool_run(pool, s->sequences * s->kv_heads, bytes, whole_head, f);
    PL_TRY(pl_pool_run(pool, s->sequences * s->heads * s->blocks, bytes, queries_only, f));
    return pl_pool_run(pool, s->sequences * s->kv_heads * s->key_blocks, bytes, keys_only, f);
}

pl_status PL_ISA(pl_cpu_attention_backward)(pl_device *device, pl_stream stream,
                                            const pl_attention_backward_arguments *a)
{
    PL_TRY(pl_cpu_require_fp32(device, "attention_backward", a->dtype));
    backward f = {.a = a,
                  .shape = {.sequences = a->sequences,
                            .sequence = a->sequence,
                            .heads = a->heads,
                            .kv_heads = a->kv_heads,
                            .head_dim = a->head_dim,
                            .scale = (float)a->scale}};
    pl_attention_totals totals = {0};
    bool given = a->q && a->k && a->v && a->out && a->dout && a->lse && a->dq && a->dk && a->dv;
    PL_TRY(pl_attention_cut(&f.shape, &totals, device, "attention_backward", given));
    const pl_touch touches[] = {
        pl_touch_read(a->q, totals.query_bytes),    pl_touch_read(a->k, totals.key_bytes),
        pl_touch_read(a->v, totals.key_bytes),      pl_touch_read(a->out, totals.query_bytes),
        pl_touch_read(a->dout, totals.query_bytes), pl_touch_read(a->lse, totals.lse_bytes),
        pl_touch_write(a->dq, totals.query_bytes),  pl_touch_write(a->dk, totals.key_bytes),
        pl_touch_write(a->dv, totals.key_bytes)};
    pl_device_note(device, stream, "attention_backward", 4 * totals.flops, touches, 9);
    return run(&f, pl_cpu_pool(device));
}
