#include "tests/groups/conformance.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "tests/groups/exchange.h"
#include "tests/groups/segments.h"

enum { PHASES = 3, IN_FLIGHT = 6, GROUPS = 4, ORDER_COUNT = 700 };

/* What all ranks of a world share in a run. */
typedef struct run {
    const conformance_backend *backend;
    int64_t ranks;
    const conformance_case *cases;
    int count;
    atomic_llong *at_barrier; /* arrivals over all barrier cases */
} run;

typedef struct rank_state {
    run *run;
    pl_process_group *world;
    rank_report report;
    long long barriers; /* arrivals to be seen after the current barrier */
    exchange exchanges[IN_FLIGHT];
    segment_run *segments;
    pl_process_group *groups[GROUPS];
    int group_count;
    unsigned char *values, *result; /* BODY_ORDER */
    pl_entry_name name;
    pl_request request;
} rank_state;

static void run_exchange(rank_state *state, const conformance_case *test, int phase)
{
    if (phase == 0) exchange_start(&state->exchanges[0], &state->report, state->world, test, 1);
    if (phase == 1) exchange_finish(&state->exchanges[0], &state->report);
}

static void run_in_flight(rank_state *state, const conformance_case *test, int phase)
{
    static const int wait_order[IN_FLIGHT] = {4, 0, 5, 2, 1, 3};
    const conformance_case calls[IN_FLIGHT] = {
        {.collective = PL_ALL_GATHER, .dtype = test->dtype, .count = 3},
        {.collective = PL_ALL_REDUCE,
         .dtype = test->dtype,
         .reduction = PL_REDUCTION_SUM,
         .count = 90000 / state->run->ranks},
        {.collective = PL_BARRIER, .dtype = test->dtype},
        {.collective = PL_ALL_TO_ALL_UNEVEN, .dtype = test->dtype, .count = 6},
        {.collective = PL_SEND_RECEIVE, .dtype = test->dtype, .count = 2},
        {.collective = PL_REDUCE_SCATTER,
         .dtype = test->dtype,
         .reduction = PL_REDUCTION_MAX,
         .count = 9},
    };
    for (int i = 0; phase == 0 && i < IN_FLIGHT; ++i)
        exchange_start(&state->exchanges[i], &state->report, state->world, &calls[i], (uint64_t)i);
    for (int i = 0; phase == 1 && i < IN_FLIGHT; ++i)
        exchange_finish(&state->exchanges[wait_order[i]], &state->report);
}

static void split(rank_state *state, pl_group_role role, const pl_rank_set *members)
{
    pl_process_group **out = &state->groups[state->group_count];
    if (!report_status(&state->report, "split",
                       pl_process_group_split(state->world, role, members, out)))
        return;
    ++state->group_count;
    if ((*out)->size != pl_rank_set_size(members) || (*out)->role != role ||
        pl_rank_set_member(members, (*out)->index) != state->world->rank)
        report_wrong(&state->report, "the handle of a split does not describe its group");
}

/* Ranks of equal parity, one half of the ranks, pairs of every four nested, and oneself. */
static void split_all(rank_state *state)
{
    int64_t ranks = state->run->ranks, rank = state->world->rank;
    pl_rank_set parity = pl_rank_set_single(rank % 2);
    pl_rank_set_nest(&parity, (ranks - rank % 2 + 1) / 2, 2);
    split(state, PL_GROUP_DENSE_SHARD, &parity);
    int64_t half = ranks / 2;
    pl_rank_set block = pl_rank_set_single(rank < half ? 0 : half);
    pl_rank_set_nest(&block, rank < half ? half : ranks - half, 1);
    split(state, PL_GROUP_EXPERT_OWNER, &block);
    if (ranks % 4 == 0) {
        pl_rank_set nested = pl_rank_set_single(rank % 4 / 2 * 2);
        pl_rank_set_nest(&nested, ranks / 4, 4);
        pl_rank_set_nest(&nested, 2, 1);
        split(state, PL_GROUP_EXPERT_BLOCK, &nested);
    }
    pl_rank_set single = pl_rank_set_single(rank);
    split(state, PL_GROUP_CONTEXT, &single);
}

