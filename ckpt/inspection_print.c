/* An inspection as text and tables. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ckpt/inspection.h"
#include "common/table.h"

/* --- facts --- */

static void add_line(pl_text *text, const char *head, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_line(pl_text *text, const char *head, const char *format, ...)
{
    va_list arguments;
    pl_text_add(text, "  %-10s  ", head);
    va_start(arguments, format);
    pl_text_add_list(text, format, arguments);
    va_end(arguments);
    pl_text_add_string(text, "\n");
}

static void add_progress(pl_text *text, const pl_manifest *m)
{
    char tokens[32], windows[32];
    int count = 0;
    const pl_manifest_progress *p = &m->progress;
    if (m->trained)
        add_line(text, "training", "%s, %" PRId64 " updates, %s tokens, %s windows, seed %" PRId64,
                 pl_optimizer_names(&count)[m->optimizer], p->updates,
                 pl_format_thousands(tokens, p->tokens), pl_format_thousands(windows, p->windows),
                 p->seed);
    else
        add_line(text, "training", "none: imported weights");
}

static void add_words(pl_text *text, const char *head, char *const *words, int count)
{
    pl_text list = {0};
    for (int i = 0; i < count; ++i) pl_text_add(&list, "%s%s", i > 0 ? " " : "", words[i]);
    if (count > 0) add_line(text, head, "%s", pl_text_string(&list));
    text->out_of_memory |= list.out_of_memory;
    pl_text_free(&list);
}

/* A string as it is, one of several lines by its length, a list word by word, whole numbers. */
static void add_value(pl_text *text, const json_t *value)
{
    if (json_is_string(value) && strchr(json_string_value(value), '\n')) {
        pl_text_add(text, "%zu bytes of text", json_string_length(value));
    } else if (json_is_string(value)) {
        pl_text_add_string(text, json_string_value(value));
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); ++i) {
            if (i > 0) pl_text_add_string(text, " ");
            add_value(text, json_array_get(value, i));
        }
    } else if (json_is_integer(value)) {
        pl_text_add_number(text, json_integer_value(value));
    }
}

static void add_provenance(pl_text *text, json_t *provenance)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(provenance, key, value)
    {
        pl_text words = {0};
        add_value(&words, value);
        if (words.length > 0) add_line(text, key, "%s", pl_text_string(&words));
        text->out_of_memory |= words.out_of_memory;
        pl_text_free(&words);
    }
}

static void add_facts(pl_output *output, const pl_inspection *i)
{
    pl_text *text = &output->text;
    char notation[PL_LAYOUT_TEXT], step[64];
    const pl_manifest *m = i->m;
    snprintf(step, sizeof step, "step %" PRId64, m->progress.step);
    pl_command_colour(output, PL_COLOUR_BOLD, step);
    pl_text_add(text, " in %s%s\n", i->folder, i->pinned ? " (pinned)" : "");
    add_progress(text, m);
    add_line(text, "model", "%s (%s), %" PRId64 " tensors", m->model.name,
             pl_family_name(m->model.family), m->model.tensor_count);
    add_line(text, "layout", "%s", pl_layout_format(&m->layout, notation));
    add_words(text, "keep_fp32", m->keep_fp32, m->keep_fp32_count);
    add_words(text, "frozen", m->frozen, m->frozen_count);
    add_provenance(text, m->provenance);
}

/* --- tables --- */

static void add_dtypes(pl_text *text, const pl_kind_total *total)
{
    for (int d = 0, count = 0; d < PL_DTYPE_COUNT; ++d)
        if (total->dtype[d])
            pl_text_add(text, "%s%s", count++ > 0 ? ", " : "", pl_dtype_name((pl_dtype)d));
}

static void add_kinds(pl_text *text, const pl_inspection *i)
{
    pl_table table = {.columns = 5, .left = 3};
    const char *const heads[] = {"kept", "type", "tensors", "values", "bytes"};
    for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "%s", heads[c]);
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        const pl_kind_total *total = &i->kinds[kind];
        pl_text types = {0};
        if (total->tensors == 0) continue;
        add_dtypes(&types, total);
        pl_table_add(&table, "%s", pl_value_kind_name((pl_value_kind)kind));
        pl_table_add(&table, "%s", pl_text_string(&types));
        pl_table_add_number(&table, total->tensors);
        pl_table_add_number(&table, total->values);
        pl_table_add_bytes(&table, total->bytes);
        text->out_of_memory |= types.out_of_memory;
        pl_text_free(&types);
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
}

