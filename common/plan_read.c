/* Reading plans from their text form. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/plan_builder.h"

enum { MAX_WORDS = 64 };

typedef struct label_place {
    uint32_t label;
    int32_t entry;
} label_place;

typedef struct reader {
    const char *source;
    char *bytes, *next; /* own copy of the text, words cut by NULs; the line to come */
    int64_t line;
    char *start; /* of the line in work */
    char *word[MAX_WORDS];
    int words;
    pl_plan plan;
    pl_section *section;   /* NULL between sections */
    int32_t *buffer_table; /* hash table of buffer numbers, -1 free */
    size_t buffer_table_size;
    int64_t *has_section[PL_PROGRAM_COUNT]; /* line of a rank's section + 1, or 0 */
    bool seen_model, header_done;
    bool seen[5]; /* header lines that must stand once */
    pl_text model;
    char name[PL_MODEL_NAME];
    char **patterns[2];
    size_t pattern_count[2], pattern_capacity[2];
} reader;

static pl_status bad(const reader *r, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "plan.txt:12:7: words". AT points into the line; NULL for its start. Callers show at most 60
 * letters of what was given, so that the reason is not pushed out. */
static pl_status bad(const reader *r, const char *at, const char *format, ...)
{
    pl_text text = {0};
    va_list arguments;
    int64_t column = at && at >= r->start ? at - r->start + 1 : 1;
    pl_text_add(&text, "%s:%" PRId64 ":%" PRId64 ": ", r->source, r->line, column);
    va_start(arguments, format);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    pl_error_record("%s", pl_text_string(&text));
    pl_text_free(&text);
    return PL_BAD_INPUT;
}

static pl_status bad_choice(const reader *r, const char *at, const char *what, const char *given,
                            const char *const *names, int count)
{
    pl_text text = {0};
    pl_text_add_choices(&text, given, names, count);
    pl_status status = bad(r, at, "'%.60s' is no %s%s", given, what, pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

/* --- lines and words --- */

static bool next_line(reader *r)
{
    if (*r->next == '\0') return false;
    r->start = r->next;
    char *end = strchr(r->next, '\n');
    r->next = end ? end + 1 : r->next + strlen(r->next);
    if (end) *end = '\0';
    ++r->line;
    return true;
}

static pl_status cut_words(reader *r)
{
    char *c = r->start;
    r->words = 0;
    while (*c) {
        while (*c == ' ') *c++ = '\0';
        if (!*c) break;
        if (r->words == MAX_WORDS) return bad(r, c, "more than %d words in a line", MAX_WORDS);
        r->word[r->words++] = c;
        while (*c && *c != ' ') ++c;
    }
    return PL_OK;
}

/* The value of word number I when it starts with KEY and '=', else NULL. */
static char *value_of(const reader *r, int i, const char *key)
{
    size_t length = strlen(key);
    if (strncmp(r->word[i], key, length) != 0 || r->word[i][length] != '=') return NULL;
    return r->word[i] + length + 1;
}

static pl_status read_number(const reader *r, char *word, int64_t least, int64_t most, int64_t *out)
{
    int64_t number = 0;
    if (!pl_parse_integer(&number, word)) return bad(r, word, "'%.60s' is no whole number", word);
    if (number < least || number > most)
        return bad(r, word, "%" PRId64 " is outside %" PRId64 " to %" PRId64, number, least, most);
    *out = number;
    return PL_OK;
}

static pl_status read_small(const reader *r, char *word, int32_t *out)
{
    int64_t number = 0;
    PL_TRY(read_number(r, word, 0, INT32_MAX, &number));
    *out = (int32_t)number;
    return PL_OK;
}

/* Refuse a second KEY=... among the words of a line, from word FIRST on. */
static pl_status check_repeats(const reader *r, int first)
{
    for (int i = first; i < r->words; ++i) {
        size_t length = strcspn(r->word[i], "=");
        for (int j = first; j < i; ++j)
            if (strncmp(r->word[i], r->word[j], length) == 0 && r->word[j][length] == '=' &&
                r->word[i][length] == '=')
                return bad(r, r->word[i], "'%.*s' stands here twice", (int)length, r->word[i]);
    }
    return PL_OK;
}

/* --- header --- */

static pl_status read_choice(const reader *r, char *word, const char *what,
                             const char *const *(*names)(int *), int *out)
{
    int count = 0;
    const char *const *list = names(&count);
    for (int i = 0; i < count; ++i) {
        if (strcmp(list[i], word) != 0) continue;
        *out = i;
        return PL_OK;
    }
    return bad_choice(r, word, what, word, list, count);
}

#define READ_CHOICE(key, names, field, type)                                                       \
    if ((value = value_of(r, i, key))) {                                                           \
        int chosen = 0;                                                                            \
        PL_TRY(read_choice(r, value, key, names, &chosen));                                        \
        (field) = (type)chosen;                                                                    \
        continue;                                                                                  \
    }

static pl_status read_policy(reader *r)
{
    pl_policy *policy = &r->plan.settings.policy;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        READ_CHOICE("reshard", pl_reshard_names, policy->reshard, pl_reshard)
        READ_CHOICE("prefetch", pl_prefetch_names, policy->prefetch, pl_prefetch)
        READ_CHOICE("recompute", pl_recompute_names, policy->recompute, pl_recompute)
        READ_CHOICE("accumulate", pl_accumulate_names, policy->accumulate, pl_accumulate)
        READ_CHOICE("dispatch", pl_dispatch_names, policy->dispatch, pl_dispatch)
        READ_CHOICE("routing", pl_routing_names, policy->routing, pl_routing)
        return bad(r, r->word[i],
                   "'%.60s' is no policy; allowed: reshard, prefetch, recompute, "
                   "accumulate, dispatch, routing",
                   r->word[i]);
    }
    return PL_OK;
}

static pl_status read_dtype(const reader *r, char *word, pl_dtype *out)
{
    if (pl_dtype_parse(out, word)) return PL_OK;
    const char *names[PL_DTYPE_COUNT];
    for (int i = 0; i < PL_DTYPE_COUNT; ++i) names[i] = pl_dtype_name((pl_dtype)i);
    return bad_choice(r, word, "element type", word, names, PL_DTYPE_COUNT);
}

static pl_status read_precision(reader *r)
{
    pl_precision *precision = &r->plan.settings.precision;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        if ((value = value_of(r, i, "compute")))
            PL_TRY(read_dtype(r, value, &precision->compute));
        else if ((value = value_of(r, i, "gather")))
            PL_TRY(read_dtype(r, value, &precision->gather));
        else if ((value = value_of(r, i, "gradient")))
            PL_TRY(read_dtype(r, value, &precision->gradient));
        else if ((value = value_of(r, i, "master")))
            PL_TRY(read_dtype(r, value, &precision->master));
        else
            return bad(r, r->word[i],
                       "'%.60s' is no precision; allowed: compute, gather, gradient, master",
                       r->word[i]);
    }
    return PL_OK;
}

static pl_status read_shape(reader *r)
{
    pl_shape *shape = &r->plan.settings.shape;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        if ((value = value_of(r, i, "sequence")))
            PL_TRY(read_number(r, value, 1, INT32_MAX, &shape->sequence));
        else if ((value = value_of(r, i, "micro_batch")))
            PL_TRY(read_number(r, value, 1, 1 << 20, &shape->micro_batch));
        else if ((value = value_of(r, i, "intra_layer")))
            PL_TRY(read_number(r, value, 1, 4096, &shape->intra_layer));
        else if ((value = value_of(r, i, "rounds")))
            PL_TRY(read_number(r, value, 1, 1 << 20, &shape->rounds));
        else
            return bad(r, r->word[i],
                       "'%.60s' is no part of the shape; allowed: sequence, "
                       "micro_batch, intra_layer, rounds",
                       r->word[i]);
    }
    return PL_OK;
}