static void start_in_groups(rank_state *state, uint64_t salt)
{
    static const conformance_case calls[GROUPS] = {
        {.collective = PL_ALL_GATHER, .dtype = PL_I32, .count = 11},
        {.collective = PL_REDUCE_SCATTER,
         .dtype = PL_I64,
         .reduction = PL_REDUCTION_SUM,
         .count = 5},
        {.collective = PL_ALL_TO_ALL, .dtype = PL_U8, .count = 20000},
        {.collective = PL_BROADCAST, .dtype = PL_I32, .count = 2}};
    for (int i = 0; i < state->group_count; ++i)
        exchange_start(&state->exchanges[i], &state->report, state->groups[i], &calls[i], salt);
    exchange_start(&state->exchanges[GROUPS], &state->report, state->world, &calls[0], salt);
}

static void finish_in_groups(rank_state *state)
{
    exchange_finish(&state->exchanges[GROUPS], &state->report);
    for (int i = state->group_count - 1; i >= 0; --i) {
        exchange_finish(&state->exchanges[i], &state->report);
        pl_process_group_close(state->groups[i]);
    }
    state->group_count = 0;
}

static void run_subgroups(rank_state *state, int phase)
{
    if (phase > 0) finish_in_groups(state);
    if (phase < 2) {
        split_all(state);
        start_in_groups(state, (uint64_t)phase);
    }
}

typedef enum order_fault { NO_FAULT, REVERSED, ROUNDED_EACH_TIME } order_fault;

/* The sum over RANKS in order, in fp32 (fp64 for fp64), rounded once to DTYPE. */
static uint64_t order_sum(pl_dtype dtype, int64_t ranks, int64_t position, bool average,
                          order_fault fault)
{
    float single = 0;
    double sum = 0;
    for (int64_t i = 0; i < ranks; ++i) {
        int64_t rank = fault == REVERSED ? ranks - 1 - i : i;
        double value = decode_value(dtype, encode_value(dtype, order_value(rank, position)));
        sum = i == 0 ? value : sum + value;
        single = i == 0 ? (float)value : single + (float)value;
        if (fault == ROUNDED_EACH_TIME)
            single = (float)decode_value(dtype, encode_value(dtype, (double)single));
    }
    if (dtype == PL_FP64) return encode_value(dtype, average ? sum / (double)ranks : sum);
    return encode_value(dtype, (double)(average ? single / (float)ranks : single));
}

static void start_order(rank_state *state, const conformance_case *test)
{
    int64_t ranks = state->run->ranks, bytes = pl_dtype_bytes(test->dtype);
    bool scatter = test->collective == PL_REDUCE_SCATTER;
    int64_t elements = scatter ? ranks * test->count : test->count;
    state->values = malloc((size_t)(elements * bytes));
    state->result = malloc((size_t)(test->count * bytes));
    if (!state->values || !state->result) {
        report_wrong(&state->report, "no memory for the test's buffers");
        return;
    }
    for (int64_t p = 0; p < elements; ++p) {
        uint64_t bits = encode_value(test->dtype, order_value(state->world->rank, p));
        memcpy(state->values + p * bytes, &bits, (size_t)bytes);
    }
    state->name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    pl_call call = {.collective = test->collective,
                    .dtype = test->dtype,
                    .reduction = test->reduction,
                    .name = &state->name,
                    .send = state->values,
                    .recv = state->result,
                    .count = test->count};
    report_status(&state->report, "start",
                  pl_process_group_start(state->world, &call, &state->request));
}

