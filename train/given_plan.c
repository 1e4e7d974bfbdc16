#include "train/given_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"

static const size_t plan_most = (size_t)1 << 30;

static pl_status refuse(const char *file, const char *what, const char *theirs, const char *ours)
{
    return PL_FAIL(PL_BAD_INPUT, "--plan: %s is for another %s: %.300s; the run has %.300s", file,
                   what, theirs, ours);
}

static pl_status check_model(const pl_plan *given, const pl_plan *made, const char *file)
{
    pl_text theirs = {0}, ours = {0};
    pl_model_write(&theirs, &given->model);
    pl_model_write(&ours, &made->model);
    pl_status status = pl_text_status(&theirs);
    if (status == PL_OK) status = pl_text_status(&ours);
    if (status == PL_OK && strcmp(pl_text_string(&theirs), pl_text_string(&ours)) != 0)
        status = refuse(file, "model", given->model.name, made->model.name);
    pl_text_free(&theirs);
    pl_text_free(&ours);
    return status;
}

static bool same_words(char *const *a, int a_count, char *const *b, int b_count)
{
    if (a_count != b_count) return false;
    for (int i = 0; i < a_count; ++i)
        if (strcmp(a[i], b[i]) != 0) return false;
    return true;
}

static pl_status check_patterns(const pl_plan *given, const pl_plan *made, const char *file)
{
    if (!same_words(given->keep_fp32, given->keep_fp32_count, made->keep_fp32,
                    made->keep_fp32_count))
        return refuse(file, "list of patterns", "keep_fp32 lines of its own", "others");
    if (!same_words(given->frozen, given->frozen_count, made->frozen, made->frozen_count))
        return refuse(file, "list of patterns", "frozen lines of its own", "others");
    return PL_OK;
}

static const char *shape_words(const pl_shape *shape, char *buffer, size_t size)
{
    snprintf(buffer, size,
             "sequence %" PRId64 ", micro-batch %" PRId64 ", M %" PRId64 ", A %" PRId64,
             shape->sequence, shape->micro_batch, shape->intra_layer, shape->rounds);
    return buffer;
}

static const char *type_words(const pl_settings *settings, char *buffer, size_t size)
{
    int count = 0;
    snprintf(buffer, size, "compute %s, gather %s, gradient %s, optimizer %s",
             pl_dtype_name(settings->precision.compute), pl_dtype_name(settings->precision.gather),
             pl_dtype_name(settings->precision.gradient),
             pl_optimizer_names(&count)[settings->optimizer]);
    return buffer;
}

static pl_status check(const pl_plan *given, const pl_plan *made, const char *file)
{
    char theirs[PL_LAYOUT_TEXT], ours[PL_LAYOUT_TEXT];
    PL_TRY(check_model(given, made, file));
    PL_TRY(check_patterns(given, made, file));
    if (!pl_layout_equal(&given->layout, &made->layout))
        return refuse(file, "layout", pl_layout_format(&given->layout, theirs),
                      pl_layout_format(&made->layout, ours));
    if (strcmp(shape_words(&given->settings.shape, theirs, sizeof theirs),
               shape_words(&made->settings.shape, ours, sizeof ours)) != 0)
        return refuse(file, "shape", theirs, ours);
    if (strcmp(type_words(&given->settings, theirs, sizeof theirs),
               type_words(&made->settings, ours, sizeof ours)) != 0)
        return refuse(file, "kind of step", theirs, ours);
    if (!pl_plan_section(given, PL_PROGRAM_STEP, 0))
        return PL_FAIL(PL_BAD_INPUT, "--plan: %s has no program step", file);
    return PL_OK;
}

/* Move the sections of MADE whose program GIVEN lacks. */
static pl_status complete(pl_plan *given, pl_plan *made)
{
    size_t all = given->section_count + made->section_count;
    PL_TRY(pl_grow(&given->sections, &given->section_capacity, all, sizeof *given->sections,
                   "sections of a plan"));
    bool has[PL_PROGRAM_COUNT] = {false};
    for (size_t i = 0; i < given->section_count; ++i) has[given->sections[i].program] = true;
    for (size_t i = 0; i < made->section_count; ++i) {
        pl_section *section = &made->sections[i];
        if (has[section->program]) continue;
        given->sections[given->section_count++] = *section;
        memset(section, 0, sizeof *section);
    }
    return PL_OK;
}

pl_status pl_given_plan_take(pl_plan *plan, const char *file)
{
    char *text = NULL;
    size_t length = 0;
    pl_plan given;
    PL_TRY(pl_read_file(&text, &length, file, plan_most));
    pl_status status = pl_plan_read(&given, text, file);
    pl_free(text);
    PL_TRY(status);
    status = check(&given, plan, file);
    if (status == PL_OK) status = complete(&given, plan);
    if (status != PL_OK) {
        pl_plan_free(&given);
        return status;
    }
    pl_plan_free(plan);
    *plan = given;
    return PL_OK;
}