static pl_status read_real(const reader *r, char *word, double *out)
{
    if (pl_parse_number(out, word) && *out >= 0) return PL_OK;
    return bad(r, word, "'%.60s' is no number of 0 or more", word);
}

static pl_status read_objective(reader *r)
{
    pl_settings *s = &r->plan.settings;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        READ_CHOICE("balance", pl_balance_names, s->balance, pl_balance)
        READ_CHOICE("optimizer", pl_optimizer_names, s->optimizer, pl_optimizer)
        if ((value = value_of(r, i, "coefficient")))
            PL_TRY(read_real(r, value, &s->balance_coefficient));
        else if ((value = value_of(r, i, "clip")))
            PL_TRY(read_real(r, value, &s->clip));
        else
            return bad(r, r->word[i],
                       "'%.60s' is no part of the objective; allowed: balance, "
                       "coefficient, optimizer, clip",
                       r->word[i]);
    }
    return PL_OK;
}

static pl_status read_pattern(reader *r, int kind)
{
    if (r->words != 2) return bad(r, NULL, "'%.60s' takes one pattern", r->word[0]);
    size_t count = r->pattern_count[kind];
    PL_TRY(pl_grow(&r->patterns[kind], &r->pattern_capacity[kind], count + 1,
                   sizeof *r->patterns[kind], "patterns"));
    r->patterns[kind][r->pattern_count[kind]++] = r->word[1];
    return PL_OK;
}

