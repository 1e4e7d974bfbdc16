#include "tests/train/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/initial_values.h"
#include "common/memory.h"
#include "common/placement.h"
#include "kernels/cpu/cpu.h"

enum { ARRAYS = 5 }; /* sums, gradients, weights, m, v */

typedef struct shared {
    const trial *t;
    const pl_plan *plan;
    pl_process_group **groups;
    pl_backend *backend;
    pthread_mutex_t lock;
    trial_result *result;
    char **seen[ARRAYS]; /* [tensors]: elements that some rank has put: in that order */
} shared;

typedef struct member {
    shared *all;
    int64_t rank, step;
    pl_status status;
    char words[4096];
    pl_program_result *steps;
} member;

pl_settings trial_settings(int64_t sequence, int64_t micro, int64_t intra_layer, int64_t rounds)
{
    pl_settings settings = pl_settings_default();
    settings.precision = (pl_precision){PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    settings.shape = (pl_shape){sequence, micro, intra_layer, rounds};
    settings.balance = PL_BALANCE_NONE;
    return settings;
}

double trial_distance(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; ++i) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    if (difference == 0) return 0;
    return sqrt(difference) / sqrt(size);
}

/* --- what entries ask --- */

static pl_status load_batch(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    const member *m = context;
    const trial *t = m->all->t;
    int64_t tokens = shape->micro_batch * shape->sequence;
    if (t->before_load) PL_TRY(t->before_load(t->rank_context, m->rank, m->step));
    for (int64_t i = 0; i < shape->rounds * shape->intra_layer; ++i) {
        for (int64_t p = 0; p < shape->micro_batch; ++p) {
            int64_t number = (i * data_ranks + data_index) * shape->micro_batch + p;
            int32_t *into = batch + 2 * i * tokens + p * shape->sequence;
            t->sample(t->context, m->step, number, shape->sequence, into, into + tokens);
        }
    }
    return PL_OK;
}

static pl_status initial_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out)
{
    const member *m = context;
    const trial *t = m->all->t;
    if (dtype != PL_FP32) return PL_FAIL(PL_INTERNAL, "these trials hold fp32 only");
    if (t->values) return t->values(t->context, tensor, row_begin, row_end, out);
    return pl_initial_values(out, t->seed, tensor, t->model->initializer_range, row_begin, row_end);
}

/* --- gathering --- */

/* The buffer of SECTION that holds KIND of the part of TENSOR; -1: none. */
static int64_t find_buffer(const pl_section *section, const pl_tensor *tensor, pl_buffer_kind kind)
{
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        bool layer = tensor->layer >= 0;
        if (buffer->kind != kind || buffer->layer != tensor->layer) continue;
        pl_subject subject = layer && tensor->role == PL_TENSOR_ROUTED ? PL_SUBJECT_EXPERTS
                             : layer                                   ? PL_SUBJECT_LAYER
                             : tensor->role == PL_TENSOR_EMBEDDING     ? PL_SUBJECT_EMBEDDING
                             : tensor->role == PL_TENSOR_HEAD          ? PL_SUBJECT_HEAD
                                                                       : PL_SUBJECT_NORM;
        if (buffer->subject == subject) return (int64_t)i;
    }
    return -1;
}

/* Put this rank's rows of TENSOR into the whole array INTO, comparing what others put there. */
static void put(shared *all, float *into, char *seen, const float *values, int64_t count)
{
    pthread_mutex_lock(&all->lock);
    for (int64_t i = 0; i < count; ++i) {
        if (seen[i] && memcmp(&into[i], &values[i], sizeof *values) != 0)
            ++all->result->disagreements;
        into[i] = values[i];
        seen[i] = 1;
    }
    pthread_mutex_unlock(&all->lock);
}

