#include "ckpt/difference.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/memory.h"

/* --- facts --- */

static pl_status add_fact(pl_difference *d, const char *name, const char *a, const char *b,
                          bool counts)
{
    pl_fact_difference fact = {.counts = counts};
    if (strcmp(a, b) == 0) return PL_OK;
    PL_TRY(pl_grow(&d->facts, &d->fact_capacity, d->fact_count + 1, sizeof *d->facts, "facts"));
    pl_fact_difference *place = &d->facts[d->fact_count++];
    *place = fact;
    PL_TRY(pl_duplicate(&place->name, name, "a fact"));
    PL_TRY(pl_duplicate(&place->a, a, "a fact"));
    PL_TRY(pl_duplicate(&place->b, b, "a fact"));
    if (counts) d->equal = false;
    return PL_OK;
}

static pl_status add_number(pl_difference *d, const char *name, int64_t a, int64_t b)
{
    char of_a[32], of_b[32];
    snprintf(of_a, sizeof of_a, "%" PRId64, a);
    snprintf(of_b, sizeof of_b, "%" PRId64, b);
    return add_fact(d, name, of_a, of_b, true);
}

/* VALUE as one line of JSON in *OUT, for the caller to free; NULL: "-". */
static pl_status spell(char **out, const json_t *value)
{
    enum { DIGITS = 17 };
    if (!value) return pl_duplicate(out, "-", "a fact");
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (!text) return PL_FAIL(PL_NO_MEMORY, "out of memory for a fact");
    pl_status status = pl_duplicate(out, text, "a fact");
    pl_library_free(text);
    return status;
}

static pl_status add_values(pl_difference *d, const char *name, const json_t *a, const json_t *b,
                            bool counts)
{
    char *of_a = NULL, *of_b = NULL;
    pl_status status = spell(&of_a, a);
    if (status == PL_OK) status = spell(&of_b, b);
    if (status == PL_OK) status = add_fact(d, name, of_a, of_b, counts);
    pl_free(of_a);
    pl_free(of_b);
    return status;
}

static pl_status add_member(pl_difference *d, const char *lead, const char *key, const json_t *a,
                            const json_t *b, bool counts)
{
    pl_text name = {0};
    pl_text_add(&name, "%s.%s", lead, key);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK) status = add_values(d, pl_text_string(&name), a, b, counts);
    pl_text_free(&name);
    return status;
}

/* The members of two objects that are not the same. */
static pl_status add_members(pl_difference *d, const char *lead, json_t *a, json_t *b, bool counts)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !json_equal(value, other))
            PL_TRY(add_member(d, lead, key, value, other, counts));
    }
    json_object_foreach(b, key, value)
    {
        if (!json_object_get(a, key)) PL_TRY(add_member(d, lead, key, NULL, value, counts));
    }
    return PL_OK;
}

static pl_status add_model(pl_difference *d, const pl_model *a, const pl_model *b)
{
    json_t *of_a = NULL, *of_b = NULL;
    pl_status status = pl_model_facts(&of_a, a);
    if (status == PL_OK) status = pl_model_facts(&of_b, b);
    if (status == PL_OK) status = add_members(d, "model", of_a, of_b, true);
    pl_json_free(of_a);
    pl_json_free(of_b);
    return status;
}

static const char *optimizer_of(const pl_manifest *m)
{
    int count = 0;
    return m->trained ? pl_optimizer_names(&count)[m->optimizer] : "none";
}

static pl_status compare_facts(pl_difference *d, const pl_manifest *a, const pl_manifest *b)
{
    char of_a[PL_LAYOUT_TEXT], of_b[PL_LAYOUT_TEXT];
    const pl_manifest_progress *p = &a->progress, *q = &b->progress;
    PL_TRY(add_number(d, "step", p->step, q->step));
    PL_TRY(add_number(d, "updates", p->updates, q->updates));
    PL_TRY(add_number(d, "tokens", p->tokens, q->tokens));
    PL_TRY(add_number(d, "windows", p->windows, q->windows));
    PL_TRY(add_number(d, "seed", p->seed, q->seed));
    PL_TRY(add_fact(d, "optimizer", optimizer_of(a), optimizer_of(b), true));
    PL_TRY(add_model(d, &a->model, &b->model));
    PL_TRY(add_fact(d, "model_name", a->model.name, b->model.name, false));
    PL_TRY(add_fact(d, "layout", pl_layout_format(&a->layout, of_a),
                    pl_layout_format(&b->layout, of_b), false));
    return add_members(d, "settings", a->settings, b->settings, false);
}

/* --- tensors --- */

