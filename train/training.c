#include "train/training.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "common/memory.h"
#include "train/checkpointing.h"
#include "train/run_folder.h"
#include "train/value_source.h"

struct pl_training {
    pl_training_request request;
    pl_value_source values;
    pthread_mutex_t lock;      /* of the writer */
    pl_weights_writer *writer; /* made when the first rank has something to write */
    bool begun;                /* atomic: the ranks hold their values; nothing was written before */
    pl_recorder recorder;      /* rank 0's */
    bool recording;
    pl_training_result result; /* rank 0's, or that of the only rank of this process */
};

typedef struct rank_state {
    pl_training *training;
    const pl_setup *setup;
    pl_executor *executor;
    int64_t rank;
    int64_t step;  /* that is read, from 0 */
    bool held_out; /* validation data are read, from window `window` on */
    int64_t window;
    int64_t resumed; /* steps that were done before */
    int64_t tokens;  /* valid ones, of all steps */
    int64_t windows; /* training samples read before step `resumed` */
    int64_t nonce;   /* of temporary folders, as rank 0 told it */
    int64_t saved;   /* step of the latest checkpoint that was begun; -1: none */
    int64_t updates, not_finite;
    pl_checkpointing *checkpoints; /* NULL: there are none */
    bool said_empty;
    const char *stopped_by;
    pl_run_facts facts;
} rank_state;

static int64_t windows_of(const pl_setup *setup, int64_t rounds)
{
    const pl_shape *shape = &setup->settings.shape;
    return rounds * shape->intra_layer * shape->micro_batch * setup->layout.data_ranks;
}

/* Training samples read before this step. */
static int64_t windows_before(const rank_state *state)
{
    return state->windows + (state->step - state->resumed) *
                                windows_of(state->setup, state->setup->settings.shape.rounds);
}

/* --- what entries ask --- */

static pl_status load_batch(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    const rank_state *state = context;
    if (state->held_out)
        return pl_samples_load_in_order(state->setup->validate, state->window,
                                        state->setup->run.evaluate.windows, shape, data_index,
                                        data_ranks, batch);
    return pl_samples_load_from(state->setup->train, windows_before(state), shape, data_index,
                                data_ranks, batch);
}

static pl_status initial_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out)
{
    const rank_state *state = context;
    const pl_setup *setup = state->setup;
    if (setup->weights)
        return pl_weights_read(setup->weights, tensor, row_begin, row_end, dtype, out);
    if (setup->start)
        return pl_resume_weights(setup->start, tensor - setup->plan.model.tensors, row_begin,
                                 row_end, dtype, out);
    return pl_value_source_initial(&state->training->values, tensor, row_begin, row_end, dtype,
                                   out);
}

/* The writer of this process. */
static pl_status get_writer(pl_training *training, pl_weights_writer **out)
{
    pl_text path = {0};
    const pl_setup *setup = training->request.setup;
    pl_run_folder_path(&path, pl_text_string(&setup->folder), PL_RUN_FOLDER_WEIGHTS);
    pl_status status = pl_text_status(&path);
    pthread_mutex_lock(&training->lock);
    if (status == PL_OK && !training->writer)
        status = pl_weights_begin(&training->writer, pl_text_string(&path), &setup->model, PL_FP32);
    *out = training->writer;
    pthread_mutex_unlock(&training->lock);
    pl_text_free(&path);
    return status;
}

static pl_status write_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                              int64_t row_end, pl_dtype dtype, const void *values)
{
    const rank_state *state = context;
    pl_weights_writer *writer = NULL;
    PL_TRY(get_writer(state->training, &writer));
    return pl_weights_write(writer, tensor, row_begin, row_end, dtype, values);
}

static pl_status save_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    const rank_state *state = context;
    return pl_checkpointing_take(state->checkpoints, kind, tensor, row_begin, row_end, dtype,
                                 values);
}

/* The types are those of the checkpoint: pl_resume_check has seen to it. */
static pl_status load_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    const rank_state *state = context;
    (void)dtype;
    return pl_store_read(state->setup->resumed, kind, tensor - state->setup->plan.model.tensors,
                         row_begin, row_end, out);
}

/* What was written is on the disk before the control entry tells so to the others. */
static pl_status before_control(void *context, pl_program program)
{
    const rank_state *state = context;
    pl_weights_writer *writer = NULL;
    if (program == PL_PROGRAM_SAVE) return pl_checkpointing_taken(state->checkpoints);
    if (program != PL_PROGRAM_EXPORT) return PL_OK;
    PL_TRY(get_writer(state->training, &writer));
    return pl_weights_sync(writer);
}

/* --- signals --- */

