/* pleat-ckpt diff: compare two checkpoints, whatever their layouts. */
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/difference.h"
#include "ckpt/progress.h"
#include "ckpt/store_folder.h"
#include "common/table.h"

enum { JSON, OPTIONS };

static const pl_option options[OPTIONS] = {[JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "diff",
    .forms = "A B [--json]",
    .about =
        "Compares two checkpoints of a model tensor by tensor, whatever their layouts, and says\n"
        "which values differ, by how much and where. A and B are folders step-N, or ones with\n"
        "such folders in them, or those of runs; then the newest is meant.\n\n"
        "They are equal when every value is, bit for bit, and step, updates, tokens, windows,\n"
        "seed, optimizer and the facts of the model are. Layouts, settings of the run and the\n"
        "model's name are told where they differ, and count nothing.\n\n"
        "Exit status: 0 equal, 1 different, 2 damage, or models that cannot be compared.",
    .examples = "pleat-ckpt diff runs/a runs/b\n"
                "pleat-ckpt diff runs/a/checkpoints/step-100 runs/a/checkpoints/step-200 --json",
    .options = options,
    .option_count = OPTIONS};

typedef struct diff_options {
    const char *a, *b;
    bool json;
} diff_options;

static pl_status take(void *context, int option, const char *value)
{
    diff_options *o = context;
    if (option == JSON) {
        o->json = true;
        return PL_OK;
    }
    if (o->a && o->b)
        return pl_arguments_refuse_word(&usage,
                                        "two checkpoints are meant, so this is too much: ", value);
    *(o->a ? &o->b : &o->a) = value;
    return PL_OK;
}

/* --- text --- */

static void add_facts(pl_text *text, const pl_difference *d)
{
    pl_table table = {.columns = 3, .left = 7};
    if (d->fact_count == 0) return;
    pl_table_add(&table, "fact");
    pl_table_add(&table, "A");
    pl_table_add(&table, "B");
    for (size_t i = 0; i < d->fact_count; ++i) {
        const pl_fact_difference *fact = &d->facts[i];
        pl_table_add(&table, "%s%s", fact->name, fact->counts ? "" : " (counts nothing)");
        pl_table_add(&table, "%s", fact->a);
        pl_table_add(&table, "%s", fact->b);
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
}

static const char *name_of(pl_dtype dtype)
{
    return dtype == PL_DTYPE_COUNT ? "-" : pl_dtype_name(dtype);
}

static void add_row(pl_table *table, const pl_tensor *tensor, const pl_tensor_difference *t)
{
    const pl_value_difference *v = &t->values;
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    pl_table_add(table, "%s", pl_text_string(&name));
    table->cells.out_of_memory |= name.out_of_memory;
    pl_text_free(&name);
    pl_table_add(table, "%s", pl_value_kind_name(t->kind));
    pl_table_add(table, t->a == t->b ? "%s" : "%s, %s", name_of(t->a), name_of(t->b));
    pl_table_add_number(table, v->different);
    pl_table_add_number(table, v->nans);
    if (v->row < 0) {
        for (int i = 0; i < 4; ++i) pl_table_add(table, "-");
        return;
    }
    pl_table_add(table, "%.5g", v->largest);
    pl_table_add(table, "%" PRId64 ", %" PRId64, v->row, v->col);
    pl_table_add(table, "%.5g", v->relative);
    pl_table_add(table, "%.5g", v->relative_l2);
}

static void add_tensors(pl_text *text, const pl_difference *d)
{
    static const char *const heads[] = {"tensor",  "kept",     "type",     "different",  "NaN",
                                        "largest", "row, col", "relative", "relative L2"};
    pl_table table = {.columns = sizeof heads / sizeof *heads, .left = 7};
    if (d->tensor_count == 0) return;
    for (int c = 0; c < table.columns; ++c) pl_table_add(&table, "%s", heads[c]);
    for (size_t i = 0; i < d->tensor_count; ++i)
        add_row(&table, &pl_store_reader_manifest(d->a)->model.tensors[d->tensors[i].tensor],
                &d->tensors[i]);
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
}

static void add_heading(pl_text *text, const char *name, pl_store_reader *reader)
{
    char notation[PL_LAYOUT_TEXT];
    const pl_manifest *m = pl_store_reader_manifest(reader);
    pl_text_add(text, "%s  step %" PRId64 " in %s: %s, %s\n", name, m->progress.step,
                pl_store_reader_folder(reader), m->model.name,
                pl_layout_format(&m->layout, notation));
}

static pl_status add_text(pl_output *output, const pl_difference *d)
{
    char values[32];
    pl_text *text = &output->text;
    int64_t differ = 0;
    for (size_t i = 0; i < d->tensor_count; ++i) differ += d->tensors[i].values.different > 0;
    add_heading(text, "A", d->a);
    add_heading(text, "B", d->b);
    add_facts(text, d);
    add_tensors(text, d);
    pl_text_add(text,
                "\n%" PRId64 " tensors and kinds compared, %s values: %" PRId64
                " equal bit for bit, %" PRId64 " not\n",
                d->compared, pl_format_thousands(values, d->values), d->compared - differ, differ);
    pl_command_colour(output, d->equal ? PL_COLOUR_GREEN : PL_COLOUR_RED,
                      d->equal ? "equal\n" : "different\n");
    return pl_text_status(text);
}

/* --- JSON --- */

static json_t *fact_json(pl_json_builder *json, const pl_fact_difference *fact)
{
    json_t *object = json_object();
    pl_json_put_string(json, object, "name", fact->name);
    pl_json_put_string(json, object, "a", fact->a);
    pl_json_put_string(json, object, "b", fact->b);
    pl_json_put(json, object, "counts", json_boolean(fact->counts));
    return object;
}

static json_t *type_json(pl_dtype dtype)
{
    return dtype == PL_DTYPE_COUNT ? json_null() : json_string(pl_dtype_name(dtype));
}

static json_t *tensor_json(pl_json_builder *json, const pl_tensor *tensor,
                           const pl_tensor_difference *t)
{
    const pl_value_difference *v = &t->values;
    json_t *object = json_object();
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    json->failed |= name.out_of_memory;
    pl_json_put_string(json, object, "name", pl_text_string(&name));
    pl_text_free(&name);
    pl_json_put_string(json, object, "kind", pl_value_kind_name(t->kind));
    pl_json_put(json, object, "type_a", type_json(t->a));
    pl_json_put(json, object, "type_b", type_json(t->b));
    if (t->a == PL_DTYPE_COUNT || t->b == PL_DTYPE_COUNT) return object;
    pl_json_put_number(json, object, "values", v->values);
    pl_json_put_number(json, object, "different", v->different);
    pl_json_put_number(json, object, "nans", v->nans);
    pl_json_put_real(json, object, "largest", v->largest);
    pl_json_put(json, object, "at", v->row < 0 ? json_null() : json_pack("[I,I]", v->row, v->col));
    pl_json_put_real(json, object, "relative", v->relative);
    pl_json_put_real(json, object, "relative_l2", v->relative_l2);
    return object;
}

static pl_status add_json(pl_text *text, const pl_difference *d)
{
    enum { DIGITS = 9 };
    pl_json_builder json = {.digits = DIGITS};
    json_t *top = json_object(), *facts = json_array(), *tensors = json_array();
    for (size_t i = 0; i < d->fact_count; ++i)
        pl_json_append(&json, facts, fact_json(&json, &d->facts[i]));
    for (size_t i = 0; i < d->tensor_count; ++i)
        pl_json_append(
            &json, tensors,
            tensor_json(&json, &pl_store_reader_manifest(d->a)->model.tensors[d->tensors[i].tensor],
                        &d->tensors[i]));
    pl_json_put_string(&json, top, "a", pl_store_reader_folder(d->a));
    pl_json_put_string(&json, top, "b", pl_store_reader_folder(d->b));
    pl_json_put(&json, top, "equal", json_boolean(d->equal));
    pl_json_put_number(&json, top, "compared", d->compared);
    pl_json_put_number(&json, top, "values", d->values);
    pl_json_put(&json, top, "facts", facts);
    pl_json_put(&json, top, "tensors", tensors);
    return pl_json_finish(&json, text, top);
}

/* --- the command --- */

static pl_status open_given(pl_store_reader **out, const char *given)
{
    pl_text folder = {0};
    pl_status status = pl_checkpoint_find(&folder, given);
    if (status == PL_OK) status = pl_store_reader_open(out, pl_text_string(&folder));
    pl_text_free(&folder);
    return status;
}

static void show(void *context, int64_t done, int64_t bytes)
{
    pl_progress_show(context, done, bytes);
}

static pl_status compare(pl_output *output, const diff_options *o, pl_store_reader *a,
                         pl_store_reader *b)
{
    pl_difference difference;
    pl_progress progress = pl_progress_begin();
    pl_status status = pl_difference_make(&difference, a, b, show, &progress);
    pl_progress_end(&progress);
    PL_TRY(status);
    status = o->json ? add_json(&output->text, &difference) : add_text(output, &difference);
    if (status == PL_OK && !difference.equal) status = PL_CHECK_FAILED;
    pl_difference_free(&difference);
    return status;
}

pl_status pl_command_diff(pl_output *output, int count, char **arguments)
{
    diff_options o = {0};
    bool help = false;
    pl_store_reader *a = NULL, *b = NULL;
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    if (!o.b)
        return pl_arguments_refuse_word(
            &usage, "two checkpoints are meant; for example 'pleat-ckpt diff runs/a runs/b'", NULL);
    pl_status status = open_given(&a, o.a);
    if (status == PL_OK) status = open_given(&b, o.b);
    if (status == PL_OK) status = compare(output, &o, a, b);
    pl_store_reader_close(a);
    pl_store_reader_close(b);
    return status;
}