static pl_status check_tensor(const pl_manifest *a, const pl_manifest *b, int64_t i)
{
    const pl_tensor *of_a = &a->model.tensors[i], *of_b = &b->model.tensors[i];
    pl_text name_a = {0}, name_b = {0};
    pl_tensor_name(&name_a, of_a);
    pl_tensor_name(&name_b, of_b);
    pl_status status = pl_text_status(&name_a);
    if (status == PL_OK) status = pl_text_status(&name_b);
    if (status == PL_OK && (strcmp(pl_text_string(&name_a), pl_text_string(&name_b)) != 0 ||
                            pl_tensor_total_rows(of_a) != pl_tensor_total_rows(of_b) ||
                            of_a->cols != of_b->cols || of_a->experts != of_b->experts))
        status =
            PL_FAIL(PL_BAD_INPUT,
                    "these are checkpoints of different models: tensor %" PRId64 " is %s, %" PRId64
                    " x %" PRId64 ", in one, and %s, %" PRId64 " x %" PRId64 ", in the other",
                    i, pl_text_string(&name_a), pl_tensor_total_rows(of_a), of_a->cols,
                    pl_text_string(&name_b), pl_tensor_total_rows(of_b), of_b->cols);
    pl_text_free(&name_a);
    pl_text_free(&name_b);
    return status;
}

static pl_status check_models(const pl_manifest *a, const pl_manifest *b)
{
    if (a->model.tensor_count != b->model.tensor_count)
        return PL_FAIL(PL_BAD_INPUT,
                       "these are checkpoints of different models: %s with %" PRId64
                       " tensors, %s with %" PRId64,
                       a->model.name, a->model.tensor_count, b->model.name, b->model.tensor_count);
    for (int64_t i = 0; i < a->model.tensor_count; ++i) PL_TRY(check_tensor(a, b, i));
    return PL_OK;
}

static pl_status compare_kind(pl_difference *d, int64_t tensor, pl_value_kind kind)
{
    pl_tensor_difference difference = {
        .tensor = tensor,
        .kind = kind,
        .values = {.row = -1, .col = -1},
        .a = pl_store_reader_manifest(d->a)->kept[tensor].dtype[kind],
        .b = pl_store_reader_manifest(d->b)->kept[tensor].dtype[kind]};
    bool both = difference.a != PL_DTYPE_COUNT && difference.b != PL_DTYPE_COUNT;
    if (both) {
        PL_TRY(pl_store_compare(&difference.values, d->a, d->b, kind, tensor));
        ++d->compared;
        d->values += difference.values.values;
    }
    if (difference.a == difference.b && difference.values.different == 0) return PL_OK;
    PL_TRY(pl_grow(&d->tensors, &d->tensor_capacity, d->tensor_count + 1, sizeof *d->tensors,
                   "differences of tensors"));
    d->tensors[d->tensor_count++] = difference;
    d->equal = false;
    return PL_OK;
}

static int64_t bytes_of(const pl_manifest *m)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->rank_count; ++i) bytes += m->ranks[i].data.bytes;
    return bytes;
}

static pl_status compare_tensors(pl_difference *d, pl_difference_progress progress, void *context)
{
    const pl_manifest *a = pl_store_reader_manifest(d->a), *b = pl_store_reader_manifest(d->b);
    int64_t bytes = bytes_of(a) + bytes_of(b);
    for (int64_t i = 0; i < a->model.tensor_count; ++i) {
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
            PL_TRY(compare_kind(d, i, (pl_value_kind)kind));
        if (progress)
            progress(context, pl_store_reader_bytes(d->a) + pl_store_reader_bytes(d->b), bytes);
    }
    return PL_OK;
}

/* --- the whole --- */

pl_status pl_difference_make(pl_difference *out, pl_store_reader *a, pl_store_reader *b,
                             pl_difference_progress progress, void *context)
{
    pl_difference d = {.a = a, .b = b, .equal = true};
    const pl_manifest *of_a = pl_store_reader_manifest(a), *of_b = pl_store_reader_manifest(b);
    pl_status status = check_models(of_a, of_b);
    if (status == PL_OK) status = compare_facts(&d, of_a, of_b);
    if (status == PL_OK) status = compare_tensors(&d, progress, context);
    if (status == PL_OK)
        *out = d;
    else
        pl_difference_free(&d);
    return status;
}

void pl_difference_free(pl_difference *difference)
{
    for (size_t i = 0; i < difference->fact_count; ++i) {
        pl_free(difference->facts[i].name);
        pl_free(difference->facts[i].a);
        pl_free(difference->facts[i].b);
    }
    pl_free(difference->facts);
    pl_free(difference->tensors);
    *difference = (pl_difference){.equal = false};
}