static pl_status read_layout(reader *r)
{
    if (r->words != 2) return bad(r, NULL, "'layout' takes one notation");
    pl_status status = pl_layout_parse(&r->plan.layout, r->word[1]);
    if (status != PL_OK)
        pl_error_context("%s:%" PRId64 ": in the line 'layout'", r->source, r->line);
    return status;
}

/* Header lines that must stand once. */
static const char *const once[] = {"layout", "policy", "precision", "shape", "objective"};

/* All of a line's COUNT words are there: none is known that is not needed. */
static pl_status check_words(const reader *r, int count)
{
    if (r->words - 1 >= count) return PL_OK;
    return bad(r, NULL, "'%s' has %d words where it must have %d", r->word[0], r->words - 1, count);
}

static pl_status read_header_line(reader *r)
{
    static const char *const keys[] = {"model", "name",      "layout",    "policy", "precision",
                                       "shape", "objective", "keep_fp32", "frozen"};
    const char *key = r->word[0];
    PL_TRY(check_repeats(r, 1));
    for (size_t i = 0; i < 5; ++i) {
        if (strcmp(key, once[i]) != 0) continue;
        if (r->seen[i]) return bad(r, NULL, "a second line '%s'", key);
        r->seen[i] = true;
    }
    if (strcmp(key, "policy") == 0) PL_TRY(check_words(r, 6));
    if (strcmp(key, "precision") == 0 || strcmp(key, "shape") == 0 || strcmp(key, "objective") == 0)
        PL_TRY(check_words(r, 4));
    if (strcmp(key, "layout") == 0) return read_layout(r);
    if (strcmp(key, "policy") == 0) return read_policy(r);
    if (strcmp(key, "precision") == 0) return read_precision(r);
    if (strcmp(key, "shape") == 0) return read_shape(r);
    if (strcmp(key, "objective") == 0) return read_objective(r);
    if (strcmp(key, "keep_fp32") == 0) return read_pattern(r, 0);
    if (strcmp(key, "frozen") == 0) return read_pattern(r, 1);
    return bad_choice(r, NULL, "header line", key, keys, sizeof keys / sizeof *keys);
}

