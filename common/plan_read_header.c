/* The header of a plan's text. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "common/plan_reader.h"

static pl_status read_choice(const pl_plan_reader *r, char *word, const char *what,
                             const char *const *(*names)(int *), int *out)
{
    int count = 0;
    const char *const *list = names(&count);
    for (int i = 0; i < count; ++i) {
        if (strcmp(list[i], word) != 0) continue;
        *out = i;
        return PL_OK;
    }
    return pl_reader_bad_choice(r, word, what, word, list, count);
}

#define READ_CHOICE(key, names, field, type)                                                       \
    if ((value = pl_reader_value(r, i, key))) {                                                    \
        int chosen = 0;                                                                            \
        PL_TRY(read_choice(r, value, key, names, &chosen));                                        \
        (field) = (type)chosen;                                                                    \
        continue;                                                                                  \
    }

static pl_status read_policy(pl_plan_reader *r)
{
    pl_policy *policy = &r->plan.settings.policy;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        READ_CHOICE("reshard", pl_reshard_names, policy->reshard, pl_reshard)
        READ_CHOICE("prefetch", pl_prefetch_names, policy->prefetch, pl_prefetch)
        READ_CHOICE("recompute", pl_recompute_names, policy->recompute, pl_recompute)
        READ_CHOICE("accumulate", pl_accumulate_names, policy->accumulate, pl_accumulate)
        READ_CHOICE("dispatch", pl_dispatch_names, policy->dispatch, pl_dispatch)
        READ_CHOICE("routing", pl_routing_names, policy->routing, pl_routing)
        return pl_reader_bad(r, r->word[i],
                             "'%.60s' is no policy; allowed: reshard, prefetch, recompute, "
                             "accumulate, dispatch, routing",
                             r->word[i]);
    }
    return PL_OK;
}

static pl_status read_precision(pl_plan_reader *r)
{
    pl_precision *precision = &r->plan.settings.precision;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        if ((value = pl_reader_value(r, i, "compute")))
            PL_TRY(pl_reader_dtype(r, value, &precision->compute));
        else if ((value = pl_reader_value(r, i, "gather")))
            PL_TRY(pl_reader_dtype(r, value, &precision->gather));
        else if ((value = pl_reader_value(r, i, "gradient")))
            PL_TRY(pl_reader_dtype(r, value, &precision->gradient));
        else if ((value = pl_reader_value(r, i, "master")))
            PL_TRY(pl_reader_dtype(r, value, &precision->master));
        else
            return pl_reader_bad(
                r, r->word[i],
                "'%.60s' is no precision; allowed: compute, gather, gradient, master", r->word[i]);
    }
    return PL_OK;
}

static pl_status read_shape(pl_plan_reader *r)
{
    pl_shape *shape = &r->plan.settings.shape;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        if ((value = pl_reader_value(r, i, "sequence")))
            PL_TRY(pl_reader_number(r, value, 1, INT32_MAX, &shape->sequence));
        else if ((value = pl_reader_value(r, i, "micro_batch")))
            PL_TRY(pl_reader_number(r, value, 1, 1 << 20, &shape->micro_batch));
        else if ((value = pl_reader_value(r, i, "intra_layer")))
            PL_TRY(pl_reader_number(r, value, 1, 4096, &shape->intra_layer));
        else if ((value = pl_reader_value(r, i, "rounds")))
            PL_TRY(pl_reader_number(r, value, 1, 1 << 20, &shape->rounds));
        else
            return pl_reader_bad(r, r->word[i],
                                 "'%.60s' is no part of the shape; allowed: sequence, "
                                 "micro_batch, intra_layer, rounds",
                                 r->word[i]);
    }
    return PL_OK;
}

static pl_status read_real(const pl_plan_reader *r, char *word, double *out)
{
    if (pl_parse_number(out, word) && *out >= 0) return PL_OK;
    return pl_reader_bad(r, word, "'%.60s' is no number of 0 or more", word);
}

static pl_status read_objective(pl_plan_reader *r)
{
    pl_settings *s = &r->plan.settings;
    for (int i = 1; i < r->words; ++i) {
        char *value = NULL;
        READ_CHOICE("balance", pl_balance_names, s->balance, pl_balance)
        READ_CHOICE("optimizer", pl_optimizer_names, s->optimizer, pl_optimizer)
        if ((value = pl_reader_value(r, i, "coefficient")))
            PL_TRY(read_real(r, value, &s->balance_coefficient));
        else if ((value = pl_reader_value(r, i, "clip")))
            PL_TRY(read_real(r, value, &s->clip));
        else
            return pl_reader_bad(r, r->word[i],
                                 "'%.60s' is no part of the objective; allowed: balance, "
                                 "coefficient, optimizer, clip",
                                 r->word[i]);
    }
    return PL_OK;
}

static pl_status read_pattern(pl_plan_reader *r, int kind)
{
    if (r->words != 2) return pl_reader_bad(r, NULL, "'%.60s' takes one pattern", r->word[0]);
    size_t count = r->pattern_count[kind];
    PL_TRY(pl_grow(&r->patterns[kind], &r->pattern_capacity[kind], count + 1,
                   sizeof *r->patterns[kind], "patterns"));
    r->patterns[kind][r->pattern_count[kind]++] = r->word[1];
    return PL_OK;
}

static pl_status read_layout(pl_plan_reader *r)
{
    if (r->words != 2) return pl_reader_bad(r, NULL, "'layout' takes one notation");
    pl_status status = pl_layout_parse(&r->plan.layout, r->word[1]);
    if (status != PL_OK)
        pl_error_context("%s:%" PRId64 ": in the line 'layout'", r->source, r->line);
    return status;
}

/* Header lines that must stand once. */
static const char *const once[PL_READER_ONCE] = {"layout", "policy", "precision", "shape",
                                                 "objective"};

