#include "train/run_log.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/schema.h"
#include "train/sampler.h"

static const pl_log_field fields[] = {
    {"run", "program", "which program wrote the line"},
    {"run", "version", "its version"},
    {"run", "commit", "the commit that it was built from; empty where that is not known"},
    {"run", "command", "its arguments, a list"},
    {"run", "started", "when, in UTC"},
    {"run", "layout", "the mesh layout in canonical notation"},
    {"run", "world", "number of ranks"},
    {"run", "ranks", "threads or processes"},
    {"run", "order", "plan, or random with --order"},
    {"run", "backend", "what computes, in words"},
    {"run", "resumed", "the step that it goes on after; null for a fresh run"},
    {"run", "from", "the checkpoint that it goes on from; null for a fresh run"},
    {"run", "entropy", "of the training labels by their frequency alone, in nats"},
    {"run", "shape", "sequence, micro_batch, intra_layer, rounds: how a step is cut"},
    {"run", "settings", "every key of the run file with its value"},
    {"run", "model_name", "the model as given"},
    {"run", "model", "what config.json says, as far as pleat uses it"},
    {"step", "step", "number of the step, from 1"},
    {"step", "loss", "mean cross-entropy over the valid tokens of all ranks, in nats"},
    {"step", "balance_loss", "load-balance loss, a sum over layers, without its coefficient"},
    {"step", "tokens", "valid tokens"},
    {"step", "norm", "norm of all gradients before clipping"},
    {"step", "clip", "what they were multiplied with"},
    {"step", "lr", "learning rate"},
    {"step", "tokens_per_second", "tokens read in a second, those with masked labels included"},
    {"step", "seconds", "how long the step took"},
    {"step", "updated", "false where the norm was not finite or no label valid, and nothing moved"},
    {"evaluation", "step", "after which step"},
    {"evaluation", "loss", "mean cross-entropy on held-out data, in nats"},
    {"evaluation", "tokens", "valid tokens"},
    {"evaluation", "windows", "sequences read"},
    {"evaluation", "seconds", "how long it took"},
    {"note", "step", "after which step"},
    {"note", "words", "what happened"},
    {"sample", "text", "what the model wrote at the end of the run"},
    {"end", "reason", "complete or signal"},
    {"end", "step", "last step"},
    {"end", "updates", "steps that moved the weights"},
    {"end", "loss", "of the last step"},
    {"end", "validation_loss", "of the last evaluation"},
    {"end", "seconds", "from the first step to here"},
    {"end", "tokens_per_second", "over all steps"},
    {"end", "weights", "the folder of the weights"},
};

const pl_log_field *pl_run_log_fields(int *count)
{
    *count = sizeof fields / sizeof *fields;
    return fields;
}

/* A line that is being made. A value that could not be made is NULL, and marks it. */
typedef struct line {
    json_t *object;
    bool failed;
} line;

static line new_line(const char *kind)
{
    line l = {.object = json_object()};
    pl_library_forget_failure();
    l.failed = json_object_set_new(l.object, "kind", json_string(kind)) != 0;
    return l;
}

static void put(line *l, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) l->failed = true;
}

static void put_integer(line *l, const char *key, int64_t value)
{
    put(l, l->object, key, json_integer(value));
}

static void put_number(line *l, const char *key, double value)
{
    put(l, l->object, key, isfinite(value) ? json_real(value) : json_null());
}

/* Words that are no UTF-8 are shown as a terminal would see them. */
static json_t *words(line *l, const char *string)
{
    json_t *value = json_string(string);
    if (value || pl_library_failed()) return value;
    pl_text shown = {0};
    pl_text_add_shown(&shown, string, strlen(string));
    if (shown.out_of_memory) l->failed = true;
    value = json_string(pl_text_string(&shown));
    pl_text_free(&shown);
    return value;
}

