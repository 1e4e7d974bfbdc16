/* Heads of queries and keys: norm over each head, then rotary embedding (Su et al. 2021, in the
 * form that pairs element i with i + head_dim/2). */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/norm.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { FLOAT = sizeof(float) };

/* Both halves of a head, or of a row of the table of cosines and sines, at one place. */
typedef struct pair {
    pl_floats low, high;
} pair;

/* COUNT lanes at most; a full vector is the common case. */
static inline pair load_pair(const float *from, int64_t half, int64_t count)
{
    if (count >= PL_LANES) return (pair){pl_load(from), pl_load(from + half)};
    return (pair){pl_load_part(from, count), pl_load_part(from + half, count)};
}

static inline void store_pair(float *to, int64_t half, int64_t count, pair p)
{
    if (count >= PL_LANES) {
        pl_store(to, p.low);
        pl_store(to + half, p.high);
    } else {
        pl_store_part(to, p.low, count);
        pl_store_part(to + half, p.high, count);
    }
}

static inline pair times(pair a, pair b) { return (pair){a.low * b.low, a.high * b.high}; }

static inline pair rotate(pair x, pair turn)
{
    return (pair){x.low * turn.low - x.high * turn.high, x.high * turn.low + x.low * turn.high};
}

static inline pair rotate_back(pair y, pair turn)
{
    return (pair){y.low * turn.low + y.high * turn.high, y.high * turn.low - y.low * turn.high};
}

static float head_rstd(const float *x, int64_t half, double epsilon)
{
    pl_floats sum = pl_splat(0);
    for (int64_t i = 0; i < half; i += PL_LANES) {
        pair v = load_pair(x + i, half, half - i);
        sum += v.low * v.low + v.high * v.high;
    }
    return (float)(1 / sqrt((double)pl_lane_sum(sum) / (double)(2 * half) + epsilon));
}

/* --- forward --- */

static void rotate_head(const float *x, const float *weight, float rstd, const float *turns,
                        float *y, int64_t half)
{
    pl_floats factor = pl_splat(rstd);
    for (int64_t i = 0; i < half; i += PL_LANES) {
        int64_t left = half - i;
        pair v = load_pair(x + i, half, left);
        if (weight) v = times(times(v, (pair){factor, factor}), load_pair(weight + i, half, left));
        store_pair(y + i, half, left, rotate(v, load_pair(turns + i, half, left)));
    }
}

static void rotate_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_head_rotate_arguments *a = context;
    int64_t width = a->heads * a->head_dim, block = pl_row_block(width), half = a->head_dim / 2;
    int64_t begin = index * block, end = begin + pl_block_length(index, block, a->rows);
    for (int64_t row = begin; row < end; ++row) {
        const float *turns = a->rotary + row % a->sequence * a->head_dim;
        for (int64_t head = 0; head < a->heads; ++head) {
            int64_t place = row * a->heads + head;
            const float *x = (const float *)a->x + place * a->head_dim;
            float rstd = a->weight ? head_rstd(x, half, a->epsilon) : 1;
            if (a->rstd) a->rstd[place] = rstd;
            rotate_head(x, a->weight, rstd, turns, (float *)a->y + place * a->head_dim, half);
        }
    }
}

typedef struct head_shape {
    int64_t rows, heads, head_dim, sequence;
    int64_t values; /* of rows, heads and head_dim */
} head_shape;

static pl_status check_shape(const pl_device *device, const char *what, head_shape *s)
{
    PL_TRY(pl_cpu_elements(device, what, &s->values, s->rows, s->heads, s->head_dim));
    return pl_cpu_require(
        device, what, s->rows == 0 || (s->sequence > 0 && s->head_dim > 0 && s->head_dim % 2 == 0),
        "the sequence has a length and head_dim is even");
}

pl_status PL_ISA(pl_cpu_head_rotate)(pl_device *device, pl_stream stream,
                                     const pl_head_rotate_arguments *a)
{
    int64_t turns = 0;
    head_shape s = {a->rows, a->heads, a->head_dim, a->sequence, 0};
    PL_TRY(pl_cpu_require_fp32(device, "head_rotate", a->dtype));
    PL_TRY(check_shape(device, "head_rotate", &s));
    PL_TRY(pl_cpu_elements(device, "head_rotate", &turns, a->sequence, a->head_dim, 1));
    PL_TRY(pl_cpu_require(device, "head_rotate", s.values == 0 || (a->x && a->y && a->rotary),
                          "x, y and rotary are given"));
    PL_TRY(pl_cpu_require(device, "head_rotate", a->weight || !a->rstd,
                          "without a norm there is no rstd"));
    int64_t bytes = s.values * FLOAT;
    pl_touch touches[] = {pl_touch_read(a->x == a->y ? NULL : a->x, bytes),
                          pl_touch_read(a->weight, a->head_dim * FLOAT),
                          a->x == a->y ? pl_touch_update(a->y, bytes) : pl_touch_write(a->y, bytes),
                          pl_touch_write(a->rstd, a->rows * a->heads * FLOAT),
                          pl_touch_read(a->rotary, turns * FLOAT)};
    pl_device_note(device, stream, "head_rotate", 0, touches, 5);
    if (s.values == 0) return PL_OK;
    pl_head_rotate_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device),
                       pl_divide_up(a->rows, pl_row_block(a->heads * a->head_dim)), 0, rotate_rows,
                       &arguments);
}

/* --- backward --- */

typedef struct rotate_backward {
    const pl_head_rotate_backward_arguments *a;
    int64_t block;  /* rows */
    float *partial; /* [blocks, head_dim]; NULL: dweight is not wanted */
} rotate_backward;

