/* Backend self: the conformance cases of one rank, and what only it can show. */
#include "tests/test.h"

#include <inttypes.h>

#include "tests/groups/conformance.h"

static const pl_dtype all_dtypes[] = {PL_U8, PL_I32, PL_I64, PL_BF16, PL_FP16, PL_FP32, PL_FP64};

static pl_status open_self(pl_process_group **out, int64_t ranks)
{
    if (ranks != 1) return PL_FAIL(PL_BAD_INPUT, "self is one rank");
    return pl_group_self_open(out);
}

static const conformance_backend self_backend = {"self", all_dtypes, PL_DTYPE_COUNT, open_self};

static void test_conforms(void **state)
{
    (void)state;
    conformance_case cases[CONFORMANCE_CASES];
    char words[CONFORMANCE_WORDS];
    int count = conformance_list(cases, &self_backend, 1);
    assert_true(count > 100);
    if (conformance_run_loop(&self_backend, 1, cases, count, words)) fail_msg("%s", words);
    if (conformance_run_threads(&self_backend, 1, cases, count, words)) fail_msg("%s", words);
}

/* One rank's reductions keep every bit, NaN payloads too. */
static void test_keeps_bits(void **state)
{
    (void)state;
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    const uint16_t sent[4] = {0x7f81, 0xffc3, 0x8000, 0x0001};
    uint16_t received[4] = {0};
    pl_call call = {.collective = PL_ALL_REDUCE,
                    .dtype = PL_BF16,
                    .reduction = PL_REDUCTION_AVERAGE,
                    .name = &name,
                    .send = sent,
                    .recv = received,
                    .count = 4};
    assert_ok(pl_group_self_open(&group));
    assert_ok(pl_process_group_do(group, &call));
    assert_memory_equal(sent, received, sizeof sent);
    pl_process_group_close(group);
}

static void test_requests(void **state)
{
    (void)state;
    pl_process_group *group = NULL;
    pl_request first = -1, second = -1;
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = {.collective = PL_BARRIER, .name = &name};
    assert_ok(pl_group_self_open(&group));
    assert_fails(PL_INTERNAL, pl_process_group_wait(group, 0), "request 0", "started 0 requests",
                 "world {0}");
    assert_ok(pl_process_group_start(group, &call, &first));
    assert_ok(pl_process_group_start(group, &call, &second));
    assert_int_equal(first, 0);
    assert_int_equal(second, 1);
    assert_ok(pl_process_group_wait(group, second));
    assert_fails(PL_INTERNAL, pl_process_group_wait(group, second), "request 1", "already");
    assert_ok(pl_process_group_wait(group, first));
    assert_fails(PL_INTERNAL, pl_process_group_wait(group, first), "request 0", "already");
    assert_fails(PL_INTERNAL, pl_process_group_wait(group, -1), "request -1");
    assert_fails(PL_INTERNAL, pl_process_group_wait(group, 2), "request 2", "started 2 requests");
    pl_process_group_close(group);
    pl_process_group_close(NULL);
}

static void test_transfers_to_oneself(void **state)
{
    (void)state;
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_DISPATCH, PL_SUBJECT_LAYER);
    int32_t sent[3] = {1, 2, 3}, received[3] = {0};
    pl_transfer transfers[3] = {{.peer = 0, .is_send = 1, .buffer = sent, .count = 3},
                                {.peer = 0, .is_send = 0, .buffer = received, .count = 2},
                                {.peer = 0, .is_send = 1, .buffer = sent, .count = 1}};
    pl_call call = {.collective = PL_SEND_RECEIVE,
                    .dtype = PL_I32,
                    .name = &name,
                    .transfers = transfers,
                    .transfer_count = 2};
    assert_ok(pl_group_self_open(&group));
    assert_fails(PL_INTERNAL, pl_process_group_do(group, &call), "rank 0", "sends 3 elements",
                 "expects 2 elements", "send-receive (dispatch layer.-1, 2 transfers of i32)");
    assert_fails(PL_INTERNAL, pl_process_group_do(group, &call), "expects 2", "was to start");
    pl_process_group_close(group);
    assert_ok(pl_group_self_open(&group));
    transfers[1].count = 3;
    call.transfer_count = 3;
    assert_fails(PL_INTERNAL, pl_process_group_do(group, &call), "sends 1 elements",
                 "expects nothing more");
    pl_process_group_close(group);
    assert_ok(pl_group_self_open(&group));
    call.transfers = transfers + 1;
    call.transfer_count = 1;
    assert_fails(PL_INTERNAL, pl_process_group_do(group, &call), "sends nothing more",
                 "expects 3 elements");
    pl_process_group_close(group);
    assert_ok(pl_group_self_open(&group));
    call.transfers = transfers;
    call.transfer_count = 2;
    assert_ok(pl_process_group_do(group, &call));
    assert_memory_equal(sent, received, sizeof sent);
    pl_process_group_close(group);
}

static void test_uneven_to_oneself(void **state)
{
    (void)state;
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_DISPATCH, PL_SUBJECT_LAYER);
    const int32_t sent[3] = {1, 2, 3};
    int32_t received[3] = {0};
    const int64_t three = 3, two = 2;
    pl_call call = {.collective = PL_ALL_TO_ALL_UNEVEN,
                    .dtype = PL_I32,
                    .name = &name,
                    .send = sent,
                    .recv = received,
                    .send_counts = &three,
                    .recv_counts = &two};
    assert_ok(pl_group_self_open(&group));
    assert_fails(PL_INTERNAL, pl_process_group_do(group, &call), "sends 3 elements",
                 "expects 2 elements");
    assert_int_equal(received[0], 0);
    pl_process_group_close(group);
}

static pl_status open_and_use(void)
{
    pl_process_group *world = NULL, *part = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = {.collective = PL_BARRIER, .name = &name};
    pl_rank_set members = pl_rank_set_single(0);
    PL_TRY(pl_group_self_open(&world));
    pl_status status = pl_process_group_split(world, PL_GROUP_DATA, &members, &part);
    if (status == PL_OK) status = pl_process_group_do(part, &call);
    if (status == PL_OK) status = pl_process_group_do(world, &call);
    pl_process_group_close(part);
    pl_process_group_close(world);
    return status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    char words[CONFORMANCE_WORDS];
    int failures = conformance_fail_allocations(open_and_use, words);
    if (failures < 0) fail_msg("%s", words);
    assert_true(failures > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conforms),          cmocka_unit_test(test_keeps_bits),
        cmocka_unit_test(test_requests),          cmocka_unit_test(test_transfers_to_oneself),
        cmocka_unit_test(test_uneven_to_oneself), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
