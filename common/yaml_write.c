#include <string.h>

#include <yaml.h>

#include "common/memory.h"
#include "common/yaml.h"

/* How many leading parts of dotted KEY equal those of OTHER, the last part of each left out: the
 * number of mappings that the two share. *BYTES receives the length of those parts in KEY. */
static int shared_mappings(const char *key, const char *other, size_t *bytes)
{
    int shared = 0;
    *bytes = 0;
    for (size_t i = 0; key[i] && key[i] == other[i]; ++i) {
        if (key[i] != '.') continue;
        ++shared;
        *bytes = i + 1;
    }
    return shared;
}

static int count_mappings(const char *key)
{
    int dots = 0;
    for (; *key; ++key) dots += *key == '.';
    return dots;
}

static int write_bytes(void *text, unsigned char *bytes, size_t length)
{
    pl_text_add_bytes(text, (const char *)bytes, length);
    return pl_text_status(text) == PL_OK;
}

/* libyaml takes its strings without const but only reads them. */
static bool emit_word(yaml_emitter_t *emitter, const char *word, size_t length, bool quoted)
{
    yaml_event_t event;
    yaml_char_t *value = NULL;
    memcpy(&value, &word, sizeof value);
    return yaml_scalar_event_initialize(&event, NULL, NULL, value, (int)length, 1, 1,
                                        quoted ? YAML_SINGLE_QUOTED_SCALAR_STYLE
                                               : YAML_ANY_SCALAR_STYLE) &&
           yaml_emitter_emit(emitter, &event);
}

static bool open_mapping(yaml_emitter_t *emitter)
{
    yaml_event_t event;
    return yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE) &&
           yaml_emitter_emit(emitter, &event);
}

static bool close_mapping(yaml_emitter_t *emitter)
{
    yaml_event_t event;
    return yaml_mapping_end_event_initialize(&event) && yaml_emitter_emit(emitter, &event);
}

static bool emit_value(yaml_emitter_t *emitter, const pl_yaml_item *item)
{
    yaml_event_t event;
    bool list = item->kind == PL_YAML_LIST;
    bool ok = !list || (yaml_sequence_start_event_initialize(&event, NULL, NULL, 1,
                                                             YAML_FLOW_SEQUENCE_STYLE) &&
                        yaml_emitter_emit(emitter, &event));
    for (size_t i = 0; ok && i < item->count; ++i)
        ok = emit_word(emitter, item->words[i].text, strlen(item->words[i].text),
                       item->words[i].quoted);
    return ok && (!list || (yaml_sequence_end_event_initialize(&event) &&
                            yaml_emitter_emit(emitter, &event)));
}

/* Close the mappings that ITEM's key leaves and open those that it enters, then write it. */
static bool emit_item(yaml_emitter_t *emitter, const pl_yaml_item *item, const char *previous)
{
    size_t done = 0;
    int shared = shared_mappings(item->key, previous, &done);
    for (int open = count_mappings(previous); open > shared; --open)
        if (!close_mapping(emitter)) return false;
    const char *part = item->key + done;
    for (const char *dot; (dot = strchr(part, '.')) != NULL; part = dot + 1)
        if (!emit_word(emitter, part, (size_t)(dot - part), false) || !open_mapping(emitter))
            return false;
    return emit_word(emitter, part, strlen(part), false) && emit_value(emitter, item);
}

static bool emit_document(yaml_emitter_t *emitter, const pl_yaml *document)
{
    yaml_event_t event;
    bool ok = yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING) &&
              yaml_emitter_emit(emitter, &event) &&
              yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1) &&
              yaml_emitter_emit(emitter, &event) && open_mapping(emitter);
    const char *previous = "";
    for (size_t i = 0; ok && i < document->count; ++i) {
        if (document->items[i].kind == PL_YAML_MAPPING) continue;
        ok = emit_item(emitter, &document->items[i], previous);
        previous = document->items[i].key;
    }
    for (int open = count_mappings(previous); ok && open >= 0; --open) ok = close_mapping(emitter);
    return ok && yaml_document_end_event_initialize(&event, 1) &&
           yaml_emitter_emit(emitter, &event) && yaml_stream_end_event_initialize(&event) &&
           yaml_emitter_emit(emitter, &event);
}

pl_status pl_yaml_write(pl_text *text, const pl_yaml *document)
{
    yaml_emitter_t emitter;
    if (!yaml_emitter_initialize(&emitter))
        return PL_FAIL(PL_NO_MEMORY, "out of memory while writing YAML");
    yaml_emitter_set_output(&emitter, write_bytes, text);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    bool ok = emit_document(&emitter, document);
    yaml_emitter_delete(&emitter);
    PL_TRY(pl_text_status(text));
    return ok ? PL_OK : PL_FAIL(PL_NO_MEMORY, "out of memory while writing YAML");
}
