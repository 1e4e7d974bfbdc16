/* The log of one rank against its plan, entry for entry, while the rank runs.
 *
 * Of every entry: the calls are those expected (call_expect.h), on its stream, in plan order; their
 * FLOPs come to the entry's; each range they touch lies in a buffer that the entry uses with that
 * right, or in work space that nobody else has and that the entry wrote before it reads, or is the
 * rotary table or the staging of small numbers; every buffer used is touched, every buffer begun is
 * written whole; a collective has the entry's members, type, reduction and bytes.
 *
 * Runs on the rank's thread, so nothing is asserted here: the first difference is kept in words.
 */
#ifndef PL_TESTS_TRAIN_CALL_WATCH_H
#define PL_TESTS_TRAIN_CALL_WATCH_H

#include "tests/train/call_expect.h"
#include "tests/train/doubles.h"
#include "train/executor.h"

enum { WATCH_OWNERS = 16 };

/* Rows that bind fixed: to each owner, and from all. */
typedef struct watch_bound {
    pl_entry_name entry;
    int64_t sent[WATCH_OWNERS], received;
} watch_bound;

/* A range of a used buffer (USE is its number in the entry), or of work space (USE -1). */
typedef struct watch_range {
    int32_t use;
    int64_t begin, end; /* work space: addresses */
    bool read, written;
} watch_range;

/* A live buffer, as it was at the latest call. */
typedef struct watch_buffer {
    const char *start;
    int64_t bytes;
    int32_t use; /* -1: the entry does not use it */
} watch_buffer;

typedef struct call_watch {
    const call_facts *facts; /* borrowed */
    const double_device *device;
    int64_t rank;
    pl_call_log log; /* of device and groups */
    /* where the rank is */
    const pl_executor *executor;
    const pl_section *section;
    int64_t index; /* -1: between programs */
    call_names expected;
    int calls_seen;
    int64_t rows; /* R of the entry's layer and micro-batch; -1: not known */
    int64_t flops;
    watch_buffer *buffers;
    watch_range *ranges;
    size_t buffer_count, buffer_room, range_count, range_room;
    /* results */
    watch_bound *bound;
    size_t bound_count, bound_room;
    int64_t entries, calls, programs;
    char words[1024]; /* the first difference; "": none */
} call_watch;

void call_watch_open(call_watch *watch, const call_facts *facts, int64_t rank,
                     const double_device *device);
void call_watch_close(call_watch *watch);

/* Before entry INDEX is carried out. The entry before it is compared. */
pl_status call_watch_before(call_watch *watch, pl_executor *executor, const pl_section *section,
                            int64_t index);

/* The rank has run its programs; its plan is still there. */
void call_watch_finish(call_watch *watch);

#endif
