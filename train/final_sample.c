#include "train/final_sample.h"

#include "train/generate.h"
#include "train/run_folder.h"

/* A taste: drawn within seconds even where a token takes long. */
enum { TOKENS = 240, CONTEXT_MOST = 128 };
static const double temperature = 0.8, seconds_most = 8;

static pl_status draw(pl_text *text, const pl_setup *setup, const pl_model *model,
                      const pl_weights *weights, pl_backend *backend)
{
    pl_layout layout;
    int64_t sequence = setup->run.data.sequence;
    PL_TRY(pl_layout_parse(&layout, "single:world=1"));
    const pl_generate_request request = {
        .model = model,
        .weights = weights,
        .layout = &layout,
        .backend = backend,
        .count = TOKENS,
        .context = sequence < CONTEXT_MOST ? sequence : CONTEXT_MOST,
        .sampler = {.temperature = temperature, .seed = (uint64_t)setup->run.seed},
        .seconds = seconds_most,
        .timeout = setup->run.timeout};
    return pl_generate(text, &request);
}

static pl_status show(const pl_text *bytes, pl_recorder *recorder, pl_console *console)
{
    pl_text shown = {0};
    pl_text_add_shown(&shown, pl_text_string(bytes), bytes->length);
    pl_status status = pl_text_status(&shown);
    if (status == PL_OK) status = pl_recorder_sample(recorder, pl_text_string(&shown));
    if (status == PL_OK)
        pl_console_say(console, "\na sample (temperature %g):\n%s", temperature,
                       pl_text_string(&shown));
    pl_text_free(&shown);
    return status;
}

pl_status pl_final_sample(const pl_setup *setup, pl_backend *backend, pl_recorder *recorder,
                          pl_console *console)
{
    pl_text path = {0}, bytes = {0};
    pl_model model;
    pl_weights *weights = NULL;
    if (!pl_tokens_are_text(pl_samples_tokens(setup->train))) return PL_OK;
    pl_run_folder_path(&path, pl_text_string(&setup->folder), PL_RUN_FOLDER_WEIGHTS);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = pl_model_open(&model, pl_text_string(&path));
    if (status == PL_OK) {
        status = pl_weights_open(&weights, pl_text_string(&path), &model);
        if (status == PL_OK) status = draw(&bytes, setup, &model, weights, backend);
        pl_weights_close(weights);
        pl_model_free(&model);
    }
    bool drawn = status == PL_OK;
    if (drawn)
        status = show(&bytes, recorder, console);
    else
        pl_console_say(console, "\nno sample: %s", pl_error_text());
    pl_text_free(&bytes);
    pl_text_free(&path);
    return drawn ? status : PL_OK;
}
