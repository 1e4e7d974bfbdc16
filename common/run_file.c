#include "common/run_file.h"

#include <string.h>

#include "common/memory.h"
#include "common/schema.h"

const char *const *pl_backend_names(int *count)
{
    static const char *const names[] = {"cpu", "cuda", "auto"};
    *count = PL_BACKEND_COUNT;
    return names;
}

const char *const *pl_tokenizer_names(int *count)
{
    static const char *const names[] = {"bytes"};
    *count = PL_TOKENIZER_COUNT;
    return names;
}

const char *const *pl_schedule_names(int *count)
{
    static const char *const names[] = {"wsd", "cosine", "constant"};
    *count = PL_SCHEDULE_COUNT;
    return names;
}

const char *const *pl_checkpoint_write_names(int *count)
{
    static const char *const names[] = {"wait", "behind"};
    *count = PL_CHECKPOINT_WRITE_COUNT;
    return names;
}

static pl_status fail_with(pl_text *text)
{
    pl_status status = pl_text_status(text);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(text));
    pl_text_free(text);
    return status;
}

static const pl_place *place_of(const pl_run *run, const char *key)
{
    const pl_schema_key *found = pl_schema_find(key);
    return found ? &run->given[pl_schema_index(found)] : NULL;
}

bool pl_run_is_given(const pl_run *run, const char *key)
{
    const pl_place *place = place_of(run, key);
    return place && place->source;
}

/* "run.yaml:7:11: "; for a key that was not given, the file alone. */
static void add_place(pl_text *text, const pl_run *run, const char *key)
{
    if (pl_run_is_given(run, key))
        pl_place_print(text, *place_of(run, key));
    else if (run->source)
        pl_text_add(text, "%s: ", run->source);
}

pl_status pl_run_blame(const pl_run *run, const char *key, pl_status status)
{
    pl_text text = {0};
    const char *words = pl_error_text();
    size_t length = strlen(key);
    /* "layout 'legacy:...': ..." names its key already. */
    bool named = strncmp(words, key, length) == 0 && (words[length] == ' ' || words[length] == ':');
    add_place(&text, run, key);
    pl_text_add(&text, "%s%s%s", named ? "" : key, named ? "" : ": ", words);
    if (!text.out_of_memory) pl_error_set(pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

/* ---- values ---- */

static void store_defaults(pl_run *run)
{
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int i = 0; i < count; ++i) pl_schema_store_default(run, &keys[i]);
}

/* Defaults that hang on other values. */
static void follow(pl_run *run)
{
    pl_dtype dtype = run->backend == PL_BACKEND_CPU ? PL_FP32 : PL_BF16;
    if (!pl_run_is_given(run, "precision.compute")) run->precision.compute = dtype;
    if (!pl_run_is_given(run, "precision.gather")) run->precision.gather = dtype;
}

void pl_run_default(pl_run *out)
{
    memset(out, 0, sizeof *out);
    store_defaults(out);
    out->backend = PL_BACKEND_AUTO;
    follow(out);
}

void pl_run_free(pl_run *run)
{
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int i = 0; i < count; ++i) pl_schema_clear(run, &keys[i]);
    pl_free(run->source);
    memset(run, 0, sizeof *run);
}

bool pl_run_equal(const pl_run *a, const pl_run *b)
{
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int i = 0; i < count; ++i)
        if (!pl_schema_equal(&keys[i], a, b)) return false;
    return true;
}

/* ---- reading ---- */

static pl_status refuse_section_value(const pl_yaml_item *item)
{
    pl_text text = {0};
    pl_place_print(&text, item->place);
    pl_text_add(&text, "%s: keys are meant (", item->key);
    pl_schema_add_members(&text, item->key);
    pl_text_add_string(&text, "), not ");
    if (item->kind == PL_YAML_LIST)
        pl_text_add_string(&text, "a list");
    else if (!*item->words[0].text)
        pl_text_add_string(&text, "nothing");
    else
        pl_text_add_quoted(&text, item->words[0].text);
    return fail_with(&text);
}

static pl_status refuse_key(const pl_yaml_item *item)
{
    pl_text text = {0};
    pl_place_print(&text, item->key_place);
    pl_text_add_string(&text, "unknown key ");
    pl_text_add_quoted(&text, item->key);
    pl_schema_answer(&text, item->key);
    return fail_with(&text);
}