static void finish_order(rank_state *state, const conformance_case *test)
{
    int64_t ranks = state->run->ranks, bytes = pl_dtype_bytes(test->dtype);
    bool average = test->reduction == PL_REDUCTION_AVERAGE;
    int64_t first = test->collective == PL_REDUCE_SCATTER ? state->world->index * test->count : 0;
    int64_t reversed = 0, rounded = 0;
    if (!state->report.wrong &&
        report_status(&state->report, "wait",
                      pl_process_group_wait(state->world, state->request))) {
        for (int64_t p = 0; p < test->count; ++p) {
            pl_dtype dtype = test->dtype;
            uint64_t expected = order_sum(dtype, ranks, first + p, average, NO_FAULT);
            if (p < ORDER_COUNT) {
                reversed += expected != order_sum(dtype, ranks, first + p, average, REVERSED);
                rounded +=
                    expected != order_sum(dtype, ranks, first + p, average, ROUNDED_EACH_TIME);
            }
            if (memcmp(state->result + p * bytes, &expected, (size_t)bytes) != 0)
                report_wrong(&state->report,
                             "%s of %s: element %" PRId64 " has other bits than the sum in order",
                             pl_collective_name(test->collective), pl_dtype_name(test->dtype), p);
        }
        bool small = test->dtype == PL_BF16 || test->dtype == PL_FP16;
        if (ranks >= 3 && (reversed == 0 || (small && rounded == 0)))
            report_wrong(&state->report, "the values do not tell orders or precisions apart");
    }
    free(state->values);
    free(state->result);
    state->values = state->result = NULL;
}

static void run_segments(rank_state *state, const conformance_case *test, int phase)
{
    const conformance_backend *backend = state->run->backend;
    if (phase == 0)
        state->segments = segments_start(&state->report, state->world, backend, test);
    else if (state->segments && phase == 1)
        segments_repeat(state->segments);
    else if (state->segments)
        segments_finish(state->segments);
    if (phase == 2) state->segments = NULL;
}

static void run_barrier(rank_state *state, int phase)
{
    if (phase == 0) {
        state->barriers += state->run->ranks;
        atomic_fetch_add(state->run->at_barrier, 1);
        static const conformance_case barrier = {.collective = PL_BARRIER};
        exchange_start(&state->exchanges[0], &state->report, state->world, &barrier, 0);
    } else if (phase == 1) {
        exchange_finish(&state->exchanges[0], &state->report);
        long long arrived = atomic_load(state->run->at_barrier);
        if (arrived < state->barriers)
            report_wrong(&state->report, "left a barrier at which %lld of %lld had arrived",
                         arrived, state->barriers);
    }
}

static void run_phase(rank_state *state, const conformance_case *test, int phase)
{
    switch (test->body) {
    case BODY_EXCHANGE: run_exchange(state, test, phase); break;
    case BODY_IN_FLIGHT: run_in_flight(state, test, phase); break;
    case BODY_SUBGROUPS: run_subgroups(state, phase); break;
    case BODY_SEGMENTS: run_segments(state, test, phase); break;
    case BODY_ORDER:
        if (phase == 0) start_order(state, test);
        if (phase == 1) finish_order(state, test);
        break;
    case BODY_BARRIER: run_barrier(state, phase); break;
    }
}

static bool carries(const conformance_backend *backend, pl_dtype dtype)
{
    for (int i = 0; i < backend->dtype_count; ++i)
        if (backend->dtypes[i] == dtype) return true;
    return false;
}

