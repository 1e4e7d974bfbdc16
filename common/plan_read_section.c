/* The sections of a plan's text: ranks, buffers, entries. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/plan_reader.h"

typedef struct label_place {
    uint32_t label;
    int32_t entry;
} label_place;

/* --- sections --- */

static pl_status take_ranks(pl_plan_reader *r, pl_program program, pl_rank_run run, char *at)
{
    for (int64_t rank = run.first; rank <= run.last; rank += run.stride) {
        int64_t *line = &r->has_section[program][rank];
        if (*line)
            return pl_reader_bad(r, at,
                                 "rank %" PRId64 " has a %s section already, at line %" PRId64,
                                 rank, pl_program_name(program), *line);
        *line = r->line;
    }
    return pl_section_add_run(r->section, run);
}

/* "0-62/2,63" */
static pl_status read_ranks(pl_plan_reader *r, pl_program program, char *list)
{
    for (char *item = list; item;) {
        char *next = strchr(item, ',');
        if (next) *next++ = '\0';
        pl_rank_run run = {.stride = 1};
        char *stride = strchr(item, '/'), *last = NULL;
        int64_t most = r->plan.layout.world - 1;
        if (stride) *stride++ = '\0';
        last = strchr(item, '-');
        if (last) *last++ = '\0';
        PL_TRY(pl_reader_number(r, item, 0, most, &run.first));
        run.last = run.first;
        if (last) PL_TRY(pl_reader_number(r, last, run.first, most, &run.last));
        if (stride) PL_TRY(pl_reader_number(r, stride, 1, most + 1, &run.stride));
        if ((run.last - run.first) % run.stride != 0)
            return pl_reader_bad(r, item,
                                 "%" PRId64 "-%" PRId64 "/%" PRId64 " does not end on a rank",
                                 run.first, run.last, run.stride);
        PL_TRY(take_ranks(r, program, run, item));
        item = next;
    }
    return PL_OK;
}

pl_status pl_reader_begin_section(pl_plan_reader *r)
{
    const char *programs[PL_PROGRAM_COUNT];
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) programs[i] = pl_program_name((pl_program)i);
    if (r->words != 4 || strcmp(r->word[2], "ranks") != 0)
        return pl_reader_bad(r, NULL, "expected 'section PROGRAM ranks LIST'");
    pl_program program = PL_PROGRAM_START;
    if (!pl_program_parse(&program, r->word[1]))
        return pl_reader_bad_choice(r, r->word[1], "program", r->word[1], programs,
                                    PL_PROGRAM_COUNT);
    if (!r->header_done) PL_TRY(pl_reader_finish_header(r));
    pl_status status = pl_plan_check_programs(&r->plan, 1u << program);
    if (status != PL_OK) {
        pl_error_context("%s:%" PRId64 ": in this section", r->source, r->line);
        return status;
    }
    PL_TRY(pl_plan_add_section(&r->plan, &r->section));
    r->section->program = program;
    for (size_t i = 0; i < r->buffer_table_size; ++i) r->buffer_table[i] = -1;
    return read_ranks(r, program, r->word[3]);
}

/* --- buffers --- */

static size_t buffer_hash(const pl_buffer *buffer)
{
    uint64_t hash = buffer->kind * 31u + buffer->subject;
    hash = hash * 0x9e3779b97f4a7c15u + (uint32_t)buffer->layer;
    hash = hash * 0x9e3779b97f4a7c15u + (uint32_t)buffer->micro_batch;
    return (size_t)(hash * 0x9e3779b97f4a7c15u >> 20);
}

static bool same_buffer(const pl_buffer *a, const pl_buffer *b)
{
    return a->kind == b->kind && a->subject == b->subject && a->layer == b->layer &&
           a->micro_batch == b->micro_batch;
}

/* The place in the table where BUFFER is or would go. */
static size_t buffer_place(const pl_plan_reader *r, const pl_buffer *buffer)
{
    size_t last = r->buffer_table_size - 1; /* a power of two less one */
    size_t place = buffer_hash(buffer) & last;
    while (r->buffer_table[place] >= 0 &&
           !same_buffer(buffer, &r->section->buffers[r->buffer_table[place]]))
        place = (place + 1) & last;
    return place;
}

