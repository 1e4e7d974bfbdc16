/* The text form of plans (docs/formats.md describes it; plan_read.c reads it). */
#include <stdio.h>

#include "common/plan_builder.h"

static const char *pick(const char *const *(*names)(int *), int value)
{
    int count = 0;
    return names(&count)[value];
}

void pl_scale_print(pl_text *text, pl_scale scale)
{
    if (scale.tokens > 0) pl_text_add_string(text, "T*");
    pl_text_add_number(text, scale.numerator);
    if (scale.denominator == 1 && scale.tokens >= 0) return;
    pl_text_add_string(text, "/");
    if (scale.tokens >= 0 || scale.denominator != 1) pl_text_add_number(text, scale.denominator);
    if (scale.tokens < 0) pl_text_add_string(text, scale.denominator == 1 ? "T" : "*T");
}

/* --- header --- */

void pl_plan_write_header(pl_text *text, const pl_plan *plan)
{
    const pl_settings *s = &plan->settings;
    char notation[PL_LAYOUT_TEXT];
    pl_text_add_string(text, "pleat-plan 1\nmodel ");
    pl_model_write(text, &plan->model);
    if (text->length > 0 && text->bytes[text->length - 1] != '\n') pl_text_add_string(text, "\n");
    pl_text_add(text, "name %s\n", plan->model.name);
    pl_text_add(text, "layout %s\n", pl_layout_format(&plan->layout, notation));
    pl_text_add(text,
                "policy reshard=%s prefetch=%s recompute=%s accumulate=%s dispatch=%s "
                "routing=%s\n",
                pick(pl_reshard_names, (int)s->policy.reshard),
                pick(pl_prefetch_names, (int)s->policy.prefetch),
                pick(pl_recompute_names, (int)s->policy.recompute),
                pick(pl_accumulate_names, (int)s->policy.accumulate),
                pick(pl_dispatch_names, (int)s->policy.dispatch),
                pick(pl_routing_names, (int)s->policy.routing));
    pl_text_add(text, "precision compute=%s gather=%s gradient=%s master=%s\n",
                pl_dtype_name(s->precision.compute), pl_dtype_name(s->precision.gather),
                pl_dtype_name(s->precision.gradient), pl_dtype_name(s->precision.master));
    pl_text_add(text, "shape sequence=%lld micro_batch=%lld intra_layer=%lld rounds=%lld\n",
                (long long)s->shape.sequence, (long long)s->shape.micro_batch,
                (long long)s->shape.intra_layer, (long long)s->shape.rounds);
    pl_text_add(text, "objective balance=%s coefficient=%.17g optimizer=%s clip=%.17g\n",
                pick(pl_balance_names, (int)s->balance), s->balance_coefficient,
                pick(pl_optimizer_names, (int)s->optimizer), s->clip);
    for (int i = 0; i < plan->keep_fp32_count; ++i)
        pl_text_add(text, "keep_fp32 %s\n", plan->keep_fp32[i]);
    for (int i = 0; i < plan->frozen_count; ++i) pl_text_add(text, "frozen %s\n", plan->frozen[i]);
}

/* --- entries --- */

static void add_attribute(pl_text *text, const char *key, int64_t value)
{
    pl_text_add_string(text, key);
    pl_text_add_number(text, value);
}

static void write_name(pl_text *text, const pl_entry_name *name)
{
    pl_text_add_string(text, pl_operation_name((pl_operation)name->operation));
    pl_text_add_string(text, " ");
    pl_subject_print(text, (pl_subject)name->subject, name->layer);
    if (name->chunk >= 0) add_attribute(text, " chunk=", name->chunk);
    if (name->round >= 0) add_attribute(text, " round=", name->round);
    if (name->micro_batch >= 0) add_attribute(text, " mb=", name->micro_batch);
    if (name->pass != PL_PASS_NONE) {
        pl_text_add_string(text, " pass=");
        pl_text_add_string(text, pl_pass_name((pl_pass)name->pass));
    }
    if (name->ordinal != 0) add_attribute(text, " ordinal=", name->ordinal);
}

static void write_waits(pl_text *text, const pl_section *section, const pl_entry *entry)
{
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t wait = section->waits[entry->wait_first + i];
        pl_text_add_string(text, i ? "," : " waits=");
        if (wait == PL_WAIT_MISSING)
            pl_text_add_string(text, "missing");
        else
            pl_text_add_number(text, section->entries[wait].label);
    }
}

/* The uses with all of WANTED and none of UNWANTED among their flags. */
static void write_uses(pl_text *text, const pl_section *section, const pl_entry *entry,
                       const char *key, uint32_t wanted, uint32_t unwanted)
{
    bool first = true;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        if ((use->flags & wanted) != wanted || (use->flags & unwanted)) continue;
        pl_text_add_string(text, first ? key : ",");
        pl_buffer_print(text, &section->buffers[use->buffer]);
        first = false;
    }
}