/* dx of one head = rstd (weight dn - x rstd^2 mean(weight dn x)), dn being dy rotated back; and
 * sum += dn x rstd. */
static void norm_backward_head(const pl_head_rotate_backward_arguments *a, int64_t place,
                               const float *turns, float *sum)
{
    int64_t half = a->head_dim / 2;
    const float *x = (const float *)a->x + place * a->head_dim, *weight = a->weight;
    const float *dy = (const float *)a->dy + place * a->head_dim;
    float *dx = (float *)a->dx + place * a->head_dim;
    pl_floats dot = pl_splat(0);
    for (int64_t i = 0; i < half; i += PL_LANES) {
        int64_t left = half - i;
        pair dn = rotate_back(load_pair(dy + i, half, left), load_pair(turns + i, half, left));
        pair d = times(times(dn, load_pair(weight + i, half, left)), load_pair(x + i, half, left));
        dot += d.low + d.high;
    }
    float rstd = a->rstd[place], mean = pl_lane_sum(dot) / (float)a->head_dim;
    pl_floats factor = pl_splat(rstd), share = pl_splat(rstd * rstd * rstd * mean);
    for (int64_t i = 0; i < half; i += PL_LANES) {
        int64_t left = half - i;
        pair dn = rotate_back(load_pair(dy + i, half, left), load_pair(turns + i, half, left));
        pair v = load_pair(x + i, half, left);
        pair d = times(dn, load_pair(weight + i, half, left));
        d.low = d.low * factor - v.low * share;
        d.high = d.high * factor - v.high * share;
        store_pair(dx + i, half, left, d);
        if (!sum) continue;
        pair total = load_pair(sum + i, half, left);
        total.low += dn.low * v.low * factor;
        total.high += dn.high * v.high * factor;
        store_pair(sum + i, half, left, total);
    }
}

static void rotate_back_head(const pl_head_rotate_backward_arguments *a, int64_t place,
                             const float *turns)
{
    int64_t half = a->head_dim / 2;
    const float *dy = (const float *)a->dy + place * a->head_dim;
    float *dx = (float *)a->dx + place * a->head_dim;
    for (int64_t i = 0; i < half; i += PL_LANES) {
        int64_t left = half - i;
        store_pair(dx + i, half, left,
                   rotate_back(load_pair(dy + i, half, left), load_pair(turns + i, half, left)));
    }
}

static void rotate_backward_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const rotate_backward *r = context;
    const pl_head_rotate_backward_arguments *a = r->a;
    int64_t begin = index * r->block, end = begin + pl_block_length(index, r->block, a->rows);
    float *sum = r->partial ? r->partial + index * a->head_dim : NULL;
    for (int64_t i = 0; sum && i < a->head_dim; ++i) sum[i] = 0;
    for (int64_t row = begin; row < end; ++row) {
        const float *turns = a->rotary + row % a->sequence * a->head_dim;
        for (int64_t place = row * a->heads; place < (row + 1) * a->heads; ++place) {
            if (a->weight)
                norm_backward_head(a, place, turns, sum);
            else
                rotate_back_head(a, place, turns);
        }
    }
}

static pl_status check_backward(const pl_device *device, const pl_head_rotate_backward_arguments *a,
                                head_shape *s)
{
    int64_t turns = 0;
    const char *what = "head_rotate_backward";
    PL_TRY(pl_cpu_require_fp32(device, what, a->dtype));
    PL_TRY(check_shape(device, what, s));
    PL_TRY(pl_cpu_elements(device, what, &turns, a->sequence, a->head_dim, 1));
    PL_TRY(pl_cpu_require(device, what, s->values == 0 || (a->dy && a->dx && a->rotary),
                          "dy, dx and rotary are given"));
    return pl_cpu_require(device, what,
                          a->weight ? s->values == 0 || (a->x && a->rstd) : !a->dweight,
                          "x and rstd come with a weight, and dweight only then");
}

pl_status PL_ISA(pl_cpu_head_rotate_backward)(pl_device *device, pl_stream stream,
                                              const pl_head_rotate_backward_arguments *a)
{
    head_shape s = {a->rows, a->heads, a->head_dim, a->sequence, 0};
    PL_TRY(check_backward(device, a, &s));
    int64_t bytes = s.values * FLOAT, weights = a->head_dim * FLOAT;
    pl_touch touches[] = {
        pl_touch_read(a->weight ? a->x : NULL, bytes),
        pl_touch_read(a->weight, weights),
        pl_touch_read(a->weight ? a->rstd : NULL, a->rows * a->heads * FLOAT),
        pl_touch_read(a->rotary, a->sequence * weights),
        pl_touch_read(a->dy == a->dx ? NULL : a->dy, bytes),
        a->dy == a->dx ? pl_touch_update(a->dx, bytes) : pl_touch_write(a->dx, bytes),
        a->add ? pl_touch_update(a->dweight, weights) : pl_touch_write(a->dweight, weights)};
    pl_device_note(device, stream, "head_rotate_backward", 0, touches, 7);
    rotate_backward r = {.a = a, .block = pl_sum_block(a->rows, a->heads * a->head_dim)};
    int64_t blocks = s.values == 0 ? 0 : pl_divide_up(a->rows, r.block);
    if (a->dweight) {
        void *partial = NULL;
        PL_TRY(pl_cpu_workspace(device, blocks * weights, &partial));
        r.partial = partial;
    }
    PL_TRY(pl_pool_run(pl_cpu_pool(device), blocks, 0, rotate_backward_rows, &r));
    if (!a->dweight) return PL_OK;
    return PL_ISA(pl_cpu_add_partials)(device, r.partial, blocks, a->head_dim, a->add, a->dweight);
}
