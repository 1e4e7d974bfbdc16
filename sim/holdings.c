#include "sim/holdings.h"

#include <inttypes.h>
#include <string.h>

#include "common/parts.h"
#include "common/placement.h"
#include "common/table.h"
#include "sim/figures.h"

typedef struct class_sum {
    int64_t tensors, elements, bytes, padding; /* padding in bytes */
} class_sum;

static class_sum sum_class(const pl_holding *h, pl_tensor_class class_)
{
    class_sum sum = {0};
    for (int64_t i = 0; i < h->model->tensor_count; ++i) {
        const pl_tensor *tensor = &h->model->tensors[i];
        if (tensor->class_ != class_) continue;
        pl_box box = pl_placement_box(h->layout, tensor, h->rank);
        int64_t rows = box.end - box.begin;
        int64_t padded = pl_placement_padded_rows(h->layout, tensor);
        int size = pl_dtype_bytes(class_ == PL_CLASS_IGNORED
                                      ? PL_FP32
                                      : pl_parts_wire_dtype(h->model, h->precision, tensor));
        ++sum.tensors;
        int64_t elements = rows * tensor->cols, padding = (padded - rows) * tensor->cols;
        sum.elements = pl_bounded_sum(sum.elements, elements);
        sum.bytes = pl_bounded_sum(sum.bytes, pl_bounded_product(elements, size));
        sum.padding = pl_bounded_sum(sum.padding, pl_bounded_product(padding, size));
    }
    return sum;
}

static void add_classes(pl_text *text, const pl_holding *h)
{
    pl_table table = {.columns = 5, .left = 1};
    const char *const heads[] = {"class", "tensors", "elements", "bytes", "padding"};
    for (int i = 0; i < 5; ++i) pl_table_add(&table, "%s", heads[i]);
    for (int i = 0; i < PL_TENSOR_CLASS_COUNT; ++i) {
        class_sum sum = sum_class(h, (pl_tensor_class)i);
        if (sum.tensors == 0) continue;
        pl_table_add(&table, "%s", pl_tensor_class_name((pl_tensor_class)i));
        pl_table_add_number(&table, sum.tensors);
        pl_table_add_number(&table, sum.elements);
        pl_table_add_bytes(&table, sum.bytes);
        pl_table_add_bytes(&table, sum.padding);
    }
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
}

/* --- tensors --- */

static bool same_in_layers(const pl_tensor *a, const pl_tensor *b)
{
    return (a->layer >= 0) == (b->layer >= 0) && strcmp(a->suffix, b->suffix) == 0 &&
           a->class_ == b->class_ && a->frozen == b->frozen && a->experts == b->experts &&
           a->rows == b->rows && a->cols == b->cols;
}

/* Tensors equal to number FIRST in all but the layer; 0 when an earlier one counted it. */
static int64_t count_layers(const pl_model *model, int64_t first)
{
    int64_t layers = 0;
    for (int64_t i = 0; i < first; ++i)
        if (same_in_layers(&model->tensors[i], &model->tensors[first])) return 0;
    for (int64_t i = first; i < model->tensor_count; ++i)
        layers += same_in_layers(&model->tensors[i], &model->tensors[first]);
    return layers;
}

static void add_tensor(pl_table *table, const pl_holding *h, const pl_tensor *tensor,
                       int64_t layers)
{
    pl_box box = pl_placement_box(h->layout, tensor, h->rank);
    pl_table_add(table, "%s%s", tensor->layer >= 0 ? "model.layers.*." : "", tensor->suffix);
    pl_table_add_number(table, layers);
    pl_table_add(table, "%s%s", pl_tensor_class_name(tensor->class_),
                 tensor->frozen ? ", frozen" : "");
    pl_table_add(table, "%" PRId64 " x %" PRId64, pl_tensor_total_rows(tensor), tensor->cols);
    if (box.begin == box.end)
        pl_table_add(table, "none");
    else
        pl_table_add(table, "%" PRId64 " to %" PRId64, box.begin, box.end - 1);
    pl_table_add_number(table, box.end - box.begin);
    pl_table_add_number(table, pl_placement_padded_rows(h->layout, tensor));
}

static void add_tensors(pl_text *text, const pl_holding *h)
{
    enum { COLUMNS = 7 };
    static const char *const heads[COLUMNS] = {"tensor", "number", "class", "rows x cols",
                                               "rows",   "held",   "buffer"};
    pl_table table = {.columns = COLUMNS, .left = 1 | 4};
    for (int i = 0; i < COLUMNS; ++i) pl_table_add(&table, "%s", heads[i]);
    for (int64_t i = 0; i < h->model->tensor_count; ++i) {
        int64_t layers = count_layers(h->model, i);
        if (layers > 0) add_tensor(&table, h, &h->model->tensors[i], layers);
    }
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
}

