/* Sizes: buffers, messages and products against what the model and precision demand. */
#include <inttypes.h>

#include "sim/proof.h"

typedef struct sizes {
    const pl_sim_world *world;
    pl_verdict *verdict;
    const pl_section *section;
    int64_t rank;
} sizes;

static void check_buffer(const sizes *s, const pl_buffer *buffer)
{
    pl_expected_buffer e;
    pl_text name = {0}, must = {0};
    bool known = pl_expect_buffer(&e, s->world, s->section->program, buffer);
    bool resident = e.class_ == PL_BUFFER_SHARD;
    ++s->verdict->checked;
    if (known && buffer->bytes == e.bytes && buffer->per_row == e.per_row &&
        buffer->dtype == (uint8_t)e.dtype && buffer->class_ == (uint8_t)e.class_ &&
        buffer->resident == resident)
        return;
    pl_buffer_print(&name, buffer);
    pl_text_add(&must, "%s %s %" PRId64 "%s%s", pl_buffer_class_name(e.class_),
                pl_dtype_name(e.dtype), e.bytes, e.per_row ? "*R" : "",
                resident ? " resident" : "");
    pl_verdict_fail(s->verdict, s->rank, s->section->program, s->section, NULL,
                    "buffer %s must be: %s", pl_text_string(&name),
                    known ? pl_text_string(&must) : "absent, the model has no use for it");
    pl_verdict_free_text(s->verdict, &name);
    pl_verdict_free_text(s->verdict, &must);
}

/* What a communicating entry moves, from the expected sizes of the buffers that it must use: the
 * larger side of a gather or reduction, the buffers of an all-reduce, a row of an exchange. */
static int64_t expected_bytes(const sizes *s, const pl_expected_entry *expected, bool *exchanged)
{
    int64_t most = 0, sums[2] = {0, 0};
    *exchanged = false;
    for (int side = 0; side < 2; ++side) {
        int count = side ? expected->writes : expected->reads;
        const pl_expected_use *use = side ? expected->write : expected->read;
        for (int i = 0; i < count; ++i) {
            pl_buffer buffer = {.kind = use[i].kind, .subject = use[i].subject};
            pl_expected_buffer e;
            buffer.layer = use[i].layer;
            buffer.micro_batch = use[i].micro_batch;
            if (use[i].kind == PL_BUF_ROWS) continue;
            if (!pl_expect_buffer(&e, s->world, s->section->program, &buffer)) continue;
            sums[side] += e.bytes;
            if (e.per_row) {
                *exchanged = true;
                most = e.bytes;
            }
        }
    }
    if (*exchanged) return most;
    return sums[0] > sums[1] ? sums[0] : sums[1];
}

/* An all-reduce of gradients moves those of all parts it covers. */
static int64_t gradient_bytes(const sizes *s, unsigned covers)
{
    const pl_expected_parts *p = &s->world->parts;
    int64_t dense = p->embedding.trained + p->norm.trained + p->head.trained, experts = 0;
    int64_t whole = p->embedding.whole + p->norm.whole + p->head.whole;
    for (int32_t i = 0; i < p->layers; ++i) {
        dense += p->layer[i].trained;
        experts += p->experts[i].trained;
        whole += p->layer[i].whole;
    }
    return 4 * (((covers & PL_COVERS_DENSE) ? dense : 0) +
                ((covers & PL_COVERS_EXPERTS) ? experts : 0) +
                ((covers & PL_COVERS_IGNORED) ? whole : 0));
}

static void check_communication(const sizes *s, const pl_entry *entry,
                                const pl_expected_entry *expected)
{
    bool exchanged = false;
    int64_t bytes = expected_bytes(s, expected, &exchanged);
    if (expected->writes_gradients) bytes = gradient_bytes(s, expected->writes_gradients);
    if (entry->name.operation == PL_OP_CONTROL) bytes = INT64_C(4) * 8;
    if (entry->bytes != bytes || (entry->rows == PL_ROWS_EXCHANGED) != exchanged)
        pl_verdict_fail(s->verdict, s->rank, s->section->program, s->section, entry,
                        "bytes=%" PRId64 "%s, must be %" PRId64 "%s", entry->bytes,
                        entry->rows == PL_ROWS_EXCHANGED ? "*C" : "", bytes, exchanged ? "*C" : "");
    if (entry->wire != (uint8_t)expected->wire)
        pl_verdict_fail(s->verdict, s->rank, s->section->program, s->section, entry,
                        "wire=%s, must be %s", pl_dtype_name((pl_dtype)entry->wire),
                        pl_dtype_name(expected->wire));
}

static void check_entry(const sizes *s, const pl_entry *entry)
{
    pl_expected_entry expected;
    bool per_row = false;
    int64_t flops = pl_expect_flops(s->world, s->section->program, &entry->name, &per_row);
    pl_expect_entry(&expected, s->world, s->section->program, &entry->name);
    ++s->verdict->checked;
    if (!expected.wanted) return; /* the proof of work says so */
    if (entry->flops != flops || (entry->rows == PL_ROWS_RECEIVED) != (per_row && flops > 0))
        pl_verdict_fail(s->verdict, s->rank, s->section->program, s->section, entry,
                        "flops=%" PRId64 "%s, must be %" PRId64 "%s", entry->flops,
                        entry->rows == PL_ROWS_RECEIVED ? "*R" : "", flops, per_row ? "*R" : "");
    bool moves = expected.group != PL_GROUP_NONE && entry->name.operation != PL_OP_LOAD_BATCH;
    if (moves) check_communication(s, entry, &expected);
    if (!moves && entry->bytes != 0)
        pl_verdict_fail(s->verdict, s->rank, s->section->program, s->section, entry,
                        "bytes=%" PRId64 " where nothing is communicated", entry->bytes);
}

pl_status pl_prove_sizes(const pl_sim_world *world, pl_verdict *verdict)
{
    if (!pl_expect_countable(world)) {
        pl_verdict_fail(verdict, -1, PL_PROGRAM_STEP, NULL, NULL,
                        "the sizes of model and shape multiply to more than 63 bits");
        return PL_OK;
    }
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        sizes s = {world, verdict, section, pl_section_first_rank(section)};
        for (size_t j = 0; j < section->buffer_count; ++j) check_buffer(&s, &section->buffers[j]);
        for (size_t j = 0; j < section->entry_count; ++j) check_entry(&s, &section->entries[j]);
    }
    return PL_OK;
}