/* The header is whole: make the model, and room to note which ranks have sections. */
static pl_status finish_header(reader *r)
{
    if (!r->seen_model) return bad(r, NULL, "no line 'model' before the first section");
    for (size_t i = 0; i < 5; ++i)
        if (!r->seen[i]) return bad(r, NULL, "no line '%s' before the first section", once[i]);
    pl_model model = {0};
    const char *name = r->name[0] ? r->name : "model";
    PL_TRY(pl_model_parse(&model, pl_text_string(&r->model), r->source, name));
    pl_plan_request request = {.model = &model, .layout = r->plan.layout};
    request.settings = r->plan.settings;
    request.keep_fp32 = (const char *const *)r->patterns[0];
    request.keep_fp32_count = (int)r->pattern_count[0];
    request.frozen = (const char *const *)r->patterns[1];
    request.frozen_count = (int)r->pattern_count[1];
    pl_status status = pl_plan_set_header(&r->plan, &request);
    if (status != PL_OK)
        pl_error_context("%s:%" PRId64 ": in the header before this line", r->source, r->line);
    pl_model_free(&model);
    if (status == PL_OK) status = pl_plan_check_header(&r->plan);
    if (status != PL_OK && status != PL_NO_MEMORY)
        pl_error_context("%s: in the header of the plan", r->source);
    for (int i = 0; i < PL_PROGRAM_COUNT && status == PL_OK; ++i)
        status = pl_allocate(&r->has_section[i], (size_t)r->plan.layout.world, sizeof(int64_t),
                             "ranks of a plan");
    r->header_done = status == PL_OK;
    return status;
}

/* --- sections --- */

static pl_status take_ranks(reader *r, pl_program program, pl_rank_run run, char *at)
{
    for (int64_t rank = run.first; rank <= run.last; rank += run.stride) {
        int64_t *line = &r->has_section[program][rank];
        if (*line)
            return bad(r, at, "rank %" PRId64 " has a %s section already, at line %" PRId64, rank,
                       pl_program_name(program), *line);
        *line = r->line;
    }
    return pl_section_add_run(r->section, run);
}

/* "0-62/2,63" */
static pl_status read_ranks(reader *r, pl_program program, char *list)
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
        PL_TRY(read_number(r, item, 0, most, &run.first));
        run.last = run.first;
        if (last) PL_TRY(read_number(r, last, run.first, most, &run.last));
        if (stride) PL_TRY(read_number(r, stride, 1, most + 1, &run.stride));
        if ((run.last - run.first) % run.stride != 0)
            return bad(r, item, "%" PRId64 "-%" PRId64 "/%" PRId64 " does not end on a rank",
                       run.first, run.last, run.stride);
        PL_TRY(take_ranks(r, program, run, item));
        item = next;
    }
    return PL_OK;
}

static pl_status begin_section(reader *r)
{
    static const char *const programs[PL_PROGRAM_COUNT] = {"start", "step"};
    if (r->words != 4 || strcmp(r->word[2], "ranks") != 0)
        return bad(r, NULL, "expected 'section PROGRAM ranks LIST'");
    int program = 0;
    while (program < PL_PROGRAM_COUNT && strcmp(programs[program], r->word[1]) != 0) ++program;
    if (program == PL_PROGRAM_COUNT)
        return bad_choice(r, r->word[1], "program", r->word[1], programs, PL_PROGRAM_COUNT);
    if (!r->header_done) PL_TRY(finish_header(r));
    PL_TRY(pl_plan_add_section(&r->plan, &r->section));
    r->section->program = (pl_program)program;
    for (size_t i = 0; i < r->buffer_table_size; ++i) r->buffer_table[i] = -1;
    return read_ranks(r, (pl_program)program, r->word[3]);
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
static size_t buffer_place(const reader *r, const pl_buffer *buffer)
{
    size_t place = buffer_hash(buffer) % r->buffer_table_size;
    while (r->buffer_table[place] >= 0 &&
           !same_buffer(buffer, &r->section->buffers[r->buffer_table[place]]))
        place = (place + 1) % r->buffer_table_size;
    return place;
}

static pl_status grow_buffer_table(reader *r)
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

static pl_status read_class(const reader *r, char *word, pl_buffer *buffer)
{
    pl_buffer_class class_ = PL_BUFFER_WORK;
    if (pl_buffer_class_parse(&class_, word)) {
        buffer->class_ = (uint8_t)class_;
        return PL_OK;
    }
    const char *names[PL_BUFFER_CLASS_COUNT];
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i)
        names[i] = pl_buffer_class_name((pl_buffer_class)i);
    return bad_choice(r, word, "class of buffers", word, names, PL_BUFFER_CLASS_COUNT);
}