static int signal_of(const rank_state *state)
{
    return (int)__atomic_load_n(state->training->request.program->signal, __ATOMIC_RELAXED);
}

/* What all ranks agreed to stop for. */
static const char *signal_name(const rank_state *state)
{
    switch (signal_of(state)) {
    case 0: return "a signal to another rank";
    case SIGINT: return "SIGINT";
    default: return "SIGTERM";
    }
}

/* --- rank 0's records --- */

static bool records(const rank_state *state) { return state->rank == 0; }

static pl_run_facts make_facts(const rank_state *state)
{
    const pl_training_request *request = &state->training->request;
    const pl_setup *setup = state->setup;
    const char *from = setup->resumed ? pl_store_reader_folder(setup->resumed) : NULL;
    return (pl_run_facts){.program = request->program,
                          .run = &setup->run,
                          .model = &setup->model,
                          .layout = &setup->layout,
                          .shape = &setup->settings.shape,
                          .backend = request->backend->functions->describe(request->backend),
                          .ranks = request->ranks,
                          .order = request->order == PL_ORDER_RANDOM ? "random" : "plan",
                          .entropy = setup->entropy,
                          .started = (int64_t)pl_wall_time(),
                          .resumed = from ? state->resumed : -1,
                          .from = from};
}

static pl_status open_checkpoints(rank_state *state)
{
    const pl_checkpointing_request request = {
        .setup = state->setup, .facts = &state->facts, .rank = state->rank};
    state->saved = state->setup->resumed ? state->resumed : -1;
    if (state->setup->run.checkpoint.every == 0) return PL_OK;
    return pl_checkpointing_open(&state->checkpoints, &request);
}

static pl_status open_records(rank_state *state)
{
    pl_training *training = state->training;
    const pl_setup *setup = state->setup;
    const char *folder = pl_text_string(&setup->folder);
    state->facts = make_facts(state);
    if (records(state)) PL_TRY(pl_run_folder_make(folder));
    PL_TRY(open_checkpoints(state)); /* locks the folder before anything in it changes */
    if (!records(state)) return PL_OK;
    PL_TRY(pl_run_folder_prepare(folder, &setup->run, setup->use));
    PL_TRY(pl_recorder_open(&training->recorder, training->request.console, folder, &state->facts,
                            setup->run.steps));
    training->recording = true;
    return PL_OK;
}

/* What a person should know about a step beyond its numbers. */
static pl_status remark(rank_state *state, const pl_program_result *result)
{
    pl_recorder *recorder = &state->training->recorder;
    char words[160];
    if (!records(state) || result->updated) return PL_OK;
    if (result->tokens == 0) {
        if (state->said_empty) return PL_OK;
        state->said_empty = true;
        return pl_recorder_note(recorder, state->step + 1,
                                "no token has a label: no update, and the loss counts as 0 (said "
                                "once)");
    }
    snprintf(words, sizeof words,
             "the norm of the gradients is %g: no update (%" PRId64 " updates in %" PRId64
             " steps)",
             result->norm, state->updates, state->step + 1);
    return pl_recorder_note(recorder, state->step + 1, words);
}

static pl_status record_step(rank_state *state, const pl_program_result *result, double lr,
                             double seconds)
{
    const pl_shape *shape = &state->setup->settings.shape;
    int64_t read = windows_of(state->setup, shape->rounds) * shape->sequence;
    if (!records(state)) return PL_OK;
    const pl_step_record record = {
        .step = state->step + 1,
        .tokens = result->tokens,
        .loss = result->tokens > 0 ? result->loss_sum / (double)result->tokens : 0,
        .balance_loss = result->balance_loss,
        .norm = result->norm,
        .clip = result->clip,
        .lr = lr,
        .seconds = seconds,
        .tokens_per_second = seconds > 0 ? (double)read / seconds : 0,
        .updated = result->updated};
    return pl_recorder_step(&state->training->recorder, &record, read);
}

/* --- programs --- */

static pl_program_input make_input(const rank_state *state, double lr)
{
    const pl_run *run = &state->setup->run;
    pl_program_input input = {.learning_rate = lr,
                              .weight_decay = run->optimizer.weight_decay,
                              .beta1 = run->optimizer.beta1,
                              .beta2 = run->optimizer.beta2,
                              .epsilon = run->optimizer.epsilon,
                              .update = state->updates + 1};
    input.flags[0] = signal_of(state) != 0;
    if (state->checkpoints) {
        input.flags[1] = pl_checkpointing_nonce(state->checkpoints);
        input.flags[3] = pl_checkpointing_is_writing(state->checkpoints);
    }
    return input;
}

/* --- checkpoints --- */

