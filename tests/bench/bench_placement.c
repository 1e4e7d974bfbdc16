/* What it costs to know who holds what: every box of every tensor of every rank of a 30B model on
 * 64 ranks, and one rank of a layout of 100,000. Exit status 1 when a limit is exceeded.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/layout.h"
#include "common/memory.h"
#include "common/model.h"
#include "common/placement.h"

enum { REPEATS = 9, TENSORS = 579 };

static const double boxes_limit_ms = 20, rank_limit_ms = 50;

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* Keeps the loops from being optimised away, and shows that all rows are there. */
static int64_t sum_rows(const pl_box *boxes, int64_t count)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < count; ++i) rows += boxes[i].end - boxes[i].begin;
    return rows;
}

static void compute_boxes(pl_box *boxes, const pl_layout *layout, const pl_model *model)
{
    for (int64_t rank = 0; rank < layout->world; ++rank)
        for (int64_t t = 0; t < model->tensor_count; ++t)
            *boxes++ = pl_placement_box(layout, &model->tensors[t], rank);
}

/* The yardstick: the same stores with nothing computed. */
static void write_boxes(pl_box *boxes, const pl_layout *layout, const pl_model *model)
{
    for (int64_t rank = 0; rank < layout->world; ++rank) {
        for (int64_t t = 0; t < model->tensor_count; ++t) {
            boxes->begin = rank;
            boxes->end = t;
            ++boxes;
        }
    }
}

static double best_ms(void (*work)(pl_box *, const pl_layout *, const pl_model *), pl_box *boxes,
                      const pl_layout *layout, const pl_model *model, int64_t *rows)
{
    double best = 1e30;
    for (int i = 0; i < REPEATS; ++i) {
        double start = now_ms();
        work(boxes, layout, model);
        best = smaller(best, now_ms() - start);
        *rows = sum_rows(boxes, layout->world * model->tensor_count);
    }
    return best;
}

static pl_status measure_boxes(const pl_model *model, double *ms)
{
    pl_layout layout;
    pl_box *boxes = NULL;
    int64_t rows = 0, ignored = 0;
    PL_TRY(pl_layout_parse(&layout, "decoupled:world=64,ep=8"));
    PL_TRY(pl_placement_check(&layout, model));
    int64_t count = layout.world * model->tensor_count;
    PL_TRY(pl_allocate(&boxes, (size_t)count, sizeof *boxes, "boxes"));
    double yardstick = best_ms(write_boxes, boxes, &layout, model, &ignored);
    *ms = best_ms(compute_boxes, boxes, &layout, model, &rows);
    printf("boxes of %s, decoupled:world=64,ep=8: %" PRId64 " boxes (%" PRId64 " tensors, %" PRId64
           " rows) in %.3f ms, limit %.0f ms\n",
           model->name, count, model->tensor_count, rows, *ms, boxes_limit_ms);
    printf("  yardstick, as many boxes written without computing them: %.3f ms; ratio %.1f\n",
           yardstick, *ms / yardstick);
    pl_free(boxes);
    return PL_OK;
}

/* All coordinates, groups (every member of each), indices and boxes of RANK. */
static int64_t ask_everything(const pl_layout *layout, const pl_model *model, int64_t rank)
{
    int64_t sum = 0;
    for (int m = 0; m < layout->meshes; ++m)
        for (int a = 0; a < layout->mesh[m].axes; ++a)
            sum += pl_layout_coordinate(layout, m, a, rank);
    for (int r = 0; r < PL_GROUP_ROLE_COUNT; ++r) {
        pl_rank_set group = pl_layout_group(layout, (pl_group_role)r, rank);
        int64_t size = pl_rank_set_size(&group);
        sum += pl_layout_group_index(layout, (pl_group_role)r, rank);
        for (int64_t i = 0; i < size; ++i) sum += pl_rank_set_member(&group, i);
    }
    for (int64_t t = 0; t < model->tensor_count; ++t) {
        pl_box box = pl_placement_box(layout, &model->tensors[t], rank);
        sum += box.end - box.begin + pl_placement_padded_rows(layout, &model->tensors[t]);
    }
    return sum;
}

static pl_status measure_rank(const pl_model *model, double *ms)
{
    int64_t sum = 0;
    *ms = 1e30;
    for (int i = 0; i < REPEATS; ++i) {
        pl_layout layout;
        double start = now_ms();
        PL_TRY(pl_layout_parse(&layout, "folded:world=100000,cp=4,ep=8"));
        sum = ask_everything(&layout, model, 77777);
        *ms = smaller(*ms, now_ms() - start);
    }
    printf("everything about rank 77777 of folded:world=100000,cp=4,ep=8, parsing and all members "
           "of its groups included: %.3f ms, limit %.0f ms (check sum %" PRId64 ")\n",
           *ms, rank_limit_ms, sum);
    return PL_OK;
}

static pl_status measure(double *boxes_ms, double *rank_ms)
{
    pl_model model;
    PL_TRY(pl_model_open(&model, "qwen3-30b-a3b"));
    pl_status status = PL_OK;
    if (model.tensor_count != TENSORS)
        status = PL_FAIL(PL_CHECK_FAILED, "%" PRId64 " tensors instead of %d", model.tensor_count,
                         TENSORS);
    if (status == PL_OK) status = measure_boxes(&model, boxes_ms);
    if (status == PL_OK) status = measure_rank(&model, rank_ms);
    pl_model_free(&model);
    return status;
}

int main(void)
{
    double boxes_ms = 0, rank_ms = 0;
    pl_status status = measure(&boxes_ms, &rank_ms);
    if (status != PL_OK) {
        fprintf(stderr, "bench_placement: %s\n", pl_error_text());
        return pl_status_exit_code(status);
    }
    if (boxes_ms <= boxes_limit_ms && rank_ms <= rank_limit_ms) return 0;
    fprintf(stderr, "bench_placement: over the limit\n");
    return 1;
}