static pl_status collect_tensor(member *m, pl_executor *executor, const pl_section *section,
                                int64_t number, pl_buffer_kind kind, float *into, char *seen)
{
    const pl_tensor *tensor = &m->all->plan->model.tensors[number];
    pl_tensor_place place;
    int64_t buffer = find_buffer(section, tensor, kind);
    if (buffer < 0 || !pl_executor_tensor_place(executor, kind, number, &place)) return PL_OK;
    int64_t bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)buffer);
    if (bytes < 0 || place.row_end == place.row_begin) return PL_OK;
    if (place.dtype != PL_FP32) return PL_FAIL(PL_INTERNAL, "gradients and masters are fp32");
    char *copy = NULL;
    PL_TRY(pl_allocate(&copy, (size_t)bytes, 1, "copy of a buffer"));
    pl_status status = pl_executor_read(executor, section, (uint32_t)buffer, copy, bytes);
    int64_t first = place.row_begin * tensor->cols;
    int64_t count = (place.row_end - place.row_begin) * tensor->cols;
    if (status == PL_OK)
        put(m->all, into + first, seen + first, (const float *)(const void *)(copy + place.offset),
            count);
    pl_free(copy);
    return status;
}

/* Whole arrays of every trained tensor from buffers of KIND, or IGNORED_KIND where it is ignored.
 */
static pl_status collect(member *m, pl_executor *executor, const pl_section *section,
                         pl_buffer_kind kind, pl_buffer_kind ignored_kind, float **into,
                         char **seen)
{
    const pl_model *model = &m->all->plan->model;
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        if (tensor->frozen) continue;
        pl_buffer_kind from = tensor->class_ == PL_CLASS_IGNORED ? ignored_kind : kind;
        PL_TRY(collect_tensor(m, executor, section, i, from, into[i], seen[i]));
    }
    return PL_OK;
}

static pl_status before_entry(void *context, pl_executor *executor, const pl_section *section,
                              int64_t index)
{
    member *m = context;
    const trial *t = m->all->t;
    const pl_entry *entry = &section->entries[index];
    bool step = section->program == PL_PROGRAM_STEP;
    if (t->watch && (step || t->watch_start))
        PL_TRY(t->watch(t->watch_context, m->rank, m->step, executor, section, index));
    if (!step || m->step != 0) return PL_OK;
    if (entry->name.operation == PL_OP_SCALE)
        return collect(m, executor, section, PL_BUF_GRADIENT, PL_BUF_IGNORED_GRADIENT,
                       m->all->result->sum_gradient, m->all->seen[0]);
    if (entry->name.operation == PL_OP_STEP)
        return collect(m, executor, section, PL_BUF_GRADIENT, PL_BUF_IGNORED_GRADIENT,
                       m->all->result->gradient, m->all->seen[1]);
    return PL_OK;
}

/* --- ranks --- */

static pl_status run_steps(member *m, pl_executor *executor)
{
    const trial *t = m->all->t;
    pl_program_input input = t->input;
    pl_program_result ignored;
    int64_t updates = 0;
    PL_TRY(pl_executor_run(executor, PL_PROGRAM_START, &input, &ignored));
    for (m->step = 0; m->step < t->steps; ++m->step) {
        input.update = updates + 1;
        PL_TRY(pl_executor_run(executor, PL_PROGRAM_STEP, &input, &m->steps[m->step]));
        updates += m->steps[m->step].updated;
    }
    const pl_section *section = pl_plan_section(m->all->plan, PL_PROGRAM_STEP, m->rank);
    bool masters = m->all->plan->settings.precision.gather != PL_FP32;
    PL_TRY(collect(m, executor, section, masters ? PL_BUF_MASTER : PL_BUF_PARAMETER, PL_BUF_IGNORED,
                   m->all->result->weight, m->all->seen[2]));
    PL_TRY(collect(m, executor, section, PL_BUF_ADAM_M, PL_BUF_IGNORED_M, m->all->result->moment[0],
                   m->all->seen[3]));
    PL_TRY(collect(m, executor, section, PL_BUF_ADAM_V, PL_BUF_IGNORED_V, m->all->result->moment[1],
                   m->all->seen[4]));
    m->all->result->memory[m->rank] = pl_executor_memory(executor);
    return PL_OK;
}