static bool saves(const rank_state *state)
{
    int64_t every = state->setup->run.checkpoint.every;
    if (!state->checkpoints || state->saved == state->step) return false;
    return state->step % every == 0 || state->step == state->setup->run.steps ||
           state->stopped_by != NULL;
}

static pl_status save(rank_state *state)
{
    const pl_manifest_progress progress = {.step = state->step,
                                           .updates = state->updates,
                                           .tokens = state->tokens,
                                           .windows = windows_before(state),
                                           .seed = state->setup->run.seed};
    pl_program_result result;
    PL_TRY(pl_checkpointing_begin(state->checkpoints, &progress, state->nonce));
    pl_executor_release_saved(state->executor);
    const pl_program_input input = make_input(state, 0);
    PL_TRY(pl_executor_run(state->executor, PL_PROGRAM_SAVE, &input, &result));
    state->saved = state->step;
    return pl_checkpointing_saved(state->checkpoints);
}

/* What all ranks agreed on at the end of a step: a signal, the names of folders, and whether a
 * checkpoint is written. */
static pl_status heed(rank_state *state, const pl_program_result *result)
{
    if (result->flags[0]) state->stopped_by = signal_name(state);
    state->nonce = result->flags[1];
    if (!state->checkpoints || result->flags[3]) return PL_OK;
    return pl_checkpointing_settle(state->checkpoints);
}

/* --- the course of a run --- */

static pl_status run_step(rank_state *state)
{
    double lr = pl_learning_rate_at(&state->setup->rate, state->step), began = pl_now();
    const pl_program_input input = make_input(state, lr);
    pl_program_result result;
    PL_TRY(pl_executor_run(state->executor, PL_PROGRAM_STEP, &input, &result));
    state->updates += result.updated;
    state->tokens += result.tokens;
    state->not_finite += !result.updated && result.tokens > 0;
    PL_TRY(record_step(state, &result, lr, pl_now() - began));
    PL_TRY(remark(state, &result));
    return heed(state, &result);
}

/* The mean loss of the first evaluate.windows windows of the validation data, or of all. A signal
 * stops it. */
static pl_status evaluate(rank_state *state)
{
    const pl_setup *setup = state->setup;
    pl_evaluation_record record = {.step = state->step};
    double began = pl_now(), sum = 0;
    int64_t wanted = setup->run.evaluate.windows, there = pl_samples_count(setup->validate);
    record.windows = wanted < there ? wanted : there;
    state->held_out = true;
    for (state->window = 0; state->window < record.windows; state->window += windows_of(setup, 1)) {
        const pl_program_input input = make_input(state, 0);
        pl_program_result result;
        PL_TRY(pl_executor_run(state->executor, PL_PROGRAM_EVALUATE, &input, &result));
        sum += result.loss_sum;
        record.tokens += result.tokens;
        if (!result.flags[0]) continue;
        state->stopped_by = signal_name(state); /* a part of the windows is no evaluation */
        break;
    }
    state->held_out = false;
    if (!records(state) || state->stopped_by) return PL_OK;
    record.loss = record.tokens > 0 ? sum / (double)record.tokens : 0;
    record.seconds = pl_now() - began;
    return pl_recorder_evaluation(&state->training->recorder, &record);
}

static pl_status run_steps(rank_state *state)
{
    const pl_run *run = &state->setup->run;
    int64_t every = run->evaluate.every;
    while (state->step < run->steps && !state->stopped_by) {
        PL_TRY(run_step(state));
        ++state->step;
        bool due = state->step == run->steps || (every > 0 && state->step % every == 0);
        if (state->setup->validate && due && !state->stopped_by) PL_TRY(evaluate(state));
        if (saves(state)) PL_TRY(save(state));
    }
    return PL_OK;
}

/* Weights of all ranks; complete on the disk when this returns on rank 0. */
static pl_status write_weights(rank_state *state)
{
    if (state->checkpoints) PL_TRY(pl_checkpointing_wait(state->checkpoints));
    const pl_program_input input = make_input(state, 0);
    pl_program_result result;
    PL_TRY(pl_executor_run(state->executor, PL_PROGRAM_EXPORT, &input, &result));
    if (state->checkpoints) PL_TRY(pl_checkpointing_end(state->checkpoints));
    if (!records(state)) return PL_OK;
    pl_weights_writer *writer = NULL;
    PL_TRY(get_writer(state->training, &writer));
    PL_TRY(pl_weights_finish(writer));
    pl_text path = {0};
    pl_run_folder_path(&path, pl_text_string(&state->setup->folder), PL_RUN_FOLDER_WEIGHTS);
    const pl_end_record end = {.reason = state->stopped_by ? "signal" : "complete",
                               .step = state->step,
                               .updates = state->updates,
                               .weights = pl_text_string(&path)};
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = pl_recorder_end(&state->training->recorder, &end);
    pl_text_free(&path);
    return status;
}

