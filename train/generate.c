#include "train/generate.h"

#include <math.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor.h"
#include "train/memory_need.h"
#include "train/ranks.h"
#include "train/recorder.h"
#include "train/samples.h"

/* Shared by the ranks. Rank 0 appends to `tokens` before the control entry of each program, the
 * others read it after that: each place is written once, so the collective orders them. */
typedef struct generation {
    const pl_generate_request *request;
    const pl_plan *plan;
    int32_t *tokens;     /* prompt, then what was drawn */
    int64_t prompt, end; /* how many there are of the prompt; of all, once rank 0 is done */
    pl_sampler sampler;  /* rank 0's */
    double began;
} generation;

typedef struct reader {
    generation *g;
    int64_t rank;
    int64_t length; /* of the tokens that this rank knows */
} reader;

/* --- what entries ask --- */

/* The latest tokens, from the first row on; what follows them is not looked at by causal
 * attention. */
static pl_status load_batch(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    const reader *r = context;
    int64_t seen = r->length < shape->sequence ? r->length : shape->sequence;
    (void)data_index;
    (void)data_ranks;
    for (int64_t i = 0; i < shape->sequence; ++i) {
        batch[i] = i < seen ? r->g->tokens[r->length - seen + i] : 0;
        batch[shape->sequence + i] = -1;
    }
    return PL_OK;
}

static pl_status initial_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out)
{
    const reader *r = context;
    return pl_weights_read(r->g->request->weights, tensor, row_begin, row_end, dtype, out);
}

static pl_status sample(void *context, const float *logits, int64_t vocabulary)
{
    reader *r = context;
    int64_t token = 0;
    int64_t choices = vocabulary < PL_BYTE_TOKENS ? vocabulary : PL_BYTE_TOKENS;
    if (r->rank != 0) return PL_OK;
    for (int64_t i = 0; i < choices; ++i)
        if (isnan(logits[i]))
            return PL_FAIL(PL_BAD_INPUT,
                           "the model's logits are not numbers: neither are all of its weights, or "
                           "they are far too large");
    PL_TRY(pl_sampler_choose(&r->g->sampler, logits, choices, &token));
    r->g->tokens[r->length] = (int32_t)token;
    return PL_OK;
}

/* --- ranks --- */

/* Rank 0 says so to all by the flag `stop`, a program later: the others cannot know its clock. */
static bool out_of_time(const reader *r)
{
    const pl_generate_request *request = r->g->request;
    return r->rank == 0 && request->seconds > 0 && pl_now() - r->g->began > request->seconds;
}

static pl_status draw_tokens(reader *r, pl_executor *executor)
{
    const pl_generate_request *request = r->g->request;
    pl_program_input input = {.update = 1};
    pl_program_result result;
    PL_TRY(pl_executor_run(executor, PL_PROGRAM_START, &input, &result));
    for (int64_t done = 1; done <= request->count; ++done) {
        int64_t seen = r->length < request->context ? r->length : request->context;
        input.position = seen - 1;
        input.flags[0] = out_of_time(r);
        PL_TRY(pl_executor_run(executor, PL_PROGRAM_GENERATE, &input, &result));
        int32_t token = r->g->tokens[r->length++];
        if (r->rank == 0 && request->progress)
            request->progress(request->progress_context, done, request->count);
        if (token == PL_END_OF_DOCUMENT || result.flags[0]) break;
    }
    return PL_OK;
}

static pl_status run_rank(void *context, int64_t rank, int64_t local, pl_process_group *world)
{
    generation *g = context;
    pl_backend *backend = g->request->backend;
    reader r = {.g = g, .rank = rank, .length = g->prompt};
    pl_device *device = NULL;
    pl_executor *executor = NULL;
    pl_status status = backend->functions->open_device(backend, &device, rank, local);
    if (status == PL_OK) {
        const pl_executor_options options = {.plan = g->plan,
                                             .world = world,
                                             .device = device,
                                             .outside = {.context = &r,
                                                         .load_batch = load_batch,
                                                         .initial_values = initial_values,
                                                         .sample = sample}};
        status = pl_executor_open(&executor, &options);
    }
    if (status == PL_OK) status = draw_tokens(&r, executor);
    if (status != PL_OK) pl_process_group_fail(world, status, pl_error_text());
    if (status == PL_OK && rank == 0) g->end = r.length;
    pl_executor_close(executor);
    if (device) device->functions->close(device);
    return status;
}

/* --- the whole --- */

static pl_status make_plan(pl_plan *plan, const pl_generate_request *request)
{
    pl_plan_request wanted = {.model = request->model,
                              .layout = *request->layout,
                              .settings = pl_settings_default(),
                              .programs = PL_PROGRAMS_START | PL_PROGRAMS_GENERATE};
    wanted.settings.precision = (pl_precision){PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    wanted.settings.shape = (pl_shape){request->context, 1, 1, 1};
    wanted.settings.balance = PL_BALANCE_NONE;
    wanted.settings.optimizer = PL_OPTIMIZER_SGD; /* which holds no moments */
    return pl_plan_build(plan, &wanted);
}

static pl_status run_ranks(generation *g)
{
    pl_ranks ranks = {0};
    const pl_generate_request *request = g->request;
    pl_status status = pl_ranks_make_world(&ranks, request->layout->world, request->timeout, NULL);
    if (status == PL_OK) status = pl_ranks_run(&ranks, run_rank, g);
    return pl_ranks_close(&ranks, status, true);
}

static pl_status put_prompt(generation *g)
{
    const pl_generate_request *request = g->request;
    int64_t most = 0;
    PL_TRY(pl_add(&most, (int64_t)request->prompt_bytes + 1, request->count, "tokens"));
    PL_TRY(pl_allocate(&g->tokens, (size_t)most, sizeof *g->tokens, "the tokens of a sample"));
    for (size_t i = 0; i < request->prompt_bytes; ++i)
        g->tokens[g->prompt++] = (unsigned char)request->prompt[i];
    if (g->prompt == 0) g->tokens[g->prompt++] = PL_END_OF_DOCUMENT;
    return PL_OK;
}

pl_status pl_generate(pl_text *text, const pl_generate_request *request)
{
    generation g = {.request = request, .sampler = request->sampler, .began = pl_now()};
    pl_plan plan;
    PL_TRY(make_plan(&plan, request));
    g.plan = &plan;
    const int64_t world = request->layout->world;
    pl_status status = pl_memory_require(&plan, false, 0, world, 1, pl_memory_available());
    if (status == PL_OK) status = put_prompt(&g);
    int64_t first = g.prompt;
    if (status == PL_OK) status = run_ranks(&g);
    for (int64_t i = first; status == PL_OK && i < g.end; ++i) {
        char byte = (char)(unsigned char)g.tokens[i];
        if (g.tokens[i] < PL_END_OF_DOCUMENT) pl_text_add_bytes(text, &byte, 1);
    }
    if (status == PL_OK) status = pl_text_status(text);
    pl_free(g.tokens);
    pl_plan_free(&plan);
    return status;
}