static int add_exchanges(conformance_case *cases, int count, pl_dtype dtype, int64_t ranks)
{
    const bool some_large =
        ranks == 2 || ranks == 3 || (dtype == PL_I64 && (ranks == 8 || ranks == 16));
    const int64_t large = 66000 / pl_dtype_bytes(dtype) + 3, counts[] = {0, 1, 37, large};
    for (int c = 0; c < PL_BARRIER; ++c) {
        bool reduces = c == PL_REDUCE_SCATTER || c == PL_ALL_REDUCE;
        for (int r = 0; r < PL_REDUCTION_COUNT; ++r) {
            if (reduces == (r == PL_REDUCTION_NONE)) continue;
            if (r == PL_REDUCTION_AVERAGE && dtype_is_integer(dtype)) continue;
            for (int n = 0; n < (some_large ? 4 : 3); ++n) {
                bool in_place = (c == PL_ALL_REDUCE || c == PL_BROADCAST) && n % 2;
                cases[count++] = (conformance_case){.body = BODY_EXCHANGE,
                                                    .collective = (pl_collective)c,
                                                    .dtype = dtype,
                                                    .reduction = (pl_reduction)r,
                                                    .count = counts[n],
                                                    .in_place = in_place};
                if (c == PL_ALL_REDUCE && counts[n] == large)
                    cases[count++] = (conformance_case){.body = BODY_EXCHANGE,
                                                        .collective = (pl_collective)c,
                                                        .dtype = dtype,
                                                        .reduction = (pl_reduction)r,
                                                        .count = counts[n],
                                                        .in_place = !in_place};
            }
        }
    }
    return count;
}

int conformance_list(conformance_case *cases, const conformance_backend *backend, int64_t ranks)
{
    static const pl_dtype order_dtypes[] = {PL_BF16, PL_FP16, PL_FP32, PL_FP64};
    int count = 0;
    for (int i = 0; i < backend->dtype_count; ++i) {
        count = add_exchanges(cases, count, backend->dtypes[i], ranks);
        cases[count++] = (conformance_case){.body = BODY_IN_FLIGHT, .dtype = backend->dtypes[i]};
    }
    for (int i = 0; i < 4; ++i) {
        if (!carries(backend, order_dtypes[i]) || (ranks > 5 && ranks < 16)) continue;
        for (int r = PL_REDUCTION_SUM; r <= PL_REDUCTION_AVERAGE; ++r) {
            cases[count++] = (conformance_case){.body = BODY_ORDER,
                                                .collective = PL_ALL_REDUCE,
                                                .dtype = order_dtypes[i],
                                                .reduction = (pl_reduction)r,
                                                .count = ORDER_COUNT};
            cases[count++] = (conformance_case){.body = BODY_ORDER,
                                                .collective = PL_REDUCE_SCATTER,
                                                .dtype = order_dtypes[i],
                                                .reduction = (pl_reduction)r,
                                                .count = ORDER_COUNT};
            if (ranks == 3)
                cases[count++] = (conformance_case){.body = BODY_ORDER,
                                                    .collective = PL_ALL_REDUCE,
                                                    .dtype = order_dtypes[i],
                                                    .reduction = (pl_reduction)r,
                                                    .count = 40001};
        }
    }
    count = segments_list(cases, count, backend, ranks);
    if (ranks > 1) cases[count++] = (conformance_case){.body = BODY_SUBGROUPS};
    for (int i = 0; i < 20; ++i) cases[count++] = (conformance_case){.body = BODY_BARRIER};
    return count;
}

bool conformance_has_output(const conformance_case *test, int64_t ranks)
{
    if (test->body == BODY_BARRIER) return false;
    if (test->body == BODY_SEGMENTS) return test->segments > 0;
    if (test->body != BODY_EXCHANGE || test->collective == PL_SEND_RECEIVE) return true;
    if (test->count == 0) return false;
    if (test->collective != PL_ALL_TO_ALL_UNEVEN) return true;
    int64_t elements = 0;
    for (int64_t from = 0; from < ranks; ++from)
        for (int64_t to = 0; to < ranks; ++to) elements += uneven_count(from, to, test->count);
    return elements > 0;
}

static int sum_up(const rank_state *states, int64_t ranks, char *words)
{
    int wrong = 0;
    words[0] = '\0';
    for (int64_t i = 0; i < ranks; ++i) {
        if (!states[i].report.wrong) continue;
        if (wrong++ == 0) snprintf(words, CONFORMANCE_WORDS, "%s", states[i].report.words);
    }
    return wrong;
}

static void begin_rank(rank_state *state, run *shared, pl_process_group *world, int64_t rank)
{
    state->run = shared;
    state->world = world;
    state->report.rank = rank;
    if (world->rank != rank || world->index != rank || world->size != shared->ranks)
        report_wrong(&state->report, "the handle of the world does not describe it");
}