/* What a failed run has written of them. */
static void discard_weights(pl_training *training)
{
    pthread_mutex_lock(&training->lock);
    if (training->writer) pl_weights_discard(training->writer);
    pthread_mutex_unlock(&training->lock);
}

static pl_status run_programs(rank_state *state)
{
    pl_training *training = state->training;
    bool resumed = state->setup->resumed != NULL;
    const pl_program_input input = make_input(state, 0);
    pl_program_result result;
    PL_TRY(pl_executor_run(state->executor, resumed ? PL_PROGRAM_LOAD : PL_PROGRAM_START, &input,
                           &result));
    __atomic_store_n(&training->begun, true, __ATOMIC_RELAXED);
    PL_TRY(open_records(state));
    PL_TRY(run_steps(state));
    if (records(state) && state->stopped_by) {
        char words[80];
        snprintf(words, sizeof words, "stopped by %s; the weights are written%s", state->stopped_by,
                 state->checkpoints ? ", and a checkpoint" : "");
        PL_TRY(pl_recorder_note(&training->recorder, state->step, words));
    }
    PL_TRY(write_weights(state));
    if (state->rank == 0)
        training->result = (pl_training_result){.steps = state->step,
                                                .updates = state->updates,
                                                .not_finite = state->not_finite,
                                                .stopped_by = state->stopped_by};
    return PL_OK;
}

static rank_state make_state(pl_training *training, int64_t rank)
{
    rank_state state = {.training = training, .setup = training->request.setup, .rank = rank};
    if (!state.setup->resumed) return state;
    const pl_manifest_progress *done = &pl_store_reader_manifest(state.setup->resumed)->progress;
    state.step = state.resumed = done->step;
    state.updates = done->updates;
    state.tokens = done->tokens;
    state.windows = done->windows;
    return state;
}

pl_status pl_training_rank(void *context, int64_t rank, int64_t local, pl_process_group *world)
{
    pl_training *training = context;
    const pl_training_request *request = &training->request;
    pl_backend *backend = request->backend;
    rank_state state = make_state(training, rank);
    pl_device *device = NULL;
    pl_status status = backend->functions->open_device(backend, &device, rank, local);
    if (status == PL_OK) {
        const pl_executor_options options = {.plan = &request->setup->plan,
                                             .world = world,
                                             .device = device,
                                             .outside = {.context = &state,
                                                         .load_batch = load_batch,
                                                         .initial_values = initial_values,
                                                         .write_values = write_values,
                                                         .save_values = save_values,
                                                         .load_values = load_values,
                                                         .before_control = before_control},
                                             .order = request->order,
                                             .order_seed = request->order_seed + (uint64_t)rank,
                                             .keeps_saved =
                                                 pl_checkpointing_is_behind(&request->setup->run)};
        status = pl_executor_open(&state.executor, &options);
    }
    if (status == PL_OK) status = run_programs(&state);
    if (status != PL_OK) {
        discard_weights(training);
        pl_process_group_fail(world, status, pl_error_text());
    }
    pl_checkpointing_close(state.checkpoints);
    pl_executor_close(state.executor);
    if (device) device->functions->close(device);
    return status;
}

/* --- the whole --- */

pl_status pl_training_open(pl_training **out, const pl_training_request *request)
{
    pl_training *training = NULL;
    PL_TRY(pl_allocate(&training, 1, sizeof *training, "a run"));
    training->request = *request;
    training->values =
        (pl_value_source){.seed = request->setup->run.seed,
                          .initializer_range = request->setup->model.initializer_range};
    if (pthread_mutex_init(&training->lock, NULL) != 0) {
        pl_free(training);
        return PL_FAIL(PL_NO_MEMORY, "no lock for the weights' writer");
    }
    *out = training;
    return PL_OK;
}

bool pl_training_begun(const pl_training *training)
{
    return __atomic_load_n(&training->begun, __ATOMIC_RELAXED);
}

pl_training_result pl_training_end(const pl_training *training) { return training->result; }

pl_recorder *pl_training_recorder(pl_training *training)
{
    return training->recording ? &training->recorder : NULL;
}

pl_status pl_training_free(pl_training *training)
{
    if (!training) return PL_OK;
    pl_status status = pl_recorder_close(&training->recorder);
    pl_weights_writer_close(training->writer);
    pthread_mutex_destroy(&training->lock);
    pl_free(training);
    return status;
}
