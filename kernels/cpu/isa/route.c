/* The router: softmax, choice of experts and the order in which rows are sent.
 *
 * Two sweeps over blocks of tokens, which sets never share: the first chooses and counts, the
 * second gives out slots from where the blocks before it ended.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/token_blocks.h"
#include "kernels/cpu/vector.h"

typedef struct route {
    const pl_route_arguments *a;
    pl_token_blocks blocks;
    int64_t stride;  /* experts, rounded up to whole vectors */
    int32_t *counts; /* [blocks, experts]; between the sweeps they become first slots */
    float *sums;     /* [blocks, stride] of scores; NULL: not wanted */
} route;

/* The last COUNT < PL_LANES values, the other lanes FILLER. */
static pl_floats load_filled(const float *from, int64_t count, float filler)
{
    float values[PL_LANES];
    for (int i = 0; i < PL_LANES; ++i) values[i] = i < count ? from[i] : filler;
    return pl_load(values);
}

/* One NaN makes the whole row NaN: by its exponential, and by the sum. */
static void softmax(const float *x, float *y, int64_t count)
{
    int64_t whole = count - count % PL_LANES, part = count - whole, i = 0;
    pl_floats largest = load_filled(x + whole, part, -INFINITY);
    for (i = 0; i < whole; i += PL_LANES) largest = pl_larger(pl_load(x + i), largest);
    pl_floats top = pl_splat(pl_lane_max(largest)), total = pl_splat(0);
    for (i = 0; i < whole; i += PL_LANES) {
        pl_floats e = pl_exp(pl_load(x + i) - top);
        pl_store(y + i, e);
        total += e;
    }
    if (part > 0) {
        pl_floats e = pl_exp(load_filled(x + whole, part, -INFINITY) - top);
        pl_store_part(y + whole, e, part);
        total += e;
    }
    pl_floats sum = pl_splat(pl_lane_sum(total));
    for (i = 0; i < whole; i += PL_LANES) pl_store(y + i, pl_load(y + i) / sum);
    if (part > 0) pl_store_part(y + whole, pl_load_part(y + whole, part) / sum, part);
}

/* Below every score: what a NaN counts as, and what was taken or is padding. */
#define PL_NOT_A_SCORE (-0.5f)
#define PL_TAKEN       (-1.0f)

static pl_integers lane_numbers(void)
{
    int32_t numbers[PL_LANES];
    pl_integers v;
    for (int i = 0; i < PL_LANES; ++i) numbers[i] = i;
    memcpy(&v, numbers, sizeof v);
    return v;
}

