/* Words into values of a run, and back. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/schema.h"

/* Choices are stored through int: the enumerations of pl_run are as wide. */
_Static_assert(sizeof(pl_backend_choice) == sizeof(int) && sizeof(pl_reshard) == sizeof(int) &&
                   sizeof(pl_dtype) == sizeof(int) && sizeof(pl_schedule) == sizeof(int),
               "enumerations are as wide as int");

static void *member(pl_run *run, const pl_schema_key *key) { return (char *)run + key->offset; }

static const void *value_of(const pl_run *run, const pl_schema_key *key)
{
    return (const char *)run + key->offset;
}

/* Values that are no choices but have an obvious meaning elsewhere. */
static const struct {
    const char *key, *given, *meant;
} synonyms[] = {
    {"backend", "gpu", "cuda"},
    {"policy.reshard", "true", "after-forward"},
    {"policy.reshard", "false", "never"},
    {"policy.recompute", "true", "full"},
    {"policy.recompute", "false", "none"},
    {"optimizer.kind", "adam", "adamw"},
};

static const char *nearest_choice(const pl_schema_key *key, const char *given)
{
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; ++i)
        if (strcmp(synonyms[i].key, key->name) == 0 && strcmp(synonyms[i].given, given) == 0)
            return synonyms[i].meant;
    int count = 0;
    const char *const *names = key->choices(&count);
    return count > 1 ? pl_nearest(given, names, count) : NULL;
}