/* --- experts --- */

/* Experts [first, end) that the rank's owner hosts; none in a dense model. */
static pl_box hosted(const pl_holding *h)
{
    int64_t owned = h->model->num_experts / h->layout->ep;
    int64_t owner = pl_layout_group_index(h->layout, PL_GROUP_EXPERT_OWNER, h->rank);
    return (pl_box){owner * owned, (owner + 1) * owned};
}

static void add_experts(pl_text *text, const pl_holding *h)
{
    pl_box experts = hosted(h);
    if (experts.begin == experts.end) return;
    pl_text_add(text, "  hosts experts %" PRId64 " to %" PRId64 " of %" PRId64, experts.begin,
                experts.end - 1, h->model->num_experts);
    if (h->layout->expert_shards > 1)
        pl_text_add(text, ", together with the %" PRId64 " ranks of its expert-shard group",
                    h->layout->expert_shards);
    pl_text_add_string(text, "\n");
}

void pl_holdings_print(pl_text *text, const pl_holding *holding)
{
    const pl_precision *p = holding->precision;
    pl_text_add(text, "\nrank %" PRId64 " holds of %s", holding->rank, holding->model->name);
    if (holding->layout->pp > 1)
        pl_text_add_string(text, ", in the layers of its stage (sums are over all layers)");
    pl_text_add(text, "\n  gathered as %s, computed as %s\n", pl_dtype_name(p->gather),
                pl_dtype_name(p->compute));
    add_experts(text, holding);
    add_classes(text, holding);
    pl_text_add_string(text, "\n");
    add_tensors(text, holding);
}

/* --- JSON --- */

static json_t *tensor_json(pl_json_builder *json, const pl_holding *h, const pl_tensor *tensor,
                           int64_t number)
{
    pl_box box = pl_placement_box(h->layout, tensor, h->rank);
    pl_text name = {0};
    pl_text_add(&name, "%s%s", tensor->layer >= 0 ? "model.layers.*." : "", tensor->suffix);
    json_t *object = json_object(), *rows = json_array();
    pl_json_put_string(json, object, "tensor", pl_text_string(&name));
    pl_json_put_number(json, object, "number", number);
    pl_json_put_string(json, object, "class", pl_tensor_class_name(tensor->class_));
    pl_json_put(json, object, "frozen", json_boolean(tensor->frozen));
    pl_json_put_number(json, object, "rows", pl_tensor_total_rows(tensor));
    pl_json_put_number(json, object, "cols", tensor->cols);
    pl_json_append(json, rows, json_integer(box.begin));
    pl_json_append(json, rows, json_integer(box.end));
    pl_json_put(json, object, "held", rows);
    pl_json_put_number(json, object, "buffer_rows", pl_placement_padded_rows(h->layout, tensor));
    json->failed |= name.out_of_memory;
    pl_text_free(&name);
    return object;
}

json_t *pl_holdings_json(pl_json_builder *json, const pl_holding *holding)
{
    json_t *top = json_object(), *classes = json_object(), *tensors = json_array();
    json_t *experts = json_array();
    pl_json_put_string(json, top, "model", holding->model->name);
    for (int i = 0; i < PL_TENSOR_CLASS_COUNT; ++i) {
        class_sum sum = sum_class(holding, (pl_tensor_class)i);
        json_t *object = json_object();
        pl_json_put_number(json, object, "tensors", sum.tensors);
        pl_json_put_number(json, object, "elements", sum.elements);
        pl_json_put_number(json, object, "bytes", sum.bytes);
        pl_json_put_number(json, object, "padding", sum.padding);
        pl_json_put(json, classes, pl_tensor_class_name((pl_tensor_class)i), object);
    }
    pl_json_put(json, top, "classes", classes);
    pl_json_append(json, experts, json_integer(hosted(holding).begin));
    pl_json_append(json, experts, json_integer(hosted(holding).end));
    pl_json_put(json, top, "experts", experts);
    for (int64_t i = 0; i < holding->model->tensor_count; ++i) {
        int64_t layers = count_layers(holding->model, i);
        if (layers == 0) continue;
        pl_json_append(json, tensors,
                       tensor_json(json, holding, &holding->model->tensors[i], layers));
    }
    pl_json_put(json, top, "tensors", tensors);
    return top;
}
