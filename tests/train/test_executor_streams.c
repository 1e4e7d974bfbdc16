/* Streams that run late: a device that only queues what it is told and does it when somebody waits,
 * in a random order that its streams and events allow. What the executor does not order goes
 * wrong here as it would on a real device, so equal bits show that events and waits suffice.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/test.h"
#include "tests/train/lone_rank.h"
#include "train/executor_state.h"

enum { ITEMS = 4096, ARGUMENT_BYTES = 256, EVERYTHING = -1 };

typedef enum item_kind { ITEM_CALL, ITEM_COPY, ITEM_FILL, ITEM_RECORD, ITEM_WAIT } item_kind;

typedef struct item {
    item_kind kind;
    pl_status (*call)(pl_device *inner, pl_stream stream, const void *arguments);
    union {
        char bytes[ARGUMENT_BYTES];
        void *aligned;
    } arguments;
    void *to;
    const void *from;
    int64_t bytes;
    int byte;
    pl_copy_kind copy;
    int64_t record; /* number of the record that is made or waited for */
    pl_entry_name entry;
} item;

typedef struct queue {
    item items[ITEMS];
    size_t first, count;
} queue;

typedef struct lazy {
    pl_device head;
    pl_device *inner;
    queue queues[PL_STREAM_COUNT];
    int64_t event[PL_DEVICE_EVENTS]; /* number of the latest record; -1: none */
    int64_t records;
    bool *recorded; /* [records] */
    size_t record_capacity;
    uint32_t random;
    bool deaf;               /* a fault: waits are not kept */
    pl_executor **forgetful; /* not NULL: one event for all, and the executor knows at once that
                                none stays where it was */
    int64_t late, waits;
    pl_status status; /* of what was done late */
} lazy;

static uint32_t draw(lazy *l, uint32_t below)
{
    l->random = l->random * 1664525U + 1013904223U;
    return (l->random >> 8) % below;
}

static bool runnable(const lazy *l, int stream)
{
    const queue *q = &l->queues[stream];
    const item *head = &q->items[q->first];
    if (q->count == 0) return false;
    return head->kind != ITEM_WAIT || l->deaf || head->record < 0 || l->recorded[head->record];
}

static void run_one(lazy *l, int stream)
{
    queue *q = &l->queues[stream];
    const item *head = &q->items[q->first];
    pl_status status = PL_OK;
    l->inner->entry = head->entry;
    switch (head->kind) {
    case ITEM_CALL: status = head->call(l->inner, (pl_stream)stream, &head->arguments); break;
    case ITEM_COPY:
        status = l->inner->functions->copy(l->inner, (pl_stream)stream, head->to, head->from,
                                           head->bytes, head->copy);
        break;
    case ITEM_FILL:
        status = l->inner->functions->fill(l->inner, (pl_stream)stream, head->to, head->byte,
                                           head->bytes);
        break;
    case ITEM_RECORD: l->recorded[head->record] = true; break;
    case ITEM_WAIT: break;
    }
    if (l->status == PL_OK) l->status = status;
    q->first = (q->first + 1) % ITEMS;
    --q->count;
}

/* Do what is queued until STREAM is empty, or all streams are. */
static pl_status run_until(lazy *l, int stream)
{
    for (;;) {
        int ready[PL_STREAM_COUNT], count = 0;
        int64_t left = 0;
        for (int s = 0; s < PL_STREAM_COUNT; ++s) {
            if (runnable(l, s)) ready[count++] = s;
            if (stream == EVERYTHING || s == stream) left += (int64_t)l->queues[s].count;
        }
        if (left == 0) return l->status;
        if (count == 0) return PL_FAIL(PL_INTERNAL, "streams wait for each other");
        run_one(l, ready[draw(l, (uint32_t)count)]);
    }
}

static pl_status push(lazy *l, pl_stream stream, const item *one)
{
    queue *q = &l->queues[stream];
    if (q->count == ITEMS) PL_TRY(run_until(l, (int)stream));
    q->items[(q->first + q->count++) % ITEMS] = *one;
    ++l->late;
    return PL_OK;
}

