/* pleat-train sample: write text with the weights of a run. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "train/backends.h"
#include "train/command.h"
#include "train/console.h"
#include "train/generate.h"
#include "train/recorder.h"
#include "train/run_folder.h"
#include "train/samples.h"

enum { PROMPT, TOKENS, TEMPERATURE, TOP_K, SEED, LAYOUT, OPTIONS };

static const pl_option options[OPTIONS] = {
    [PROMPT] = {"--prompt", "TEXT", "what the text begins with; without: a new document", false},
    [TOKENS] = {"--tokens", "N", "bytes to write at most; default: 200", false},
    [TEMPERATURE] = {"--temperature", "T", "0: always the likeliest byte; default: 0.8", false},
    [TOP_K] = {"--top-k", "K", "choose among the K likeliest bytes; default 0: among all", false},
    [SEED] = {"--seed", "S", "of the choices: equal seeds give equal texts; default: 1", false},
    [LAYOUT] = {"--layout", "LAYOUT", "ranks that compute, as threads; default: single:world=1",
                false}};

static const pl_command_usage sample_usage = {
    .program = "pleat-train",
    .command = "sample",
    .forms = "FOLDER [OPTION...]",
    .about = "Writes text with the weights in FOLDER: that of a run, or one with config.json and\n"
             "model.safetensors. Each byte is a token, so the model has been trained on plain\n"
             "text. Bytes that a terminal could not show are written as \\xNN.",
    .examples = "pleat-train sample runs/licenses\n"
                "pleat-train sample runs/licenses --prompt 'This program' --temperature 0\n"
                "pleat-train sample runs/licenses --tokens 500 --top-k 20 --seed 7",
    .options = options,
    .option_count = OPTIONS};

typedef struct sample_options {
    const char *folder, *prompt, *layout;
    int64_t tokens, top_k, seed;
    double temperature;
} sample_options;

static pl_status take(void *context, int option, const char *value)
{
    enum { TOKENS_MOST = 1 << 24 };
    sample_options *o = context;
    const char *name = option >= 0 ? options[option].name : NULL;
    switch (option) {
    case PROMPT: o->prompt = value; return PL_OK;
    case LAYOUT: o->layout = value; return PL_OK;
    case TOKENS: return pl_command_integer(&o->tokens, &sample_usage, name, value, 1, TOKENS_MOST);
    case TOP_K: return pl_command_integer(&o->top_k, &sample_usage, name, value, 0, INT64_MAX);
    case SEED: return pl_command_integer(&o->seed, &sample_usage, name, value, 0, INT64_MAX);
    case TEMPERATURE:
        return pl_command_number(&o->temperature, &sample_usage, name, value, 0, 1000);
    default: break;
    }
    if (o->folder)
        return pl_command_refuse(&sample_usage,
                                 "one folder is meant, so this is too much: ", value);
    o->folder = value;
    return PL_OK;
}

/* --- where things are --- */

static pl_status find_file(bool *found, const char *folder, const char *name)
{
    pl_text path = {0};
    struct stat facts;
    pl_run_folder_path(&path, folder, name);
    pl_status status = pl_text_status(&path);
    *found = status == PL_OK && stat(pl_text_string(&path), &facts) == 0;
    pl_text_free(&path);
    return status;
}

/* The weights of FOLDER, which is itself their folder or a run's. */
static pl_status find_weights(pl_text *path, const char *folder)
{
    struct stat facts;
    if (stat(folder, &facts) != 0 || !S_ISDIR(facts.st_mode))
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: no such folder; the output folder of a run is meant, or one with "
                       "config.json and model.safetensors",
                       folder);
    bool found = false;
    PL_TRY(find_file(&found, folder, "config.json"));
    if (found) {
        pl_text_add_string(path, folder);
        return pl_text_status(path);
    }
    PL_TRY(find_file(&found, folder, PL_RUN_FOLDER_WEIGHTS "/config.json"));
    if (!found)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: there are no weights in it: neither config.json nor "
                       "weights/config.json; a run writes them at its end",
                       folder);
    pl_run_folder_path(path, folder, PL_RUN_FOLDER_WEIGHTS);
    return pl_text_status(path);
}