/* The first ranks and the last one; a line of dots for those between. */
static void add_ranks(pl_text *text, const pl_inspection *i)
{
    enum { SHOWN = 8 };
    const pl_manifest *m = i->m;
    char bytes[32];
    pl_table table = {.columns = 5, .left = 0};
    const char *const heads[] = {"rank", "values", "list", "sums", "all"};
    for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "%s", heads[c]);
    for (int64_t r = 0; r < m->rank_count; ++r) {
        const pl_manifest_rank *rank = &m->ranks[r];
        if (m->rank_count > SHOWN && r == SHOWN - 2) {
            for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "...");
            r = m->rank_count - 2;
            continue;
        }
        pl_table_add(&table, "%" PRId64, rank->rank);
        pl_table_add_bytes(&table, rank->data.bytes);
        pl_table_add_bytes(&table, rank->boxes.bytes);
        pl_table_add_bytes(&table, rank->sums.bytes);
        pl_table_add_bytes(&table, pl_inspection_rank_bytes(rank));
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
    pl_text_add(text, "\n%" PRId64 " files of %" PRId64 " ranks, index and manifest: %s\n",
                3 * m->rank_count + 2, m->rank_count, pl_format_bytes(bytes, i->bytes));
}

/* --- tensors --- */

static void add_shape(pl_table *table, const pl_tensor *tensor)
{
    if (tensor->dimensions > 1)
        pl_table_add(table, "%" PRId64 "x%" PRId64, pl_tensor_total_rows(tensor), tensor->cols);
    else
        pl_table_add(table, "%" PRId64, pl_tensor_total_rows(tensor));
}

static void add_name(pl_table *table, const pl_tensor *tensor)
{
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    pl_table_add(table, "%s", pl_text_string(&name));
    table->cells.out_of_memory |= name.out_of_memory;
    pl_text_free(&name);
}

/* One line a tensor and kind. */
static void add_tensors(pl_text *text, const pl_inspection *i)
{
    pl_table table = {.columns = 7, .left = 0x1d};
    const char *const heads[] = {"tensor", "shape", "class", "kept", "type", "pieces", "bytes"};
    for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "%s", heads[c]);
    for (int64_t c = 0; c < i->chosen_count; ++c) {
        int64_t number = i->chosen[c];
        const pl_tensor *tensor = &i->m->model.tensors[number];
        for (int k = 0; k < PL_VALUE_KIND_COUNT; ++k) {
            pl_value_kind kind = (pl_value_kind)k;
            if (!pl_keeps(&i->m->kept[number], kind)) continue;
            add_name(&table, tensor);
            add_shape(&table, tensor);
            pl_table_add(&table, "%s%s", pl_tensor_class_name(tensor->class_),
                         tensor->frozen ? ", frozen" : "");
            pl_table_add(&table, "%s", pl_value_kind_name(kind));
            pl_table_add(&table, "%s", pl_dtype_name(i->m->kept[number].dtype[k]));
            pl_table_add_number(&table, pl_inspection_pieces(i, kind, number));
            pl_table_add_bytes(&table, pl_inspection_tensor_bytes(i, kind, number));
        }
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
}

static void add_number(pl_table *table, double number)
{
    if (isnan(number))
        pl_table_add(table, "-");
    else
        pl_table_add(table, "%.5g", number);
}

static void add_statistics(pl_text *text, const pl_inspection *i)
{
    pl_table table = {.columns = 9, .left = 3};
    const char *const heads[] = {"tensor", "kept",   "least", "most",    "mean",
                                 "rms",    "zeroes", "NaN",   "infinite"};
    for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "%s", heads[c]);
    for (int64_t c = 0; c < i->chosen_count; ++c) {
        int64_t number = i->chosen[c];
        for (int k = 0; k < PL_VALUE_KIND_COUNT; ++k) {
            const pl_value_statistics *s = &i->statistics[c * PL_VALUE_KIND_COUNT + k];
            if (!pl_keeps(&i->m->kept[number], (pl_value_kind)k)) continue;
            add_name(&table, &i->m->model.tensors[number]);
            pl_table_add(&table, "%s", pl_value_kind_name((pl_value_kind)k));
            add_number(&table, s->least);
            add_number(&table, s->most);
            add_number(&table, s->mean);
            add_number(&table, s->rms);
            pl_table_add_number(&table, s->zeroes);
            pl_table_add_number(&table, s->nans);
            pl_table_add_number(&table, s->infinities);
        }
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
}

pl_status pl_inspection_print(pl_output *output, const pl_inspection *inspection)
{
    add_facts(output, inspection);
    add_kinds(&output->text, inspection);
    add_ranks(&output->text, inspection);
    if (inspection->has_tensors) add_tensors(&output->text, inspection);
    if (inspection->statistics) add_statistics(&output->text, inspection);
    return pl_text_status(&output->text);
}
