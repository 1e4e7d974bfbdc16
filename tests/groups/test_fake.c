/* Backend fake: the conformance cases in a loop over ranks, what only it does, and proof that the
 * conformance cases see faults. */
#include "tests/test.h"

#include <inttypes.h>
#include <stdlib.h>

#include "sim/fake_group.h"
#include "tests/groups/conformance.h"

static const pl_dtype integer_dtypes[] = {PL_U8, PL_I32, PL_I64};

static pl_status open_fake(pl_process_group **out, int64_t ranks)
{
    return pl_group_fake_open(out, ranks, PL_FAKE_SUMS_WRAP);
}

static pl_status open_modulo(pl_process_group **out, int64_t ranks)
{
    return pl_group_fake_open(out, ranks, PL_FAKE_SUMS_MODULO);
}

static const conformance_backend fake_backend = {"fake", integer_dtypes, 3, open_fake};
static const conformance_backend modulo_backend = {"fake", integer_dtypes, 3, open_modulo};

static void test_conforms(void **state)
{
    (void)state;
    conformance_case cases[CONFORMANCE_CASES];
    char words[CONFORMANCE_WORDS];
    for (int64_t ranks = 1; ranks <= 16; ++ranks) {
        int count = conformance_list(cases, &fake_backend, ranks);
        assert_true(count > 50);
        if (conformance_run_loop(&fake_backend, ranks, cases, count, words))
            fail_msg("%" PRId64 " ranks: %s", ranks, words);
        if (conformance_run_loop(&modulo_backend, ranks, cases, count, words))
            fail_msg("%" PRId64 " ranks, modulo: %s", ranks, words);
    }
}

/* A backend that passes everything on to fake and then damages one bit of what was received. */
enum { FAULTY_CALLS = 256 }; /* more than are ever in flight */

typedef struct faulty_group {
    pl_process_group base;
    pl_process_group *inner;
    bool late; /* only calls of segments, and not the first one */
    pl_call calls[FAULTY_CALLS];
} faulty_group;

static pl_status faulty_start(pl_process_group *group, const pl_call *call, pl_request *request_out)
{
    faulty_group *faulty = (faulty_group *)group;
    PL_TRY(pl_process_group_start(faulty->inner, call, request_out));
    faulty->calls[*request_out % FAULTY_CALLS] = *call;
    return PL_OK;
}

static unsigned char *first_output(const pl_call *call, int64_t size)
{
    int64_t received = call->count;
    if (call->collective == PL_BARRIER) return NULL;
    for (int i = 0; i < call->segment_count; ++i)
        if (call->segments[i].count > 0) return call->segments[i].recv;
    for (int i = 0; call->collective == PL_SEND_RECEIVE && i < call->transfer_count; ++i)
        if (!call->transfers[i].is_send && call->transfers[i].count > 0)
            return call->transfers[i].buffer;
    if (call->collective == PL_ALL_TO_ALL_UNEVEN) {
        received = 0;
        for (int64_t i = 0; i < size; ++i) received += call->recv_counts[i];
    }
    return received > 0 ? call->recv : NULL;
}

static pl_status faulty_wait(pl_process_group *group, pl_request request)
{
    faulty_group *faulty = (faulty_group *)group;
    PL_TRY(pl_process_group_wait(faulty->inner, request));
    const pl_call *call = &faulty->calls[request % FAULTY_CALLS];
    if (faulty->late && (request == 0 || call->segment_count == 0)) return PL_OK;
    unsigned char *byte = first_output(call, group->size);
    if (byte) *byte ^= 1;
    return PL_OK;
}

static pl_status faulty_split(pl_process_group *world, pl_group_role role,
                              const pl_rank_set *members, pl_process_group **out)
{
    return pl_process_group_split(((faulty_group *)world)->inner, role, members, out);
}

static void faulty_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_process_group_fail(((faulty_group *)group)->inner, status, words);
}

static void faulty_close(pl_process_group *group)
{
    pl_process_group_close(((faulty_group *)group)->inner);
    free(group);
}

static const pl_process_group_backend faulty_functions = {"faulty",     faulty_start, faulty_wait,
                                                          faulty_split, faulty_fail,  faulty_close};