/* "run.yaml:7:11: steps: '0' is not a whole number of at least 1; HINT" */
static pl_status refuse(const pl_schema_key *key, const pl_yaml_word *word, const char *hint)
{
    pl_text text = {0};
    pl_place_print(&text, word->place);
    pl_text_add(&text, "%s: ", key->name);
    pl_text_add_quoted(&text, word->text);
    int count = 2;
    if (key->choices) key->choices(&count);
    pl_text_add_string(&text, count == 1 ? " is not possible: " : " is not ");
    pl_schema_add_allowed(&text, key);
    const char *near = key->choices ? nearest_choice(key, word->text) : NULL;
    if (near) pl_text_add(&text, "; did you mean '%s'?", near);
    if (*hint) pl_text_add(&text, "; %s", hint);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

/* "run.yaml:3:8: model: a word is meant, not a list" */
static pl_status refuse_kind(const pl_schema_key *key, const pl_yaml_item *item)
{
    static const char *const kinds[] = {"a word", "a list", "a mapping"};
    pl_text text = {0};
    pl_place_print(&text, item->place);
    pl_text_add(&text, "%s: ", key->name);
    pl_schema_add_allowed(&text, key);
    pl_text_add(&text, " is meant, not %s", kinds[item->kind]);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

static bool is_nothing(const pl_yaml_word *word)
{
    if (!*word->text) return true;
    return !word->quoted && (strcmp(word->text, "~") == 0 || strcmp(word->text, "null") == 0);
}

enum { HINT = 64 };

/* YAML 1.1 reads 010 as eight and 1_000 as a thousand, others do not: neither is taken. */
static const char *number_hint(const pl_yaml_word *word)
{
    const char *digits = word->text + (*word->text == '-' || *word->text == '+');
    if (word->quoted) return "numbers stand without quotes";
    if (digits[0] == '0' && isdigit((unsigned char)digits[1]))
        return "write it without a leading 0";
    if (strchr(word->text, '_') && isdigit((unsigned char)*digits)) return "write it without '_'";
    if (strchr(word->text, ',') && isdigit((unsigned char)*digits))
        return "the decimal sign is a point, and thousands are not separated";
    return "";
}

static pl_status read_integer(int64_t *out, const pl_schema_key *key, const pl_yaml_word *word)
{
    const char *hint = number_hint(word);
    char too_large[HINT];
    int64_t value = 0;
    bool whole = pl_parse_integer(&value, word->text);
    snprintf(too_large, sizeof too_large, "it is too large: at most %" PRId64, key->most);
    if (!*hint && (whole ? value > key->most : !word->text[strspn(word->text, "0123456789")]))
        hint = too_large;
    if (*hint || !whole || value < key->least) return refuse(key, word, hint);
    *out = value;
    return PL_OK;
}

static pl_status read_number(double *out, const pl_schema_key *key, const pl_yaml_word *word)
{
    const char *hint = number_hint(word);
    char too_large[HINT];
    double value = 0;
    bool number = pl_parse_number(&value, word->text);
    snprintf(too_large, sizeof too_large, "it is too large: at most %g", key->high);
    if (!*hint && number && value > key->high) hint = too_large;
    if (*hint || !number || value < key->low || value > key->high ||
        (key->low_open && value <= key->low) || (key->high_open && value >= key->high))
        return refuse(key, word, hint);
    *out = value + 0.0; /* -0 becomes 0 */
    return PL_OK;
}

/* The index of the word among the choices; for element types the type itself, whose long names
 * ("bfloat16") are known too. */
static pl_status read_choice(int *out, const pl_schema_key *key, const pl_yaml_word *word)
{
    int count = 0;
    const char *const *names = key->choices(&count);
    pl_dtype dtype = PL_FP32;
    const char *given = word->text;
    bool element = key->type == PL_VALUE_ELEMENT;
    if (element && pl_dtype_parse(&dtype, given)) given = pl_dtype_name(dtype);
    for (int i = 0; i < count; ++i) {
        if (strcmp(names[i], given) != 0) continue;
        *out = element ? (int)dtype : i;
        return PL_OK;
    }
    return refuse(key, word, "");
}

static void free_list(pl_word_list *list)
{
    for (size_t i = 0; i < list->count; ++i) pl_free(list->words[i]);
    pl_free(list->words);
    memset(list, 0, sizeof *list);
}

static pl_status store_list(pl_word_list *out, const pl_schema_key *key, const pl_yaml_item *item)
{
    pl_word_list list = {0};
    pl_status status = PL_OK;
    for (size_t i = 0; i < item->count; ++i) {
        char *copy = NULL;
        if (is_nothing(&item->words[i]))
            PL_TRY_TO(status, fail, refuse(key, &item->words[i], "a word of it is empty"));
        PL_TRY_TO(
            status, fail,
            pl_grow(&list.words, &list.capacity, list.count + 1, sizeof *list.words, key->name));
        PL_TRY_TO(status, fail, pl_duplicate(&copy, item->words[i].text, key->name));
        list.words[list.count++] = copy;
    }
    free_list(out);
    *out = list;
    return PL_OK;
fail:
    free_list(&list);
    return status;
}

static pl_status store_word(char **out, const pl_schema_key *key, const pl_yaml_word *word)
{
    char *copy = NULL;
    PL_TRY(pl_duplicate(&copy, word->text, key->name));
    pl_free(*out);
    *out = copy;
    return PL_OK;
}

pl_status pl_schema_store(pl_run *run, const pl_schema_key *key, const pl_yaml_item *item)
{
    void *target = member(run, key);
    if (item->kind == PL_YAML_MAPPING) return refuse_kind(key, item);
    if (item->kind == PL_YAML_LIST && key->type != PL_VALUE_LIST) return refuse_kind(key, item);
    if (item->kind == PL_YAML_WORD && is_nothing(&item->words[0]))
        return refuse(key, &item->words[0], "write a value, or leave the key out");
    switch (key->type) {
    case PL_VALUE_WORD: return store_word(target, key, &item->words[0]);
    case PL_VALUE_LIST: return store_list(target, key, item);
    case PL_VALUE_CHOICE:
    case PL_VALUE_ELEMENT: return read_choice(target, key, &item->words[0]);
    case PL_VALUE_INTEGER: return read_integer(target, key, &item->words[0]);
    case PL_VALUE_NUMBER: return read_number(target, key, &item->words[0]);
    }
    return PL_FAIL(PL_INTERNAL, "%s: a value of unknown type", key->name);
}

/* A key of the table has a default that its own rules allow (a test reads each); nothing here can
 * fail, since no default owns memory. */
void pl_schema_store_default(pl_run *run, const pl_schema_key *key)
{
    void *target = member(run, key);
    int count = 0;
    pl_dtype dtype = PL_FP32;
    switch (key->type) {
    case PL_VALUE_WORD: *(char **)target = NULL; break;
    case PL_VALUE_LIST: memset(target, 0, sizeof(pl_word_list)); break;
    case PL_VALUE_INTEGER:
        *(int64_t *)target = 0;
        if (key->initial) pl_parse_integer(target, key->initial);
        break;
    case PL_VALUE_NUMBER:
        *(double *)target = -1;
        if (key->initial) pl_parse_number(target, key->initial);
        break;
    case PL_VALUE_ELEMENT:
        if (key->initial) pl_dtype_parse(&dtype, key->initial);
        *(pl_dtype *)target = dtype;
        break;
    case PL_VALUE_CHOICE: {
        const char *const *names = key->choices(&count);
        for (int i = 0; i < count; ++i)
            if (strcmp(names[i], key->initial) == 0) *(int *)target = i;
        break;
    }
    }
}

/* The shortest decimal that reads back to VALUE. */
static void format_number(char *buffer, size_t size, double value)
{
    for (int digits = 1; digits <= 17; ++digits) {
        snprintf(buffer, size, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) return;
    }
}

static pl_status save_list(pl_yaml_item *item, const pl_word_list *list)
{
    for (size_t i = 0; i < list->count; ++i) {
        const char *word = list->words[i];
        bool quoted = strcmp(word, "~") == 0 || strcmp(word, "null") == 0;
        PL_TRY(pl_yaml_add_word(item, word, strlen(word), quoted));
    }
    return PL_OK;
}

pl_status pl_schema_save(pl_yaml *document, const pl_run *run, const pl_schema_key *key)
{
    const void *value = value_of(run, key);
    char number[40];
    const char *word = number;
    bool present = true, quoted = false;
    int count = 0;
    switch (key->type) {
    case PL_VALUE_WORD:
        word = *(char *const *)value;
        present = word != NULL;
        quoted = present && (strcmp(word, "~") == 0 || strcmp(word, "null") == 0);
        break;
    case PL_VALUE_LIST: present = ((const pl_word_list *)value)->count > 0; break;
    case PL_VALUE_CHOICE: word = key->choices(&count)[*(const int *)value]; break;
    case PL_VALUE_ELEMENT: word = pl_dtype_name(*(const pl_dtype *)value); break;
    case PL_VALUE_INTEGER:
        snprintf(number, sizeof number, "%" PRId64, *(const int64_t *)value);
        present = key->initial || *(const int64_t *)value != 0;
        break;
    case PL_VALUE_NUMBER:
        format_number(number, sizeof number, *(const double *)value);
        present = *(const double *)value >= 0;
        break;
    }
    if (!present) return PL_OK;
    bool list = key->type == PL_VALUE_LIST;
    PL_TRY(pl_yaml_add_item(document, key->name, list ? PL_YAML_LIST : PL_YAML_WORD));
    pl_yaml_item *item = &document->items[document->count - 1];
    return list ? save_list(item, value) : pl_yaml_add_word(item, word, strlen(word), quoted);
}

static bool lists_equal(const pl_word_list *a, const pl_word_list *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; ++i)
        if (strcmp(a->words[i], b->words[i]) != 0) return false;
    return true;
}

bool pl_schema_equal(const pl_schema_key *key, const pl_run *a, const pl_run *b)
{
    const void *x = value_of(a, key), *y = value_of(b, key);
    switch (key->type) {
    case PL_VALUE_WORD: {
        const char *p = *(char *const *)x, *q = *(char *const *)y;
        return p && q ? strcmp(p, q) == 0 : p == q;
    }
    case PL_VALUE_LIST: return lists_equal(x, y);
    case PL_VALUE_CHOICE:
    case PL_VALUE_ELEMENT: return *(const int *)x == *(const int *)y;
    case PL_VALUE_INTEGER: return *(const int64_t *)x == *(const int64_t *)y;
    case PL_VALUE_NUMBER: return *(const double *)x == *(const double *)y;
    }
    return false;
}

void pl_schema_clear(pl_run *run, const pl_schema_key *key)
{
    if (key->type == PL_VALUE_LIST) free_list(member(run, key));
    if (key->type == PL_VALUE_WORD) {
        char **word = member(run, key);
        pl_free(*word);
        *word = NULL;
    }
}
