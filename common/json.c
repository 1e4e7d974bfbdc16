#include "common/json.h"

#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"
#include "common/text.h"

/* Longest piece of a foreign file that a message repeats. */
enum { SHOWN = 60 };

void pl_json_check_memory(void) { json_set_alloc_funcs(pl_library_allocate, pl_library_free); }

/* Four times the longest string of TEXT: what jansson's one buffer for strings can take in all, as
 * it doubles. (Any two quotes that follow each other are looked at, strings or not.) */
static size_t string_reserve(const char *text, size_t length)
{
    size_t longest = 0, from = 0;
    for (size_t i = 0; i <= length; ++i)
        if (i == length || text[i] == '"') {
            if (i - from > longest) longest = i - from;
            from = i + 1;
        }
    return 4 * longest + 64;
}

pl_status pl_json_parse(struct json_t **out, const char *text, size_t length, const char *source)
{
    json_error_t error;
    if (pl_library_hold_reserve(string_reserve(text, length), "strings") != PL_OK)
        return PL_FAIL(PL_NO_MEMORY, "%s: out of memory while reading JSON", source);
    pl_library_forget_failure();
    json_t *value = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    bool lost = pl_library_failed();
    pl_library_forget_failure();
    bool failed = lost || (!value && json_error_code(&error) == json_error_out_of_memory);
    if (failed) json_decref(value);
    pl_library_drop_reserve();
    if (failed) return PL_FAIL(PL_NO_MEMORY, "%s: out of memory while reading JSON", source);
    if (!value)
        return PL_FAIL(PL_BAD_INPUT, "%s:%d:%d: not JSON: %s", source, error.line, error.column,
                       error.text);
    *out = value;
    return PL_OK;
}

pl_status pl_json_read(struct json_t **out, const char *file, size_t max_bytes)
{
    char *text = NULL;
    size_t length = 0;
    PL_TRY(pl_read_file(&text, &length, file, max_bytes));
    size_t mark = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* byte order */
    pl_status status = pl_json_parse(out, text + mark, length - mark, file);
    pl_free(text);
    return status;
}

void pl_json_free(struct json_t *value) { json_decref(value); }

/* Keys of foreign files may hold anything; in a line of words they stay in their line. */
static void hide_controls(char *words, size_t room)
{
    for (; room > 0 && *words; ++words, --room)
        if ((unsigned char)*words < 0x20 || *words == 0x7f) *words = '?';
}

/* Add the way to NODE, "rope_scaling.factor" or "files[3]", behind the USED bytes of BUFFER. */
static size_t add_path(const pl_json_node *node, char *buffer, size_t used)
{
    if (!node->parent) return used;
    used = add_path(node->parent, buffer, used);
    if (used + 1 >= PL_JSON_WORDS) return used;
    size_t room = PL_JSON_WORDS - used;
    int added = 0;
    if (node->key)
        added = snprintf(buffer + used, room, "%s%.*s", node->parent->parent ? "." : "", SHOWN,
                         node->key);
    else
        added = snprintf(buffer + used, room, "[%" PRId64 "]", node->index);
    if (added < 0) return used;
    hide_controls(buffer + used, room);
    return (size_t)added < room ? used + (size_t)added : PL_JSON_WORDS - 1;
}

/* Long names of files are cut from the left: their ends tell them apart. */
static size_t add_source(const pl_json_node *node, char *buffer)
{
    enum { SOURCE_SHOWN = 100 };
    size_t length = strlen(node->source);
    bool cut = length > SOURCE_SHOWN;
    const char *end = cut ? node->source + (length - SOURCE_SHOWN) : node->source;
    return (size_t)snprintf(buffer, PL_JSON_WORDS, "%s%s: ", cut ? "..." : "", end);
}

const char *pl_json_where(const pl_json_node *node, char *buffer)
{
    size_t used = add_source(node, buffer);
    if (!node->parent) {
        snprintf(buffer + used, PL_JSON_WORDS - used, "the whole text");
        return buffer;
    }
    used += (size_t)snprintf(buffer + used, PL_JSON_WORDS - used, "key '");
    used = add_path(node, buffer, used);
    if (used + 2 <= PL_JSON_WORDS) snprintf(buffer + used, PL_JSON_WORDS - used, "'");
    return buffer;
}

typedef struct shown_text {
    char *buffer;
    size_t used;
} shown_text;

/* Takes what fits and stops the writer at the first byte that does not. */
static int show(const char *bytes, size_t length, void *state)
{
    shown_text *shown = state;
    size_t room = SHOWN - shown->used, taken = length < room ? length : room;
    memcpy(shown->buffer + shown->used, bytes, taken);
    shown->used += taken;
    return taken == length ? 0 : -1;
}

const char *pl_json_given(const pl_json_node *node, char *buffer)
{
    size_t flags = JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT | JSON_REAL_PRECISION(15);
    shown_text shown = {.buffer = buffer};
    bool whole = json_dump_callback(node->value, show, &shown, flags) == 0;
    snprintf(buffer + shown.used, PL_JSON_WORDS - shown.used, "%s", whole ? "" : "...");
    return buffer;
}

pl_status pl_json_refuse(const pl_json_node *node, const char *allowed)
{
    char where[PL_JSON_WORDS], given[PL_JSON_WORDS];
    return PL_FAIL(PL_BAD_INPUT, "%s: given %s; allowed: %s", pl_json_where(node, where),
                   pl_json_given(node, given), allowed);
}