static pl_status open_faulty(pl_process_group **out, int64_t ranks)
{
    pl_process_group *inner[CONFORMANCE_RANKS];
    PL_TRY(open_fake(inner, ranks));
    for (int64_t i = 0; i < ranks; ++i) {
        faulty_group *faulty = calloc(1, sizeof *faulty);
        if (!faulty) return PL_FAIL(PL_NO_MEMORY, "no memory for a faulty group");
        faulty->base = *inner[i];
        faulty->base.backend = &faulty_functions;
        faulty->inner = inner[i];
        out[i] = &faulty->base;
    }
    return PL_OK;
}

static pl_status open_late(pl_process_group **out, int64_t ranks)
{
    PL_TRY(open_faulty(out, ranks));
    for (int64_t i = 0; i < ranks; ++i) ((faulty_group *)out[i])->late = true;
    return PL_OK;
}

/* Plain calls are what the second call of segments is compared with. */
static void test_segments_see_late_faults(void **state)
{
    (void)state;
    const conformance_backend late = {"late", integer_dtypes, 3, open_late};
    conformance_case cases[CONFORMANCE_CASES];
    char words[CONFORMANCE_WORDS];
    int count = conformance_list(cases, &late, 3), seen = 0;
    for (int i = 0; i < count; ++i) {
        bool wrong = conformance_run_loop(&late, 3, &cases[i], 1, words) > 0;
        bool expected = cases[i].body == BODY_SEGMENTS && cases[i].segments > 0;
        if (wrong != expected || (wrong && !strstr(words, "other bits than the plain")))
            fail_msg("case %d: %s", i, words);
        seen += wrong;
    }
    assert_true(seen > 20);
}

static void test_cases_see_faults(void **state)
{
    (void)state;
    const conformance_backend faulty = {"faulty", integer_dtypes, 3, open_faulty};
    conformance_case cases[CONFORMANCE_CASES];
    char words[CONFORMANCE_WORDS];
    for (int64_t ranks = 1; ranks <= 4; ranks += 3) {
        int count = conformance_list(cases, &faulty, ranks), seen = 0;
        for (int i = 0; i < count; ++i) {
            bool wrong = conformance_run_loop(&faulty, ranks, &cases[i], 1, words) > 0;
            if (wrong != conformance_has_output(&cases[i], ranks))
                fail_msg("case %d of %" PRId64 " ranks: a damaged bit was %sseen: %s", i, ranks,
                         wrong ? "" : "not ", words);
            seen += wrong;
        }
        assert_true(seen > 30);
    }
}

static pl_call barrier_call(const pl_entry_name *name)
{
    return (pl_call){.collective = PL_BARRIER, .name = name};
}

/* Waiting too early says who is missing, changes nothing, and works later. */
static void test_waits_again(void **state)
{
    (void)state;
    pl_process_group *ranks[3];
    pl_request requests[3], next = -1;
    pl_entry_name name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_LAYER);
    int64_t sent[3] = {10, 11, 12}, received[3][3] = {{0}};
    name.layer = 3;
    assert_ok(open_fake(ranks, 3));
    for (int i = 0; i < 3; ++i) {
        pl_call call = {.collective = PL_ALL_GATHER,
                        .dtype = PL_I64,
                        .name = &name,
                        .send = &sent[i],
                        .recv = received[i],
                        .count = 1};
        assert_ok(pl_process_group_start(ranks[i], &call, &requests[i]));
        assert_int_equal(pl_group_fake_is_done(ranks[0], requests[0]), i == 2);
        if (i == 2) break;
        assert_fails(PL_TIMED_OUT, pl_process_group_wait(ranks[0], requests[0]),
                     "rank 0 waits for all-gather (gather layer.3, 1 x i64) in world {0,1,2}",
                     i == 0 ? "not arrived: 1, 2" : "not arrived: 2");
    }
    pl_call barrier = barrier_call(&name);
    assert_ok(pl_process_group_start(ranks[0], &barrier, &next));
    assert_fails(PL_TIMED_OUT, pl_process_group_wait(ranks[0], next), "barrier (gather layer.3)",
                 "not arrived: 1, 2");
    for (int i = 0; i < 3; ++i) {
        assert_ok(pl_process_group_wait(ranks[i], requests[i]));
        assert_memory_equal(received[i], sent, sizeof sent);
    }
    assert_fails(PL_TIMED_OUT, pl_process_group_do(ranks[1], &barrier), "not arrived: 2");
    assert_ok(pl_process_group_do(ranks[2], &barrier));
    assert_ok(pl_process_group_wait(ranks[0], next));
    for (int i = 0; i < 3; ++i) pl_process_group_close(ranks[i]);
}

