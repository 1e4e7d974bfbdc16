#include "tests/train/doubles.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"

/* --- rules --- */

/* What is to become of the next call, which KIND counts. */
static double_act next_act(const double_rule *rule, double_record *record, unsigned kind,
                           const char *what, const pl_entry_name *entry)
{
    if (!rule->armed || !(rule->counts & kind)) return DOUBLE_DO;
    int64_t past = record->calls++ - rule->after;
    if (past < 0 || (past > 0 && (rule->every == 0 || past % rule->every != 0))) return DOUBLE_DO;
    if (record->acted++ == 0) {
        record->entry = *entry;
        snprintf(record->what, sizeof record->what, "%s", what);
    }
    return rule->act;
}

/* --- devices --- */

static double_device *double_of(pl_device *device) { return (double_device *)device; }

/* The inner device, for the entry and the log that the outer one has now. */
static pl_device *inner_of(double_device *d)
{
    d->inner->entry = d->head.entry;
    d->inner->log = d->head.log;
    return d->inner;
}

static double_act next_of_device(double_device *d, unsigned kind, const char *what)
{
    if (d->rule.logged && !d->head.log) return DOUBLE_DO;
    return next_act(&d->rule, &d->record, kind, what, &d->head.entry);
}

static pl_status refuse_memory(const char *what)
{
    return PL_FAIL(PL_NO_MEMORY, "no memory for the work space of %s", what);
}

