/* What the suites of the router share: one routing in device memory, and softmax in double. */
#ifndef PL_TESTS_KERNELS_ROUTER_H
#define PL_TESTS_KERNELS_ROUTER_H

#include <math.h>

#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

typedef struct route_case {
    int64_t tokens, experts, chosen, sets;
    bool normalise, balanced;
} route_case;

/* Device memory of one routing. */
typedef struct router {
    float *logits, *scores;
    int64_t *counts, *balance_counts;
    float *balance_scores;
    pl_routes routes;
} router;

static inline router make_router(kernel_test *t, const route_case *c)
{
    int64_t scores = c->tokens * c->experts, chosen = c->tokens * c->chosen;
    router r = {.logits = kernel_floats(t, scores), .scores = kernel_room(t, scores)};
    for (int64_t i = 0; i < scores; ++i) r.logits[i] *= 6;
    r.counts = kernel_bytes(t, c->experts * 8);
    r.balance_counts = kernel_bytes(t, c->sets * c->experts * 8);
    r.balance_scores = kernel_room(t, c->sets * c->experts);
    r.routes = (pl_routes){.choices = kernel_bytes(t, chosen * 4),
                           .weights = kernel_room(t, chosen),
                           .slots = kernel_bytes(t, chosen * 4),
                           .tokens = c->tokens,
                           .experts = c->experts,
                           .chosen = c->chosen,
                           .normalise = c->normalise};
    return r;
}

static inline pl_route_arguments arguments_of(const router *r, const route_case *c)
{
    return (pl_route_arguments){.logits = r->logits,
                                .scores = r->scores,
                                .routes = r->routes,
                                .balanced = c->balanced,
                                .counts = r->counts,
                                .balance_counts = r->balance_counts,
                                .balance_scores = r->balance_scores,
                                .balance_begins = true,
                                .sets = c->sets};
}

static inline pl_status run_route(kernel_test *t, const pl_route_arguments *a)
{
    return t->operations->route(t->device, PL_STREAM_COMPUTE, a);
}

static inline void plain_softmax(const double *logits, double *scores, int64_t count)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; ++i) largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < count; ++i) sum += scores[i] = exp(logits[i] - largest);
    for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

#endif