/* As long as the sequences of the run, where FOLDER is one: the model has seen no longer ones. */
static pl_status find_context(int64_t *context, const char *folder, const pl_model *model,
                              int64_t tokens)
{
    enum { CONTEXT_MOST = 1024 };
    int64_t most = CONTEXT_MOST;
    pl_run run;
    bool found = false;
    PL_TRY(find_file(&found, folder, PL_RUN_FOLDER_FILE));
    if (found) {
        pl_text path = {0};
        pl_run_folder_path(&path, folder, PL_RUN_FOLDER_FILE);
        pl_status status = pl_text_status(&path);
        if (status == PL_OK) status = pl_run_read(&run, pl_text_string(&path));
        pl_text_free(&path);
        PL_TRY(status);
        most = run.data.sequence;
        pl_run_free(&run);
    }
    if (most > model->max_position_embeddings) most = model->max_position_embeddings;
    *context = tokens < most ? tokens : most;
    return PL_OK;
}

/* --- the sample --- */

/* A bar for what takes long. */
typedef struct watching {
    pl_console console;
    double began;
} watching;

static void watch(void *context, int64_t done, int64_t count)
{
    watching *w = context;
    char words[64];
    double passed = pl_now() - w->began;
    if (passed < 2) return;
    snprintf(words, sizeof words, "%.0f s left", passed / (double)done * (double)(count - done));
    pl_console_bar(&w->console, (double)done / (double)count, words);
}

static pl_status check_model(const pl_model *model, const pl_layout *layout)
{
    if (layout->pp != 1 || layout->cp != 1)
        return PL_FAIL(PL_UNSUPPORTED, "--layout: pp=1 and cp=1 are meant");
    if (model->vocab_size >= PL_BYTE_TOKENS) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "model %s has vocab_size %lld: fewer than the %d tokens of text (256 bytes and "
                   "the end of a document), so it was not trained on any",
                   model->name, (long long)model->vocab_size, (int)PL_BYTE_TOKENS);
}

static pl_status draw(pl_text *bytes, const sample_options *o, const pl_model *model,
                      const pl_weights *weights, watching *w)
{
    pl_layout layout;
    pl_backend *backend = NULL;
    pl_generate_request request = {
        .model = model,
        .weights = weights,
        .layout = &layout,
        .prompt = o->prompt,
        .prompt_bytes = strlen(o->prompt),
        .count = o->tokens,
        .sampler = {.temperature = o->temperature, .top_k = o->top_k, .seed = (uint64_t)o->seed},
        .timeout = 600,
        .progress = watch,
        .progress_context = w};
    PL_TRY(pl_layout_parse(&layout, o->layout));
    PL_TRY(check_model(model, &layout));
    PL_TRY(find_context(&request.context, o->folder, model,
                        o->tokens + (int64_t)request.prompt_bytes));
    PL_TRY(pl_backends_open_cpu(&backend, 0));
    request.backend = backend;
    pl_status status = pl_generate(bytes, &request);
    pl_backends_close(backend);
    return status;
}

static pl_status show(const sample_options *o, const pl_text *bytes, watching *w)
{
    pl_text shown = {0};
    pl_text_add_shown(&shown, o->prompt, strlen(o->prompt));
    pl_text_add_shown(&shown, pl_text_string(bytes), bytes->length);
    pl_status status = pl_text_status(&shown);
    if (status == PL_OK) pl_console_say(&w->console, "%s", pl_text_string(&shown));
    pl_text_free(&shown);
    return status;
}

static pl_status run(const sample_options *o)
{
    pl_text path = {0}, bytes = {0};
    pl_model model;
    pl_weights *weights = NULL;
    watching w = {.console = pl_console_make(false, false), .began = pl_now()};
    pl_status status = find_weights(&path, o->folder);
    if (status == PL_OK) status = pl_model_open(&model, pl_text_string(&path));
    if (status == PL_OK) {
        status = pl_model_check_planned(&model);
        if (status == PL_OK) status = pl_weights_open(&weights, pl_text_string(&path), &model);
        if (status == PL_OK) status = draw(&bytes, o, &model, weights, &w);
        pl_weights_close(weights);
        pl_model_free(&model);
    }
    if (status == PL_OK) status = show(o, &bytes, &w);
    pl_text_free(&bytes);
    pl_text_free(&path);
    if (status == PL_OK) status = pl_console_finish(&w.console);
    pl_console_free(&w.console);
    return status;
}

pl_status pl_command_sample(const pl_program_facts *program, int count, char **arguments)
{
    sample_options o = {
        .prompt = "", .layout = "single:world=1", .tokens = 200, .seed = 1, .temperature = 0.8};
    bool help = false;
    (void)program;
    PL_TRY(pl_arguments_parse(&help, &sample_usage, count, arguments, take, &o));
    if (help) return pl_command_help(&sample_usage);
    if (!o.folder)
        return pl_command_refuse(&sample_usage,
                                 "no folder; for example 'pleat-train sample runs/licenses'", NULL);
    return run(&o);
}