/* All of a line's COUNT words are there: none is known that is not needed. */
static pl_status check_words(const pl_plan_reader *r, int count)
{
    if (r->words - 1 >= count) return PL_OK;
    return pl_reader_bad(r, NULL, "'%s' has %d words where it must have %d", r->word[0],
                         r->words - 1, count);
}

pl_status pl_reader_header_line(pl_plan_reader *r)
{
    static const char *const keys[] = {"model", "name",      "layout",    "policy", "precision",
                                       "shape", "objective", "keep_fp32", "frozen"};
    const char *key = r->word[0];
    PL_TRY(pl_reader_check_repeats(r, 1));
    for (size_t i = 0; i < PL_READER_ONCE; ++i) {
        if (strcmp(key, once[i]) != 0) continue;
        if (r->seen[i]) return pl_reader_bad(r, NULL, "a second line '%s'", key);
        r->seen[i] = true;
    }
    if (strcmp(key, "policy") == 0) PL_TRY(check_words(r, 6));
    if (strcmp(key, "precision") == 0 || strcmp(key, "shape") == 0 || strcmp(key, "objective") == 0)
        PL_TRY(check_words(r, 4));
    if (strcmp(key, "layout") == 0) return read_layout(r);
    if (strcmp(key, "policy") == 0) return read_policy(r);
    if (strcmp(key, "precision") == 0) return read_precision(r);
    if (strcmp(key, "shape") == 0) return read_shape(r);
    if (strcmp(key, "objective") == 0) return read_objective(r);
    if (strcmp(key, "keep_fp32") == 0) return read_pattern(r, 0);
    if (strcmp(key, "frozen") == 0) return read_pattern(r, 1);
    return pl_reader_bad_choice(r, NULL, "header line", key, keys, sizeof keys / sizeof *keys);
}

pl_status pl_reader_finish_header(pl_plan_reader *r)
{
    if (!r->seen_model) return pl_reader_bad(r, NULL, "no line 'model' before the first section");
    for (size_t i = 0; i < PL_READER_ONCE; ++i)
        if (!r->seen[i])
            return pl_reader_bad(r, NULL, "no line '%s' before the first section", once[i]);
    pl_model model = {0};
    const char *name = r->name[0] ? r->name : "model";
    PL_TRY(pl_model_parse(&model, pl_text_string(&r->model), r->source, name));
    pl_plan_request request = {.model = &model, .layout = r->plan.layout};
    request.settings = r->plan.settings;
    request.keep_fp32 = (const char *const *)r->patterns[0];
    request.keep_fp32_count = (int)r->pattern_count[0];
    request.frozen = (const char *const *)r->patterns[1];
    request.frozen_count = (int)r->pattern_count[1];
    pl_status status = pl_plan_set_header(&r->plan, &request);
    if (status != PL_OK)
        pl_error_context("%s:%" PRId64 ": in the header before this line", r->source, r->line);
    pl_model_free(&model);
    if (status == PL_OK) status = pl_plan_check_header(&r->plan);
    if (status != PL_OK && status != PL_NO_MEMORY)
        pl_error_context("%s: in the header of the plan", r->source);
    for (int i = 0; i < PL_PROGRAM_COUNT && status == PL_OK; ++i)
        status = pl_allocate(&r->has_section[i], (size_t)r->plan.layout.world, sizeof(int64_t),
                             "ranks of a plan");
    r->header_done = status == PL_OK;
    return status;
}

pl_status pl_reader_whole_line(pl_plan_reader *r, bool *taken)
{
    *taken = !r->section && !r->header_done &&
             (strncmp(r->start, "model ", 6) == 0 || strncmp(r->start, "name ", 5) == 0);
    if (!*taken) return PL_OK;
    if (r->start[0] == 'n') {
        size_t length = strlen(r->start + 5);
        if (r->name[0]) return pl_reader_bad(r, NULL, "a second line 'name'");
        if (length == 0 || length >= sizeof r->name)
            return pl_reader_bad(r, NULL, "'name' takes a name of 1 to %d letters",
                                 PL_MODEL_NAME - 1);
        memcpy(r->name, r->start + 5, length + 1);
        return PL_OK;
    }
    if (r->seen_model) return pl_reader_bad(r, NULL, "a second line 'model'");
    r->seen_model = true;
    pl_text_add_string(&r->model, r->start + 6);
    return pl_text_status(&r->model);
}
