/* Causal attention and its gradients in double precision, by plain loops over queries and keys, and
 * ways to get it wrong.
 */
#ifndef PL_TESTS_KERNELS_ATTENTION_REFERENCE_H
#define PL_TESTS_KERNELS_ATTENTION_REFERENCE_H

#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

/* What the reference does, and what it is made to do wrong. */
typedef enum attention_fault {
    NO_FAULT,
    TILED_HEADS,   /* query head h uses key-value head h mod kv_heads */
    SEES_NEXT,     /* a query sees the key after its own */
    SEES_BEFORE,   /* and not its own, but for the first */
    NO_SCALE,      /* scores are not scaled */
    LAST_OF_GROUP, /* dk and dv of the last query head of a group only */
    NO_DELTA       /* the softmax's own part of the gradient of scores left out */
} attention_fault;

typedef struct attention_shape {
    int64_t sequences, sequence, heads, kv_heads, head_dim;
    double magnitude; /* of q and k; 0: 1 */
} attention_shape;

/* All in double: inputs, results, gradients. */
typedef struct reference {
    const attention_shape *s;
    attention_fault fault;
    double *q, *k, *v, *dout;       /* inputs */
    double *out, *lse;              /* forward */
    double *dq, *dk, *dv, *weights; /* backward; weights of one query */
} reference;

static int64_t query_count(const attention_shape *s)
{
    return s->sequences * s->sequence * s->heads * s->head_dim;
}

static int64_t key_count(const attention_shape *s)
{
    return s->sequences * s->sequence * s->kv_heads * s->head_dim;
}

static int64_t lse_count(const attention_shape *s) { return s->sequences * s->sequence * s->heads; }

static double scale_of(const attention_shape *s) { return 1 / sqrt((double)s->head_dim); }

static double dot(const double *x, const double *y, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
}

typedef struct query {
    int64_t seen;       /* keys */
    int64_t q, kv, lse; /* places: kv that of the sequence's first key */
    int64_t head, kv_row;
} query;

/* Query number INDEX, by sequence, head and token. */
static query query_at(const reference *r, int64_t index)
{
    const attention_shape *s = r->s;
    int64_t token = index % s->sequence, head = index / s->sequence % s->heads;
    int64_t first = index / s->sequence / s->heads * s->sequence;
    int64_t kv_head = r->fault == TILED_HEADS ? head % s->kv_heads : head * s->kv_heads / s->heads;
    query q = {.seen = token + 1, .head = head, .kv_row = s->kv_heads * s->head_dim};
    if (r->fault == SEES_NEXT && token + 1 < s->sequence) ++q.seen;
    if (r->fault == SEES_BEFORE && token > 0) --q.seen;
    q.q = ((first + token) * s->heads + head) * s->head_dim;
    q.kv = (first * s->kv_heads + kv_head) * s->head_dim;
    q.lse = (first + token) * s->heads + head;
    return q;
}

static void weigh(const reference *r, const query *q)
{
    const attention_shape *s = r->s;
    double scale = r->fault == NO_SCALE ? 1 : scale_of(s), largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < q->seen; ++j) {
        r->weights[j] = scale * dot(r->q + q->q, r->k + q->kv + j * q->kv_row, s->head_dim);
        largest = fmax(largest, r->weights[j]);
    }
    for (int64_t j = 0; j < q->seen; ++j) sum += r->weights[j] = exp(r->weights[j] - largest);
    for (int64_t j = 0; j < q->seen; ++j) r->weights[j] /= sum;
    r->lse[q->lse] = largest + log(sum);
}

static void refer_forward(const reference *r)
{
    for (int64_t i = 0; i < lse_count(r->s); ++i) {
        query q = query_at(r, i);
        weigh(r, &q);
        for (int64_t d = 0; d < r->s->head_dim; ++d) {
            double sum = 0;
            for (int64_t j = 0; j < q.seen; ++j)
                sum += r->weights[j] * r->v[q.kv + j * q.kv_row + d];
            r->out[q.q + d] = sum;
        }
    }
}

static void refer_query_backward(const reference *r, const query *q)
{
    const attention_shape *s = r->s;
    int64_t group = s->heads / s->kv_heads;
    double scale = r->fault == NO_SCALE ? 1 : scale_of(s);
    double delta = dot(r->dout + q->q, r->out + q->q, s->head_dim);
    if (r->fault == NO_DELTA) delta = 0;
    bool counts = r->fault != LAST_OF_GROUP || q->head % group == group - 1;
    for (int64_t j = 0; j < q->seen; ++j) {
        int64_t key = q->kv + j * q->kv_row;
        double dscore =
            scale * r->weights[j] * (dot(r->dout + q->q, r->v + key, s->head_dim) - delta);
        for (int64_t d = 0; d < s->head_dim; ++d) {
            r->dq[q->q + d] += dscore * r->k[key + d];
            if (counts) r->dk[key + d] += dscore * r->q[q->q + d];
            if (counts) r->dv[key + d] += r->weights[j] * r->dout[q->q + d];
        }
    }
}

static void refer_backward(const reference *r)
{
    for (int64_t i = 0; i < lse_count(r->s); ++i) {
        query q = query_at(r, i);
        weigh(r, &q);
        refer_query_backward(r, &q);
    }
}

static reference make_reference(const attention_shape *s)
{
    int64_t queries = query_count(s), keys = key_count(s);
    return (reference){.s = s,
                       .q = kernel_doubles(queries),
                       .k = kernel_doubles(keys),
                       .v = kernel_doubles(keys),
                       .dout = kernel_doubles(queries),
                       .out = kernel_doubles(queries),
                       .lse = kernel_doubles(lse_count(s)),
                       .dq = kernel_doubles(queries),
                       .dk = kernel_doubles(keys),
                       .dv = kernel_doubles(keys),
                       .weights = kernel_doubles(s->sequence + 1)};
}

static void free_reference(reference *r)
{
    double *const all[] = {r->q,   r->k,  r->v,  r->dout, r->out,
                           r->lse, r->dq, r->dk, r->dv,   r->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) pl_free(all[i]);
}

#endif
