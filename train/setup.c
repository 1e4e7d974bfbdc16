#include "train/setup.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/store_folder.h"
#include "common/memory.h"
#include "train/backends.h"
#include "train/given_plan.h"
#include "train/run_folder.h"

/* --- reading --- */

static pl_status read_run(pl_run *run, const pl_setup_request *request)
{
    PL_TRY(pl_run_read(run, request->file));
    pl_status status = PL_OK;
    for (int i = 0; status == PL_OK && i < request->setting_count; ++i)
        status = pl_run_set(run, request->settings[i]);
    if (status != PL_OK) pl_run_free(run);
    return status;
}

static pl_status check_layout(const pl_run *run, const pl_layout *layout)
{
    if (layout->pp == 1 && layout->cp == 1) return PL_OK;
    return pl_run_blame(run, "layout",
                        PL_FAIL(PL_UNSUPPORTED,
                                "pp=%" PRId64 ", cp=%" PRId64
                                ": training does pp=1 and cp=1 so far; pleat-sim layout shows all "
                                "axes",
                                layout->pp, layout->cp));
}

static pl_status check_planned(const pl_run *run, const pl_model *model)
{
    pl_status status = pl_model_check_planned(model);
    return status == PL_OK ? PL_OK : pl_run_blame(run, "model", status);
}

static pl_status check_trained(const pl_run *run, const pl_model *model)
{
    if (pl_model_is_trained(model)) return PL_OK;
    return pl_run_blame(run, "frozen",
                        PL_FAIL(PL_BAD_INPUT,
                                "every tensor of %s is frozen: a run needs something to train",
                                model->name));
}

static pl_status check_precision(const pl_run *run)
{
    if (run->backend != PL_BACKEND_CPU || run->precision.compute == PL_FP32) return PL_OK;
    return pl_run_blame(run, "precision.compute",
                        PL_FAIL(PL_UNSUPPORTED, "%s: the CPU backend computes in fp32 only, so far",
                                pl_dtype_name(run->precision.compute)));
}

/* --- data --- */

static pl_status check_sequence(const pl_run *run, const pl_model *model)
{
    if (run->data.sequence <= model->max_position_embeddings) return PL_OK;
    return pl_run_blame(run, "data.sequence",
                        PL_FAIL(PL_BAD_INPUT,
                                "%" PRId64 " is longer than model %s allows: "
                                "max_position_embeddings is %" PRId64,
                                run->data.sequence, model->name, model->max_position_embeddings));
}

static pl_status open_samples(pl_samples **out, const pl_setup *setup, const char *key,
                              const pl_word_list *paths)
{
    pl_status status = pl_samples_open(out, (const char *const *)paths->words, paths->count,
                                       setup->model.vocab_size, setup->run.data.sequence,
                                       (uint64_t)setup->run.seed);
    return status == PL_OK ? PL_OK : pl_run_blame(&setup->run, key, status);
}

/* The entropy of the labels, or of the first ones of very many; reading them finds tokens that are
 * outside the vocabulary. */
static pl_status find_entropy(pl_setup *setup)
{
    enum { TOKENS_MOST = 1 << 26 };
    int64_t most = TOKENS_MOST / setup->run.data.sequence;
    pl_status status = pl_samples_entropy(setup->train, most > 0 ? most : 1, &setup->entropy);
    return status == PL_OK ? PL_OK : pl_run_blame(&setup->run, "data.train", status);
}

/* Read what evaluations will read, so that a token outside the vocabulary is found now. */
static pl_status look_through(const pl_setup *setup)
{
    double ignored = 0;
    pl_status status = pl_samples_entropy(setup->validate, setup->run.evaluate.windows, &ignored);
    return status == PL_OK ? PL_OK : pl_run_blame(&setup->run, "data.validate", status);
}

static pl_status open_data(pl_setup *setup)
{
    const pl_run *run = &setup->run;
    PL_TRY(check_sequence(run, &setup->model));
    PL_TRY(open_samples(&setup->train, setup, "data.train", &run->data.train));
    PL_TRY(find_entropy(setup));
    if (run->data.validate.count == 0) return PL_OK;
    PL_TRY(open_samples(&setup->validate, setup, "data.validate", &run->data.validate));
    return look_through(setup);
}

/* --- where it starts from --- */

/* INIT_FROM is a checkpoint where one is found there, else a folder with safetensors. */
static pl_status open_start(pl_setup *setup, const char *path)
{
    pl_text found = {0};
    pl_status status = pl_checkpoint_find(&found, path);
    if (status == PL_OK) {
        status = pl_store_reader_open(&setup->start, pl_text_string(&found));
        if (status == PL_OK) status = pl_resume_check_model(setup->start, &setup->model);
    } else if (status == PL_BAD_INPUT) {
        status = pl_weights_open(&setup->weights, path, &setup->model);
    }
    pl_text_free(&found);
    return status;
}

static pl_status open_weights(pl_setup *setup)
{
    if (!setup->run.init_from || setup->resumed) return PL_OK;
    pl_status status = open_start(setup, setup->run.init_from);
    return status == PL_OK ? PL_OK : pl_run_blame(&setup->run, "init_from", status);
}

/* Replace PATH by the checkpoint to go on from; "": the run is a fresh one. */
static pl_status find_checkpoint(pl_text *path, pl_setup *setup, const pl_setup_request *request)
{
    const char *folder = pl_text_string(&setup->folder);
    if (request->from) return pl_checkpoint_find(path, request->from);
    if (!request->resume) return PL_OK;
    PL_TRY(pl_resume_newest(path, folder));
    if (path->length == 0)
        pl_text_add(&setup->remark, "%s has no checkpoint: the run begins with its first step\n",
                    folder);
    return pl_text_status(&setup->remark);
}

