/* The sections of a rank, made ready to run. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor_state.h"

static bool same_buffer(const pl_buffer *a, const pl_buffer *b)
{
    return a->kind == b->kind && a->subject == b->subject && a->layer == b->layer &&
           a->micro_batch == b->micro_batch;
}

/* The resident buffer of that name, made on first mention; there is room for it. */
static pl_live *resident(pl_executor *executor, const pl_buffer *buffer)
{
    for (size_t i = 0; i < executor->resident_count; ++i)
        if (same_buffer(&executor->residents[i].buffer, buffer))
            return &executor->residents[i].live;
    pl_resident *made = &executor->residents[executor->resident_count++];
    made->buffer = *buffer;
    made->live.block = PL_ARENA_NO_BLOCK;
    return &made->live;
}

static int32_t find_rows(const pl_section *section, const pl_buffer *buffer)
{
    pl_buffer rows = *buffer;
    rows.kind = PL_BUF_ROWS;
    for (size_t i = 0; i < section->buffer_count; ++i)
        if (same_buffer(&section->buffers[i], &rows)) return (int32_t)i;
    return -1;
}

static pl_status check_buffer(const pl_section *section, const pl_buffer *buffer)
{
    pl_buffer_class class_ = pl_buffer_kind_class((pl_buffer_kind)buffer->kind);
    if (buffer->class_ == (uint8_t)class_) return PL_OK;
    pl_text name = {0};
    pl_buffer_print(&name, buffer);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK)
        status = PL_FAIL(
            PL_BAD_INPUT, "program %s: buffer %s is of class %s; the class of its kind is %s",
            pl_program_name(section->program), pl_text_string(&name),
            pl_buffer_class_name((pl_buffer_class)buffer->class_), pl_buffer_class_name(class_));
    pl_text_free(&name);
    return status;
}

static pl_status open_section(pl_executor *executor, const pl_section *section)
{
    pl_section_state *state = &executor->program[section->program];
    size_t buffers = section->buffer_count, entries = section->entry_count;
    state->section = section;
    PL_TRY(pl_allocate(&state->live, buffers, sizeof(pl_live *), "buffers of a program"));
    PL_TRY(pl_allocate(&state->own, buffers, sizeof *state->own, "buffers of a program"));
    PL_TRY(pl_allocate(&state->rows_of, buffers, sizeof *state->rows_of, "buffers of a program"));
    PL_TRY(pl_allocate(&state->entry, entries, sizeof *state->entry, "entries of a program"));
    PL_TRY(pl_allocate(&state->issued, entries, sizeof *state->issued, "entries of a program"));
    for (size_t i = 0; i < buffers; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        PL_TRY(check_buffer(section, buffer));
        state->own[i].block = PL_ARENA_NO_BLOCK;
        state->live[i] = buffer->resident ? resident(executor, buffer) : &state->own[i];
        state->rows_of[i] = buffer->per_row ? find_rows(section, buffer) : -1;
    }
    return PL_OK;
}

pl_status pl_sections_open(pl_executor *executor)
{
    const pl_section *sections[PL_PROGRAM_COUNT];
    size_t residents = 0, found = 0;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        sections[i] = pl_plan_section(executor->plan, (pl_program)i, executor->rank);
        found += sections[i] != NULL;
        for (size_t j = 0; sections[i] && j < sections[i]->buffer_count; ++j)
            residents += sections[i]->buffers[j].resident;
    }
    if (found == 0)
        return PL_FAIL(PL_BAD_INPUT, "the plan has no section for rank %" PRId64, executor->rank);
    PL_TRY(pl_allocate(&executor->residents, residents, sizeof *executor->residents,
                       "resident buffers"));
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i)
        if (sections[i]) PL_TRY(open_section(executor, sections[i]));
    return PL_OK;
}

/* Memory of buffers goes with the arenas; what hangs on them goes here. */
static void forget(pl_live *live)
{
    pl_free(live->gradients);
    pl_binding_free(live->binding);
}

void pl_sections_close(pl_executor *executor)
{
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        pl_section_state *state = &executor->program[i];
        for (size_t j = 0; state->own && j < state->section->buffer_count; ++j)
            forget(&state->own[j]);
        pl_free(state->live);
        pl_free(state->own);
        pl_free(state->rows_of);
        pl_free(state->entry);
        pl_free(state->issued);
        memset(state, 0, sizeof *state);
    }
    for (size_t i = 0; i < executor->resident_count; ++i) forget(&executor->residents[i].live);
    pl_free(executor->residents);
    executor->residents = NULL;
    executor->resident_count = 0;
}