static int32_t lane_least(pl_integers v)
{
    int32_t a[PL_LANES];
    memcpy(a, &v, sizeof a);
    for (int width = PL_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a[i] = a[i] < a[i + width] ? a[i] : a[i + width];
    return a[0];
}

/* Where the largest of VALUES is, the first of equals. */
static int32_t find_largest(const float *values, int64_t stride)
{
    pl_integers at = lane_numbers(), place = at;
    pl_floats best = pl_load(values);
    for (int64_t i = PL_LANES; i < stride; i += PL_LANES) {
        pl_floats v = pl_load(values + i);
        pl_integers larger = v > best;
        at += PL_LANES;
        place = (at & larger) | (place & ~larger);
        best = pl_larger(v, best);
    }
    pl_integers largest = best == pl_splat(pl_lane_max(best));
    return lane_least((place & largest) | (~largest & INT32_MAX));
}

/* The experts of one token, by falling score. */
static void choose(const route *r, const float *scores, int32_t *choices, float *left)
{
    const pl_routes *to = &r->a->routes;
    for (int64_t i = 0; i < r->stride; ++i)
        left[i] = i >= to->experts ? PL_TAKEN : scores[i] == scores[i] ? scores[i] : PL_NOT_A_SCORE;
    for (int64_t j = 0; j < to->chosen; ++j) {
        choices[j] = find_largest(left, r->stride);
        left[choices[j]] = PL_TAKEN;
    }
}

static void choose_evenly(const pl_routes *to, int64_t token, int32_t *choices)
{
    int64_t step = to->experts / to->chosen;
    for (int64_t j = 0; j < to->chosen; ++j)
        choices[j] = (int32_t)((token + j * step) % to->experts);
}

static void weigh(const pl_routes *to, const float *scores, const int32_t *choices, float *weights)
{
    float sum = 0;
    for (int64_t j = 0; j < to->chosen; ++j) sum += scores[choices[j]];
    for (int64_t j = 0; j < to->chosen; ++j) {
        float score = scores[choices[j]];
        weights[j] = !to->normalise ? score : sum < PL_LEAST_SCORE_SUM ? 0 : score / sum;
    }
}

static void add_scores(float *sums, const float *scores, int64_t count)
{
    int64_t whole = count - count % PL_LANES;
    for (int64_t i = 0; i < whole; i += PL_LANES)
        pl_store(sums + i, pl_load(sums + i) + pl_load(scores + i));
    for (int64_t i = whole; i < count; ++i) sums[i] += scores[i];
}

static void choose_block(void *context, int64_t index, void *scratch)
{
    const route *r = context;
    const pl_route_arguments *a = r->a;
    const pl_routes *to = &a->routes;
    pl_token_range range = pl_token_block(&r->blocks, index);
    int32_t *counts = r->counts + index * to->experts;
    float *sums = r->sums ? r->sums + index * r->stride : NULL;
    memset(counts, 0, (size_t)to->experts * sizeof *counts);
    if (sums) memset(sums, 0, (size_t)r->stride * sizeof *sums);
    for (int64_t t = range.begin; t < range.end; ++t) {
        float *scores = a->scores + t * to->experts;
        int32_t *choices = to->choices + t * to->chosen;
        softmax(a->logits + t * to->experts, scores, to->experts);
        if (a->balanced)
            choose_evenly(to, t, choices);
        else
            choose(r, scores, choices, scratch);
        weigh(to, scores, choices, to->weights + t * to->chosen);
        for (int64_t j = 0; j < to->chosen; ++j) ++counts[choices[j]];
        if (sums) add_scores(sums, scores, to->experts);
    }
}

static void give_slots(void *context, int64_t index, void *scratch)
{
    const route *r = context;
    const pl_routes *to = &r->a->routes;
    pl_token_range range = pl_token_block(&r->blocks, index);
    int32_t *next = r->counts + index * to->experts;
    (void)scratch;
    for (int64_t i = range.begin * to->chosen; i < range.end * to->chosen; ++i)
        to->slots[i] = next[to->choices[i]]++;
}

/* Counts and sums of scores of one set, from those of its blocks. */
static void sum_set(const route *r, int64_t set)
{
    const pl_route_arguments *a = r->a;
    int64_t experts = a->routes.experts, blocks = r->blocks.of_set, first = set * blocks;
    for (int64_t e = 0; e < experts; ++e) {
        int64_t count = 0, at = set * experts + e;
        double sum = 0;
        for (int64_t b = first; b < first + blocks; ++b) {
            count += r->counts[b * experts + e];
            if (r->sums) sum += (double)r->sums[b * r->stride + e];
        }
        if (a->balance_counts)
            a->balance_counts[at] = (a->balance_begins ? 0 : a->balance_counts[at]) + count;
        if (a->balance_scores)
            a->balance_scores[at] =
                (float)((a->balance_begins ? 0 : (double)a->balance_scores[at]) + sum);
    }
}

/* By expert, then by block: counts become the first slot of each. */
static void place_blocks(const route *r)
{
    int64_t experts = r->a->routes.experts;
    int32_t next = 0;
    for (int64_t e = 0; e < experts; ++e) {
        int32_t first = next;
        for (int64_t b = 0; b < r->blocks.count; ++b) {
            int32_t *counts = r->counts + b * experts + e, count = *counts;
            *counts = next;
            next += count;
        }
        if (r->a->counts) r->a->counts[e] = next - first;
    }
}

static pl_status check(const pl_device *device, const pl_route_arguments *a)
{
    const pl_routes *to = &a->routes;
    bool balance = a->balance_counts || a->balance_scores;
    PL_TRY(pl_cpu_require(device, "route", to->tokens >= 0 && to->experts <= INT32_MAX,
                          "tokens are at least 0, experts fit 31 bits"));
    PL_TRY(pl_cpu_require(device, "route", to->chosen >= 1 && to->chosen <= to->experts,
                          "each token chooses at least one and at most all experts"));
    PL_TRY(pl_cpu_require(device, "route", to->tokens <= INT32_MAX / to->chosen,
                          "the rows of all tokens fit 31 bits"));
    return pl_cpu_require(device, "route", !balance || (a->sets >= 1 && to->tokens % a->sets == 0),
                          "the tokens divide evenly into sets");
}

static void note(pl_device *device, pl_stream stream, const pl_route_arguments *a)
{
    const pl_routes *to = &a->routes;
    int64_t scores = to->tokens * to->experts * 4, chosen = to->tokens * to->chosen * 4;
    int64_t sets = a->sets * to->experts;
    bool adds = !a->balance_begins;
    pl_device_note(device, stream, "route", 0,
                   (pl_touch[]){{a->logits, scores, true, false},
                                {a->scores, scores, false, true},
                                {to->choices, chosen, false, true},
                                {to->weights, chosen, false, true},
                                {to->slots, chosen, false, true},
                                {a->counts, to->experts * 8, false, true},
                                {a->balance_counts, sets * 8, adds, true},
                                {a->balance_scores, sets * 4, adds, true}},
                   8);
}

pl_status PL_ISA(pl_cpu_route)(pl_device *device, pl_stream stream, const pl_route_arguments *a)
{
    PL_TRY(check(device, a));
    note(device, stream, a);
    const pl_routes *to = &a->routes;
    bool balance = a->balance_counts || a->balance_scores;
    route r = {.a = a, .blocks = pl_token_blocks_make(to->tokens, balance ? a->sets : 1)};
    r.stride = pl_divide_up(to->experts, PL_LANES) * PL_LANES;
    int64_t numbers = 0;
    PL_TRY(pl_cpu_elements(device, "route", &numbers, r.blocks.count, r.stride, 2));
    void *workspace = NULL;
    PL_TRY(pl_cpu_workspace(device, numbers * 4, &workspace));
    r.counts = workspace;
    if (a->balance_scores && numbers > 0) r.sums = (float *)workspace + numbers / 2;
    pl_pool *pool = pl_cpu_pool(device);
    size_t scratch = (size_t)r.stride * sizeof(float);
    PL_TRY(pl_pool_run(pool, r.blocks.count, scratch, choose_block, &r));
    for (int64_t set = 0; balance && set < a->sets; ++set) sum_set(&r, set);
    place_blocks(&r);
    return pl_pool_run(pool, r.blocks.count, 0, give_slots, &r);
}
