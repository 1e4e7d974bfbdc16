/* What the suites of the experts share: rows in the three orders, and experts in plain loops in
 * double: SwiGLU of every pair of a row and an expert, forward and backward.
 */
#ifndef PL_TESTS_KERNELS_EXPERTS_H
#define PL_TESTS_KERNELS_EXPERTS_H

#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

/* How rows are spread over the experts. */
typedef enum spread { SPREAD_ANY, SPREAD_ONE, SPREAD_GAPS } spread;

typedef struct experts_case {
    pl_expert_order order;
    int64_t experts, all, first; /* hosted of all, from `first` on */
    int64_t tokens, chosen;      /* SORTED, CHOSEN */
    int64_t sources, most;       /* COUNTED: rows of one source and expert at most */
    int64_t hidden, width;
    spread spread;
} experts_case;

/* One row at one expert; choice: CHOSEN, which one it is, else -1. */
typedef struct pair {
    int64_t expert, row, choice;
} pair;

/* One case in device memory, and what is to come out. */
typedef struct trial {
    const experts_case *c;
    pl_expert_rows rows;
    pair *pairs;
    int64_t count; /* of pairs */
    float *in, *dout, *gate, *up, *down;
    /* in double: expected values, and the gradients of sum(dout * out) */
    double *out, *din, *dweights, *dgate, *dup, *ddown;
} trial;

static inline int64_t matrix_of(const trial *x) { return x->c->hidden * x->c->width; }

static inline int64_t choices_of(const experts_case *c) { return c->tokens * c->chosen; }

/* --- rows --- */

static inline bool spread_wants(const experts_case *c, int64_t expert)
{
    if (c->spread == SPREAD_ONE) return expert == c->all / 2;
    return c->spread == SPREAD_ANY || expert % 3 == 1;
}

static inline void add_pair(trial *x, int64_t expert, int64_t row, int64_t choice)
{
    x->pairs[x->count++] = (pair){expert, row, choice};
}

static inline void make_counted(kernel_test *t, trial *x)
{
    const experts_case *c = x->c;
    int64_t *counts = kernel_bytes(t, c->sources * c->experts * 8), rows = 0;
    for (int64_t i = 0; i < c->sources * c->experts; ++i) {
        counts[i] = spread_wants(c, i % c->experts) ? kernel_random_below(t, c->most + 1) : 0;
        rows += counts[i];
    }
    assert_ok(pl_allocate(&x->pairs, (size_t)rows, sizeof *x->pairs, "pairs"));
    for (int64_t i = 0; i < c->sources * c->experts; ++i)
        for (int64_t n = 0; n < counts[i]; ++n) add_pair(x, i % c->experts, x->count, -1);
    x->rows.sources = c->sources;
    x->rows.counts = counts;
    x->rows.rows = x->rows.room = rows;
}

/* Different experts for each token, as far as the spread has enough of them. */
static inline int32_t *make_choices(kernel_test *t, const experts_case *c)
{
    int32_t *choices = kernel_bytes(t, choices_of(c) * 4);
    for (int64_t i = 0; i < choices_of(c); ++i) {
        int64_t first = i / c->chosen * c->chosen;
        bool again = true;
        while (again) {
            choices[i] = (int32_t)kernel_random_below(t, c->all);
            again = !spread_wants(c, choices[i]);
            for (int64_t j = first; j < i; ++j) again |= choices[j] == choices[i];
        }
    }
    return choices;
}

static inline void make_chosen(kernel_test *t, trial *x)
{
    const experts_case *c = x->c;
    int32_t *choices = make_choices(t, c);
    bool sorted = c->order == PL_EXPERTS_SORTED;
    assert_ok(pl_allocate(&x->pairs, (size_t)choices_of(c), sizeof *x->pairs, "pairs"));
    for (int64_t e = 0; e < c->experts; ++e)
        for (int64_t i = 0; i < choices_of(c); ++i)
            if (choices[i] == c->first + e)
                add_pair(x, e, sorted ? x->count : i / c->chosen, sorted ? -1 : i);
    x->rows.choices = choices;
    x->rows.tokens = c->tokens;
    x->rows.chosen = c->chosen;
    x->rows.rows = sorted ? choices_of(c) : c->tokens;
    x->rows.room = c->tokens * (c->chosen < c->experts ? c->chosen : c->experts);
    if (!sorted) x->rows.weights = kernel_floats(t, choices_of(c));
}

/* --- plain loops --- */

typedef struct plain_row {
    double *gate, *up, *act, *dact, *dgate, *dup; /* [width] each, one after another */
} plain_row;

static inline double plain_dot(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += (double)a[i] * (double)b[i];
    return sum;
}

