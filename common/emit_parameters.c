/* Programs that move parameters between host and device, part by part: start brings initial values
 * in, export hands out what was trained; save hands out all that a rank holds, load brings it back.
 */
#include "common/plan_builder.h"

/* Copies are told apart by ordinal in logs and messages, whatever the program. */
enum {
    RESIDENTS = PL_BUF_IGNORED_V - PL_BUF_PARAMETER + 1, /* kinds of resident buffers of a part */
    IN_SHARDED = 0,
    IN_IGNORED,
    OUT_SHARDED,
    OUT_IGNORED,
    IN_SAVED, /* one for each kind of resident buffer, and so on */
    OUT_SAVED = IN_SAVED + RESIDENTS
};

static pl_entry *open_part(pl_builder *builder, pl_operation operation, const pl_part *part,
                           int32_t ordinal, pl_stream stream)
{
    pl_entry_name name =
        pl_builder_name(builder, operation, part->subject, part->layer, -1, PL_PASS_NONE);
    name.ordinal = ordinal;
    return pl_builder_open(builder, name, stream);
}

/* --- start --- */

static void zero_moments(pl_builder *builder, int32_t part, int32_t ordinal, pl_buffer_kind m,
                         pl_buffer_kind v)
{
    if (builder->facts->settings->optimizer != PL_OPTIMIZER_ADAMW) return;
    open_part(builder, PL_OP_ZERO, &builder->facts->parts.part[part], ordinal, PL_STREAM_COMPUTE);
    pl_builder_begin(builder, pl_builder_buffer(builder, m, part, -1));
    pl_builder_begin(builder, pl_builder_buffer(builder, v, part, -1));
    pl_builder_close(builder);
}

/* Real elements of the rank's shard. */
static int64_t held_elements(pl_builder *builder, int32_t number)
{
    const pl_part *part = &builder->facts->parts.part[number];
    int64_t elements = 0;
    if (part->trained_elements > 0) elements += pl_builder_local_elements(builder, number, false);
    if (part->frozen_elements > 0) elements += pl_builder_local_elements(builder, number, true);
    return elements;
}

/* Host values to the device: into masters where they stand apart, and into the parameters
 * themselves for what has no master (frozen tensors, fp32 on the wire). */
static void start_sharded(pl_builder *builder, int32_t number)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_part *part = &facts->parts.part[number];
    bool masters = facts->masters && part->trained_elements > 0;
    bool direct = !facts->masters || part->frozen_elements > 0;
    uint32_t initial = pl_builder_buffer(builder, PL_BUF_INITIAL, number, -1);
    uint32_t parameter = pl_builder_buffer(builder, PL_BUF_PARAMETER, number, -1);
    pl_entry *entry = open_part(builder, PL_OP_INITIALIZE, part, 0, PL_STREAM_HOST);
    entry->elements = held_elements(builder, number);
    pl_builder_begin(builder, initial);
    pl_builder_close(builder);
    open_part(builder, PL_OP_COPY, part, IN_SHARDED, PL_STREAM_COPY);
    pl_builder_read_last(builder, initial, true);
    if (masters) pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_MASTER, number, -1));
    if (direct) pl_builder_begin(builder, parameter);
    pl_builder_close(builder);
    if (masters) {
        open_part(builder, PL_OP_CAST, part, 0, PL_STREAM_COMPUTE);
        pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_MASTER, number, -1));
        pl_builder_add_into(builder, parameter);
        pl_builder_close(builder);
    }
    if (part->trained_elements > 0) zero_moments(builder, number, 0, PL_BUF_ADAM_M, PL_BUF_ADAM_V);
}

static void start_ignored(pl_builder *builder, int32_t number)
{
    const pl_part *part = &builder->facts->parts.part[number];
    uint32_t initial = pl_builder_buffer(builder, PL_BUF_INITIAL_IGNORED, number, -1);
    pl_entry *entry = open_part(builder, PL_OP_INITIALIZE, part, 1, PL_STREAM_HOST);
    entry->elements = part->ignored_elements + part->ignored_frozen_elements;
    pl_builder_begin(builder, initial);
    pl_builder_close(builder);
    open_part(builder, PL_OP_COPY, part, IN_IGNORED, PL_STREAM_COPY);
    pl_builder_read_last(builder, initial, true);
    pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_IGNORED, number, -1));
    pl_builder_close(builder);
    if (part->ignored_elements > 0)
        zero_moments(builder, number, 1, PL_BUF_IGNORED_M, PL_BUF_IGNORED_V);
}

/* --- export --- */

/* The other way about: masters where they stand apart, parameters for what has none. */
static void export_sharded(pl_builder *builder, int32_t number)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_part *part = &facts->parts.part[number];
    bool masters = facts->masters && part->trained_elements > 0;
    bool direct = !facts->masters || part->frozen_elements > 0;
    uint32_t outgoing = pl_builder_buffer(builder, PL_BUF_OUTGOING, number, -1);
    open_part(builder, PL_OP_COPY, part, OUT_SHARDED, PL_STREAM_COPY);
    if (masters) pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_MASTER, number, -1));
    if (direct) pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_PARAMETER, number, -1));
    pl_builder_begin(builder, outgoing);
    pl_builder_close(builder);
    pl_entry *entry = open_part(builder, PL_OP_WRITE, part, 0, PL_STREAM_HOST);
    entry->elements = held_elements(builder, number);
    pl_builder_read_last(builder, outgoing, true);
    pl_builder_close(builder);
}