#define DOUBLE(name, arguments_type)                                                               \
    static pl_status double_##name(pl_device *device, pl_stream stream, const arguments_type *a)   \
    {                                                                                              \
        double_device *d = double_of(device);                                                      \
        pl_device *inner = inner_of(d);                                                            \
        double_act act = next_of_device(d, DOUBLE_OPERATIONS, #name);                              \
        if (act == DOUBLE_SKIP) return PL_OK;                                                      \
        if (act == DOUBLE_FAIL) return refuse_memory(#name);                                       \
        if (act == DOUBLE_REPEAT) PL_TRY(inner->operations->name(inner, stream, a));               \
        return inner->operations->name(inner, stream, a);                                          \
    }
PL_DEVICE_OPERATIONS(DOUBLE)
#undef DOUBLE

#define DOUBLE(name, arguments_type) .name = double_##name,
static const pl_operations operations = {PL_DEVICE_OPERATIONS(DOUBLE)};
#undef DOUBLE

static void lent(double_device *d, const void *start, int64_t bytes, const char *what)
{
    if (d->memory_count < DOUBLE_MEMORY)
        d->memory[d->memory_count] = (double_memory){start, bytes, what};
    ++d->memory_count;
}

static void returned(double_device *d, const void *start)
{
    int kept = d->memory_count < DOUBLE_MEMORY ? d->memory_count : DOUBLE_MEMORY;
    for (int i = 0; i < kept; ++i)
        if (d->memory[i].start == start) d->memory[i] = (double_memory){NULL, 0, ""};
}

static pl_status double_allocate(pl_device *device, void **out, int64_t bytes, const char *what)
{
    double_device *d = double_of(device);
    PL_TRY(d->inner->functions->allocate(d->inner, out, bytes, what));
    lent(d, *out, bytes, what);
    return PL_OK;
}

static pl_status double_allocate_host(pl_device *device, void **out, int64_t bytes,
                                      const char *what)
{
    double_device *d = double_of(device);
    PL_TRY(d->inner->functions->allocate_host(d->inner, out, bytes, what));
    lent(d, *out, bytes, what);
    return PL_OK;
}

static void double_release(pl_device *device, void *memory)
{
    double_device *d = double_of(device);
    returned(d, memory);
    d->inner->functions->release(d->inner, memory);
}

static void double_release_host(pl_device *device, void *memory)
{
    double_device *d = double_of(device);
    returned(d, memory);
    d->inner->functions->release_host(d->inner, memory);
}

static pl_status double_copy(pl_device *device, pl_stream stream, void *to, const void *from,
                             int64_t bytes, pl_copy_kind kind)
{
    double_device *d = double_of(device);
    pl_device *inner = inner_of(d);
    double_act act = next_of_device(d, DOUBLE_COPIES, "copy");
    if (act == DOUBLE_SKIP) return PL_OK;
    if (act == DOUBLE_FAIL) return refuse_memory("copy");
    if (act == DOUBLE_REPEAT) PL_TRY(inner->functions->copy(inner, stream, to, from, bytes, kind));
    return inner->functions->copy(inner, stream, to, from, bytes, kind);
}

static pl_status double_fill(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes)
{
    double_device *d = double_of(device);
    pl_device *inner = inner_of(d);
    double_act act = next_of_device(d, DOUBLE_FILLS, "fill");
    if (act == DOUBLE_SKIP) return PL_OK;
    if (act == DOUBLE_FAIL) return refuse_memory("fill");
    if (act == DOUBLE_REPEAT) PL_TRY(inner->functions->fill(inner, stream, to, byte, bytes));
    return inner->functions->fill(inner, stream, to, byte, bytes);
}

static pl_status double_record_event(pl_device *device, pl_stream stream, int32_t event)
{
    double_device *d = double_of(device);
    return d->inner->functions->record(d->inner, stream, event);
}

static pl_status double_wait(pl_device *device, pl_stream stream, int32_t event)
{
    double_device *d = double_of(device);
    return d->inner->functions->wait(d->inner, stream, event);
}

static pl_status double_synchronize(pl_device *device, pl_stream stream)
{
    double_device *d = double_of(device);
    return d->inner->functions->synchronize(d->inner, stream);
}

static void double_close(pl_device *device)
{
    double_device *d = double_of(device);
    d->inner->functions->close(d->inner);
    d->inner = NULL;
}

static const pl_device_functions device_functions = {
    .allocate = double_allocate,
    .release = double_release,
    .allocate_host = double_allocate_host,
    .release_host = double_release_host,
    .copy = double_copy,
    .fill = double_fill,
    .record = double_record_event,
    .wait = double_wait,
    .synchronize = double_synchronize,
    .close = double_close,
};

pl_device *double_device_open(double_device *d, pl_device *inner)
{
    d->head = *inner;
    d->head.functions = &device_functions;
    d->head.operations = &operations;
    d->inner = inner;
    return &d->head;
}

const char *double_device_memory(const double_device *d, const void *start, int64_t bytes)
{
    const char *at = start;
    int kept = d->memory_count < DOUBLE_MEMORY ? d->memory_count : DOUBLE_MEMORY;
    for (int i = 0; i < kept; ++i) {
        const double_memory *m = &d->memory[i];
        if (m->start && at >= m->start && at + bytes <= m->start + m->bytes) return m->what;
    }
    return NULL;
}

/* --- groups --- */

static double_world *world_of(pl_process_group *group) { return (double_world *)group; }

static pl_status keep_request(double_world *d, pl_request inner, pl_request *out)
{
    size_t room = (size_t)d->request_room;
    PL_TRY(pl_grow(&d->requests, &room, (size_t)d->request_count + 1, sizeof *d->requests,
                   "requests"));
    d->request_room = (int64_t)room;
    *out = d->request_count;
    d->requests[d->request_count++] = inner;
    return PL_OK;
}

static pl_status double_start(pl_process_group *group, const pl_call *call, pl_request *out)
{
    double_world *d = world_of(group), *world = d->world;
    pl_request inner = -1;
    double_act act = next_act(&world->rule, &world->record, DOUBLE_GROUPS,
                              pl_collective_name(call->collective), call->name);
    if (act == DOUBLE_FAIL) return PL_FAIL(PL_NO_MEMORY, "no memory for a call");
    if (act == DOUBLE_REPEAT) PL_TRY(pl_process_group_do(d->inner, call));
    if (act != DOUBLE_SKIP) PL_TRY(pl_process_group_start(d->inner, call, &inner));
    return keep_request(d, inner, out);
}

static pl_status double_group_wait(pl_process_group *group, pl_request request)
{
    const double_world *d = world_of(group);
    pl_request inner = d->requests[request];
    return inner < 0 ? PL_OK : pl_process_group_wait(d->inner, inner);
}

static pl_status double_split(pl_process_group *group, pl_group_role role,
                              const pl_rank_set *members, pl_process_group **out);

static void double_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_process_group_fail(world_of(group)->inner, status, words);
}

static void double_group_close(pl_process_group *group)
{
    double_world *d = world_of(group);
    pl_process_group_close(d->inner);
    double_world_free(d);
    free(d);
}

static const pl_process_group_backend group_backend = {.name = "double",
                                                       .start = double_start,
                                                       .wait = double_group_wait,
                                                       .split = double_split,
                                                       .fail = double_fail,
                                                       .close = double_group_close};

static pl_process_group *put_before(double_world *d, double_world *world, pl_process_group *inner)
{
    d->head = *inner;
    d->head.backend = &group_backend;
    d->head.log = NULL; /* the inner one writes it */
    d->inner = inner;
    d->world = world;
    return &d->head;
}

static pl_status double_split(pl_process_group *group, pl_group_role role,
                              const pl_rank_set *members, pl_process_group **out)
{
    double_world *world = world_of(group);
    pl_process_group *inner = NULL;
    PL_TRY(pl_process_group_split(world->inner, role, members, &inner));
    double_world *d = calloc(1, sizeof *d);
    if (!d) {
        pl_process_group_close(inner);
        return PL_FAIL(PL_NO_MEMORY, "no memory for a group");
    }
    *out = put_before(d, world, inner);
    return PL_OK;
}

pl_process_group *double_world_open(double_world *d, pl_process_group *inner)
{
    return put_before(d, d, inner);
}

void double_world_free(double_world *d)
{
    pl_free(d->requests);
    d->requests = NULL;
}
