/* What the executor holds when, and what stands where nothing was written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/train/edits.h"
#include "tests/train/small_trials.h"
#include "train/executor_state.h"

/* --- memory --- */

enum { RANKS = 8 };

typedef struct watched {
    int64_t compared[RANKS], wrong[RANKS];
    char words[256]; /* of the first that was wrong */
} watched;

/* What lives before entry INDEX, by the section's own words. */
static void sum_of_live(pl_executor *executor, const pl_section *section, int64_t index,
                        int64_t *sum)
{
    bool *alive = calloc(section->buffer_count, sizeof *alive);
    for (size_t i = 0; i < section->buffer_count; ++i) alive[i] = section->buffers[i].resident;
    for (int64_t e = 0; e < index; ++e) {
        const pl_entry *entry = &section->entries[e];
        const pl_use *uses = section->uses + entry->use_first;
        for (uint32_t i = 0; i < entry->use_count; ++i) {
            if (uses[i].flags & PL_USE_BEGIN) alive[uses[i].buffer] = true;
            if (uses[i].flags & PL_USE_END) alive[uses[i].buffer] = false;
        }
    }
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        int64_t bytes = buffer->bytes;
        if (!alive[i]) continue;
        /* Sizes that routing decided are the executor's to know; whole rows they must be. */
        if (buffer->per_row) {
            bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)i);
            if (bytes < 0 || bytes % buffer->bytes != 0) bytes = -1000000;
        }
        sum[buffer->class_] += bytes;
    }
    free(alive);
}

static pl_status watch_memory(void *context, int64_t rank, int64_t step, pl_executor *executor,
                              const pl_section *section, int64_t index)
{
    watched *w = context;
    int64_t sum[PL_BUFFER_CLASS_COUNT] = {0};
    (void)step;
    /* What collectives under way end is let go when they are done. */
    PL_TRY(pl_order_complete_all(executor));
    pl_memory_use use = pl_executor_memory(executor);
    if (executor->now_workspace != 0) return PL_FAIL(PL_INTERNAL, "work space outlives its entry");
    sum_of_live(executor, section, index, sum);
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i) {
        ++w->compared[rank];
        if (use.now[i] == sum[i]) continue;
        if (w->wrong[rank]++ == 0 && rank == 0)
            snprintf(w->words, sizeof w->words, "entry %d, class %s: %lld bytes, not %lld",
                     (int)index, pl_buffer_class_name((pl_buffer_class)i), (long long)use.now[i],
                     (long long)sum[i]);
    }
    return PL_OK;
}

/* Padded fp32 rows of every tensor, with two moments. */
static int64_t resident_bytes(const pl_model *model, const char *notation)
{
    pl_layout layout;
    int64_t bytes = 0;
    assert_ok(pl_layout_parse(&layout, notation));
    for (int64_t i = 0; i < model->tensor_count; ++i)
        bytes +=
            pl_placement_padded_rows(&layout, &model->tensors[i]) * model->tensors[i].cols * 12;
    return bytes;
}

static void memory_by_class_is_what_the_plan_says_at_every_entry(void **state)
{
    (void)state;
    static const char *const layouts[] = {"single:world=1", "legacy:world=8,ep=4",
                                          "decoupled:world=8,ep=2,replicas=2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; ++i) {
        pl_model model;
        watched w = {.words = ""};
        assert_ok(plan_case_model(&model, "mixed"));
        trial t = small_trial(&model, layouts[i]);
        t.settings.policy.recompute = i == 1 ? PL_RECOMPUTE_FULL : PL_RECOMPUTE_NONE;
        t.settings.policy.prefetch = PL_PREFETCH_NEXT_UNIT;
        t.watch = watch_memory;
        t.watch_context = &w;
        trial_result r = small_run(&t);
        for (int64_t rank = 0; rank < r.world; ++rank) {
            const pl_memory_use *use = &r.memory[rank];
            if (w.wrong[rank]) fail_msg("%s: %s", layouts[i], w.words);
            assert_true(w.compared[rank] > 1000);
            for (int c = 0; c < PL_BUFFER_CLASS_COUNT; ++c)
                assert_int_equal(use->now[c],
                                 c == PL_BUFFER_SHARD ? resident_bytes(&model, layouts[i]) : 0);
            assert_true(use->peak_total >=
                        use->peak[PL_BUFFER_SHARD] + use->peak[PL_BUFFER_GRADIENT]);
            assert_true(use->peak_workspace > 0);
        }
        trial_free(&r);
        pl_model_free(&model);
    }
}

/* --- padding, and what nobody writes --- */

/* Buffers of a part whose tensors have rows behind the real ones. */
static bool has_padding(pl_buffer_kind kind)
{
    return kind == PL_BUF_PARAMETER || kind == PL_BUF_FULL || kind == PL_BUF_GRADIENT ||
           kind == PL_BUF_GRADIENT_SUM || kind == PL_BUF_ADAM_M || kind == PL_BUF_ADAM_V;
}