#define LAZY(name, arguments_type)                                                                 \
    static pl_status late_##name(pl_device *inner, pl_stream stream, const void *a)                \
    {                                                                                              \
        return inner->operations->name(inner, stream, a);                                          \
    }                                                                                              \
    static pl_status lazy_##name(pl_device *device, pl_stream stream, const arguments_type *a)     \
    {                                                                                              \
        item one = {.kind = ITEM_CALL, .call = late_##name, .entry = device->entry};               \
        _Static_assert(sizeof *a <= ARGUMENT_BYTES, "room for the arguments");                     \
        memcpy(one.arguments.bytes, a, sizeof *a);                                                 \
        return push((lazy *)device, stream, &one);                                                 \
    }
PL_DEVICE_OPERATIONS(LAZY)
#undef LAZY

#define LAZY(name, arguments_type) .name = lazy_##name,
static const pl_operations operations = {PL_DEVICE_OPERATIONS(LAZY)};
#undef LAZY

static pl_status lazy_allocate(pl_device *device, void **out, int64_t bytes, const char *what)
{
    pl_device *inner = ((lazy *)device)->inner;
    return inner->functions->allocate(inner, out, bytes, what);
}

static void lazy_release(pl_device *device, void *memory)
{
    pl_device *inner = ((lazy *)device)->inner;
    inner->functions->release(inner, memory);
}

static pl_status lazy_allocate_host(pl_device *device, void **out, int64_t bytes, const char *what)
{
    pl_device *inner = ((lazy *)device)->inner;
    return inner->functions->allocate_host(inner, out, bytes, what);
}

static void lazy_release_host(pl_device *device, void *memory)
{
    pl_device *inner = ((lazy *)device)->inner;
    inner->functions->release_host(inner, memory);
}

static pl_status lazy_copy(pl_device *device, pl_stream stream, void *to, const void *from,
                           int64_t bytes, pl_copy_kind kind)
{
    item one = {.kind = ITEM_COPY,
                .to = to,
                .from = from,
                .bytes = bytes,
                .copy = kind,
                .entry = device->entry};
    return push((lazy *)device, stream, &one);
}

static pl_status lazy_fill(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes)
{
    item one = {.kind = ITEM_FILL, .to = to, .byte = byte, .bytes = bytes, .entry = device->entry};
    return push((lazy *)device, stream, &one);
}

static pl_status lazy_record(pl_device *device, pl_stream stream, int32_t event)
{
    lazy *l = (lazy *)device;
    PL_TRY(pl_grow(&l->recorded, &l->record_capacity, (size_t)l->records + 1, sizeof *l->recorded,
                   "records"));
    item one = {.kind = ITEM_RECORD, .record = l->records, .entry = device->entry};
    if (l->forgetful && *l->forgetful) (*l->forgetful)->events += PL_DEVICE_EVENTS;
    l->event[l->forgetful ? 0 : event] = l->records;
    l->recorded[l->records++] = false;
    return push(l, stream, &one);
}

static pl_status lazy_wait(pl_device *device, pl_stream stream, int32_t event)
{
    lazy *l = (lazy *)device;
    item one = {
        .kind = ITEM_WAIT, .record = l->event[l->forgetful ? 0 : event], .entry = device->entry};
    ++l->waits;
    return push(l, stream, &one);
}

static pl_status lazy_synchronize(pl_device *device, pl_stream stream)
{
    return run_until((lazy *)device, (int)stream);
}

static const pl_device_functions functions = {.allocate = lazy_allocate,
                                              .release = lazy_release,
                                              .allocate_host = lazy_allocate_host,
                                              .release_host = lazy_release_host,
                                              .copy = lazy_copy,
                                              .fill = lazy_fill,
                                              .record = lazy_record,
                                              .wait = lazy_wait,
                                              .synchronize = lazy_synchronize};

/* The device of the running test. */
static lazy device_of_test;

static pl_device *make_lazy(pl_device *device)
{
    lazy *l = &device_of_test;
    l->head = *device;
    l->head.functions = &functions;
    l->head.operations = &operations;
    l->inner = device;
    for (int i = 0; i < PL_DEVICE_EVENTS; ++i) l->event[i] = -1;
    l->status = PL_OK;
    l->late = l->waits = l->records = 0;
    return &l->head;
}

/* --- runs --- */

enum { VALUES = 4096, STEPS = 2 };

typedef struct outcome {
    pl_status status;
    double loss[STEPS + 1], norm[STEPS];
    float values[VALUES]; /* all that export handed out */
    size_t count;
    uint64_t saved; /* all that save handed out, mixed together */
} outcome;

static pl_status take_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                             int64_t row_end, pl_dtype dtype, const void *values)
{
    lone_rank *lone = context;
    outcome *o = lone->context;
    size_t count = (size_t)((row_end - row_begin) * tensor->cols);
    if (dtype != PL_FP32 || o->count + count > VALUES)
        return PL_FAIL(PL_INTERNAL, "more values than the test has room for");
    memcpy(o->values + o->count, values, count * sizeof(float));
    o->count += count;
    return PL_OK;
}

static pl_status mix_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                            int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    lone_rank *lone = context;
    outcome *o = lone->context;
    const unsigned char *bytes = values;
    int64_t count = (row_end - row_begin) * tensor->cols * pl_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; ++i)
        o->saved = (o->saved ^ (bytes[i] + (uint64_t)kind)) * 0x100000001b3u;
    return PL_OK;
}