static void test_integers_only(void **state)
{
    (void)state;
    static const pl_dtype floats[] = {PL_BF16, PL_FP16, PL_FP32, PL_FP64};
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    double values[2] = {0};
    pl_call call = {.collective = PL_ALL_REDUCE,
                    .reduction = PL_REDUCTION_SUM,
                    .name = &name,
                    .send = values,
                    .recv = values,
                    .count = 1};
    for (int i = 0; i < 4; ++i) {
        pl_process_group *ranks[2];
        assert_ok(open_fake(ranks, 2));
        call.dtype = floats[i];
        assert_fails(PL_UNSUPPORTED, pl_process_group_do(ranks[1], &call), "rank 1",
                     pl_dtype_name(floats[i]), "integers only", "reduce head", "world {0,1}");
        call.dtype = PL_I64;
        assert_fails(PL_PEER_FAILED, pl_process_group_do(ranks[0], &call),
                     "rank 1 failed (UNSUPPORTED)", "integers only", "rank 0 was to start");
        pl_process_group_close(ranks[0]);
        pl_process_group_close(ranks[1]);
    }
    pl_process_group *one = NULL;
    assert_ok(open_fake(&one, 1));
    call.reduction = PL_REDUCTION_AVERAGE;
    assert_fails(PL_INTERNAL, pl_process_group_do(one, &call), "average of integers");
    pl_process_group_close(one);
}

/* Sum of INPUTS over COUNT ranks with the given arithmetic, as rank 0 gets it. */
static int64_t sum_of(pl_fake_sums sums, const int64_t *inputs, int count, pl_reduction reduction)
{
    pl_process_group *ranks[4];
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    int64_t results[4];
    assert_ok(pl_group_fake_open(ranks, count, sums));
    for (int i = 0; i < count; ++i) {
        pl_request request = 0;
        pl_call call = {.collective = PL_ALL_REDUCE,
                        .dtype = PL_I64,
                        .reduction = reduction,
                        .name = &name,
                        .send = &inputs[i],
                        .recv = &results[i],
                        .count = 1};
        assert_ok(pl_process_group_start(ranks[i], &call, &request));
    }
    for (int i = 0; i < count; ++i) {
        assert_ok(pl_process_group_wait(ranks[i], 0));
        assert_true(results[i] == results[0]);
        pl_process_group_close(ranks[i]);
    }
    return results[0];
}

/* BASE to the power of EXPONENT modulo the prime, by the 128-bit type. */
static int64_t power(int64_t base, int64_t exponent)
{
    __extension__ typedef unsigned __int128 wide;
    wide result = 1, square = (wide)base;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = result * square % (wide)PL_FAKE_PRIME;
        square = square * square % (wide)PL_FAKE_PRIME;
    }
    return (int64_t)result;
}

/* A third is the inverse of 3 (Fermat), and three thirds are 1; sums that wrap miss that. */
static void test_sums_modulo_the_prime(void **state)
{
    (void)state;
    const int64_t third = power(3, PL_FAKE_PRIME - 2), seventh = power(7, PL_FAKE_PRIME - 2);
    const int64_t thirds[3] = {third, third, third}, minus[2] = {-1, 3}, least[1] = {INT64_MIN};
    const int64_t most[4] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    const int64_t mixed[2] = {third, seventh}, primes[2] = {PL_FAKE_PRIME, -PL_FAKE_PRIME};
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, thirds, 3, PL_REDUCTION_SUM) == 1);
    assert_true(sum_of(PL_FAKE_SUMS_WRAP, thirds, 3, PL_REDUCTION_SUM) != 1);
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, minus, 2, PL_REDUCTION_SUM) == 2);
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, minus, 1, PL_REDUCTION_SUM) == PL_FAKE_PRIME - 1);
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, primes, 2, PL_REDUCTION_SUM) == 0);
    /* 2^63 - 1 = 4 * 2^61 - 1, so 3; and -2^63 is -4. */
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, most, 4, PL_REDUCTION_SUM) == 12);
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, least, 1, PL_REDUCTION_SUM) == PL_FAKE_PRIME - 4);
    /* 1/3 + 1/7 = 10/21 */
    __extension__ typedef unsigned __int128 wide;
    int64_t sum = sum_of(PL_FAKE_SUMS_MODULO, mixed, 2, PL_REDUCTION_SUM);
    assert_true((int64_t)((wide)sum * 21 % (wide)PL_FAKE_PRIME) == 10);
    assert_true(sum_of(PL_FAKE_SUMS_MODULO, minus, 2, PL_REDUCTION_MAX) == 3);
}

