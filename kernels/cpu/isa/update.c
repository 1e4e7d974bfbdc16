/* What happens to gradients after the backward pass: scale, sums of squares, clip, update. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { FLOAT = sizeof(float), DOUBLE = sizeof(double), CLIP = 3 * DOUBLE };

/* What follows passes once over more memory than caches hold: the next lines are asked for while
 * one chunk is worked on, further ahead than processors do by themselves. */
enum { CHUNK = 64, AHEAD = 4096, LINE = 64 };

static inline void fetch(const float *chunk)
{
    for (uintptr_t at = 0; at < CHUNK * sizeof *chunk; at += LINE)
        __builtin_prefetch((const void *)((uintptr_t)chunk + AHEAD + at));
}

/* --- scale --- */

typedef struct scaling {
    float *x;
    int64_t count;
    float factor;
} scaling;

static void scale_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const scaling *s = context;
    float *x = s->x + index * PL_BLOCK;
    int64_t count = pl_block_length(index, PL_BLOCK, s->count), i = 0;
    pl_floats factor = pl_splat(s->factor);
    for (; i + CHUNK <= count; i += CHUNK) {
        fetch(x + i);
        for (int64_t j = i; j < i + CHUNK; j += PL_LANES) pl_store(x + j, pl_load(x + j) * factor);
    }
    for (; i < count; ++i) x[i] = x[i] * s->factor;
}

static double power(double base, int32_t exponent)
{
    double result = 1;
    for (int32_t i = 0; i < exponent; ++i) result *= base;
    for (int32_t i = 0; i > exponent; --i) result /= base;
    return result;
}

pl_status PL_ISA(pl_cpu_scale)(pl_device *device, pl_stream stream, const pl_scale_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_elements(device, "scale", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "scale",
                          (count == 0 || a->x) && (a->tokens == 0 || a->token_count),
                          "x is given, and the count of tokens where the scale has it"));
    PL_TRY(pl_cpu_require(device, "scale",
                          a->denominator != 0 && a->tokens >= -64 && a->tokens <= 64,
                          "the denominator is not 0, the power of T at most 64"));
    pl_touch touches[] = {pl_touch_update(a->x, count * FLOAT),
                          pl_touch_read(a->tokens ? a->token_count : NULL, sizeof(int64_t))};
    pl_device_note(device, stream, "scale", 0, touches, 2);
    if (a->tokens != 0 && *a->token_count == 0) return PL_OK;
    double factor = (double)a->numerator / a->denominator;
    if (a->tokens != 0) factor *= power((double)*a->token_count, a->tokens);
    if (factor == 1) return PL_OK;
    scaling s = {a->x, count, (float)factor};
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(count, PL_BLOCK), 0, scale_block, &s);
}

/* --- sums of squares --- */

typedef struct squares {
    const float *x;
    int64_t count;
    double *partial; /* of each block */
} squares;

typedef float pl_half_floats __attribute__((vector_size(PL_VECTOR_BYTES / 2)));

static inline pl_doubles squares_of(const float *x)
{
    pl_half_floats v;
    memcpy(&v, x, sizeof v);
    pl_doubles wide = __builtin_convertvector(v, pl_doubles);
    return wide * wide;
}

static void squares_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    enum { LANES = PL_LANES / 2, SUMS = 4, STEP = LANES * SUMS };
    const squares *s = context;
    const float *x = s->x + index * PL_BLOCK;
    int64_t count = pl_block_length(index, PL_BLOCK, s->count), i = 0;
    pl_doubles sum[SUMS] = {{0}};
    for (; i + CHUNK <= count; i += CHUNK) {
        fetch(x + i);
        for (int64_t j = i; j < i + CHUNK; j += STEP)
            for (int64_t k = 0; k < SUMS; ++k) sum[k] += squares_of(x + j + k * LANES);
    }
    pl_doubles all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0, lanes[LANES];
    memcpy(lanes, &all, sizeof lanes);
    for (int j = 0; j < LANES; ++j) total += lanes[j];
    for (; i < count; ++i) total += (double)x[i] * x[i];
    s->partial[index] = total;
}

pl_status PL_ISA(pl_cpu_squares)(pl_device *device, pl_stream stream, const pl_squares_arguments *a)
{
    int64_t count = 0;
    void *partial = NULL;
    PL_TRY(pl_cpu_elements(device, "squares", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "squares", (count == 0 || a->x) && a->to, "x and to are given"));
    pl_touch touches[] = {pl_touch_read(a->x, count * FLOAT),
                          a->add ? pl_touch_update(a->to, DOUBLE) : pl_touch_write(a->to, DOUBLE)};
    pl_device_note(device, stream, "squares", 0, touches, 2);
    int64_t blocks = pl_divide_up(count, PL_BLOCK);
    PL_TRY(pl_cpu_workspace(device, blocks * DOUBLE, &partial));
    squares s = {a->x, count, partial};
    PL_TRY(pl_pool_run(pl_cpu_pool(device), blocks, 0, squares_block, &s));
    double total = 0;
    for (int64_t i = 0; i < blocks; ++i) total += s.partial[i];
    *a->to = a->add ? *a->to + total : total;
    return PL_OK;
}