/* Elements behind the real ones of TENSOR in the copy VALUES of a buffer of KIND that are not 0. */
static int64_t count_padding(const pl_executor *executor, pl_buffer_kind kind, int64_t tensor,
                             const float *values, int64_t *wrong)
{
    pl_map_place place;
    if (!pl_part_map_place(&executor->map, kind, tensor, &place)) return 0;
    int64_t real = (place.end - place.begin) * place.cols, all = place.room * place.cols;
    for (int64_t i = real; i < all; ++i) *wrong += !(values[place.offset / 4 + i] == 0);
    return all - real;
}

static pl_status watch_buffer(pl_executor *executor, const pl_section *section, uint32_t number,
                              int64_t *padding, int64_t *wrong)
{
    const pl_buffer *buffer = &section->buffers[number];
    int64_t bytes = pl_executor_buffer_bytes(executor, section, number);
    int32_t part = pl_part_map_part(&executor->map, (pl_subject)buffer->subject, buffer->layer);
    if (bytes <= 0 || !has_padding((pl_buffer_kind)buffer->kind)) return PL_OK;
    float *values = NULL;
    PL_TRY(pl_allocate(&values, (size_t)bytes, 1, "a copy"));
    pl_status status = pl_executor_read(executor, section, number, values, bytes);
    const pl_part *p = &executor->map.parts.part[part];
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count && status == PL_OK; ++i)
        *padding += count_padding(executor, (pl_buffer_kind)buffer->kind, i, values, wrong);
    pl_free(values);
    return status;
}

typedef struct padded {
    int64_t padding[RANKS], wrong[RANKS];
} padded;

/* Before gradients are scaled, and where the router of a layer is run. */
static pl_status watch_padding(void *context, int64_t rank, int64_t step, pl_executor *executor,
                               const pl_section *section, int64_t index)
{
    padded *p = context;
    pl_operation operation = (pl_operation)section->entries[index].name.operation;
    (void)step;
    if (operation != PL_OP_SCALE && operation != PL_OP_ROUTE && operation != PL_OP_CONTROL)
        return PL_OK;
    PL_TRY(pl_order_complete_all(executor));
    for (uint32_t i = 0; i < section->buffer_count; ++i)
        PL_TRY(watch_buffer(executor, section, i, &p->padding[rank], &p->wrong[rank]));
    return PL_OK;
}

static void padding_is_zero_wherever_it_stands(void **state)
{
    (void)state;
    static const char *const layouts[] = {"decoupled:world=8,ep=2", "legacy:world=8,ep=4"};
    for (int i = 0; i < 2; ++i) {
        pl_model model;
        padded p = {{0}, {0}};
        assert_ok(plan_case_model(&model, "mixed"));
        trial t = small_trial(&model, layouts[i]);
        t.order = PL_ORDER_RANDOM; /* memory is full of NaN */
        t.watch = watch_padding;
        t.watch_context = &p;
        trial_result r = small_run(&t);
        int64_t padding = 0;
        for (int rank = 0; rank < RANKS; ++rank) {
            padding += p.padding[rank];
            assert_int_equal(p.wrong[rank], 0);
        }
        assert_true(padding > 1000);
        trial_free(&r);
        pl_model_free(&model);
    }
}

static const char *without_attention_backward(const char *text)
{
    return edit_drop(text, " attention layer.0 round=0 mb=0 pass=bw ");
}

static void gradients_that_nobody_writes_are_zero(void **state)
{
    (void)state;
    static const char *const frozen[] = {"*embed_tokens*"};
    static const char *const layouts[] = {"single:world=1", "folded:world=4"};
    for (int l = 0; l < 2; ++l) {
        int zero = 0, written = 0;
        pl_model model;
        assert_ok(plan_case_model(&model, "dense"));
        trial t = small_trial(&model, layouts[l]);
        t.settings.shape = (pl_shape){9, 1, 1, 1};
        t.settings.balance = PL_BALANCE_NONE;
        t.frozen = frozen;
        t.frozen_count = 1;
        t.steps = 1;
        t.order = PL_ORDER_RANDOM;
        t.edit = without_attention_backward;
        trial_result r = small_run(&t);
        for (int64_t i = 0; i < model.tensor_count; ++i) {
            double sum = 0;
            if (model.tensors[i].layer != 0) continue;
            for (int64_t j = 0; j < pl_tensor_elements(&model.tensors[i]); ++j)
                sum += fabs((double)r.gradient[i][j]);
            if (isnan(sum)) fail_msg("%s is not zero", model.tensors[i].suffix);
            zero += sum == 0 ? 1 : 0;
            written += sum > 0;
        }
        assert_int_equal(zero, 7);    /* input norm, q, k, v, o, norms of q and k */
        assert_int_equal(written, 4); /* the other norm, gate, up, down */
        trial_free(&r);
        pl_model_free(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_by_class_is_what_the_plan_says_at_every_entry),
        cmocka_unit_test(padding_is_zero_wherever_it_stands),
        cmocka_unit_test(gradients_that_nobody_writes_are_zero),
    };
    return cmocka_run_group_tests_name("train/executor", tests, NULL, NULL);
}