static pl_status open_executor(member *m, pl_device **device, pl_executor **executor)
{
    const shared *all = m->all;
    const trial *t = all->t;
    pl_process_group *world = all->groups[m->rank];
    PL_TRY(all->backend->functions->open_device(all->backend, device, m->rank, m->rank));
    const pl_call_log *log = t->log ? t->log(t->log_context, m->rank) : NULL;
    pl_process_group_set_log(world, log);
    if (t->wrap_device) *device = t->wrap_device(t->wrap_context, m->rank, *device);
    if (t->wrap_world) world = t->wrap_world(t->wrap_context, m->rank, world);
    (*device)->log = log;
    pl_executor_options options = {.plan = all->plan,
                                   .world = world,
                                   .device = *device,
                                   .order = t->order,
                                   .order_seed = t->order_seed + (uint64_t)m->rank};
    options.outside.context = m;
    options.outside.load_batch = load_batch;
    options.outside.initial_values = initial_values;
    options.outside.before_entry = before_entry;
    return pl_executor_open(executor, &options);
}

static pl_status run_member(member *m)
{
    const shared *all = m->all;
    pl_device *device = NULL;
    pl_executor *executor = NULL;
    pl_status status = open_executor(m, &device, &executor);
    if (status == PL_OK) status = run_steps(m, executor);
    if (status != PL_OK) {
        snprintf(m->words, sizeof m->words, "%s", pl_error_text());
        pl_process_group_fail(all->groups[m->rank], status, m->words);
    }
    pl_executor_close(executor);
    if (device) device->functions->close(device);
    if (all->t->ended) all->t->ended(all->t->rank_context, m->rank, status, m->words);
    return status;
}

static void *member_main(void *argument)
{
    member *m = argument;
    m->status = run_member(m);
    return NULL;
}

static void join_results(const shared *all, member *members, int64_t world)
{
    trial_result *result = all->result;
    for (int64_t r = 0; r < world; ++r) {
        bool caused = members[r].status != PL_OK && members[r].status != PL_PEER_FAILED;
        if (caused || (members[r].status != PL_OK && result->status == PL_OK)) {
            if (result->status != PL_OK && result->status != PL_PEER_FAILED) continue;
            result->status = members[r].status;
            memcpy(result->words, members[r].words, sizeof result->words);
        }
    }
    for (int64_t r = 1; r < world && result->status == PL_OK; ++r)
        for (int64_t s = 0; s < all->t->steps; ++s) {
            const pl_program_result *a = &members[0].steps[s], *b = &members[r].steps[s];
            result->disagreements += a->loss_sum != b->loss_sum || a->norm != b->norm ||
                                     a->clip != b->clip || a->tokens != b->tokens ||
                                     a->balance_loss != b->balance_loss;
        }
    memcpy(result->steps, members[0].steps, (size_t)all->t->steps * sizeof *result->steps);
    for (int64_t i = 0; i < result->tensors && result->status == PL_OK; ++i) {
        const pl_tensor *tensor = &all->plan->model.tensors[i];
        for (int64_t j = 0; !tensor->frozen && j < pl_tensor_elements(tensor); ++j)
            result->unseen += !all->seen[2][i][j];
    }
}

static pl_status run_threads(shared *all, int64_t world)
{
    member *members = calloc((size_t)world, sizeof *members);
    pthread_t *threads = calloc((size_t)world, sizeof *threads);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int64_t r = 0; r < world; ++r) {
        members[r].all = all;
        members[r].rank = r;
        members[r].steps = calloc((size_t)all->t->steps + 1, sizeof *members[r].steps);
        if (pthread_create(&threads[r], NULL, member_main, &members[r]) != 0) abort();
    }
    for (int64_t r = 0; r < world; ++r) pthread_join(threads[r], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    all->result->seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    join_results(all, members, world);
    for (int64_t r = 0; r < world; ++r) free(members[r].steps);
    free(members);
    free(threads);
    return PL_OK;
}

/* --- the plan --- */

static pl_status edit_plan(const trial *t, pl_plan *plan)
{
    pl_text text = {0};
    pl_plan_write(&text, plan, -1);
    pl_status status = pl_text_status(&text);
    const char *given = t->plan_text ? t->plan_text : pl_text_string(&text);
    const char *edited = t->edit ? t->edit(given) : given;
    pl_plan changed;
    if (status == PL_OK) status = pl_plan_read(&changed, edited, "edited plan");
    if (t->edit) free((void *)(uintptr_t)edited);
    pl_text_free(&text);
    if (status != PL_OK) return status;
    pl_plan_free(plan);
    *plan = changed;
    return PL_OK;
}