static void put_words(line *l, const char *key, const char *string)
{
    put(l, l->object, key, words(l, string));
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

static pl_status finish(line *l, pl_text *text)
{
    enum { DIGITS = 12 };
    size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(DIGITS);
    if (!l->object || json_dump_callback(l->object, add_piece, text, flags) != 0) l->failed = true;
    if (pl_library_failed()) l->failed = true;
    pl_library_forget_failure();
    json_decref(l->object);
    pl_text_add_string(text, "\n");
    if (l->failed) return PL_FAIL(PL_NO_MEMORY, "out of memory while writing a line of the log");
    return pl_text_status(text);
}

/* --- the first line --- */

static json_t *command_of(line *l, const pl_program_facts *program)
{
    json_t *list = json_array();
    for (int i = 0; i < program->argument_count; ++i)
        if (json_array_append_new(list, words(l, program->arguments[i])) != 0) l->failed = true;
    return list;
}

/* A word of the run file, as a number where it is one. */
static json_t *value_of(line *l, const pl_yaml_word *word)
{
    int64_t integer = 0;
    double number = 0;
    if (!word->quoted && pl_parse_integer(&integer, word->text)) return json_integer(integer);
    if (!word->quoted && pl_parse_number(&number, word->text)) return json_real(number);
    return words(l, word->text);
}

static json_t *item_of(line *l, const pl_yaml_item *item)
{
    if (item->kind == PL_YAML_WORD) return value_of(l, &item->words[0]);
    json_t *list = json_array();
    for (size_t i = 0; i < item->count; ++i)
        if (json_array_append_new(list, words(l, item->words[i].text)) != 0) l->failed = true;
    return list;
}

static pl_status put_settings(line *l, const pl_run *run)
{
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    pl_yaml document = {0};
    pl_status status = PL_OK;
    for (int i = 0; status == PL_OK && i < count; ++i)
        status = pl_schema_save(&document, run, &keys[i]);
    json_t *settings = json_object();
    for (size_t i = 0; status == PL_OK && i < document.count; ++i)
        if (document.items[i].kind != PL_YAML_MAPPING)
            put(l, settings, document.items[i].key, item_of(l, &document.items[i]));
    put(l, l->object, "settings", settings);
    pl_yaml_free(&document);
    return status;
}

static pl_status put_model(line *l, const pl_model *model)
{
    json_t *value = NULL;
    PL_TRY(pl_model_facts(&value, model));
    put_words(l, "model_name", model->name);
    put(l, l->object, "model", value);
    return PL_OK;
}

static void put_shape(line *l, const pl_shape *shape)
{
    json_t *object = json_object();
    put(l, object, "sequence", json_integer(shape->sequence));
    put(l, object, "micro_batch", json_integer(shape->micro_batch));
    put(l, object, "intra_layer", json_integer(shape->intra_layer));
    put(l, object, "rounds", json_integer(shape->rounds));
    put(l, l->object, "shape", object);
}

static void put_time(line *l, const char *key, int64_t seconds)
{
    char shown[40] = "";
    struct tm parts;
    time_t started = (time_t)seconds;
    if (gmtime_r(&started, &parts)) strftime(shown, sizeof shown, "%Y-%m-%dT%H:%M:%SZ", &parts);
    put_words(l, key, shown);
}

static void put_program(line *l, const pl_run_facts *facts)
{
    put_words(l, "program", facts->program->name);
    put_words(l, "version", facts->program->version);
    put_words(l, "commit", facts->program->commit);
    put(l, l->object, "command", command_of(l, facts->program));
    put_time(l, "started", facts->started);
}

static void put_ranks(line *l, const pl_run_facts *facts)
{
    char notation[PL_LAYOUT_TEXT];
    put_words(l, "layout", pl_layout_format(facts->layout, notation));
    put_integer(l, "world", facts->layout->world);
    put_words(l, "ranks", facts->ranks);
    put_words(l, "order", facts->order);
    put_words(l, "backend", facts->backend);
}

static void put_origin(line *l, const pl_run_facts *facts)
{
    put(l, l->object, "resumed", facts->from ? json_integer(facts->resumed) : json_null());
    if (facts->from)
        put_words(l, "from", facts->from);
    else
        put(l, l->object, "from", json_null());
}

pl_status pl_run_log_begin(pl_text *text, const pl_run_facts *facts)
{
    line l = new_line("run");
    put_program(&l, facts);
    put_ranks(&l, facts);
    put_origin(&l, facts);
    put_number(&l, "entropy", facts->entropy);
    put_shape(&l, facts->shape);
    pl_status status = put_settings(&l, facts->run);
    if (status == PL_OK) status = put_model(&l, facts->model);
    pl_status written = finish(&l, text);
    return status != PL_OK ? status : written;
}

/* --- for manifests --- */

/* Hand the object over instead of writing it. */
static pl_status give(struct json_t **out, line *l, pl_status status)
{
    if (pl_library_failed()) l->failed = true;
    pl_library_forget_failure();
    if (status == PL_OK && (l->failed || !l->object))
        status = PL_FAIL(PL_NO_MEMORY, "out of memory for the facts of a checkpoint");
    if (status == PL_OK)
        *out = l->object;
    else
        json_decref(l->object);
    return status;
}

pl_status pl_run_log_settings(struct json_t **out, const pl_run *run)
{
    line l = {.object = json_object()};
    struct json_t *settings = NULL;
    pl_status status = put_settings(&l, run);
    if (status == PL_OK) settings = json_incref(json_object_get(l.object, "settings"));
    json_decref(l.object);
    l.object = settings;
    return give(out, &l, status);
}

pl_status pl_run_log_provenance(struct json_t **out, const pl_run_facts *facts)
{
    line l = {.object = json_object()};
    put_program(&l, facts);
    put_ranks(&l, facts);
    put_origin(&l, facts);
    put_time(&l, "written", (int64_t)time(NULL));
    return give(out, &l, PL_OK);
}

/* --- the others --- */

pl_status pl_run_log_step(pl_text *text, const pl_step_record *record)
{
    line l = new_line("step");
    put_integer(&l, "step", record->step);
    put_number(&l, "loss", record->loss);
    put_number(&l, "balance_loss", record->balance_loss);
    put_integer(&l, "tokens", record->tokens);
    put_number(&l, "norm", record->norm);
    put_number(&l, "clip", record->clip);
    put_number(&l, "lr", record->lr);
    put_number(&l, "tokens_per_second", record->tokens_per_second);
    put_number(&l, "seconds", record->seconds);
    put(&l, l.object, "updated", json_boolean(record->updated));
    return finish(&l, text);
}

pl_status pl_run_log_evaluation(pl_text *text, const pl_evaluation_record *record)
{
    line l = new_line("evaluation");
    put_integer(&l, "step", record->step);
    put_number(&l, "loss", record->loss);
    put_integer(&l, "tokens", record->tokens);
    put_integer(&l, "windows", record->windows);
    put_number(&l, "seconds", record->seconds);
    return finish(&l, text);
}

pl_status pl_run_log_note(pl_text *text, int64_t step, const char *words)
{
    line l = new_line("note");
    put_integer(&l, "step", step);
    put_words(&l, "words", words);
    return finish(&l, text);
}

pl_status pl_run_log_sample(pl_text *text, const char *sample)
{
    line l = new_line("sample");
    put_words(&l, "text", sample);
    return finish(&l, text);
}

pl_status pl_run_log_end(pl_text *text, const pl_end_record *record)
{
    line l = new_line("end");
    put_words(&l, "reason", record->reason);
    put_integer(&l, "step", record->step);
    put_integer(&l, "updates", record->updates);
    put_number(&l, "loss", record->loss);
    put_number(&l, "validation_loss", record->validation_loss);
    put_number(&l, "seconds", record->seconds);
    put_number(&l, "tokens_per_second", record->tokens_per_second);
    if (record->weights)
        put_words(&l, "weights", record->weights);
    else
        put(&l, l.object, "weights", json_null());
    return finish(&l, text);
}