enum { SIDE = 16, RANKS = SIDE * SIDE, ROUNDS = 3 };

/* Start a sum over RANK's row (ROUND even) or column of SIDE x SIDE ranks, in a new handle. */
static pl_status start_sum(pl_process_group *world, int round, int64_t *value,
                           pl_process_group **out)
{
    bool row = round % 2 == 0;
    int64_t rank = world->rank;
    pl_request request = 0;
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    pl_rank_set members = pl_rank_set_single(row ? rank / SIDE * SIDE : rank % SIDE);
    pl_rank_set_nest(&members, SIDE, row ? 1 : SIDE);
    PL_TRY(pl_process_group_split(world, row ? PL_GROUP_DENSE_SHARD : PL_GROUP_EXPERT_SHARD,
                                  &members, out));
    *value = rank;
    pl_call call = {.collective = PL_ALL_REDUCE,
                    .dtype = PL_I64,
                    .reduction = PL_REDUCTION_SUM,
                    .name = &name,
                    .send = value,
                    .recv = value,
                    .count = 1};
    return pl_process_group_start(*out, &call, &request);
}

static int64_t expected_sum(int round, int64_t rank)
{
    int64_t first = round % 2 == 0 ? rank / SIDE * SIDE : rank % SIDE;
    int64_t step = round % 2 == 0 ? 1 : SIDE;
    return SIDE * first + step * SIDE * (SIDE - 1) / 2;
}

static pl_status finish_sum(pl_process_group *group, int round, int64_t value)
{
    PL_TRY(pl_process_group_wait(group, 0));
    if (value != expected_sum(round, group->rank))
        return PL_FAIL(PL_CHECK_FAILED, "rank %" PRId64 ": a sum of %" PRId64, group->rank, value);
    pl_process_group_close(group);
    return PL_OK;
}

/* Many ranks, many groups, each asked for every time. */
static void test_many_groups(void **state)
{
    (void)state;
    static pl_process_group *world[RANKS], *groups[RANKS];
    static int64_t values[RANKS];
    assert_ok(open_fake(world, RANKS));
    for (int i = 0; i < 2 * ROUNDS * RANKS; ++i) {
        int rank = i % RANKS, round = i / (2 * RANKS);
        bool start = i / RANKS % 2 == 0;
        assert_ok(start ? start_sum(world[rank], round, &values[rank], &groups[rank])
                        : finish_sum(groups[rank], round, values[rank]));
    }
    for (int rank = 0; rank < RANKS; ++rank) pl_process_group_close(world[rank]);
}

static pl_status start_all(pl_process_group *const *ranks, int64_t count, const pl_call *call)
{
    pl_request request = 0;
    for (int64_t i = 0; i < count; ++i) PL_TRY(pl_process_group_start(ranks[i], call, &request));
    return PL_OK;
}

static pl_status open_and_use(void)
{
    pl_process_group *world[3] = {NULL}, *pair[2] = {NULL};
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = barrier_call(&name);
    pl_rank_set members = pl_rank_set_single(0);
    pl_rank_set_nest(&members, 2, 2);
    PL_TRY(open_fake(world, 3));
    pl_status status = PL_OK;
    for (int i = 0; i < 2 && status == PL_OK; ++i)
        status = pl_process_group_split(i ? world[2] : world[0], PL_GROUP_DATA, &members, &pair[i]);
    if (status == PL_OK) status = start_all(pair, 2, &call);
    for (int i = 0; i < 6 && status == PL_OK; ++i) status = start_all(world, 3, &call);
    for (int i = 0; i < 2; ++i) pl_process_group_close(pair[i]);
    for (int i = 0; i < 3; ++i) pl_process_group_close(world[i]);
    return status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    char words[CONFORMANCE_WORDS];
    int failures = conformance_fail_allocations(open_and_use, words);
    if (failures < 0) fail_msg("%s", words);
    assert_true(failures > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conforms),
                                       cmocka_unit_test(test_cases_see_faults),
                                       cmocka_unit_test(test_segments_see_late_faults),
                                       cmocka_unit_test(test_waits_again),
                                       cmocka_unit_test(test_integers_only),
                                       cmocka_unit_test(test_sums_modulo_the_prime),
                                       cmocka_unit_test(test_many_groups),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
