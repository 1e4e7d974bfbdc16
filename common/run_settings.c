/* What a run means for a model and a layout. */
#include <inttypes.h>
#include <stdio.h>

#include "common/memory.h"
#include "common/placement.h"
#include "common/run_file.h"

static pl_status refuse_missing(const pl_run *run, const char *key, const char *example)
{
    return pl_run_blame(run, key, PL_FAIL(PL_BAD_INPUT, "missing; for example '%s'", example));
}

pl_status pl_run_require_training(const pl_run *run)
{
    if (run->data.train.count == 0)
        return refuse_missing(run, "data.train", "data: {train: [/usr/share/common-licenses]}");
    if (run->batch.global == 0) return refuse_missing(run, "batch.global", "batch: {global: 64}");
    if (run->steps == 0) return refuse_missing(run, "steps", "steps: 200");
    return PL_OK;
}

/* Rules that hold between keys, whatever the order in which they were set. */
static pl_status check_keys(const pl_run *run)
{
    double warmup = run->optimizer.schedule.warmup, decay = run->optimizer.schedule.decay;
    if (!run->model) return refuse_missing(run, "model", "model: qwen3-30b-a3b");
    if (!run->layout) return refuse_missing(run, "layout", "layout: legacy:world=8,ep=4");
    if (run->optimizer.schedule.kind == PL_SCHEDULE_WSD && warmup + decay > 1)
        return pl_run_blame(run, "optimizer.schedule.warmup",
                            PL_FAIL(PL_BAD_INPUT,
                                    "warmup %g and decay %g (optimizer.schedule.decay) are more "
                                    "than all steps together; their sum is at most 1",
                                    warmup, decay));
    return PL_OK;
}

static pl_status apply_patterns(const pl_run *run, pl_model *model)
{
    const pl_word_list *keep = &run->keep_fp32, *frozen = &run->frozen;
    pl_status status = PL_OK;
    if (keep->count)
        status = pl_model_apply_patterns(model, (const char *const *)keep->words, (int)keep->count,
                                         NULL, 0);
    if (status != PL_OK) return pl_run_blame(run, "keep_fp32", status);
    if (frozen->count)
        status = pl_model_apply_patterns(model, NULL, 0, (const char *const *)frozen->words,
                                         (int)frozen->count);
    if (status != PL_OK) return pl_run_blame(run, "frozen", status);
    return PL_OK;
}

pl_status pl_run_open(const pl_run *run, pl_model *model, pl_layout *layout)
{
    pl_layout parsed;
    pl_model opened;
    PL_TRY(check_keys(run));
    pl_status status = pl_layout_parse(&parsed, run->layout);
    if (status != PL_OK) return pl_run_blame(run, "layout", status);
    status = pl_model_open(&opened, run->model);
    if (status != PL_OK) return pl_run_blame(run, "model", status);
    status = apply_patterns(run, &opened);
    if (status == PL_OK) {
        status = pl_placement_check(&parsed, &opened);
        if (status != PL_OK) status = pl_run_blame(run, "layout", status);
    }
    if (status != PL_OK) {
        pl_model_free(&opened);
        return status;
    }
    *model = opened;
    *layout = parsed;
    return PL_OK;
}

/* "96", "96 or 104": the multiples of PART next to NUMBER. */
static void format_neighbours(char *buffer, size_t size, int64_t number, int64_t part)
{
    int64_t below = number / part * part, above = 0;
    if (__builtin_add_overflow(below, part, &above) || below == 0)
        snprintf(buffer, size, "%" PRId64, below ? below : part);
    else
        snprintf(buffer, size, "%" PRId64 " or %" PRId64, below, above);
}

static pl_status find_rounds(int64_t *rounds, const pl_run *run, const pl_layout *layout)
{
    int64_t part = 0;
    pl_status status =
        pl_multiply(&part, run->batch.micro, run->batch.intra_layer, "micro x intra_layer");
    if (status == PL_OK)
        status = pl_multiply(&part, part, layout->data_ranks, "micro x intra_layer x data ranks");
    if (status != PL_OK) return pl_run_blame(run, "batch.micro", status);
    *rounds = 1;
    if (run->batch.global == 0) return PL_OK;
    if (run->batch.global % part == 0) {
        *rounds = run->batch.global / part;
        return PL_OK;
    }
    char fitting[64];
    format_neighbours(fitting, sizeof fitting, run->batch.global, part);
    return pl_run_blame(run, "batch.global",
                        PL_FAIL(PL_BAD_INPUT,
                                "%" PRId64 " is not a multiple of %" PRId64 " = micro %" PRId64
                                " x intra_layer %" PRId64 " x %" PRId64
                                " data ranks of the layout; nearest: %s",
                                run->batch.global, part, run->batch.micro, run->batch.intra_layer,
                                layout->data_ranks, fitting));
}

static pl_status check_sequence(const pl_run *run, const pl_layout *layout)
{
    if (run->data.sequence < 1)
        return pl_run_blame(
            run, "data.sequence",
            PL_FAIL(PL_BAD_INPUT, "%" PRId64 " is not at least 1", run->data.sequence));
    if (layout->cp == 1 || run->data.sequence % (2 * layout->cp) == 0) return PL_OK;
    char fitting[64];
    format_neighbours(fitting, sizeof fitting, run->data.sequence, 2 * layout->cp);
    return pl_run_blame(run, "data.sequence",
                        PL_FAIL(PL_BAD_INPUT,
                                "%" PRId64 " is not a multiple of 2 x cp = %" PRId64
                                ", since each of the cp ranks holds two blocks; nearest: %s",
                                run->data.sequence, 2 * layout->cp, fitting));
}

/* The balance loss of MODEL: a dense one has none, and asking for one is a mistake. */
static pl_status find_balance(pl_settings *settings, const pl_run *run, const pl_model *model)
{
    bool dense = model->num_experts == 0;
    bool given = pl_run_is_given(run, "balance.kind");
    settings->balance = run->balance.kind;
    settings->balance_coefficient = run->balance.coefficient;
    if (run->balance.coefficient < 0) settings->balance_coefficient = model->router_aux_loss_coef;
    if (!dense || run->balance.kind == PL_BALANCE_NONE) return PL_OK;
    if (given || run->balance.coefficient > 0)
        return pl_run_blame(run, given ? "balance.kind" : "balance.coefficient",
                            PL_FAIL(PL_BAD_INPUT,
                                    "it asks for a balance loss, but model %s is dense and has no "
                                    "experts to balance; leave it out",
                                    model->name));
    settings->balance = PL_BALANCE_NONE;
    settings->balance_coefficient = 0;
    return PL_OK;
}

pl_status pl_run_settings(pl_settings *out, const pl_run *run, const pl_model *model,
                          const pl_layout *layout)
{
    pl_settings settings = pl_settings_default();
    PL_TRY(check_sequence(run, layout));
    PL_TRY(find_rounds(&settings.shape.rounds, run, layout));
    PL_TRY(find_balance(&settings, run, model));
    settings.policy = run->policy;
    settings.precision = run->precision;
    settings.shape.sequence = run->data.sequence;
    settings.shape.micro_batch = run->batch.micro;
    settings.shape.intra_layer = run->batch.intra_layer;
    settings.optimizer = run->optimizer.kind;
    settings.clip = run->optimizer.clip;
    *out = settings;
    return PL_OK;
}