static inline void plain_forward(const trial *x, const pair *p, double factor, plain_row *r)
{
    int64_t hidden = x->c->hidden, width = x->c->width, matrix = p->expert * matrix_of(x);
    for (int64_t w = 0; w < width; ++w) {
        const float *in = x->in + p->row * hidden;
        r->gate[w] = plain_dot(in, x->gate + matrix + w * hidden, hidden);
        r->up[w] = plain_dot(in, x->up + matrix + w * hidden, hidden);
        r->act[w] = r->gate[w] / (1 + exp(-r->gate[w])) * r->up[w];
    }
    for (int64_t h = 0; h < hidden; ++h)
        for (int64_t w = 0; w < width; ++w)
            x->out[p->row * hidden + h] +=
                factor * (double)x->down[matrix + h * width + w] * r->act[w];
}

static inline void plain_backward(const trial *x, const pair *p, double factor, plain_row *r)
{
    int64_t hidden = x->c->hidden, width = x->c->width, matrix = p->expert * matrix_of(x);
    const float *in = x->in + p->row * hidden, *dout = x->dout + p->row * hidden;
    for (int64_t w = 0; w < width; ++w) {
        r->dact[w] = 0;
        for (int64_t h = 0; h < hidden; ++h) {
            r->dact[w] += (double)dout[h] * (double)x->down[matrix + h * width + w];
            x->ddown[matrix + h * width + w] += factor * (double)dout[h] * r->act[w];
        }
        if (p->choice >= 0) x->dweights[p->choice] += r->dact[w] * r->act[w];
        double s = 1 / (1 + exp(-r->gate[w])), d = factor * r->dact[w];
        r->dgate[w] = d * r->up[w] * s * (1 + r->gate[w] * (1 - s));
        r->dup[w] = d * r->gate[w] * s;
        for (int64_t h = 0; h < hidden; ++h) {
            int64_t at = matrix + w * hidden + h;
            x->dgate[at] += r->dgate[w] * (double)in[h];
            x->dup[at] += r->dup[w] * (double)in[h];
            x->din[p->row * hidden + h] +=
                r->dgate[w] * (double)x->gate[at] + r->dup[w] * (double)x->up[at];
        }
    }
}

static inline void plain_experts(trial *x)
{
    int64_t width = x->c->width;
    double *room = kernel_doubles(6 * width);
    plain_row r = {
        room, room + width, room + 2 * width, room + 3 * width, room + 4 * width, room + 5 * width};
    for (int64_t i = 0; i < x->count; ++i) {
        const pair *p = &x->pairs[i];
        double factor = p->choice >= 0 ? (double)x->rows.weights[p->choice] : 1;
        plain_forward(x, p, factor, &r);
        plain_backward(x, p, factor, &r);
    }
    pl_free(room);
}

/* --- trials --- */

static inline trial make_trial(kernel_test *t, const experts_case *c)
{
    trial x = {.c = c};
    int64_t matrices = c->experts * c->hidden * c->width;
    x.rows.order = c->order;
    x.rows.experts = c->experts;
    x.rows.first = c->first;
    if (c->order == PL_EXPERTS_COUNTED)
        make_counted(t, &x);
    else
        make_chosen(t, &x);
    int64_t rows = x.rows.rows * c->hidden;
    x.in = kernel_floats(t, rows);
    x.dout = kernel_floats(t, rows);
    x.gate = kernel_floats(t, matrices);
    x.up = kernel_floats(t, matrices);
    x.down = kernel_floats(t, matrices);
    x.out = kernel_doubles(rows);
    x.din = kernel_doubles(rows);
    x.dweights = kernel_doubles(choices_of(c));
    x.dgate = kernel_doubles(matrices);
    x.dup = kernel_doubles(matrices);
    x.ddown = kernel_doubles(matrices);
    plain_experts(&x);
    return x;
}

static inline void free_trial(trial *x)
{
    pl_free(x->pairs);
    pl_free(x->out);
    pl_free(x->din);
    pl_free(x->dweights);
    pl_free(x->dgate);
    pl_free(x->dup);
    pl_free(x->ddown);
}

/* --- calls --- */

static inline float *make_pairs(kernel_test *t, const trial *x)
{
    return kernel_room(t, x->rows.room * 2 * x->c->width);
}

static inline pl_experts_arguments forward_arguments(const trial *x, float *saved, float *out)
{
    return (pl_experts_arguments){.rows = x->rows,
                                  .in = x->in,
                                  .gate = x->gate,
                                  .up = x->up,
                                  .down = x->down,
                                  .saved = saved,
                                  .out = out,
                                  .dtype = PL_FP32,
                                  .hidden = x->c->hidden,
                                  .width = x->c->width};
}

static inline pl_status run_experts(kernel_test *t, const pl_experts_arguments *a)
{
    return t->operations->experts(t->device, PL_STREAM_COMPUTE, a);
}

#endif