/* --- clip --- */

pl_status PL_ISA(pl_cpu_clip)(pl_device *device, pl_stream stream, const pl_clip_arguments *a)
{
    PL_TRY(pl_cpu_require(device, "clip", a->clip && a->limit >= 0,
                          "clip is given and the limit is at least 0"));
    pl_touch touches[] = {pl_touch_read(a->squares[0], DOUBLE),
                          pl_touch_read(a->squares[1], DOUBLE),
                          pl_touch_read(a->squares[2], DOUBLE), pl_touch_write(a->clip, CLIP)};
    pl_device_note(device, stream, "clip", 0, touches, 4);
    double total = 0;
    for (int i = 0; i < 3; ++i)
        if (a->squares[i]) total += *a->squares[i];
    double norm = sqrt(total), factor = a->limit / (norm + 1e-6);
    a->clip[0] = norm;
    a->clip[1] = a->limit == 0 || factor > 1 ? 1 : factor;
    a->clip[2] = isfinite(norm) ? 1 : 0;
    return PL_OK;
}

/* --- update --- */

/* The factors of one update, as floats are multiplied with them. */
typedef struct update {
    const pl_update_arguments *a;
    float clip, decay;                /* of gradients; lr * decay of parameters */
    float beta1, rest1, beta2, rest2; /* the betas, and what is missing to 1 */
    float rate, root, epsilon;        /* lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
} update;

/* Inlined where COUNT is CHUNK, and where it is what is left. */
static inline void adamw(const update *u, float *restrict p, float *restrict m, float *restrict v,
                         const float *restrict g, int64_t count)
{
    const update f = *u;
    for (int64_t i = 0; i < count; ++i) {
        float gradient = g[i] * f.clip;
        float first = f.beta1 * m[i] + f.rest1 * gradient;
        float second = f.beta2 * v[i] + f.rest2 * (gradient * gradient);
        float step = f.rate * first / (sqrtf(second) * f.root + f.epsilon);
        m[i] = first;
        v[i] = second;
        p[i] = (p[i] - f.decay * p[i]) - step;
    }
}

static void adamw_block(const update *u, int64_t begin, int64_t count)
{
    float *p = u->a->p + begin, *m = u->a->m + begin, *v = u->a->v + begin;
    const float *g = u->a->g + begin;
    int64_t i = 0;
    for (; i + CHUNK <= count; i += CHUNK) {
        fetch(p + i);
        fetch(m + i);
        fetch(v + i);
        fetch(g + i);
        adamw(u, p + i, m + i, v + i, g + i, CHUNK);
    }
    adamw(u, p + i, m + i, v + i, g + i, count - i);
}

static void sgd_block(const update *u, int64_t begin, int64_t count)
{
    const update f = *u;
    float *restrict p = u->a->p + begin;
    const float *restrict g = u->a->g + begin;
    for (int64_t i = 0; i < count; ++i) p[i] = (p[i] - f.decay * p[i]) - f.rate * (g[i] * f.clip);
}

static void update_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const update *u = context;
    int64_t count = pl_block_length(index, PL_BLOCK, u->a->count);
    (u->a->m ? adamw_block : sgd_block)(u, index * PL_BLOCK, count);
}

static update make_update(const pl_update_arguments *a)
{
    update u = {.a = a, .clip = (float)a->clip[1], .decay = (float)(a->lr * a->decay)};
    u.rate = (float)a->lr;
    if (!a->m) return u;
    u.beta1 = (float)a->beta1;
    u.rest1 = (float)(1 - a->beta1);
    u.beta2 = (float)a->beta2;
    u.rest2 = (float)(1 - a->beta2);
    u.rate = (float)(a->lr / (1 - pow(a->beta1, (double)a->t)));
    u.root = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->t)));
    u.epsilon = (float)a->epsilon;
    return u;
}

pl_status PL_ISA(pl_cpu_update)(pl_device *device, pl_stream stream, const pl_update_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_elements(device, "update", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "update",
                          (count == 0 || (a->p && a->g && !a->m == !a->v)) && a->clip &&
                              a->token_count,
                          "p, g, clip and token_count are given, and m and v both or not"));
    PL_TRY(pl_cpu_require(device, "update", a->t >= 1, "updates are numbered from 1"));
    int64_t bytes = count * FLOAT;
    pl_touch touches[] = {
        pl_touch_update(a->p, bytes), pl_touch_update(a->m, bytes),
        pl_touch_update(a->v, bytes), pl_touch_read(a->g, bytes),
        pl_touch_read(a->clip, CLIP), pl_touch_read(a->token_count, sizeof(int64_t))};
    pl_device_note(device, stream, "update", 0, touches, 6);
    if (a->clip[2] == 0 || *a->token_count == 0) return PL_OK;
    update u = make_update(a);
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(count, PL_BLOCK), 0, update_block, &u);
}