pl_status pl_json_refuse_choice(const pl_json_node *node, const char *given,
                                const char *const *choices, int count)
{
    char where[PL_JSON_WORDS], shown[PL_JSON_WORDS];
    pl_text words = {0};
    pl_text_add_choices(&words, given, choices, count);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT, "%s: given %s%s", pl_json_where(node, where),
                         pl_json_given(node, shown), pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

pl_status pl_json_top_object(pl_json_node *out, struct json_t *value, const char *source)
{
    pl_json_node node = {.value = value, .source = source};
    if (!json_is_object(value)) return pl_json_refuse(&node, "an object, {...}");
    *out = node;
    return PL_OK;
}

bool pl_json_has(const pl_json_node *object, const char *key)
{
    const json_t *value = json_object_get(object->value, key);
    return value && !json_is_null(value);
}

pl_status pl_json_member(pl_json_node *out, const pl_json_node *object, const char *key,
                         const char *allowed)
{
    char where[PL_JSON_WORDS];
    pl_json_node node = {.value = json_object_get(object->value, key),
                         .source = object->source,
                         .parent = object,
                         .key = key};
    if (!node.value)
        return PL_FAIL(PL_BAD_INPUT, "%s is missing; allowed: %s", pl_json_where(&node, where),
                       allowed);
    *out = node;
    return PL_OK;
}

pl_status pl_json_object(pl_json_node *out, const pl_json_node *object, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, "an object, {...}"));
    if (!json_is_object(node.value)) return pl_json_refuse(&node, "an object, {...}");
    *out = node;
    return PL_OK;
}

pl_status pl_json_array(pl_json_node *out, const pl_json_node *object, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, "an array, [...]"));
    if (!json_is_array(node.value)) return pl_json_refuse(&node, "an array, [...]");
    *out = node;
    return PL_OK;
}

int64_t pl_json_length(const pl_json_node *array) { return (int64_t)json_array_size(array->value); }

pl_json_node pl_json_element(const pl_json_node *array, int64_t index)
{
    return (pl_json_node){.value = json_array_get(array->value, (size_t)index),
                          .source = array->source,
                          .parent = array,
                          .index = index};
}

enum { RANGE_WORDS = 96 };

static const char *integer_range(char *buffer, int64_t minimum, int64_t maximum)
{
    if (maximum == INT64_MAX)
        snprintf(buffer, RANGE_WORDS, "an integer of at least %" PRId64, minimum);
    else
        snprintf(buffer, RANGE_WORDS, "an integer from %" PRId64 " to %" PRId64, minimum, maximum);
    return buffer;
}

static const char *number_range(char *buffer, double minimum, double maximum)
{
    if (maximum >= DBL_MAX)
        snprintf(buffer, RANGE_WORDS, "a number of at least %g", minimum);
    else
        snprintf(buffer, RANGE_WORDS, "a number from %g to %g", minimum, maximum);
    return buffer;
}

pl_status pl_json_as_integer(int64_t *out, const pl_json_node *node, int64_t minimum,
                             int64_t maximum)
{
    char range[RANGE_WORDS];
    int64_t value = json_integer_value(node->value);
    if (!json_is_integer(node->value) || value < minimum || value > maximum)
        return pl_json_refuse(node, integer_range(range, minimum, maximum));
    *out = value;
    return PL_OK;
}

pl_status pl_json_as_number(double *out, const pl_json_node *node, double minimum, double maximum)
{
    char range[RANGE_WORDS];
    double value = json_number_value(node->value);
    if (!json_is_number(node->value) || value < minimum || value > maximum)
        return pl_json_refuse(node, number_range(range, minimum, maximum));
    *out = value;
    return PL_OK;
}

pl_status pl_json_as_boolean(bool *out, const pl_json_node *node)
{
    if (!json_is_boolean(node->value)) return pl_json_refuse(node, "true or false");
    *out = json_is_true(node->value);
    return PL_OK;
}

pl_status pl_json_as_string(const char **out, const pl_json_node *node)
{
    if (!json_is_string(node->value)) return pl_json_refuse(node, "a string, \"...\"");
    *out = json_string_value(node->value);
    return PL_OK;
}

pl_status pl_json_integer(int64_t *out, const pl_json_node *object, const char *key,
                          int64_t minimum, int64_t maximum)
{
    char range[RANGE_WORDS];
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, integer_range(range, minimum, maximum)));
    return pl_json_as_integer(out, &node, minimum, maximum);
}

pl_status pl_json_number(double *out, const pl_json_node *object, const char *key, double minimum,
                         double maximum)
{
    char range[RANGE_WORDS];
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, number_range(range, minimum, maximum)));
    return pl_json_as_number(out, &node, minimum, maximum);
}

pl_status pl_json_boolean(bool *out, const pl_json_node *object, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, "true or false"));
    return pl_json_as_boolean(out, &node);
}

pl_status pl_json_string(const char **out, const pl_json_node *object, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, "a string, \"...\""));
    return pl_json_as_string(out, &node);
}

pl_status pl_json_refuse_key(const pl_json_node *object, const char *key, const char *const *known,
                             int count)
{
    char where[PL_JSON_WORDS];
    pl_json_node node = {.source = object->source, .parent = object, .key = key};
    pl_text words = {0};
    pl_text_add_choices(&words, key, known, count);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT, "%s is unknown%s", pl_json_where(&node, where),
                         pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

static bool is_one_of(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count; ++i)
        if (strcmp(word, words[i]) == 0) return true;
    return false;
}

pl_status pl_json_check_keys(const pl_json_node *object, const char *const *known, int count)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(object->value, key, value)
    {
        if (!is_one_of(key, known, count)) return pl_json_refuse_key(object, key, known, count);
    }
    return PL_OK;
}
