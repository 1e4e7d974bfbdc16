#include "common/yaml.h"

#include <stdint.h>
#include <string.h>

#include <yaml.h>

#include "common/memory.h"

/* One document being read. */
typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one at hand; empty before the first */
    const char *source;
    pl_yaml *out;
} reader;

void pl_place_print(pl_text *text, pl_place place)
{
    if (!place.source) return;
    if (place.line > 0)
        pl_text_add(text, "%s:%d:%d: ", place.source, place.line, place.column);
    else
        pl_text_add(text, "%s: ", place.source);
}

static pl_status fail_at(pl_place place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static pl_status fail_at(pl_place place, const char *format, ...)
{
    pl_text text = {0};
    va_list arguments;
    va_start(arguments, format);
    pl_place_print(&text, place);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

static pl_place place_at(const reader *r, yaml_mark_t mark)
{
    return (pl_place){r->source, (int)mark.line + 1, (int)mark.column + 1};
}

static pl_place place_here(const reader *r) { return place_at(r, r->event.start_mark); }

/* ---- characters ---- */

/* Read one UTF-8 character of at most LEFT > 0 bytes. Returns its length; 0 when there is none
 * (truncated, overlong, a surrogate, beyond U+10FFFF). */
static size_t read_character(const unsigned char *bytes, size_t left, uint32_t *character)
{
    unsigned first = bytes[0];
    if (first < 0x80) {
        *character = first;
        return 1;
    }
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || left < length) return 0;
    uint32_t value = first & (0x7FU >> length);
    for (size_t i = 1; i < length; ++i) {
        if ((bytes[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (bytes[i] & 0x3FU);
    }
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < smallest[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return 0;
    *character = value;
    return length;
}

/* Characters that no word may hold: invisible ones and YAML's line breaks. */
static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029 || c == 0xFEFF ||
           c == 0xFFFE || c == 0xFFFF;
}

pl_status pl_yaml_check_word(const char *bytes, size_t length, pl_place place, const char *key)
{
    const char *colon = *key ? ": " : "";
    for (size_t i = 0; i < length;) {
        uint32_t character = 0;
        size_t step = read_character((const unsigned char *)bytes + i, length - i, &character);
        if (step == 0) return fail_at(place, "%s%snot UTF-8 text", key, colon);
        if (is_control(character))
            return fail_at(place, "%s%sa word must not hold the control character U+%04X", key,
                           colon, (unsigned)character);
        i += step;
    }
    return PL_OK;
}

/* Before libyaml sees the text: it reports neither the line of a bad byte nor that what it
 * stumbles over is a tab. */
static pl_status check_text(const char *text, size_t length, const char *source)
{
    pl_place place = {source, 1, 1};
    bool indentation = true;
    for (size_t i = 0; i < length;) {
        uint32_t character = 0;
        size_t step = read_character((const unsigned char *)text + i, length - i, &character);
        if (step == 0)
            return fail_at(place, "the byte 0x%02X is not UTF-8 text; save the file as UTF-8",
                           (unsigned)(unsigned char)text[i]);
        if (is_control(character) && character != '\n' && character != '\r' && character != '\t')
            return fail_at(place, "control character U+%04X", (unsigned)character);
        if (character == '\t' && indentation)
            return fail_at(place, "a tab in the indentation; YAML wants spaces");
        if (character != ' ') indentation = character == '\n';
        place.column += 1;
        if (character == '\n') place = (pl_place){source, place.line + 1, 1};
        i += step;
    }
    return PL_OK;
}

/* ---- events ---- */

static pl_status syntax_error(const reader *r)
{
    const yaml_parser_t *parser = &r->parser;
    if (parser->error == YAML_MEMORY_ERROR)
        return PL_FAIL(PL_NO_MEMORY, "out of memory while reading %s", r->source);
    const char *context = parser->context ? parser->context : "";
    const char *problem = parser->problem ? parser->problem : "not YAML";
    pl_place place = place_at(r, parser->problem_mark);
    if (strstr(context, "an alias") || strstr(context, "an anchor") || strstr(context, "a tag"))
        return fail_at(place, "not YAML: %s; a word that begins with * & or ! stands in quotes",
                       context);
    if (strstr(problem, "cannot start any token"))
        return fail_at(place,
                       "not YAML: %s; a word that begins with a special sign stands in "
                       "quotes, and indentation is made of spaces",
                       problem);
    return fail_at(place, "not YAML: %s%s%s", problem, *context ? ", " : "", context);
}

static pl_status advance(reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) return syntax_error(r);
    return PL_OK;
}

/* Refuse what hides the meaning of a value from the reader of the file. */
static pl_status check_node(const reader *r)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (r->event.type) {
    case YAML_ALIAS_EVENT:
        return fail_at(place_here(r), "aliases (*name) are not read; write the value itself, or "
                                      "put a word that begins with * in quotes");
    case YAML_SCALAR_EVENT:
        anchor = r->event.data.scalar.anchor;
        tag = r->event.data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = r->event.data.sequence_start.anchor;
        tag = r->event.data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = r->event.data.mapping_start.anchor;
        tag = r->event.data.mapping_start.tag;
        break;
    default: return PL_OK;
    }
    if (anchor) return fail_at(place_here(r), "anchors (&name) are not read; leave it out");
    if (tag) return fail_at(place_here(r), "tags (!name) are not read; leave it out");
    return PL_OK;
}

/* ---- items ---- */

pl_status pl_yaml_add_item(pl_yaml *document, const char *key, pl_yaml_kind kind)
{
    char *copy = NULL;
    PL_TRY(pl_grow(&document->items, &document->capacity, document->count + 1,
                   sizeof *document->items, "settings"));
    PL_TRY(pl_duplicate(&copy, key, "a key"));
    document->items[document->count++] = (pl_yaml_item){.key = copy, .kind = kind};
    return PL_OK;
}

pl_status pl_yaml_add_word(pl_yaml_item *item, const char *text, size_t length, bool quoted)
{
    char *copy = NULL;
    PL_TRY(pl_grow(&item->words, &item->capacity, item->count + 1, sizeof *item->words, "words"));
    PL_TRY(pl_allocate(&copy, length + 1, 1, "a word"));
    memcpy(copy, text, length);
    item->words[item->count++] = (pl_yaml_word){.text = copy, .quoted = quoted};
    return PL_OK;
}

void pl_yaml_free(pl_yaml *document)
{
    for (size_t i = 0; i < document->count; ++i) {
        pl_yaml_item *item = &document->items[i];
        for (size_t j = 0; j < item->count; ++j) pl_free(item->words[j].text);
        pl_free(item->words);
        pl_free(item->key);
    }
    pl_free(document->items);
    memset(document, 0, sizeof *document);
}

static pl_yaml_item *last_item(const reader *r) { return &r->out->items[r->out->count - 1]; }

/* The scalar at hand becomes one more word of the item at hand. */
static pl_status take_word(reader *r)
{
    PL_TRY(check_node(r));
    pl_yaml_item *item = last_item(r);
    const char *text = (const char *)r->event.data.scalar.value;
    size_t length = r->event.data.scalar.length;
    PL_TRY(pl_yaml_check_word(text, length, place_here(r), item->key));
    bool quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    PL_TRY(pl_yaml_add_word(item, text, length, quoted));
    item->words[item->count - 1].place = place_here(r);
    return advance(r);
}

static pl_status take_list(reader *r)
{
    PL_TRY(check_node(r));
    PL_TRY(advance(r));
    while (r->event.type != YAML_SEQUENCE_END_EVENT) {
        PL_TRY(check_node(r));
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(place_here(r), "%s: a list of words is meant; it holds a %s",
                           last_item(r)->key,
                           r->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "mapping");
        PL_TRY(take_word(r));
    }
    return advance(r);
}

/* Start the item that the key at hand names inside mapping PARENT ("" at the top). */
static pl_status take_key(reader *r, const char *parent)
{
    pl_place place = place_here(r);
    PL_TRY(check_node(r));
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_at(place, "a key must be a word; it is a list or a mapping");
    const char *key = (const char *)r->event.data.scalar.value;
    size_t length = r->event.data.scalar.length;
    PL_TRY(pl_yaml_check_word(key, length, place, "key"));
    if (length == 0) return fail_at(place, "a key must not be empty");
    if (strcmp(key, "<<") == 0)
        return fail_at(place, "merge keys (<<) are not read; write the keys themselves");
    if (r->out->count == PL_YAML_MAX_KEYS)
        return fail_at(place, "more than %d keys", PL_YAML_MAX_KEYS);

    pl_text path = {0};
    pl_text_add(&path, "%s%s%s", parent, *parent ? "." : "", key);
    pl_status status = pl_text_status(&path);
    for (size_t i = 0; status == PL_OK && i < r->out->count; ++i) {
        const pl_yaml_item *other = &r->out->items[i];
        if (strcmp(other->key, pl_text_string(&path)) == 0)
            status = fail_at(place, "%s: given twice; first at line %d, column %d", other->key,
                             other->key_place.line, other->key_place.column);
    }
    if (status == PL_OK) status = pl_yaml_add_item(r->out, pl_text_string(&path), PL_YAML_WORD);
    pl_text_free(&path);
    PL_TRY(status);
    last_item(r)->key_place = place;
    return advance(r);
}

static pl_status take_mapping(reader *r, const char *parent, int depth)
{
    if (depth > PL_YAML_MAX_DEPTH)
        return fail_at(place_here(r), "mappings nested deeper than %d levels", PL_YAML_MAX_DEPTH);
    PL_TRY(check_node(r));
    PL_TRY(advance(r));
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        PL_TRY(take_key(r, parent));
        pl_yaml_item *item = last_item(r);
        item->place = place_here(r);
        if (r->event.type == YAML_MAPPING_START_EVENT) {
            item->kind = PL_YAML_MAPPING;
            PL_TRY(take_mapping(r, item->key, depth + 1));
        } else if (r->event.type == YAML_SEQUENCE_START_EVENT) {
            item->kind = PL_YAML_LIST;
            PL_TRY(take_list(r));
        } else {
            PL_TRY(take_word(r));
        }
    }
    return advance(r);
}

static pl_status empty_file(const char *source)
{
    return PL_FAIL(PL_BAD_INPUT, "%s: empty; keys and values are meant, for example 'steps: 200'",
                   source);
}

static pl_status take_document(reader *r)
{
    PL_TRY(advance(r)); /* to the start of the stream */
    PL_TRY(advance(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return empty_file(r->source);
    if (r->event.data.document_start.tag_directives.start !=
        r->event.data.document_start.tag_directives.end)
        return fail_at(place_here(r), "tags (%%TAG) are not read; leave it out");
    PL_TRY(advance(r));
    PL_TRY(check_node(r));
    if (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0)
        return empty_file(r->source);
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(place_here(r), "keys and values are meant ('steps: 200'), not a %s",
                       r->event.type == YAML_SCALAR_EVENT ? "word" : "list");
    PL_TRY(take_mapping(r, "", 1));
    PL_TRY(advance(r)); /* past the end of the document */
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail_at(place_here(r), "a second document begins; a file holds one");
    return PL_OK;
}

pl_status pl_yaml_parse(pl_yaml *out, const char *text, size_t length, const char *source)
{
    if (length > PL_YAML_MAX_BYTES)
        return PL_FAIL(PL_BAD_INPUT, "%s: %zu bytes; at most %d are read", source, length,
                       PL_YAML_MAX_BYTES);
    if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        text += 3;
        length -= 3;
    }
    PL_TRY(check_text(text, length, source));
    pl_yaml document = {0};
    reader r = {.source = source, .out = &document};
    if (!yaml_parser_initialize(&r.parser))
        return PL_FAIL(PL_NO_MEMORY, "out of memory while reading %s", source);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    pl_status status = take_document(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status == PL_OK)
        *out = document;
    else
        pl_yaml_free(&document);
    return status;
}