static void write_communication(pl_text *text, const pl_entry *entry)
{
    if (entry->group != PL_GROUP_NONE) {
        pl_text_add_string(text, " group=");
        pl_text_add_string(text, pl_group_role_name((pl_group_role)entry->group));
    }
    if (entry->peer >= 0) add_attribute(text, " peer=", entry->peer);
    if (entry->bytes != 0) {
        add_attribute(text, " bytes=", entry->bytes);
        if (entry->rows == PL_ROWS_EXCHANGED) pl_text_add_string(text, "*C");
        pl_text_add_string(text, " wire=");
        pl_text_add_string(text, pl_dtype_name((pl_dtype)entry->wire));
    }
    if (entry->reduction != PL_REDUCTION_NONE) {
        pl_text_add_string(text, " reduction=");
        pl_text_add_string(text, pl_reduction_name((pl_reduction)entry->reduction));
    }
    bool plain =
        entry->scale.numerator == 1 && entry->scale.denominator == 1 && entry->scale.tokens == 0;
    if (plain && entry->reduction == PL_REDUCTION_NONE) return;
    pl_text_add_string(text, " scale=");
    pl_scale_print(text, entry->scale);
}

/* All that follows an entry's name and its waits. */
static void write_rest(pl_text *text, const pl_section *section, const pl_entry *entry)
{
    if (entry->predicate == PL_IF_UPDATE) pl_text_add_string(text, " if=update");
    write_communication(text, entry);
    if (entry->flops != 0) {
        add_attribute(text, " flops=", entry->flops);
        if (entry->rows == PL_ROWS_RECEIVED) pl_text_add_string(text, "*R");
    }
    if (entry->elements != 0) add_attribute(text, " elements=", entry->elements);
    write_uses(text, section, entry, " reads=", PL_USE_READ, 0);
    write_uses(text, section, entry, " writes=", PL_USE_WRITE, PL_USE_BEGIN);
    write_uses(text, section, entry, " begins=", PL_USE_BEGIN, 0);
    write_uses(text, section, entry, " ends=", PL_USE_END, 0);
}

void pl_entry_write(pl_text *text, const pl_section *section, const pl_entry *entry)
{
    add_attribute(text, "entry ", entry->label);
    pl_text_add_string(text, " ");
    write_name(text, &entry->name);
    pl_text_add_string(text, " stream=");
    pl_text_add_string(text, pl_stream_name((pl_stream)entry->stream));
    write_waits(text, section, entry);
    write_rest(text, section, entry);
}

void pl_entry_write_unplaced(pl_text *text, const pl_section *section, const pl_entry *entry)
{
    write_name(text, &entry->name);
    pl_text_add_string(text, " stream=");
    pl_text_add_string(text, pl_stream_name((pl_stream)entry->stream));
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t wait = section->waits[entry->wait_first + i];
        pl_text_add_string(text, i ? " + " : " waits=[");
        if (wait == PL_WAIT_MISSING)
            pl_text_add_string(text, "missing");
        else
            write_name(text, &section->entries[wait].name);
    }
    if (entry->wait_count > 0) pl_text_add_string(text, "]");
    write_rest(text, section, entry);
}

/* --- sections --- */

static void write_ranks(pl_text *text, const pl_section *section)
{
    for (size_t i = 0; i < section->run_count; ++i) {
        const pl_rank_run *run = &section->runs[i];
        pl_text_add_string(text, i ? "," : "");
        pl_text_add_number(text, run->first);
        if (run->first != run->last) add_attribute(text, "-", run->last);
        if (run->stride != 1) add_attribute(text, "/", run->stride);
    }
}

void pl_buffer_write(pl_text *text, const pl_buffer *buffer)
{
    pl_text_add_string(text, "buffer ");
    pl_buffer_print(text, buffer);
    pl_text_add_string(text, " ");
    pl_text_add_string(text, pl_buffer_class_name((pl_buffer_class)buffer->class_));
    pl_text_add_string(text, " ");
    pl_text_add_string(text, pl_dtype_name((pl_dtype)buffer->dtype));
    add_attribute(text, " ", buffer->bytes);
    if (buffer->per_row) pl_text_add_string(text, "*R");
    if (buffer->resident) pl_text_add_string(text, " resident");
}

static void write_buffers(pl_text *text, const pl_section *section)
{
    for (size_t i = 0; i < section->buffer_count; ++i) {
        pl_buffer_write(text, &section->buffers[i]);
        pl_text_add_string(text, "\n");
    }
}

static void write_section(pl_text *text, const pl_section *section, int64_t rank)
{
    pl_text_add(text, "section %s ranks ", pl_program_name(section->program));
    if (rank >= 0)
        pl_text_add_number(text, rank);
    else
        write_ranks(text, section);
    pl_text_add_string(text, "\n");
    write_buffers(text, section);
    for (size_t i = 0; i < section->entry_count; ++i) {
        pl_entry_write(text, section, &section->entries[i]);
        pl_text_add_string(text, "\n");
    }
    pl_text_add_string(text, "end\n");
}

void pl_plan_write(pl_text *text, const pl_plan *plan, int64_t rank)
{
    pl_plan_write_header(text, plan);
    for (size_t i = 0; i < plan->section_count; ++i)
        if (rank < 0 || pl_section_has_rank(&plan->sections[i], rank))
            write_section(text, &plan->sections[i], rank);
}