/* Numbers from 0.5 / 64 on, different ones in every buffer. */
static pl_status give_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    float *values = out;
    (void)context;
    if (dtype != PL_FP32) return PL_FAIL(PL_INTERNAL, "these ranks hold fp32 only");
    for (int64_t i = 0; i < (row_end - row_begin) * tensor->cols; ++i)
        values[i] =
            (float)((i * 7 + row_begin + (int64_t)kind * 5 + tensor->layer * 3 + 9) % 31) / 64 +
            0.5F / 64;
    return PL_OK;
}

static pl_status run_all(lone_rank *lone, outcome *o, bool loads)
{
    pl_program_result result;
    PL_TRY(lone_run(lone, loads ? PL_PROGRAM_LOAD : PL_PROGRAM_START, &result));
    for (int step = 0; step < STEPS; ++step) {
        PL_TRY(lone_run(lone, PL_PROGRAM_STEP, &result));
        o->loss[step] = result.loss_sum;
        o->norm[step] = result.norm;
    }
    PL_TRY(lone_run(lone, PL_PROGRAM_EVALUATE, &result));
    o->loss[STEPS] = result.loss_sum;
    PL_TRY(lone_run(lone, PL_PROGRAM_EXPORT, &result));
    return lone_run(lone, PL_PROGRAM_SAVE, &result);
}

typedef enum lateness { NOW, LATE, LATE_AND_FORGETFUL } lateness;

static outcome run(pl_policy policy, bool loads, lateness late)
{
    const uint32_t programs = PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE |
                              PL_PROGRAMS_EXPORT | PL_PROGRAMS_SAVE | PL_PROGRAMS_LOAD;
    outcome o = {.status = PL_OK};
    lone_rank lone = {.outside = {.write_values = take_values,
                                  .save_values = mix_values,
                                  .load_values = give_values}};
    lone.context = &o;
    if (late != NOW) lone.wrap = make_lazy;
    device_of_test.forgetful = late == LATE_AND_FORGETFUL ? &lone.executor : NULL;
    o.status =
        lone_plan(&lone.plan, "mixed", "single:world=1", programs, policy, (pl_shape){8, 1, 2, 3});
    if (o.status == PL_OK) o.status = lone_open(&lone);
    if (o.status == PL_OK) o.status = run_all(&lone, &o, loads);
    lone_close(&lone);
    return o;
}

static bool same(const outcome *a, const outcome *b)
{
    return b->status == PL_OK && a->count == b->count && a->saved == b->saved &&
           memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(a->values, b->values, a->count * sizeof(float)) == 0;
}

static void late_streams_leave_every_bit(void **state)
{
    (void)state;
    static const pl_policy policies[] = {
        {.recompute = PL_RECOMPUTE_NONE},
        {.recompute = PL_RECOMPUTE_FULL, .reshard = PL_RESHARD_PER_CALL},
        {.dispatch = PL_DISPATCH_ALL_GATHER}};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; ++i) {
        bool loads = i == 1;
        outcome now = run(policies[i], loads, NOW);
        if (now.status != PL_OK) fail_msg("%s", pl_error_text());
        assert_true(now.count > 1000 && now.saved != 0);
        for (uint32_t seed = 1; seed <= 8; ++seed) {
            device_of_test.random = seed;
            outcome later = run(policies[i], loads, seed % 4 == 0 ? LATE_AND_FORGETFUL : LATE);
            if (later.status != PL_OK) fail_msg("seed %u: %s", seed, pl_error_text());
            assert_true(device_of_test.late > 500);
            assert_true(device_of_test.waits > 10);
            if (!same(&now, &later)) fail_msg("seed %u: other bits", seed);
        }
    }
}

static void a_device_that_does_not_keep_waits_goes_wrong(void **state)
{
    (void)state;
    int wrong = 0;
    outcome now = run((pl_policy){0}, false, NOW);
    device_of_test.deaf = true;
    for (uint32_t seed = 1; seed <= 8; ++seed) {
        device_of_test.random = seed;
        outcome later = run((pl_policy){0}, false, LATE);
        wrong += !same(&now, &later);
    }
    device_of_test.deaf = false;
    assert_true(wrong > 0);
}

static int free_records(void **state)
{
    (void)state;
    pl_free(device_of_test.recorded);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_streams_leave_every_bit),
        cmocka_unit_test(a_device_that_does_not_keep_waits_goes_wrong),
    };
    return cmocka_run_group_tests_name("train/executor_streams", tests, NULL, free_records);
}
