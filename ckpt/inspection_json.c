/* An inspection as JSON; pleat-ckpt tables json says what the keys are. */
#include "ckpt/inspection.h"

static json_t *words_of(pl_json_builder *json, char *const *words, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; ++i) pl_json_append(json, list, pl_json_words(words[i]));
    return list;
}

static void put_progress(pl_json_builder *json, json_t *top, const pl_manifest *m)
{
    const pl_manifest_progress *p = &m->progress;
    int count = 0;
    pl_json_put(json, top, "trained", json_boolean(m->trained));
    pl_json_put_number(json, top, "step", p->step);
    pl_json_put_number(json, top, "updates", p->updates);
    pl_json_put_number(json, top, "tokens", p->tokens);
    pl_json_put_number(json, top, "windows", p->windows);
    pl_json_put_number(json, top, "seed", p->seed);
    pl_json_put(json, top, "optimizer",
                m->trained ? json_string(pl_optimizer_names(&count)[m->optimizer]) : json_null());
}

static void put_facts(pl_json_builder *json, json_t *top, const pl_inspection *i)
{
    char notation[PL_LAYOUT_TEXT];
    const pl_manifest *m = i->m;
    pl_json_put_string(json, top, "checkpoint", i->folder);
    pl_json_put(json, top, "pinned", json_boolean(i->pinned));
    put_progress(json, top, m);
    pl_json_put_string(json, top, "model", m->model.name);
    pl_json_put_string(json, top, "family", pl_family_name(m->model.family));
    pl_json_put_string(json, top, "layout", pl_layout_format(&m->layout, notation));
    pl_json_put(json, top, "keep_fp32", words_of(json, m->keep_fp32, m->keep_fp32_count));
    pl_json_put(json, top, "frozen", words_of(json, m->frozen, m->frozen_count));
    pl_json_put(json, top, "settings", json_incref(m->settings));
    pl_json_put(json, top, "provenance", json_incref(m->provenance));
}

static json_t *kinds_of(pl_json_builder *json, const pl_inspection *i)
{
    json_t *kinds = json_object();
    for (int k = 0; k < PL_VALUE_KIND_COUNT; ++k) {
        const pl_kind_total *total = &i->kinds[k];
        json_t *kind = json_object(), *types = json_array();
        for (int d = 0; d < PL_DTYPE_COUNT; ++d)
            if (total->dtype[d])
                pl_json_append(json, types, json_string(pl_dtype_name((pl_dtype)d)));
        pl_json_put(json, kind, "types", types);
        pl_json_put_number(json, kind, "tensors", total->tensors);
        pl_json_put_number(json, kind, "values", total->values);
        pl_json_put_number(json, kind, "bytes", total->bytes);
        if (total->tensors > 0)
            pl_json_put(json, kinds, pl_value_kind_name((pl_value_kind)k), kind);
        else
            json_decref(kind);
    }
    return kinds;
}

static json_t *ranks_of(pl_json_builder *json, const pl_manifest *m)
{
    json_t *ranks = json_array();
    for (int64_t r = 0; r < m->rank_count; ++r) {
        json_t *rank = json_object();
        pl_json_put_number(json, rank, "rank", m->ranks[r].rank);
        pl_json_put_number(json, rank, "values", m->ranks[r].data.bytes);
        pl_json_put_number(json, rank, "list", m->ranks[r].boxes.bytes);
        pl_json_put_number(json, rank, "sums", m->ranks[r].sums.bytes);
        pl_json_append(json, ranks, rank);
    }
    return ranks;
}

static json_t *statistics_of(pl_json_builder *json, const pl_value_statistics *s)
{
    json_t *object = json_object();
    pl_json_put_real(json, object, "least", s->least);
    pl_json_put_real(json, object, "most", s->most);
    pl_json_put_real(json, object, "mean", s->mean);
    pl_json_put_real(json, object, "rms", s->rms);
    pl_json_put_number(json, object, "zeroes", s->zeroes);
    pl_json_put_number(json, object, "nans", s->nans);
    pl_json_put_number(json, object, "infinities", s->infinities);
    return object;
}

static json_t *kept_of(pl_json_builder *json, const pl_inspection *i, int64_t place)
{
    int64_t number = i->chosen[place];
    json_t *kinds = json_object();
    for (int k = 0; k < PL_VALUE_KIND_COUNT; ++k) {
        pl_value_kind kind = (pl_value_kind)k;
        if (!pl_keeps(&i->m->kept[number], kind)) continue;
        json_t *object = json_object();
        pl_json_put_string(json, object, "type", pl_dtype_name(i->m->kept[number].dtype[k]));
        pl_json_put_number(json, object, "pieces", pl_inspection_pieces(i, kind, number));
        pl_json_put_number(json, object, "bytes", pl_inspection_tensor_bytes(i, kind, number));
        if (i->statistics)
            pl_json_put(json, object, "statistics",
                        statistics_of(json, &i->statistics[place * PL_VALUE_KIND_COUNT + k]));
        pl_json_put(json, kinds, pl_value_kind_name(kind), object);
    }
    return kinds;
}

static json_t *tensor_of(pl_json_builder *json, const pl_inspection *i, int64_t place)
{
    const pl_tensor *tensor = &i->m->model.tensors[i->chosen[place]];
    json_t *object = json_object(), *shape = json_array();
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    json->failed |= name.out_of_memory;
    pl_json_put_string(json, object, "name", pl_text_string(&name));
    pl_text_free(&name);
    pl_json_append(json, shape, json_integer(pl_tensor_total_rows(tensor)));
    if (tensor->dimensions > 1) pl_json_append(json, shape, json_integer(tensor->cols));
    pl_json_put(json, object, "shape", shape);
    pl_json_put_number(json, object, "experts", tensor->experts);
    pl_json_put_string(json, object, "class", pl_tensor_class_name(tensor->class_));
    pl_json_put(json, object, "frozen", json_boolean(tensor->frozen));
    pl_json_put(json, object, "kept", kept_of(json, i, place));
    return object;
}

pl_status pl_inspection_json(pl_text *text, const pl_inspection *inspection)
{
    enum { DIGITS = 9 };
    pl_json_builder json = {.digits = DIGITS};
    json_t *top = json_object();
    put_facts(&json, top, inspection);
    pl_json_put(&json, top, "kinds", kinds_of(&json, inspection));
    pl_json_put(&json, top, "ranks", ranks_of(&json, inspection->m));
    pl_json_put_number(&json, top, "bytes", inspection->bytes);
    if (inspection->has_tensors) {
        json_t *tensors = json_array();
        for (int64_t i = 0; i < inspection->chosen_count; ++i)
            pl_json_append(&json, tensors, tensor_of(&json, inspection, i));
        pl_json_put(&json, top, "tensors", tensors);
    }
    return pl_json_finish(&json, text, top);
}