static pl_status grow_buffer_table(pl_plan_reader *r)
{
    if (r->section->buffer_count * 2 < r->buffer_table_size) return PL_OK;
    size_t size = r->buffer_table_size ? r->buffer_table_size * 4 : 1024;
    pl_free(r->buffer_table);
    r->buffer_table = NULL;
    r->buffer_table_size = 0;
    PL_TRY(pl_allocate(&r->buffer_table, size, sizeof *r->buffer_table, "plan buffers"));
    r->buffer_table_size = size;
    for (size_t i = 0; i < size; ++i) r->buffer_table[i] = -1;
    for (size_t i = 0; i < r->section->buffer_count; ++i)
        r->buffer_table[buffer_place(r, &r->section->buffers[i])] = (int32_t)i;
    return PL_OK;
}

static pl_status read_class(const pl_plan_reader *r, char *word, pl_buffer *buffer)
{
    pl_buffer_class class_ = PL_BUFFER_WORK;
    if (pl_buffer_class_parse(&class_, word)) {
        buffer->class_ = (uint8_t)class_;
        return PL_OK;
    }
    const char *names[PL_BUFFER_CLASS_COUNT];
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i)
        names[i] = pl_buffer_class_name((pl_buffer_class)i);
    return pl_reader_bad_choice(r, word, "class of buffers", word, names, PL_BUFFER_CLASS_COUNT);
}

/* Cut SUFFIX off the end of WORD; whether it was there. */
static bool cut_suffix(char *word, const char *suffix)
{
    size_t length = strlen(word), tail = strlen(suffix);
    if (length < tail || strcmp(word + length - tail, suffix) != 0) return false;
    word[length - tail] = '\0';
    return true;
}

static pl_status bad_buffer(const pl_plan_reader *r, char *name)
{
    const char *stems[PL_BUFFER_KIND_COUNT];
    char stem[64];
    for (int i = 0; i < PL_BUFFER_KIND_COUNT; ++i)
        stems[i] = pl_buffer_kind_stem((pl_buffer_kind)i);
    size_t length = strcspn(name, ".");
    if (length >= sizeof stem) length = sizeof stem - 1;
    memcpy(stem, name, length);
    stem[length] = '\0';
    const char *near = pl_nearest(stem, stems, PL_BUFFER_KIND_COUNT);
    if (near && strcmp(near, stem) != 0)
        return pl_reader_bad(r, name, "'%.60s' is no buffer; did you mean '%s'?", name, near);
    return pl_reader_bad(
        r, name, "'%.60s' is no buffer: a part, layer or micro-batch is missing or too many", name);
}

static pl_status read_buffer(pl_plan_reader *r)
{
    pl_buffer buffer;
    pl_dtype dtype = PL_U8;
    if (r->words < 5 || r->words > 6)
        return pl_reader_bad(r, NULL, "expected 'buffer NAME CLASS TYPE BYTES [resident]'");
    if (!pl_buffer_parse(&buffer, r->word[1])) return bad_buffer(r, r->word[1]);
    if (buffer.layer > r->plan.model.num_hidden_layers)
        return pl_reader_bad(r, r->word[1], "layer %" PRId32 ": the model has layers 0 to %" PRId64,
                             buffer.layer, r->plan.model.num_hidden_layers - 1);
    PL_TRY(read_class(r, r->word[2], &buffer));
    PL_TRY(pl_reader_dtype(r, r->word[3], &dtype));
    buffer.dtype = (uint8_t)dtype;
    buffer.per_row = cut_suffix(r->word[4], "*R");
    PL_TRY(pl_reader_number(r, r->word[4], 0, INT64_MAX, &buffer.bytes));
    buffer.resident = r->words == 6;
    if (buffer.resident && strcmp(r->word[5], "resident") != 0)
        return pl_reader_bad(r, r->word[5], "'%.60s' is not allowed here; 'resident' is",
                             r->word[5]);
    PL_TRY(grow_buffer_table(r));
    size_t place = buffer_place(r, &buffer);
    if (r->buffer_table[place] >= 0)
        return pl_reader_bad(r, r->word[1], "buffer %.60s stands here twice", r->word[1]);
    pl_section *section = r->section;
    PL_TRY(pl_grow(&section->buffers, &section->buffer_capacity, section->buffer_count + 1,
                   sizeof buffer, "plan buffers"));
    r->buffer_table[place] = (int32_t)section->buffer_count;
    section->buffers[section->buffer_count++] = buffer;
    return PL_OK;
}

/* --- entries --- */

