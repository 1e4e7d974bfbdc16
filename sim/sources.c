/* Where the commands of pleat-sim get their plans from: a run file, options, or a plan's text. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/options.h"

pl_status pl_options_run(pl_run *out, const pl_options *options, const char *file,
                         const char *layout)
{
    pl_run run;
    if (file)
        PL_TRY(pl_run_read(&run, file));
    else
        pl_run_default(&run);
    pl_status status = PL_OK;
    if (options->model) status = pl_run_set_key(&run, "model", options->model, "--model");
    if (status == PL_OK && layout) status = pl_run_set_key(&run, "layout", layout, "--layout");
    for (int i = 0; status == PL_OK && i < options->setting_count; ++i)
        status = pl_run_set(&run, options->settings[i]);
    if (status == PL_OK)
        *out = run;
    else
        pl_run_free(&run);
    return status;
}

pl_status pl_options_layout(const char **out, const pl_options *options, const pl_usage *usage)
{
    if (options->layout_count > 1) {
        pl_text text = {0};
        pl_text_add_string(&text, "--layout is given twice");
        return pl_usage_refuse(usage, &text);
    }
    *out = options->layout_count == 1 ? options->layouts[0] : NULL;
    return PL_OK;
}

enum { PLAN_FILE_MOST = 1 << 30 };

pl_status pl_read_plan_file(pl_plan *out, const char *file)
{
    char *bytes = NULL;
    size_t length = 0;
    PL_TRY(pl_read_file(&bytes, &length, file, PLAN_FILE_MOST));
    const char *nul = memchr(bytes, 0, length);
    pl_status status = PL_OK;
    if (nul)
        status =
            PL_FAIL(PL_BAD_INPUT, "%s: byte %td is zero; a plan is text", file, nul - bytes + 1);
    else
        status = pl_plan_read(out, bytes, file);
    pl_free(bytes);
    PL_TRY(status);
    status = pl_model_check_planned(&out->model);
    if (status == PL_OK) return PL_OK;
    pl_error_context("%s", file);
    pl_plan_free(out);
    return status;
}

pl_status pl_check_rank(int64_t rank, const pl_layout *layout, const char *option)
{
    if (rank >= 0 && rank < layout->world) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: there is no rank %" PRId64 "; the layout has ranks 0 to %" PRId64, option,
                   rank, layout->world - 1);
}

static uint32_t programs_of(const pl_run *run)
{
    uint32_t programs =
        PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE | PL_PROGRAMS_EXPORT;
    if (run->checkpoint.every > 0) programs |= PL_PROGRAMS_SAVE | PL_PROGRAMS_LOAD;
    return programs;
}

static pl_status build(pl_plan *out, const pl_run *run, uint32_t programs)
{
    pl_model model;
    pl_plan_request request = {0};
    PL_TRY(pl_run_open(run, &model, &request.layout));
    pl_status status = pl_model_check_planned(&model);
    if (status != PL_OK) status = pl_run_blame(run, "model", status);
    if (status == PL_OK) status = pl_run_settings(&request.settings, run, &model, &request.layout);
    request.model = &model;
    request.programs = programs == PL_PROGRAMS_OF_RUN ? programs_of(run) : programs;
    if (programs == PL_PROGRAMS_GENERATE)
        request.settings.shape = pl_generate_shape(request.settings.shape);
    request.keep_fp32 = (const char *const *)run->keep_fp32.words;
    request.keep_fp32_count = (int)run->keep_fp32.count;
    request.frozen = (const char *const *)run->frozen.words;
    request.frozen_count = (int)run->frozen.count;
    if (status == PL_OK) status = pl_plan_build(out, &request);
    pl_model_free(&model);
    return status;
}

static bool has_sources(const pl_options *options)
{
    return options->model || options->layout_count || options->setting_count || options->word_count;
}

static pl_status check_sources(const pl_options *options, const pl_usage *usage)
{
    pl_text text = {0};
    if (options->plan && has_sources(options)) {
        pl_text_add_string(&text,
                           "--plan has model, layout and settings in it; leave the others out");
        return pl_usage_refuse(usage, &text);
    }
    if (options->word_count > 1) {
        pl_text_add_string(&text, "one run file is meant, so this is too much: ");
        pl_text_add_quoted(&text, options->words[1]);
        return pl_usage_refuse(usage, &text);
    }
    return PL_OK;
}

/* Without a run file, what is missing is asked for by its option. */
static pl_status check_given(const pl_run *run, const pl_usage *usage)
{
    pl_text text = {0};
    if (run->source || (run->model && run->layout)) return PL_OK;
    pl_text_add(&text, "no %s; give --model and --layout, or a run file%s",
                run->model ? "layout" : "model", usage->takes & PL_TAKES_PLAN ? ", or --plan" : "");
    return pl_usage_refuse(usage, &text);
}

pl_status pl_options_plan(pl_plan *out, const pl_options *options, const pl_usage *usage,
                          const char *layout, uint32_t programs)
{
    pl_run run;
    const char *file = options->word_count ? options->words[0] : NULL;
    PL_TRY(check_sources(options, usage));
    if (options->plan) return pl_read_plan_file(out, options->plan);
    pl_status status = pl_options_run(&run, options, file, layout);
    if (status != PL_OK) {
        if (file && strchr(file, '=') && status == PL_BAD_INPUT)
            pl_error_context("a layout is given as --layout=%.60s", file);
        return status;
    }
    status = check_given(&run, usage);
    if (status == PL_OK) status = build(out, &run, programs);
    pl_run_free(&run);
    return status;
}

static const char *pick(const char *const *(*names)(int *), int value)
{
    int count = 0;
    return names(&count)[value];
}

void pl_plan_describe(pl_text *text, const pl_plan *plan)
{
    const pl_settings *s = &plan->settings;
    char notation[PL_LAYOUT_TEXT];
    pl_text_add(text, "%s under %s\n", plan->model.name, pl_layout_format(&plan->layout, notation));
    pl_text_add(text,
                "  sequence %" PRId64 ", micro-batch %" PRId64 ", M %" PRId64 ", A %" PRId64
                "; compute %s, gather %s, gradient %s, master %s\n",
                s->shape.sequence, s->shape.micro_batch, s->shape.intra_layer, s->shape.rounds,
                pl_dtype_name(s->precision.compute), pl_dtype_name(s->precision.gather),
                pl_dtype_name(s->precision.gradient), pl_dtype_name(s->precision.master));
    pl_text_add(text,
                "  reshard %s, prefetch %s, recompute %s, accumulate %s, dispatch %s, routing %s; "
                "balance %s %g; %s, clip %g\n",
                pick(pl_reshard_names, (int)s->policy.reshard),
                pick(pl_prefetch_names, (int)s->policy.prefetch),
                pick(pl_recompute_names, (int)s->policy.recompute),
                pick(pl_accumulate_names, (int)s->policy.accumulate),
                pick(pl_dispatch_names, (int)s->policy.dispatch),
                pick(pl_routing_names, (int)s->policy.routing),
                pick(pl_balance_names, (int)s->balance), s->balance_coefficient,
                pick(pl_optimizer_names, (int)s->optimizer), s->clip);
}