/* Cut SUFFIX off the end of WORD; whether it was there. */
static bool cut_suffix(char *word, const char *suffix)
{
    size_t length = strlen(word), tail = strlen(suffix);
    if (length < tail || strcmp(word + length - tail, suffix) != 0) return false;
    word[length - tail] = '\0';
    return true;
}

static pl_status bad_buffer(const reader *r, char *name)
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
        return bad(r, name, "'%.60s' is no buffer; did you mean '%s'?", name, near);
    return bad(r, name, "'%.60s' is no buffer: a part, layer or micro-batch is missing or too many",
               name);
}

static pl_status read_buffer(reader *r)
{
    pl_buffer buffer;
    pl_dtype dtype = PL_U8;
    if (r->words < 5 || r->words > 6)
        return bad(r, NULL, "expected 'buffer NAME CLASS TYPE BYTES [resident]'");
    if (!pl_buffer_parse(&buffer, r->word[1])) return bad_buffer(r, r->word[1]);
    if (buffer.layer > r->plan.model.num_hidden_layers)
        return bad(r, r->word[1], "layer %" PRId32 ": the model has layers 0 to %" PRId64,
                   buffer.layer, r->plan.model.num_hidden_layers - 1);
    PL_TRY(read_class(r, r->word[2], &buffer));
    PL_TRY(read_dtype(r, r->word[3], &dtype));
    buffer.dtype = (uint8_t)dtype;
    buffer.per_row = cut_suffix(r->word[4], "*R");
    PL_TRY(read_number(r, r->word[4], 0, INT64_MAX, &buffer.bytes));
    buffer.resident = r->words == 6;
    if (buffer.resident && strcmp(r->word[5], "resident") != 0)
        return bad(r, r->word[5], "'%.60s' is not allowed here; 'resident' is", r->word[5]);
    PL_TRY(grow_buffer_table(r));
    size_t place = buffer_place(r, &buffer);
    if (r->buffer_table[place] >= 0)
        return bad(r, r->word[1], "buffer %.60s stands here twice", r->word[1]);
    pl_section *section = r->section;
    PL_TRY(pl_grow(&section->buffers, &section->buffer_capacity, section->buffer_count + 1,
                   sizeof buffer, "plan buffers"));
    r->buffer_table[place] = (int32_t)section->buffer_count;
    section->buffers[section->buffer_count++] = buffer;
    return PL_OK;
}

/* --- entries --- */

static pl_status add_use(reader *r, pl_entry *entry, uint32_t number, uint32_t flags)
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

static pl_status read_uses(reader *r, pl_entry *entry, char *list, uint32_t flags)
{
    for (char *item = list; item;) {
        char *next = strchr(item, ',');
        if (next) *next++ = '\0';
        pl_buffer buffer;
        if (!pl_buffer_parse(&buffer, item)) return bad_buffer(r, item);
        int32_t number = r->buffer_table_size ? r->buffer_table[buffer_place(r, &buffer)] : -1;
        if (number < 0) return bad(r, item, "no line 'buffer %.60s ...' in this section", item);
        pl_status status = add_use(r, entry, (uint32_t)number, flags);
        if (status == PL_BAD_INPUT) return bad(r, item, "'%.60s' stands here twice", item);
        PL_TRY(status);
        item = next;
    }
    return PL_OK;
}