static pl_status add_use(pl_plan_reader *r, pl_entry *entry, uint32_t number, uint32_t flags)
{
    pl_section *section = r->section;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        pl_use *use = &section->uses[entry->use_first + i];
        if (use->buffer != number) continue;
        if ((use->flags & flags) == flags) return PL_BAD_INPUT; /* said by the caller */
        use->flags |= flags;
        return PL_OK;
    }
    PL_TRY(pl_grow(&section->uses, &section->use_capacity, section->use_count + 1,
                   sizeof *section->uses, "plan uses"));
    section->uses[section->use_count++] = (pl_use){number, flags};
    ++entry->use_count;
    return PL_OK;
}

static pl_status read_uses(pl_plan_reader *r, pl_entry *entry, char *list, uint32_t flags)
{
    for (char *item = list; item;) {
        char *next = strchr(item, ',');
        if (next) *next++ = '\0';
        pl_buffer buffer;
        if (!pl_buffer_parse(&buffer, item)) return bad_buffer(r, item);
        int32_t number = r->buffer_table_size ? r->buffer_table[buffer_place(r, &buffer)] : -1;
        if (number < 0)
            return pl_reader_bad(r, item, "no line 'buffer %.60s ...' in this section", item);
        pl_status status = add_use(r, entry, (uint32_t)number, flags);
        if (status == PL_BAD_INPUT)
            return pl_reader_bad(r, item, "'%.60s' stands here twice", item);
        PL_TRY(status);
        item = next;
    }
    return PL_OK;
}

/* Labels at first; places once the section is whole. */
static pl_status read_waits(pl_plan_reader *r, pl_entry *entry, char *list)
{
    pl_section *section = r->section;
    for (char *item = list; item;) {
        char *next = strchr(item, ',');
        if (next) *next++ = '\0';
        int64_t label = PL_WAIT_MISSING;
        if (strcmp(item, "missing") != 0) PL_TRY(pl_reader_number(r, item, 0, INT32_MAX, &label));
        PL_TRY(pl_grow(&section->waits, &section->wait_capacity, section->wait_count + 1,
                       sizeof *section->waits, "plan waits"));
        section->waits[section->wait_count++] = (int32_t)label;
        ++entry->wait_count;
        item = next;
    }
    return PL_OK;
}

bool pl_scale_parse(pl_scale *out, const char *word)
{
    pl_scale scale = {1, 1, 0};
    char numerator[16], denominator[16];
    if (strncmp(word, "T*", 2) == 0) {
        scale.tokens = 1;
        word += 2;
    }
    size_t length = strcspn(word, "/");
    int64_t number = 0;
    if (length >= sizeof numerator) return false;
    memcpy(numerator, word, length);
    numerator[length] = '\0';
    if (!pl_parse_integer(&number, numerator) || number < 0 || number > INT32_MAX) return false;
    scale.numerator = (int32_t)number;
    if (word[length] == '/') {
        const char *rest = word + length + 1;
        length = strlen(rest);
        if (length == 0 || length >= sizeof denominator) return false;
        memcpy(denominator, rest, length + 1);
        if (strcmp(denominator, "T") == 0) {
            scale.tokens -= 1;
            *out = scale;
            return true;
        }
        if (cut_suffix(denominator, "*T")) scale.tokens -= 1;
        if (!pl_parse_integer(&number, denominator) || number < 1 || number > INT32_MAX)
            return false;
        scale.denominator = (int32_t)number;
    }
    *out = scale;
    return true;
}

static pl_status read_group(const pl_plan_reader *r, char *word, pl_entry *entry)
{
    pl_group_role role = PL_GROUP_NONE;
    if (pl_group_role_parse(&role, word)) {
        entry->group = (uint8_t)role;
        return PL_OK;
    }
    const char *names[PL_GROUP_ROLE_COUNT];
    for (int i = 0; i < PL_GROUP_ROLE_COUNT; ++i) names[i] = pl_group_role_name((pl_group_role)i);
    return pl_reader_bad_choice(r, word, "group role", word, names + 1, PL_GROUP_ROLE_COUNT - 1);
}

#define READ_NAMED(what, parse, type, field, names, count)                                         \
    do {                                                                                           \
        type read_named_ = (type)0;                                                                \
        const char *names_[count];                                                                 \
        if (parse(&read_named_, value)) {                                                          \
            (field) = (uint8_t)read_named_;                                                        \
            return PL_OK;                                                                          \
        }                                                                                          \
        for (int n_ = 0; n_ < (count); ++n_) names_[n_] = names((type)n_);                         \
        return pl_reader_bad_choice(r, value, what, value, names_, count);                         \
    } while (0)

