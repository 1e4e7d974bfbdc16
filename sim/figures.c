#include "sim/figures.h"

#include <string.h>

#include "common/placement.h"

/* Plans read from text may hold any sizes. */
int64_t pl_bounded_sum(int64_t a, int64_t b)
{
    int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t pl_bounded_product(int64_t a, int64_t b)
{
    int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int64_t pl_held_elements(const pl_plan *plan, int64_t rank)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
        const pl_tensor *tensor = &plan->model.tensors[i];
        pl_box box = pl_placement_box(&plan->layout, tensor, rank);
        elements = pl_bounded_sum(elements, (box.end - box.begin) * tensor->cols);
    }
    return elements;
}

int64_t pl_resident_bytes(const pl_section *section)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < section->buffer_count; ++i)
        if (section->buffers[i].resident) bytes = pl_bounded_sum(bytes, section->buffers[i].bytes);
    return bytes;
}

/* A buffer that begins twice or ends unborn is for the proofs to report; here it may not count
 * below nothing. */
static int64_t gathered_most(const pl_section *section)
{
    int64_t alive = 0, most = 0;
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        for (uint32_t u = 0; u < entry->use_count; ++u) {
            const pl_use *use = &section->uses[entry->use_first + u];
            const pl_buffer *buffer = &section->buffers[use->buffer];
            if (buffer->class_ != PL_BUFFER_GATHERED) continue;
            if (use->flags & PL_USE_BEGIN) alive = pl_bounded_sum(alive, buffer->bytes);
            if (alive > most) most = alive;
            if (use->flags & PL_USE_END) alive = alive > buffer->bytes ? alive - buffer->bytes : 0;
        }
    }
    return most;
}

static void widen(pl_span *span, int64_t number, bool first)
{
    if (first || number < span->least) span->least = number;
    if (first || number > span->most) span->most = number;
}

static int64_t moved(const pl_counts *counts)
{
    return pl_bounded_sum(pl_bounded_sum(counts->gather_bytes, counts->reduce_bytes),
                          pl_bounded_sum(counts->all_reduce_bytes, counts->exchange_bytes));
}

pl_figures pl_figures_make(const pl_plan *plan)
{
    pl_figures figures = {.ranks = plan->layout.world};
    for (size_t i = 0; i < plan->section_count; ++i) {
        const pl_section *section = &plan->sections[i];
        if (section->program != PL_PROGRAM_STEP) continue;
        bool first = figures.classes++ == 0;
        pl_counts counts;
        memset(&counts, 0, sizeof counts);
        pl_count_section(&counts, plan, section);
        widen(&figures.elements, pl_held_elements(plan, pl_section_first_rank(section)), first);
        widen(&figures.bytes, pl_resident_bytes(section), first);
        int64_t most = gathered_most(section);
        if (most > figures.gathered_most) figures.gathered_most = most;
        if (first || moved(&counts) > moved(&figures.counts)) figures.counts = counts;
    }
    return figures;
}