/* Labels at first; places once the section is whole. */
static pl_status read_waits(reader *r, pl_entry *entry, char *list)
{
    pl_section *section = r->section;
    for (char *item = list; item;) {
        char *next = strchr(item, ',');
        if (next) *next++ = '\0';
        int64_t label = PL_WAIT_MISSING;
        if (strcmp(item, "missing") != 0) PL_TRY(read_number(r, item, 0, INT32_MAX, &label));
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

static pl_status read_group(const reader *r, char *word, pl_entry *entry)
{
    pl_group_role role = PL_GROUP_NONE;
    if (pl_group_role_parse(&role, word)) {
        entry->group = (uint8_t)role;
        return PL_OK;
    }
    const char *names[PL_GROUP_ROLE_COUNT];
    for (int i = 0; i < PL_GROUP_ROLE_COUNT; ++i) names[i] = pl_group_role_name((pl_group_role)i);
    return bad_choice(r, word, "group role", word, names + 1, PL_GROUP_ROLE_COUNT - 1);
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
        return bad_choice(r, value, what, value, names_, count);                                   \
    } while (0)

static pl_status read_pass(const reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("pass", pl_pass_parse, pl_pass, entry->name.pass, pl_pass_name, PL_PASS_COUNT);
}

static pl_status read_stream(const reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("stream", pl_stream_parse, pl_stream, entry->stream, pl_stream_name,
               PL_STREAM_COUNT);
}

static pl_status read_reduction(const reader *r, char *value, pl_entry *entry)
{
    READ_NAMED("reduction", pl_reduction_parse, pl_reduction, entry->reduction, pl_reduction_name,
               PL_REDUCTION_COUNT);
}

/* The attributes that name or size an entry. *TAKEN says whether word I was one of them. */
static pl_status read_size(const reader *r, int i, pl_entry *entry, bool *taken)
{
    char *value = NULL;
    *taken = true;
    if ((value = value_of(r, i, "chunk"))) return read_small(r, value, &entry->name.chunk);
    if ((value = value_of(r, i, "round"))) return read_small(r, value, &entry->name.round);
    if ((value = value_of(r, i, "mb"))) return read_small(r, value, &entry->name.micro_batch);
    if ((value = value_of(r, i, "ordinal"))) return read_small(r, value, &entry->name.ordinal);
    if ((value = value_of(r, i, "peer"))) return read_small(r, value, &entry->peer);
    if ((value = value_of(r, i, "elements")))
        return read_number(r, value, 0, INT64_MAX, &entry->elements);
    if ((value = value_of(r, i, "bytes"))) {
        if (cut_suffix(value, "*C")) entry->rows = PL_ROWS_EXCHANGED;
        return read_number(r, value, 0, INT64_MAX, &entry->bytes);
    }
    if ((value = value_of(r, i, "flops"))) {
        if (cut_suffix(value, "*R")) entry->rows = PL_ROWS_RECEIVED;
        return read_number(r, value, 0, INT64_MAX, &entry->flops);
    }
    *taken = false;
    return PL_OK;
}

static pl_status read_attribute(reader *r, int i, pl_entry *entry)
{
    static const char *const keys[] = {"chunk",    "round", "mb",        "pass",   "ordinal",
                                       "stream",   "waits", "peer",      "if",     "group",
                                       "bytes",    "wire",  "reduction", "scale",  "flops",
                                       "elements", "reads", "writes",    "begins", "ends"};
    char *value = NULL;
    bool taken = false;
    PL_TRY(read_size(r, i, entry, &taken));
    if (taken) return PL_OK;
    if ((value = value_of(r, i, "pass"))) return read_pass(r, value, entry);
    if ((value = value_of(r, i, "stream"))) return read_stream(r, value, entry);
    if ((value = value_of(r, i, "waits"))) return read_waits(r, entry, value);
    if ((value = value_of(r, i, "group"))) return read_group(r, value, entry);
    if ((value = value_of(r, i, "reduction"))) return read_reduction(r, value, entry);
    if ((value = value_of(r, i, "reads"))) return read_uses(r, entry, value, PL_USE_READ);
    if ((value = value_of(r, i, "writes"))) return read_uses(r, entry, value, PL_USE_WRITE);
    if ((value = value_of(r, i, "begins")))
        return read_uses(r, entry, value, PL_USE_WRITE | PL_USE_BEGIN);
    if ((value = value_of(r, i, "ends"))) return read_uses(r, entry, value, PL_USE_END);
    if ((value = value_of(r, i, "wire"))) {
        pl_dtype dtype = PL_U8;
        PL_TRY(read_dtype(r, value, &dtype));
        entry->wire = (uint8_t)dtype;
        return PL_OK;
    }
    if ((value = value_of(r, i, "scale"))) {
        if (pl_scale_parse(&entry->scale, value)) return PL_OK;
        return bad(r, value, "'%.60s' is no scale; allowed: 1, 1/2, 1/T, 1/2*T, T*1/8", value);
    }
    if ((value = value_of(r, i, "if"))) {
        if (strcmp(value, "update") != 0)
            return bad(r, value, "'%.60s' is no condition; allowed: update", value);
        entry->predicate = PL_IF_UPDATE;
        return PL_OK;
    }
    if (!strchr(r->word[i], '='))
        return bad(r, r->word[i], "'%.60s' is no attribute: expected KEY=VALUE", r->word[i]);
    r->word[i][strcspn(r->word[i], "=")] = '\0';
    return bad_choice(r, r->word[i], "attribute of an entry", r->word[i], keys,
                      sizeof keys / sizeof *keys);
}

static pl_status read_entry(reader *r)
{
    pl_section *section = r->section;
    pl_entry entry = {.wire = PL_U8, .peer = -1, .scale = {1, 1, 0}};
    pl_operation operation = PL_OP_CONTROL;
    pl_subject subject = PL_SUBJECT_FLAGS;
    int64_t label = 0;
    int32_t layer = -1;
    if (r->words < 4)
        return bad(r, NULL, "expected 'entry NUMBER OPERATION SUBJECT stream=... ...'");
    PL_TRY(check_repeats(r, 4));
    PL_TRY(read_number(r, r->word[1], 0, INT32_MAX, &label));
    if (!pl_operation_parse(&operation, r->word[2])) {
        const char *names[PL_OPERATION_COUNT];
        for (int i = 0; i < PL_OPERATION_COUNT; ++i) names[i] = pl_operation_name((pl_operation)i);
        return bad_choice(r, r->word[2], "operation", r->word[2], names, PL_OPERATION_COUNT);
    }
    if (!pl_subject_parse(&subject, &layer, r->word[3]))
        return bad(r, r->word[3], "'%.60s' is no subject, such as layer.3, experts.3, head, tokens",
                   r->word[3]);
    if (layer >= r->plan.model.num_hidden_layers)
        return bad(r, r->word[3], "layer %" PRId32 ": the model has layers 0 to %" PRId64, layer,
                   r->plan.model.num_hidden_layers - 1);
    entry.name = pl_entry_name_make(operation, subject);
    entry.name.layer = layer;
    entry.label = (uint32_t)label;
    entry.stream = PL_STREAM_COUNT;
    entry.use_first = (uint32_t)section->use_count;
    entry.wait_first = (uint32_t)section->wait_count;
    for (int i = 4; i < r->words; ++i) PL_TRY(read_attribute(r, i, &entry));
    if (entry.stream == PL_STREAM_COUNT)
        return bad(r, NULL, "entry %" PRId64 " has no stream=", label);
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

static pl_status end_section(reader *r)
{
    pl_section *section = r->section;
    label_place *places = NULL;
    PL_TRY(pl_allocate(&places, section->entry_count, sizeof *places, "plan labels"));
    for (size_t i = 0; i < section->entry_count; ++i)
        places[i] = (label_place){section->entries[i].label, (int32_t)i};
    qsort(places, section->entry_count, sizeof *places, compare_labels);
    for (size_t i = 1; i < section->entry_count; ++i) {
        if (places[i].label != places[i - 1].label) continue;
        pl_status status =
            bad(r, NULL, "two entries of this section have the number %" PRIu32, places[i].label);
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

/* --- the whole --- */

static pl_status read_section_line(reader *r)
{
    static const char *const keys[] = {"buffer", "entry", "end"};
    if (strcmp(r->word[0], "entry") == 0) return read_entry(r);
    if (strcmp(r->word[0], "buffer") == 0) return read_buffer(r);
    if (strcmp(r->word[0], "end") == 0 && r->words == 1) return end_section(r);
    return bad_choice(r, NULL, "line of a section", r->word[0], keys, 3);
}

/* The two header lines that are read as they stand, blanks and all. */
static pl_status read_whole_line(reader *r, bool *taken)
{
    *taken = !r->section && !r->header_done &&
             (strncmp(r->start, "model ", 6) == 0 || strncmp(r->start, "name ", 5) == 0);
    if (!*taken) return PL_OK;
    if (r->start[0] == 'n') {
        size_t length = strlen(r->start + 5);
        if (r->name[0]) return bad(r, NULL, "a second line 'name'");
        if (length == 0 || length >= sizeof r->name)
            return bad(r, NULL, "'name' takes a name of 1 to %d letters", PL_MODEL_NAME - 1);
        memcpy(r->name, r->start + 5, length + 1);
        return PL_OK;
    }
    if (r->seen_model) return bad(r, NULL, "a second line 'model'");
    r->seen_model = true;
    pl_text_add_string(&r->model, r->start + 6);
    return pl_text_status(&r->model);
}

static pl_status read_line(reader *r)
{
    bool taken = false;
    PL_TRY(read_whole_line(r, &taken));
    if (taken) return PL_OK;
    PL_TRY(cut_words(r));
    if (r->words == 0 || r->word[0][0] == '#') return PL_OK;
    if (r->section) return read_section_line(r);
    if (strcmp(r->word[0], "section") == 0) return begin_section(r);
    if (r->header_done)
        return bad(r, NULL, "'%.60s' after the header: a line 'section ...' may follow here",
                   r->word[0]);
    return read_header_line(r);
}

static pl_status check_complete(const reader *r)
{
    if (r->section) return bad(r, NULL, "the text ends inside a section: no line 'end'");
    if (!r->header_done) return bad(r, NULL, "no section");
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        bool any = false;
        for (size_t i = 0; i < r->plan.section_count; ++i)
            any |= r->plan.sections[i].program == (pl_program)program;
        for (int64_t rank = 0; any && rank < r->plan.layout.world; ++rank)
            if (!r->has_section[program][rank])
                return bad(r, NULL, "rank %" PRId64 " has no %s section", rank,
                           pl_program_name((pl_program)program));
    }
    return PL_OK;
}

static pl_status read_all(reader *r)
{
    if (!next_line(r) || strcmp(r->start, "pleat-plan 1") != 0)
        return bad(r, NULL, "expected 'pleat-plan 1' in the first line");
    while (next_line(r)) PL_TRY(read_line(r));
    return check_complete(r);
}

pl_status pl_plan_read(pl_plan *out, const char *text, const char *source)
{
    reader r = {.source = source, .plan = {.settings = pl_settings_default()}};
    PL_TRY(pl_duplicate(&r.bytes, text, "plan text"));
    r.next = r.start = r.bytes;
    pl_status status = read_all(&r);
    if (status != PL_OK)
        pl_plan_free(&r.plan);
    else
        *out = r.plan;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) pl_free(r.has_section[i]);
    for (int i = 0; i < 2; ++i) pl_free(r.patterns[i]);
    pl_free(r.buffer_table);
    pl_free(r.bytes);
    pl_text_free(&r.model);
    return status;
}
