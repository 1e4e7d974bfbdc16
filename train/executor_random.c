/* Entries in a random order that streams and waits allow. */
#include <inttypes.h>

#include "common/philox.h"
#include "train/executor_state.h"

typedef struct chooser {
    pl_executor *executor;
    int32_t next[PL_STREAM_COUNT]; /* of each stream, the next entry; the count when none is left */
    uint64_t drawn;
} chooser;

/* A number below BELOW > 0; each rank has a sequence of its own. */
static uint32_t draw(chooser *c, uint32_t below)
{
    const uint64_t number = c->drawn++, seed = c->executor->order_seed;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32),
                                 (uint32_t)c->executor->rank,
                                 (uint32_t)c->executor->running->section->program};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    return pl_philox(counter, key).word[0] % below;
}

static int32_t next_of_stream(const chooser *c, int stream, int32_t from)
{
    const pl_section *section = c->executor->running->section;
    int32_t i = from;
    while ((size_t)i < section->entry_count && section->entries[i].stream != (uint8_t)stream) ++i;
    return i;
}

/* All entries listed before INDEX have been issued: what a wait for an entry that was taken out of
 * the plan comes to. */
static bool is_first(const chooser *c, int32_t index)
{
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        if (c->next[i] < index) return false;
    return true;
}

static bool is_ready(const chooser *c, int32_t index)
{
    const pl_section *section = c->executor->running->section;
    if ((size_t)index >= section->entry_count) return false;
    const pl_entry *entry = &section->entries[index];
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t wait = section->waits[entry->wait_first + i];
        if (wait == PL_WAIT_MISSING && !is_first(c, index)) return false;
        if (wait != PL_WAIT_MISSING && c->executor->running->entry[wait].tick == 0) return false;
    }
    return true;
}

static pl_status refuse_stuck(const chooser *c)
{
    const pl_section *section = c->executor->running->section;
    for (int i = 0; i < PL_STREAM_COUNT; ++i) {
        if ((size_t)c->next[i] >= section->entry_count) continue;
        pl_status status = PL_FAIL(PL_BAD_INPUT, "its waits are never over");
        pl_entry_context(c->executor, c->next[i]);
        return status;
    }
    return PL_OK;
}

pl_status pl_executor_run_random(pl_executor *executor)
{
    const pl_section *section = executor->running->section;
    chooser c = {.executor = executor};
    for (int i = 0; i < PL_STREAM_COUNT; ++i) c.next[i] = next_of_stream(&c, i, 0);
    for (size_t done = 0; done < section->entry_count; ++done) {
        int ready[PL_STREAM_COUNT];
        uint32_t count = 0;
        for (int i = 0; i < PL_STREAM_COUNT; ++i)
            if (is_ready(&c, c.next[i])) ready[count++] = i;
        if (count == 0) return refuse_stuck(&c);
        /* Sooner or later a collective is done of itself. */
        if (executor->pending_count > 0 && draw(&c, 4) == 0) PL_TRY(pl_order_complete(executor, 0));
        int stream = ready[draw(&c, count)];
        int32_t index = c.next[stream];
        c.next[stream] = next_of_stream(&c, stream, index + 1);
        PL_TRY(pl_executor_issue(executor, index));
    }
    return PL_OK;
}
