/* Doubles: a device, and a world's group, that pass on what they are asked to do and, if told so,
 * skip, repeat or fail some calls. The log is not theirs: it is written by what stands behind.
 */
#ifndef PL_TESTS_TRAIN_DOUBLES_H
#define PL_TESTS_TRAIN_DOUBLES_H

#include "common/process_group.h"
#include "kernels/device.h"

typedef enum double_act { DOUBLE_DO, DOUBLE_SKIP, DOUBLE_REPEAT, DOUBLE_FAIL } double_act;

/* Which calls a rule counts. */
enum { DOUBLE_OPERATIONS = 1, DOUBLE_COPIES = 2, DOUBLE_FILLS = 4, DOUBLE_GROUPS = 8 };

/* The call after the first AFTER of those counted, and every EVERY-th from there (0: no other). */
typedef struct double_rule {
    bool armed;  /* calls are counted and acted on from when this is set */
    bool logged; /* ... of a device: those made while it has a log */
    double_act act;
    unsigned counts;
    int64_t after, every;
} double_rule;

/* What became of a rule on one rank. */
typedef struct double_record {
    int64_t calls, acted;
    pl_entry_name entry; /* of the first call acted on */
    char what[32];
} double_record;

/* Memory that a device has lent. */
typedef struct double_memory {
    const char *start;
    int64_t bytes;
    const char *what; /* as the caller named it */
} double_memory;

enum { DOUBLE_MEMORY = 256 };

/* All zeroes but the rule; one for each rank. */
typedef struct double_device {
    pl_device head;
    pl_device *inner;
    double_rule rule;
    double_record record;
    int memory_count; /* may exceed DOUBLE_MEMORY: the rest was not kept */
    double_memory memory[DOUBLE_MEMORY];
} double_device;

/* D in place of INNER, which it closes. Failing is PL_NO_MEMORY. */
pl_device *double_device_open(double_device *d, pl_device *inner);

/* What the memory at START was lent as; NULL when START to START + BYTES is no memory of D. */
const char *double_device_memory(const double_device *d, const void *start, int64_t bytes);

/* The group of the world, and those split from it; all zeroes but the rule. */
typedef struct double_world {
    pl_process_group head;
    pl_process_group *inner;
    struct double_world *world; /* whose rule counts */
    pl_request *requests;       /* of the inner group; -1: a call that was skipped */
    int64_t request_count, request_room;
    double_rule rule;
    double_record record;
} double_world;

/* D in place of INNER, which it does not close; the caller frees D with double_world_free once
 * nobody uses it. Skipped and repeated calls must be the same on all ranks. */
pl_process_group *double_world_open(double_world *d, pl_process_group *inner);
void double_world_free(double_world *d);

#endif