static pl_status store_item(pl_run *run, const pl_yaml_item *item)
{
    const pl_schema_key *key = pl_schema_find(item->key);
    if (key) {
        PL_TRY(pl_schema_store(run, key, item));
        run->given[pl_schema_index(key)] = item->place;
        return PL_OK;
    }
    if (!pl_schema_is_section(item->key)) return refuse_key(item);
    return item->kind == PL_YAML_MAPPING ? PL_OK : refuse_section_value(item);
}

static pl_status parse_bytes(pl_run *out, const char *text, size_t length, const char *source)
{
    pl_yaml document = {0};
    pl_run run = {0};
    store_defaults(&run);
    pl_status status = pl_duplicate(&run.source, source, "a file name");
    if (status == PL_OK) status = pl_yaml_parse(&document, text, length, run.source);
    for (size_t i = 0; status == PL_OK && i < document.count; ++i)
        status = store_item(&run, &document.items[i]);
    pl_yaml_free(&document);
    if (status != PL_OK) {
        pl_run_free(&run);
        return status;
    }
    follow(&run);
    *out = run;
    return PL_OK;
}

pl_status pl_run_parse(pl_run *out, const char *text, const char *source)
{
    return parse_bytes(out, text, strlen(text), source);
}

pl_status pl_run_read(pl_run *out, const char *file)
{
    char *bytes = NULL;
    size_t length = 0;
    PL_TRY(pl_read_file(&bytes, &length, file, PL_YAML_MAX_BYTES));
    pl_status status = parse_bytes(out, bytes, length, file);
    pl_free(bytes);
    return status;
}

/* VALUE as the one item of DOCUMENT: a YAML list, or a word as it stands. */
static pl_status read_value(pl_yaml *document, const char *key, const char *value,
                            const char *option)
{
    pl_place place = {.source = option};
    if (*value == '[' && pl_schema_find(key)) {
        pl_text text = {0};
        pl_text_add(&text, "%s: %s", key, value);
        pl_status status = pl_text_status(&text);
        if (status == PL_OK)
            status = pl_yaml_parse(document, pl_text_string(&text), text.length, option);
        pl_text_free(&text);
        PL_TRY(status);
    } else {
        PL_TRY(pl_yaml_check_word(value, strlen(value), place, key));
        PL_TRY(pl_yaml_add_item(document, key, PL_YAML_WORD));
        PL_TRY(pl_yaml_add_word(&document->items[0], value, strlen(value), false));
    }
    /* Columns inside an option's value would not help anyone. */
    pl_yaml_item *item = &document->items[0];
    item->place = item->key_place = place;
    for (size_t i = 0; i < item->count; ++i) item->words[i].place = place;
    return PL_OK;
}

pl_status pl_run_set_key(pl_run *run, const char *key, const char *value, const char *option)
{
    pl_yaml document = {0};
    pl_status status = read_value(&document, key, value, option);
    if (status == PL_OK && document.count != 1)
        status = PL_FAIL(PL_BAD_INPUT, "%s: %s: one value is meant", option, key);
    if (status == PL_OK) status = store_item(run, &document.items[0]);
    pl_yaml_free(&document);
    PL_TRY(status);
    follow(run);
    return PL_OK;
}

pl_status pl_run_set(pl_run *run, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment) {
        pl_text text = {0};
        pl_text_add_string(&text, "--set: ");
        pl_text_add_quoted(&text, assignment);
        pl_text_add_string(&text, " is not KEY=VALUE, for example policy.reshard=never");
        return fail_with(&text);
    }
    pl_text key = {0};
    pl_text_add_bytes(&key, assignment, (size_t)(equals - assignment));
    pl_status status = pl_text_status(&key);
    if (status == PL_OK) status = pl_run_set_key(run, pl_text_string(&key), equals + 1, "--set");
    pl_text_free(&key);
    return status;
}

/* ---- writing ---- */

pl_status pl_run_write(pl_text *text, const pl_run *run)
{
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    pl_yaml document = {0};
    pl_status status = PL_OK;
    for (int i = 0; status == PL_OK && i < count; ++i)
        status = pl_schema_save(&document, run, &keys[i]);
    if (status == PL_OK) status = pl_yaml_write(text, &document);
    pl_yaml_free(&document);
    return status;
}