static pl_status open_checkpoint(pl_setup *setup, const pl_setup_request *request)
{
    pl_text path = {0};
    pl_status status = find_checkpoint(&path, setup, request);
    if (status == PL_OK && path.length > 0) {
        status = pl_store_reader_open(&setup->resumed, pl_text_string(&path));
        if (status == PL_OK)
            status = pl_resume_check(&setup->remark, setup->resumed, &setup->run, &setup->model,
                                     &setup->settings);
    }
    pl_text_free(&path);
    return status;
}

static pl_run_folder_use use_of(const pl_setup_request *request)
{
    if (request->overwrite) return PL_RUN_FOLDER_REPLACE;
    return request->resume ? PL_RUN_FOLDER_RESUME : PL_RUN_FOLDER_NEW;
}

static pl_status check_sources(const pl_setup *setup, const pl_setup_request *request)
{
    const char *folder = pl_text_string(&setup->folder);
    if (setup->use != PL_RUN_FOLDER_REPLACE) return PL_OK;
    if (request->from) PL_TRY(pl_run_folder_check_source(folder, request->from));
    return setup->start ? pl_run_folder_check_source(folder, setup->run.init_from) : PL_OK;
}

/* --- the plan --- */

static pl_status make_plan(pl_setup *setup, const char *file)
{
    pl_model bare; /* the plan applies the patterns itself */
    const pl_run *run = &setup->run;
    uint32_t programs = PL_PROGRAMS_STEP | PL_PROGRAMS_EXPORT;
    programs |= setup->resumed ? PL_PROGRAMS_LOAD : PL_PROGRAMS_START;
    if (setup->validate) programs |= PL_PROGRAMS_EVALUATE;
    if (run->checkpoint.every > 0) programs |= PL_PROGRAMS_SAVE;
    PL_TRY(pl_model_open(&bare, run->model));
    const pl_plan_request request = {.model = &bare,
                                     .layout = setup->layout,
                                     .settings = setup->settings,
                                     .keep_fp32 = (const char *const *)run->keep_fp32.words,
                                     .keep_fp32_count = (int)run->keep_fp32.count,
                                     .frozen = (const char *const *)run->frozen.words,
                                     .frozen_count = (int)run->frozen.count,
                                     .programs = programs};
    pl_status status = pl_plan_build(&setup->plan, &request);
    pl_model_free(&bare);
    PL_TRY(status);
    setup->has_plan = true;
    return file ? pl_given_plan_take(&setup->plan, file) : PL_OK;
}

static pl_learning_rate make_rate(const pl_run *run)
{
    const pl_schedule_request request = {.kind = run->optimizer.schedule.kind,
                                         .steps = run->steps,
                                         .lr = run->optimizer.lr,
                                         .warmup = run->optimizer.schedule.warmup,
                                         .decay = run->optimizer.schedule.decay,
                                         .start = run->optimizer.schedule.start,
                                         .final = run->optimizer.schedule.final};
    return pl_learning_rate_make(&request);
}

/* --- all of it --- */

static pl_status look(pl_setup *setup, const pl_setup_request *request)
{
    const pl_run *run = &setup->run;
    PL_TRY(pl_run_require_training(run));
    PL_TRY(pl_run_open(run, &setup->model, &setup->layout));
    setup->has_model = true;
    PL_TRY(check_planned(run, &setup->model));
    PL_TRY(check_layout(run, &setup->layout));
    PL_TRY(check_trained(run, &setup->model));
    PL_TRY(pl_backends_settle(&setup->run, &setup->remark));
    PL_TRY(check_precision(run));
    PL_TRY(pl_run_settings(&setup->settings, run, &setup->model, &setup->layout));
    setup->rate = make_rate(run);
    PL_TRY(pl_run_folder_name(&setup->folder, run, request->output));
    setup->use = use_of(request);
    PL_TRY(pl_run_folder_check(pl_text_string(&setup->folder), setup->use));
    PL_TRY(pl_run_set_key(&setup->run, "output", pl_text_string(&setup->folder), "--output"));
    PL_TRY(open_data(setup));
    PL_TRY(open_checkpoint(setup, request));
    PL_TRY(open_weights(setup));
    PL_TRY(check_sources(setup, request));
    return make_plan(setup, request->plan);
}

pl_status pl_setup_open(pl_setup *out, const pl_setup_request *request)
{
    pl_setup setup;
    memset(&setup, 0, sizeof setup);
    PL_TRY(read_run(&setup.run, request));
    pl_status status = look(&setup, request);
    if (status == PL_OK)
        *out = setup;
    else
        pl_setup_free(&setup);
    return status;
}

void pl_setup_free(pl_setup *setup)
{
    if (setup->has_plan) pl_plan_free(&setup->plan);
    if (setup->has_model) pl_model_free(&setup->model);
    pl_weights_close(setup->weights);
    pl_store_reader_close(setup->start);
    pl_store_reader_close(setup->resumed);
    pl_samples_close(setup->validate);
    pl_samples_close(setup->train);
    pl_text_free(&setup->folder);
    pl_text_free(&setup->remark);
    pl_run_free(&setup->run);
    memset(setup, 0, sizeof *setup);
}