static pl_status read_pass(const pl_plan_reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("pass", pl_pass_parse, pl_pass, entry->name.pass, pl_pass_name, PL_PASS_COUNT);
}

static pl_status read_stream(const pl_plan_reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("stream", pl_stream_parse, pl_stream, entry->stream, pl_stream_name,
               PL_STREAM_COUNT);
}

static pl_status read_reduction(const pl_plan_reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("reduction", pl_reduction_parse, pl_reduction, entry->reduction, pl_reduction_name,
               PL_REDUCTION_COUNT);
}

/* The attributes that name or size an entry. *TAKEN says whether word I was one of them. */
static pl_status read_size(const pl_plan_reader *r, int i, pl_entry *entry, bool *taken)
{
    char *value = NULL;
    *taken = true;
    if ((value = pl_reader_value(r, i, "chunk")))
        return pl_reader_small(r, value, &entry->name.chunk);
    if ((value = pl_reader_value(r, i, "round")))
        return pl_reader_small(r, value, &entry->name.round);
    if ((value = pl_reader_value(r, i, "mb")))
        return pl_reader_small(r, value, &entry->name.micro_batch);
    if ((value = pl_reader_value(r, i, "ordinal")))
        return pl_reader_small(r, value, &entry->name.ordinal);
    if ((value = pl_reader_value(r, i, "peer"))) return pl_reader_small(r, value, &entry->peer);
    if ((value = pl_reader_value(r, i, "elements")))
        return pl_reader_number(r, value, 0, INT64_MAX, &entry->elements);
    if ((value = pl_reader_value(r, i, "bytes"))) {
        if (cut_suffix(value, "*C")) entry->rows = PL_ROWS_EXCHANGED;
        return pl_reader_number(r, value, 0, INT64_MAX, &entry->bytes);
    }
    if ((value = pl_reader_value(r, i, "flops"))) {
        if (cut_suffix(value, "*R")) entry->rows = PL_ROWS_RECEIVED;
        return pl_reader_number(r, value, 0, INT64_MAX, &entry->flops);
    }
    *taken = false;
    return PL_OK;
}

static pl_status read_attribute(pl_plan_reader *r, int i, pl_entry *entry)
{
    static const char *const keys[] = {"chunk",    "round", "mb",        "pass",   "ordinal",
                                       "stream",   "waits", "peer",      "if",     "group",
                                       "bytes",    "wire",  "reduction", "scale",  "flops",
                                       "elements", "reads", "writes",    "begins", "ends"};
    char *value = NULL;
    bool taken = false;
    PL_TRY(read_size(r, i, entry, &taken));
    if (taken) return PL_OK;
    if ((value = pl_reader_value(r, i, "pass"))) return read_pass(r, value, entry);
    if ((value = pl_reader_value(r, i, "stream"))) return read_stream(r, value, entry);
    if ((value = pl_reader_value(r, i, "waits"))) return read_waits(r, entry, value);
    if ((value = pl_reader_value(r, i, "group"))) return read_group(r, value, entry);
    if ((value = pl_reader_value(r, i, "reduction"))) return read_reduction(r, value, entry);
    if ((value = pl_reader_value(r, i, "reads"))) return read_uses(r, entry, value, PL_USE_READ);
    if ((value = pl_reader_value(r, i, "writes"))) return read_uses(r, entry, value, PL_USE_WRITE);
    if ((value = pl_reader_value(r, i, "begins")))
        return read_uses(r, entry, value, PL_USE_WRITE | PL_USE_BEGIN);
    if ((value = pl_reader_value(r, i, "ends"))) return read_uses(r, entry, value, PL_USE_END);
    if ((value = pl_reader_value(r, i, "wire"))) {
        pl_dtype dtype = PL_U8;
        PL_TRY(pl_reader_dtype(r, value, &dtype));
        entry->wire = (uint8_t)dtype;
        return PL_OK;
    }
    if ((value = pl_reader_value(r, i, "scale"))) {
        if (pl_scale_parse(&entry->scale, value)) return PL_OK;
        return pl_reader_bad(r, value, "'%.60s' is no scale; allowed: 1, 1/2, 1/T, 1/2*T, T*1/8",
                             value);
    }
    if ((value = pl_reader_value(r, i, "if"))) {
        if (strcmp(value, "update") != 0)
            return pl_reader_bad(r, value, "'%.60s' is no condition; allowed: update", value);
        entry->predicate = PL_IF_UPDATE;
        return PL_OK;
    }
    if (!strchr(r->word[i], '='))
        return pl_reader_bad(r, r->word[i], "'%.60s' is no attribute: expected KEY=VALUE",
                             r->word[i]);
    r->word[i][strcspn(r->word[i], "=")] = '\0';
    return pl_reader_bad_choice(r, r->word[i], "attribute of an entry", r->word[i], keys,
                                sizeof keys / sizeof *keys);
}