static void export_ignored(pl_builder *builder, int32_t number)
{
    const pl_part *part = &builder->facts->parts.part[number];
    uint32_t outgoing = pl_builder_buffer(builder, PL_BUF_OUTGOING_IGNORED, number, -1);
    open_part(builder, PL_OP_COPY, part, OUT_IGNORED, PL_STREAM_COPY);
    pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_IGNORED, number, -1));
    pl_builder_begin(builder, outgoing);
    pl_builder_close(builder);
    pl_entry *entry = open_part(builder, PL_OP_WRITE, part, 1, PL_STREAM_HOST);
    entry->elements = part->ignored_elements + part->ignored_frozen_elements;
    pl_builder_read_last(builder, outgoing, true);
    pl_builder_close(builder);
}

/* --- save and load --- */

static bool holds(const pl_plan_facts *facts, const pl_part *part, pl_buffer_kind kind)
{
    bool adam = facts->settings->optimizer == PL_OPTIMIZER_ADAMW;
    switch (kind) {
    case PL_BUF_PARAMETER: return part->trained_elements + part->frozen_elements > 0;
    case PL_BUF_MASTER: return facts->masters && part->trained_elements > 0;
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V: return adam && part->trained_elements > 0;
    case PL_BUF_IGNORED: return part->ignored_elements + part->ignored_frozen_elements > 0;
    default: return adam && part->ignored_elements > 0;
    }
}

/* Real elements of the rank in its buffer KIND of the part. */
static int64_t saved_elements(pl_builder *builder, int32_t number, pl_buffer_kind kind)
{
    const pl_part *part = &builder->facts->parts.part[number];
    switch (kind) {
    case PL_BUF_PARAMETER: return held_elements(builder, number);
    case PL_BUF_MASTER:
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V: return pl_builder_local_elements(builder, number, false);
    case PL_BUF_IGNORED: return part->ignored_elements + part->ignored_frozen_elements;
    default: return part->ignored_elements;
    }
}

static void save_kind(pl_builder *builder, int32_t number, int32_t kind)
{
    const pl_part *part = &builder->facts->parts.part[number];
    pl_buffer_kind held = (pl_buffer_kind)(PL_BUF_PARAMETER + kind);
    uint32_t host =
        pl_builder_buffer(builder, (pl_buffer_kind)(PL_BUF_HOST_PARAMETER + kind), number, -1);
    open_part(builder, PL_OP_COPY, part, OUT_SAVED + kind, PL_STREAM_COPY);
    pl_builder_read(builder, pl_builder_buffer(builder, held, number, -1));
    pl_builder_begin(builder, host);
    pl_builder_close(builder);
    pl_entry *entry = open_part(builder, PL_OP_WRITE, part, kind, PL_STREAM_HOST);
    entry->elements = saved_elements(builder, number, held);
    pl_builder_read_last(builder, host, true);
    pl_builder_close(builder);
}

static void load_kind(pl_builder *builder, int32_t number, int32_t kind)
{
    const pl_part *part = &builder->facts->parts.part[number];
    pl_buffer_kind held = (pl_buffer_kind)(PL_BUF_PARAMETER + kind);
    uint32_t host =
        pl_builder_buffer(builder, (pl_buffer_kind)(PL_BUF_HOST_PARAMETER + kind), number, -1);
    pl_entry *entry = open_part(builder, PL_OP_READ, part, kind, PL_STREAM_HOST);
    entry->elements = saved_elements(builder, number, held);
    pl_builder_begin(builder, host);
    pl_builder_close(builder);
    open_part(builder, PL_OP_COPY, part, IN_SAVED + kind, PL_STREAM_COPY);
    pl_builder_read_last(builder, host, true);
    pl_builder_begin(builder, pl_builder_buffer(builder, held, number, -1));
    pl_builder_close(builder);
}

/* --- whole programs --- */

typedef void (*mover)(pl_builder *builder, int32_t part);

static void move_parts(pl_builder *builder, mover move_sharded, mover move_ignored)
{
    const pl_parts *parts = &builder->facts->parts;
    for (int32_t i = 0; i < parts->part_count; ++i) {
        const pl_part *part = &parts->part[i];
        if (part->trained_elements + part->frozen_elements > 0) move_sharded(builder, i);
        if (part->ignored_elements + part->ignored_frozen_elements > 0) move_ignored(builder, i);
    }
}

void pl_emit_start(pl_builder *builder)
{
    move_parts(builder, start_sharded, start_ignored);
    pl_emit_control(builder);
}

void pl_emit_export(pl_builder *builder)
{
    move_parts(builder, export_sharded, export_ignored);
    pl_emit_control(builder);
}

static void each_resident(pl_builder *builder,
                          void (*move)(pl_builder *builder, int32_t part, int32_t kind))
{
    const pl_plan_facts *facts = builder->facts;
    for (int32_t i = 0; i < facts->parts.part_count; ++i)
        for (int32_t kind = 0; kind < RESIDENTS; ++kind)
            if (holds(facts, &facts->parts.part[i], (pl_buffer_kind)(PL_BUF_PARAMETER + kind)))
                move(builder, i, kind);
}

void pl_emit_save(pl_builder *builder)
{
    each_resident(builder, save_kind);
    pl_emit_control(builder);
}

void pl_emit_load(pl_builder *builder)
{
    each_resident(builder, load_kind);
    pl_emit_control(builder);
}
