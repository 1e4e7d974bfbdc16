#include "train/memory_need.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

/* --- what a plan asks for --- */

/* A plan that was given may say anything; sums of a million numbers of this size do not overflow.
 */
static int64_t product(int64_t a, int64_t b)
{
    const int64_t most = INT64_MAX >> 20; /* 8 TiB */
    int64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) || result > most ? most : result;
}

/* R on average: an exchange moves routes from rank to rank, so the mean stays. */
static int64_t mean_rows(const pl_plan *plan)
{
    const pl_shape *shape = &plan->settings.shape;
    return product(product(shape->micro_batch, shape->sequence), plan->model.num_experts_per_tok);
}

/* Go on from NOW bytes through SECTION; raises PEAK. */
static int64_t walk_section(const pl_section *section, int64_t rows, int64_t now, int64_t *peak)
{
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        const pl_use *uses = section->uses + entry->use_first;
        for (int pass = 0; pass < 2; ++pass) {
            uint32_t wanted = pass == 0 ? PL_USE_BEGIN : PL_USE_END;
            for (uint32_t u = 0; u < entry->use_count; ++u) {
                if (!(uses[u].flags & wanted)) continue;
                const pl_buffer *buffer = &section->buffers[uses[u].buffer];
                int64_t bytes = product(buffer->bytes, buffer->per_row ? rows : 1);
                now += pass == 0 ? bytes : -bytes;
            }
            if (now > *peak) *peak = now;
        }
    }
    return now;
}

/* Host buffers of the program save, none of which is let go. */
static int64_t saved_bytes(const pl_plan *plan, int64_t rank)
{
    const pl_section *section = pl_plan_section(plan, PL_PROGRAM_SAVE, rank);
    int64_t bytes = 0;
    for (uint32_t i = 0; section && i < section->buffer_count; ++i)
        if (section->buffers[i].class_ == PL_BUFFER_HOST)
            bytes += product(section->buffers[i].bytes, 1);
    return bytes;
}

int64_t pl_memory_need(const pl_plan *plan, int64_t rank, bool keeps_saved)
{
    int64_t resident = 0, peak = 0, rows = mean_rows(plan);
    for (int made = 1; made >= 0; --made) { /* first start and load: what they leave is resident */
        for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
            const pl_section *section = pl_plan_section(plan, (pl_program)program, rank);
            bool makes = pl_program_makes_residents((pl_program)program);
            if (!section || makes != (made == 1)) continue;
            int64_t left = walk_section(section, rows, makes ? 0 : resident, &peak);
            if (makes) resident = left;
        }
    }
    return keeps_saved ? peak + saved_bytes(plan, rank) : peak;
}

/* --- what the machine has --- */

/* The number behind NAME in FILE (its first number where NAME is ""); -1 when there is none. */
static int64_t number_in(const char *file, const char *name)
{
    char line[256];
    int64_t number = -1;
    FILE *stream = fopen(file, "r");
    while (stream && number < 0 && fgets(line, sizeof line, stream))
        if (strncmp(line, name, strlen(name)) == 0) {
            char *end = NULL, *digits = line + strlen(name);
            long long value = strtoll(digits, &end, 10);
            if (end != digits) number = value;
        }
    if (stream) (void)fclose(stream);
    return number;
}

/* The limit of the memory group at the top of what this process sees; -1 for none. */
static int64_t group_limit(void)
{
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    return limit >= 0 ? limit : number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
}

int64_t pl_memory_available(void)
{
    int64_t kibibytes = number_in("/proc/meminfo", "MemAvailable:"), limit = group_limit();
    int64_t available = kibibytes < 0 ? -1 : kibibytes * 1024;
    return limit >= 0 && (available < 0 || limit < available) ? limit : available;
}

pl_status pl_memory_require(const pl_plan *plan, bool keeps_saved, int64_t first, int64_t count,
                            int64_t neighbours, int64_t available)
{
    int64_t all = 0, largest = 0;
    for (int64_t rank = first; rank < first + count; ++rank) {
        int64_t bytes = pl_memory_need(plan, rank, keeps_saved);
        if (bytes > largest) largest = bytes;
        all = bytes > INT64_MAX - all ? INT64_MAX : all + bytes;
    }
    if (neighbours > 1) all = all > INT64_MAX / neighbours ? INT64_MAX : all * neighbours;
    if (available < 0 || all <= available) return PL_OK;
    char needed[32], each[32], there[32];
    return PL_FAIL(PL_BAD_INPUT,
                   "the ranks on this machine need at least %s of memory, up to %s each, but %s "
                   "are available: a smaller model, batch.micro or data.sequence, policy.recompute "
                   "full, or more machines need less",
                   pl_format_bytes(needed, all), pl_format_bytes(each, largest),
                   pl_format_bytes(there, available));
}