/* Ranks of a new world; NULL and words when that fails. */
static rank_state *open_ranks(run *shared, char *words)
{
    pl_process_group *handles[CONFORMANCE_RANKS];
    rank_state *states = calloc((size_t)shared->ranks, sizeof *states);
    if (!states || shared->backend->open(handles, shared->ranks) != PL_OK) {
        snprintf(words, CONFORMANCE_WORDS, "the world does not open: %s", pl_error_text());
        free(states);
        return NULL;
    }
    for (int64_t i = 0; i < shared->ranks; ++i) {
        begin_rank(&states[i], shared, handles[i], i);
    }
    return states;
}

static void *rank_main(void *argument)
{
    rank_state *state = argument;
    for (int i = 0; i < state->run->count && !state->report.wrong; ++i)
        for (int phase = 0; phase < PHASES; ++phase) run_phase(state, &state->run->cases[i], phase);
    /* After the last case, or so that the others do not wait for one that gave up. */
    pl_process_group_close(state->world);
    return NULL;
}

int conformance_run_threads(const conformance_backend *backend, int64_t ranks,
                            const conformance_case *cases, int count, char *words)
{
    atomic_llong at_barrier = 0;
    run shared = {backend, ranks, cases, count, &at_barrier};
    pthread_t threads[CONFORMANCE_RANKS];
    rank_state *states = open_ranks(&shared, words);
    if (!states) return 1;
    int64_t started = 0;
    while (started < ranks &&
           pthread_create(&threads[started], NULL, rank_main, &states[started]) == 0)
        ++started;
    for (int64_t i = started; i < ranks; ++i) {
        report_wrong(&states[i].report, "no thread");
        pl_process_group_close(states[i].world);
    }
    for (int64_t i = 0; i < started; ++i) pthread_join(threads[i], NULL);
    int wrong = sum_up(states, ranks, words);
    free(states);
    return wrong;
}

int conformance_run_loop(const conformance_backend *backend, int64_t ranks,
                         const conformance_case *cases, int count, char *words)
{
    atomic_llong at_barrier = 0;
    run shared = {backend, ranks, cases, count, &at_barrier};
    rank_state *states = open_ranks(&shared, words);
    if (!states) return 1;
    for (int i = 0; i < count; ++i)
        for (int phase = 0; phase < PHASES; ++phase)
            for (int64_t rank = 0; rank < ranks; ++rank) run_phase(&states[rank], &cases[i], phase);
    int wrong = sum_up(states, ranks, words);
    for (int64_t rank = 0; rank < ranks; ++rank) pl_process_group_close(states[rank].world);
    free(states);
    return wrong;
}

bool conformance_run_rank(const conformance_backend *backend, pl_process_group *world,
                          atomic_llong *at_barrier, const conformance_case *cases, int count,
                          char *words)
{
    run shared = {backend, world->size, cases, count, at_barrier};
    rank_state *state = calloc(1, sizeof *state);
    if (!state) {
        snprintf(words, CONFORMANCE_WORDS, "no memory for the state of a rank");
        pl_process_group_close(world);
        return true;
    }
    begin_rank(state, &shared, world, world->rank);
    rank_main(state);
    const bool wrong = state->report.wrong;
    snprintf(words, CONFORMANCE_WORDS, "%s", wrong ? state->report.words : "");
    free(state);
    return wrong;
}

int conformance_fail_allocations(pl_status (*use)(void), char *words)
{
    for (int failures = 0;; ++failures) {
        pl_allocation_fail_after(failures);
        pl_status status = use();
        bool injected = pl_allocation_failed() != 0;
        pl_allocation_fail_after(-1);
        if (status == PL_OK && !injected) return failures;
        if (injected && status == PL_NO_MEMORY) continue;
        snprintf(words, CONFORMANCE_WORDS, "allocation %d: %s: %s", failures,
                 pl_status_name(status), pl_error_text());
        return -1;
    }
}