static pl_status make_plan(const trial *t, pl_plan *plan)
{
    pl_plan_request request = {.model = t->model,
                               .settings = t->settings,
                               .keep_fp32 = t->keep_fp32,
                               .frozen = t->frozen,
                               .keep_fp32_count = t->keep_fp32_count,
                               .frozen_count = t->frozen_count};
    PL_TRY(pl_layout_parse(&request.layout, t->layout));
    PL_TRY(pl_plan_build(plan, &request));
    if (!t->edit && !t->plan_text) return PL_OK;
    pl_status status = edit_plan(t, plan);
    if (status != PL_OK) pl_plan_free(plan);
    return status;
}

static void make_arrays(shared *all, trial_result *result)
{
    const pl_model *model = &all->plan->model;
    size_t tensors = (size_t)model->tensor_count;
    float ***arrays[ARRAYS] = {&result->sum_gradient, &result->gradient, &result->weight,
                               &result->moment[0], &result->moment[1]};
    result->tensors = model->tensor_count;
    for (int i = 0; i < ARRAYS; ++i) {
        *arrays[i] = calloc(tensors, sizeof(float *));
        all->seen[i] = calloc(tensors, sizeof(char *));
        for (size_t j = 0; j < tensors; ++j) {
            size_t count = (size_t)pl_tensor_elements(&model->tensors[j]);
            (*arrays[i])[j] = malloc(count * sizeof(float));
            memset((*arrays[i])[j], 0xFF, count * sizeof(float));
            all->seen[i][j] = calloc(count, 1);
        }
    }
}

static void free_marks(shared *all)
{
    for (int i = 0; i < ARRAYS; ++i) {
        for (int64_t j = 0; j < all->result->tensors; ++j) free(all->seen[i][j]);
        free(all->seen[i]);
    }
}

static pl_status run_plan(const trial *t, const pl_plan *plan, trial_result *result)
{
    shared all = {.t = t, .plan = plan, .result = result};
    size_t world = (size_t)plan->layout.world;
    result->world = plan->layout.world;
    make_arrays(&all, result);
    result->steps = calloc((size_t)t->steps + 1, sizeof *result->steps);
    result->memory = calloc(world, sizeof *result->memory);
    all.groups = calloc(world, sizeof *all.groups);
    pthread_mutex_init(&all.lock, NULL);
    pl_status status = pl_backend_cpu_open(&all.backend, t->workers > 0 ? t->workers : 1);
    if (status == PL_OK)
        status = pl_group_threads_open(all.groups, plan->layout.world,
                                       t->timeout > 0 ? t->timeout : 120);
    if (status == PL_OK) status = run_threads(&all, plan->layout.world);
    for (size_t r = 0; r < world; ++r) pl_process_group_close(all.groups[r]);
    if (all.backend) all.backend->functions->close(all.backend);
    pthread_mutex_destroy(&all.lock);
    free(all.groups);
    free_marks(&all);
    return status;
}

trial_result trial_run(const trial *t)
{
    trial_result result = {0};
    pl_plan plan;
    pl_status status = make_plan(t, &plan);
    if (status == PL_OK) {
        status = run_plan(t, &plan, &result);
        pl_plan_free(&plan);
    }
    if (status != PL_OK) {
        result.status = status;
        snprintf(result.words, sizeof result.words, "%s", pl_error_text());
    }
    return result;
}

void trial_free(trial_result *result)
{
    float **arrays[ARRAYS] = {result->sum_gradient, result->gradient, result->weight,
                              result->moment[0], result->moment[1]};
    for (int i = 0; i < ARRAYS; ++i) {
        for (int64_t j = 0; j < result->tensors; ++j) free(arrays[i][j]);
        free(arrays[i]);
    }
    free(result->steps);
    free(result->memory);
    *result = (trial_result){0};
}
