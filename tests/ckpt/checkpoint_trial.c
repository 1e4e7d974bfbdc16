#include "tests/ckpt/checkpoint_trial.h"

#include "ckpt/store_writer.h"
#include "common/memory.h"
#include "common/placement.h"

void trial_open(checkpoint_trial *t, const char *config, pl_dtype gather, pl_optimizer optimizer,
                const char *keep_fp32, const char *frozen)
{
    *t = (checkpoint_trial){.precision = {gather, gather, PL_FP32, PL_FP32},
                            .optimizer = optimizer,
                            .keep_fp32 = keep_fp32,
                            .frozen = frozen};
    assert_ok(pl_model_read(&t->model, config));
    assert_ok(pl_model_apply_patterns(&t->model, &t->keep_fp32, keep_fp32 != NULL, &t->frozen,
                                      frozen != NULL));
}

void trial_close(checkpoint_trial *t) { pl_model_free(&t->model); }

unsigned char trial_byte(pl_value_kind kind, int64_t tensor, int64_t place)
{
    uint64_t x = (uint64_t)place * 0x9E3779B97F4A7C15U + (uint64_t)tensor * 0xD1B54A32D192ED03U;
    x += (uint64_t)kind << 56;
    x ^= x >> 29;
    return (unsigned char)(x >> 11);
}

static void fill(unsigned char *values, const pl_checkpoint_box *box)
{
    int64_t first = box->row_begin * (box->bytes / (box->row_end - box->row_begin));
    for (int64_t i = 0; i < box->bytes; ++i)
        values[i] = trial_byte((pl_value_kind)box->kind, box->tensor, first + i);
}

static pl_status write_boxes(const checkpoint_trial *t, pl_store_writer *writer)
{
    const pl_checkpoint_boxes *boxes = pl_store_writer_boxes(writer);
    for (size_t i = boxes->count; i-- > 0;) { /* any order will do */
        unsigned char *values = NULL;
        PL_TRY(pl_allocate(&values, (size_t)boxes->box[i].bytes, 1, "values"));
        (t->fill ? t->fill : fill)(values, &boxes->box[i]);
        pl_status status = pl_store_write(writer, &boxes->box[i], 0, boxes->box[i].bytes, values);
        pl_free(values);
        PL_TRY(status);
    }
    return PL_OK;
}

static pl_status write_rank(const checkpoint_trial *t, const pl_manifest *manifest,
                            const char *folder, int64_t rank, pl_manifest_rank *facts, bool *wrote)
{
    pl_checkpoint_boxes boxes;
    pl_store_writer *writer = NULL;
    PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, &manifest->model, manifest->kept, &manifest->layout,
                                       rank));
    *wrote = boxes.count > 0;
    if (!*wrote) return PL_OK;
    PL_TRY(pl_store_writer_open(&writer, folder, rank, &manifest->model, &boxes));
    pl_status status = write_boxes(t, writer);
    if (status == PL_OK) status = pl_store_writer_finish(writer, facts);
    pl_store_writer_close(writer);
    return status;
}

static pl_status make_manifest(pl_manifest *m, const checkpoint_trial *t, int64_t step,
                               const char *notation)
{
    PL_TRY(pl_manifest_set_model(m, &t->model, &t->keep_fp32, t->keep_fp32 != NULL, &t->frozen,
                                 t->frozen != NULL));
    PL_TRY(pl_layout_parse(&m->layout, notation));
    PL_TRY(pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "kept values"));
    pl_kept_values_of_training(m->kept, &m->model, &t->precision, t->optimizer);
    PL_TRY(pl_allocate(&m->ranks, (size_t)m->layout.world, sizeof *m->ranks, "ranks"));
    m->trained = true;
    m->optimizer = t->optimizer;
    m->progress = (pl_manifest_progress){step, step, step * 1000, step * 8, 1};
    return PL_OK;
}

static pl_status write_all(const checkpoint_trial *t, pl_manifest *m, const char *root)
{
    uint64_t nonce = 0;
    pl_text folder = {0};
    int64_t step = m->progress.step;
    PL_TRY(pl_checkpoint_draw_nonce(&nonce));
    PL_TRY(pl_checkpoint_check(root, step, 0));
    pl_status status = pl_checkpoint_begin(&folder, root, step, nonce);
    for (int64_t rank = 0; status == PL_OK && rank < m->layout.world; ++rank) {
        bool wrote = false;
        status = write_rank(t, m, pl_text_string(&folder), rank, &m->ranks[m->rank_count], &wrote);
        m->rank_count += wrote;
    }
    pl_text_free(&folder);
    return status == PL_OK ? pl_checkpoint_commit(root, nonce, m) : status;
}

pl_status trial_write(const checkpoint_trial *t, const char *root, int64_t step,
                      const char *notation)
{
    pl_manifest m = {0};
    pl_status status = make_manifest(&m, t, step, notation);
    if (status == PL_OK) status = write_all(t, &m, root);
    pl_manifest_free(&m);
    return status;
}

static void check_box(pl_store_reader *reader, pl_value_kind kind, int64_t tensor, pl_box box)
{
    const pl_manifest *m = pl_store_reader_manifest(reader);
    int64_t row = pl_kept_kind_row_bytes(&m->model.tensors[tensor], &m->kept[tensor], kind);
    int64_t bytes = (box.end - box.begin) * row;
    unsigned char *values = malloc((size_t)bytes + 1);
    assert_non_null(values);
    assert_ok(pl_store_read(reader, kind, tensor, box.begin, box.end, values));
    for (int64_t i = 0; i < bytes; ++i)
        if (values[i] != trial_byte(kind, tensor, box.begin * row + i))
            fail_msg("byte %lld of rows %lld-%lld of tensor %lld (%s) is another", (long long)i,
                     (long long)box.begin, (long long)box.end, (long long)tensor,
                     pl_value_kind_name(kind));
    free(values);
}

void trial_check(const char *folder, const char *notation)
{
    pl_store_reader *reader = NULL;
    pl_layout layout;
    assert_ok(pl_store_reader_open(&reader, folder));
    const pl_manifest *m = pl_store_reader_manifest(reader);
    assert_ok(pl_layout_parse(&layout, notation));
    for (int64_t rank = 0; rank < layout.world; ++rank)
        for (int64_t i = 0; i < m->model.tensor_count; ++i)
            for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
                if (pl_keeps(&m->kept[i], (pl_value_kind)kind))
                    check_box(reader, (pl_value_kind)kind, i,
                              pl_placement_box(&layout, &m->model.tensors[i], rank));
    pl_store_reader_close(reader);
}