static pl_status read_entry(pl_plan_reader *r)
{
    pl_section *section = r->section;
    pl_entry entry = {.wire = PL_U8, .peer = -1, .scale = {1, 1, 0}};
    pl_operation operation = PL_OP_CONTROL;
    pl_subject subject = PL_SUBJECT_FLAGS;
    int64_t label = 0;
    int32_t layer = -1;
    if (r->words < 4)
        return pl_reader_bad(r, NULL, "expected 'entry NUMBER OPERATION SUBJECT stream=... ...'");
    PL_TRY(pl_reader_check_repeats(r, 4));
    PL_TRY(pl_reader_number(r, r->word[1], 0, INT32_MAX, &label));
    if (!pl_operation_parse(&operation, r->word[2])) {
        const char *names[PL_OPERATION_COUNT];
        for (int i = 0; i < PL_OPERATION_COUNT; ++i) names[i] = pl_operation_name((pl_operation)i);
        return pl_reader_bad_choice(r, r->word[2], "operation", r->word[2], names,
                                    PL_OPERATION_COUNT);
    }
    if (!pl_subject_parse(&subject, &layer, r->word[3]))
        return pl_reader_bad(r, r->word[3],
                             "'%.60s' is no subject, such as layer.3, experts.3, head, tokens",
                             r->word[3]);
    if (layer >= r->plan.model.num_hidden_layers)
        return pl_reader_bad(r, r->word[3], "layer %" PRId32 ": the model has layers 0 to %" PRId64,
                             layer, r->plan.model.num_hidden_layers - 1);
    entry.name = pl_entry_name_make(operation, subject);
    entry.name.layer = layer;
    entry.label = (uint32_t)label;
    entry.stream = PL_STREAM_COUNT;
    entry.use_first = (uint32_t)section->use_count;
    entry.wait_first = (uint32_t)section->wait_count;
    for (int i = 4; i < r->words; ++i) PL_TRY(read_attribute(r, i, &entry));
    if (entry.stream == PL_STREAM_COUNT)
        return pl_reader_bad(r, NULL, "entry %" PRId64 " has no stream=", label);
    PL_TRY(pl_grow(&section->entries, &section->entry_capacity, section->entry_count + 1,
                   sizeof entry, "plan entries"));
    section->entries[section->entry_count++] = entry;
    return PL_OK;
}

/* --- the end of a section: labels to places --- */

static int compare_labels(const void *a, const void *b)
{
    const label_place *x = a, *y = b;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static int32_t find_label(const label_place *places, size_t count, uint32_t label)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (places[middle].label < label)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && places[low].label == label ? places[low].entry : PL_WAIT_MISSING;
}

static pl_status end_section(pl_plan_reader *r)
{
    pl_section *section = r->section;
    label_place *places = NULL;
    PL_TRY(pl_allocate(&places, section->entry_count, sizeof *places, "plan labels"));
    for (size_t i = 0; i < section->entry_count; ++i)
        places[i] = (label_place){section->entries[i].label, (int32_t)i};
    qsort(places, section->entry_count, sizeof *places, compare_labels);
    for (size_t i = 1; i < section->entry_count; ++i) {
        if (places[i].label != places[i - 1].label) continue;
        pl_status status = pl_reader_bad(
            r, NULL, "two entries of this section have the number %" PRIu32, places[i].label);
        pl_free(places);
        return status;
    }
    for (size_t i = 0; i < section->wait_count; ++i)
        if (section->waits[i] != PL_WAIT_MISSING)
            section->waits[i] =
                find_label(places, section->entry_count, (uint32_t)section->waits[i]);
    pl_free(places);
    r->section = NULL;
    return PL_OK;
}

pl_status pl_reader_section_line(pl_plan_reader *r)
{
    static const char *const keys[] = {"buffer", "entry", "end"};
    if (strcmp(r->word[0], "entry") == 0) return read_entry(r);
    if (strcmp(r->word[0], "buffer") == 0) return read_buffer(r);
    if (strcmp(r->word[0], "end") == 0 && r->words == 1) return end_section(r);
    return pl_reader_bad_choice(r, NULL, "line of a section", r->word[0], keys, 3);
}
