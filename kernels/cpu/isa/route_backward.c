/* The router's gradient: through the weights, the balance loss and the softmax. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/token_blocks.h"
#include "kernels/cpu/vector.h"

typedef struct backward {
    const pl_route_backward_arguments *a;
    pl_token_blocks blocks;
    const float *balance; /* [sets, experts] gradient of each score; NULL: none */
} backward;

/* dscores[j] of the chosen scores, from the gradients of the weights w: of w = s as they are, of
 * w = s / sum(s) it is (dw - sum(dw w)) / sum(s). */
static void chosen_gradients(const pl_routes *from, const float *scores, const int32_t *choices,
                             const float *weights, const float *dweights, float *dscores)
{
    float sum = 0, mean = 0;
    for (int64_t j = 0; j < from->chosen; ++j) sum += scores[choices[j]];
    for (int64_t j = 0; from->normalise && j < from->chosen; ++j) mean += dweights[j] * weights[j];
    for (int64_t j = 0; j < from->chosen; ++j) {
        float through_sum = sum < PL_LEAST_SCORE_SUM ? 0 : (dweights[j] - mean) / sum;
        dscores[j] = from->normalise ? through_sum : dweights[j];
    }
}

/* Sum of scores times gradients over all experts. */
static float dot(const float *scores, const float *gradients, int64_t count)
{
    pl_floats total = pl_splat(0);
    int64_t whole = count - count % PL_LANES, part = count - whole;
    for (int64_t i = 0; i < whole; i += PL_LANES)
        total += pl_load(scores + i) * pl_load(gradients + i);
    if (part > 0)
        total += pl_load_part(scores + whole, part) * pl_load_part(gradients + whole, part);
    return pl_lane_sum(total);
}

static inline void softmax_columns(const float *scores, const float *gradients, float mean,
                                   float *dlogits, int64_t part)
{
    pl_floats g = gradients ? pl_load_part(gradients, part) : pl_splat(0);
    pl_store_part(dlogits, pl_load_part(scores, part) * (g - pl_splat(mean)), part);
}

/* dlogits = scores * (gradients - MEAN); GRADIENTS NULL: zeroes. */
static void through_softmax(const float *scores, const float *gradients, float mean, float *dlogits,
                            int64_t count)
{
    int64_t whole = count - count % PL_LANES, i = 0;
    for (; i < whole; i += PL_LANES)
        softmax_columns(scores + i, gradients ? gradients + i : NULL, mean, dlogits + i, PL_LANES);
    if (i < count)
        softmax_columns(scores + i, gradients ? gradients + i : NULL, mean, dlogits + i, count - i);
}

static void backward_block(void *context, int64_t index, void *scratch)
{
    const backward *b = context;
    const pl_route_backward_arguments *a = b->a;
    const pl_routes *from = &a->routes;
    pl_token_range range = pl_token_block(&b->blocks, index);
    const float *balance = b->balance ? b->balance + range.set * from->experts : NULL;
    float *dscores = scratch;
    for (int64_t t = range.begin; t < range.end; ++t) {
        const float *scores = a->scores + t * from->experts;
        float *dlogits = a->dlogits + t * from->experts;
        const int32_t *choices = from->choices + t * from->chosen;
        chosen_gradients(from, scores, choices, from->weights + t * from->chosen,
                         a->dweights + t * from->chosen, dscores);
        float mean = balance ? dot(scores, balance, from->experts) : 0;
        for (int64_t j = 0; j < from->chosen; ++j) mean += scores[choices[j]] * dscores[j];
        through_softmax(scores, balance, mean, dlogits, from->experts);
        for (int64_t j = 0; j < from->chosen; ++j)
            dlogits[choices[j]] += scores[choices[j]] * dscores[j];
    }
}

/* Gradient of the balance loss by set and expert: the same for every token of the set. */
static void balance_gradients(const pl_route_backward_arguments *a, float *balance)
{
    const pl_routes *from = &a->routes;
    double factor = a->balance_factor * (a->token_count ? (double)*a->token_count : 1.0);
    factor *= (double)from->experts / (double)from->chosen / a->balance_score_tokens;
    for (int64_t i = 0; i < a->sets * from->experts; ++i)
        balance[i] = (float)(factor * ((double)a->balance_counts[i] / a->balance_count_tokens));
}

static pl_status check(const pl_device *device, const pl_route_backward_arguments *a)
{
    const pl_routes *from = &a->routes;
    const char *what = "route_backward";
    int64_t numbers = 0;
    PL_TRY(pl_cpu_elements(device, what, &numbers, from->tokens, from->experts, 1));
    PL_TRY(pl_cpu_require(device, what, from->chosen >= 1 && from->chosen <= from->experts,
                          "each token chose at least one and at most all experts"));
    PL_TRY(pl_cpu_require(device, what,
                          !a->balance_counts || (a->sets >= 1 && from->tokens % a->sets == 0),
                          "the tokens divide evenly into sets"));
    return pl_cpu_require(device, what,
                          pl_all_below(from->choices, from->tokens * from->chosen, from->experts),
                          "choices are numbers of experts");
}

static void note(pl_device *device, pl_stream stream, const pl_route_backward_arguments *a)
{
    const pl_routes *from = &a->routes;
    int64_t scores = from->tokens * from->experts * 4, chosen = from->tokens * from->chosen * 4;
    bool balance = a->balance_counts;
    pl_device_note(device, stream, "route_backward", 0,
                   (pl_touch[]){{a->scores, scores, true, false},
                                {from->choices, chosen, true, false},
                                {from->weights, from->normalise ? chosen : 0, true, false},
                                {a->dweights, chosen, true, false},
                                {a->dlogits, scores, false, true},
                                {a->balance_counts, a->sets * from->experts * 8, true, false},
                                {balance ? a->token_count : NULL, 8, true, false}},
                   7);
}

pl_status PL_ISA(pl_cpu_route_backward)(pl_device *device, pl_stream stream,
                                        const pl_route_backward_arguments *a)
{
    PL_TRY(check(device, a));
    note(device, stream, a);
    const pl_routes *from = &a->routes;
    int64_t sets = a->balance_counts ? a->sets : 1, numbers = 0;
    backward b = {.a = a, .blocks = pl_token_blocks_make(from->tokens, sets)};
    if (a->balance_counts) {
        void *workspace = NULL;
        PL_TRY(pl_cpu_elements(device, "route_backward", &numbers, sets, from->experts, 1));
        PL_TRY(pl_cpu_workspace(device, numbers * 4, &workspace));
        balance_gradients(a, workspace);
        b.balance = workspace;
    }
    size_t scratch = (size_t)from->chosen * sizeof(float);
    return pl_pool_run(pl_cpu_pool(device), b.blocks.count, scratch, backward_block, &b);
}
