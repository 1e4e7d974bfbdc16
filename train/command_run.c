/* pleat-train run: train what a run file describes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"
#include "kernels/cpu/processors.h"
#include "train/backends.h"
#include "train/checkpointing.h"
#include "train/command.h"
#include "train/final_sample.h"
#include "train/memory_need.h"
#include "train/training.h"

enum { SET, OUTPUT, OVERWRITE, RESUME, FROM, PLAN, ORDER, QUIET, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [SET] = {"--set", "KEY=VALUE", "a key of the run file, as below; may be given again", true},
    [OUTPUT] = {"--output", "FOLDER", "where the run goes; runs/NAME of NAME.yaml without", false},
    [OVERWRITE] = {"--overwrite", NULL, "replace the run in that folder", false},
    [RESUME] = {"--resume", NULL, "go on with the run in that folder from its newest checkpoint",
                false},
    [FROM] = {"--resume-from", "CHECKPOINT",
              "go on from that checkpoint, of any layout, in a folder of its own", false},
    [PLAN] = {"--plan", "FILE", "carry out the plan in FILE instead of making one", false},
    [ORDER] = {"--order", "random:SEED", "run entries in a random order that the plan allows",
               false},
    [QUIET] = {"--quiet", NULL, "print nothing but what went wrong", false},
    [JSON] = {"--json", NULL, "print the lines of run.jsonl", false}};

static const pl_command_usage run_usage = {
    .program = "pleat-train",
    .command = "run",
    .forms = "RUN.yaml [OPTION...]",
    .about =
        "Trains the model of RUN.yaml under its layout. The ranks are threads of this process;\n"
        "started by mpirun with as many processes as the layout has ranks, each process is one\n"
        "of them. 'pleat-sim check RUN.yaml' proves beforehand what is run here.\n\n"
        "The output folder gets run.yaml (all settings), run.jsonl (a line a step), an event file\n"
        "for TensorBoard, and at the end weights/ (config.json and model.safetensors, as Hugging\n"
        "Face has them). SIGINT or SIGTERM end the run after the step, with its weights; a second\n"
        "one ends it at once. With --overwrite, earlier weights stay until new ones are "
        "complete.\n\n"
        "With checkpoint.every, checkpoints/ gets a checkpoint every so many steps, at the end "
        "and\n"
        "on a signal; --resume goes on from the newest, --resume-from from any other, also under\n"
        "another layout or with another number of processes.",
    .examples =
        "pleat-train run examples/licenses.yaml\n"
        "pleat-train run examples/licenses.yaml --set layout=folded:world=4,ep=2 --set steps=20\n"
        "pleat-train run examples/licenses.yaml --output runs/long --set checkpoint.every=50\n"
        "mpirun -np 8 pleat-train run examples/licenses.yaml --output runs/mpi",
    .options = options,
    .option_count = OPTIONS,
    .run_file_keys = true};

typedef struct run_options {
    pl_setup_request request;
    const char **settings; /* owned */
    bool quiet, json, random;
    uint64_t order_seed;
} run_options;

/* --- arguments --- */

static pl_status take_order(run_options *o, const char *value)
{
    static const char lead[] = "random:";
    int64_t seed = 0;
    if (strncmp(value, lead, sizeof lead - 1) != 0 ||
        !pl_parse_integer(&seed, value + sizeof lead - 1) || seed < 0)
        return pl_command_refuse(&run_usage,
                                 "--order: random:SEED is meant, such as random:1, not ", value);
    o->random = true;
    o->order_seed = (uint64_t)seed;
    return PL_OK;
}

static pl_status take(void *context, int option, const char *value)
{
    run_options *o = context;
    switch (option) {
    case SET: o->settings[o->request.setting_count++] = value; return PL_OK;
    case OUTPUT: o->request.output = value; return PL_OK;
    case OVERWRITE: o->request.overwrite = true; return PL_OK;
    case RESUME: o->request.resume = true; return PL_OK;
    case FROM: o->request.from = value; return PL_OK;
    case PLAN: o->request.plan = value; return PL_OK;
    case ORDER: return take_order(o, value);
    case QUIET: o->quiet = true; return PL_OK;
    case JSON: o->json = true; return PL_OK;
    default: break;
    }
    if (o->request.file)
        return pl_command_refuse(&run_usage, "one run file is meant, so this is too much: ", value);
    o->request.file = value;
    return PL_OK;
}

static pl_status check_options(const run_options *o)
{
    const pl_setup_request *r = &o->request;
    if (r->resume && (r->overwrite || r->from))
        return pl_command_refuse(&run_usage, "--resume goes on with a run as it is, so not with ",
                                 r->from ? "--resume-from" : "--overwrite");
    return PL_OK;
}

/* --- the run --- */

/* All that a process holds while it trains. */
typedef struct job {
    pl_ranks ranks;
    pl_setup setup;
    pl_backend *backend;
    pl_training *training;
    pl_console console;
} job;

/* The processes of a job on one machine share its processors. */
static int64_t workers_of(const job *j)
{
    int64_t wanted = j->setup.run.workers;
    if (wanted > 0 || j->ranks.neighbours < 2) return wanted;
    int64_t share = pl_cpu_processors() / j->ranks.neighbours;
    return share > 1 ? share : 1;
}

/* Look at everything on this process. */
static pl_status look(job *j, const run_options *o, const pl_program_facts *program)
{
    PL_TRY(pl_setup_open(&j->setup, &o->request));
    const pl_run *run = &j->setup.run;
    PL_TRY(pl_ranks_make_world(&j->ranks, j->setup.layout.world, run->timeout, program->signal));
    pl_status status = pl_backends_open(&j->backend, run->backend, workers_of(j));
    if (status != PL_OK) return pl_run_blame(run, "backend", status);
    if (strcmp(j->backend->functions->name, "cpu") != 0) return PL_OK;
    return pl_memory_require(&j->setup.plan, pl_checkpointing_is_behind(run), j->ranks.process,
                             j->ranks.count, j->ranks.neighbours, pl_memory_available());
}

static void announce(job *j)
{
    const pl_setup *setup = &j->setup;
    const pl_shape *shape = &setup->settings.shape;
    char notation[PL_LAYOUT_TEXT], tokens[32];
    pl_console *console = &j->console;
    pl_console_say(console, "%s under %s: %" PRId64 " %s", setup->model.name,
                   pl_layout_format(&setup->layout, notation), setup->layout.world,
                   setup->layout.world == 1 ? "rank"
                   : j->ranks.count > 1     ? "ranks, threads of one process"
                                            : "ranks, a process each");
    pl_console_say(console, "%s", j->backend->functions->describe(j->backend));
    if (setup->resumed)
        pl_console_say(console, "goes on from %s", pl_store_reader_folder(setup->resumed));
    pl_console_show(console, pl_text_string(&setup->remark));
    pl_console_say(console,
                   "sequence %" PRId64 ", global batch %" PRId64 " (micro-batch %" PRId64
                   ", M %" PRId64 ", rounds %" PRId64 "), %" PRId64 " steps",
                   shape->sequence, setup->run.batch.global, shape->micro_batch, shape->intra_layer,
                   shape->rounds, setup->run.steps);
    pl_console_say(console, "%s training tokens; by their frequency alone the loss is %.4f",
                   pl_format_thousands(tokens, pl_tokens_count(pl_samples_tokens(setup->train))),
                   setup->entropy);
    pl_console_show(console, pl_tokens_notes(pl_samples_tokens(setup->train)));
    if (setup->validate)
        pl_console_show(console, pl_tokens_notes(pl_samples_tokens(setup->validate)));
    if (setup->weights) pl_console_show(console, pl_weights_notes(setup->weights));
}

/* What is left to do on the process of rank 0 once all have trained and parted. */
static pl_status finish(job *j)
{
    const pl_setup *setup = &j->setup;
    pl_recorder *recorder = pl_training_recorder(j->training);
    const pl_training_result result = pl_training_end(j->training);
    if (!recorder) return PL_OK;
    PL_TRY(pl_recorder_summary(recorder, pl_text_string(&setup->folder), setup->entropy));
    if (result.stopped_by)
        pl_console_say(&j->console, "stopped by %s at step %" PRId64, result.stopped_by,
                       result.steps);
    else
        PL_TRY(pl_final_sample(setup, j->backend, recorder, &j->console));
    if (result.not_finite > 0 && result.updates == 0)
        return PL_FAIL(PL_RUN_FAILED,
                       "no step has moved the weights: the norm of the gradients was not finite in "
                       "%" PRId64 " of %" PRId64 " steps",
                       result.not_finite, result.steps);
    return PL_OK;
}

static pl_status train(job *j, const run_options *o, const pl_program_facts *program)
{
    const pl_training_request request = {
        .setup = &j->setup,
        .backend = j->backend,
        .console = &j->console,
        .program = program,
        .ranks = j->ranks.count < j->setup.layout.world ? "processes" : "threads",
        .order = o->random ? PL_ORDER_RANDOM : PL_ORDER_PLAN,
        .order_seed = o->order_seed};
    PL_TRY(pl_training_open(&j->training, &request));
    if (j->ranks.process == 0) announce(j);
    pl_status status = pl_ranks_run(&j->ranks, pl_training_rank, j->training);
    bool begun = pl_training_begun(j->training);
    return begun && pl_status_exit_code(status) == 2 ? PL_RUN_FAILED : status;
}

/* Free everything. STATUS is that of the run; the words of an earlier failure are kept. */
static pl_status free_job(job *j, pl_status status)
{
    char words[4096];
    snprintf(words, sizeof words, "%s", pl_error_text());
    pl_status closed = pl_training_free(j->training);
    pl_backends_close(j->backend);
    pl_setup_free(&j->setup);
    if (status == PL_OK) status = closed;
    closed = pl_console_finish(&j->console);
    pl_console_free(&j->console);
    if (status == PL_OK) return closed;
    if (*words) pl_error_set(words);
    return status;
}

/* Say what failed now: an MPI job is ended by what comes next. */
static void complain(pl_status status)
{
    if (status == PL_OK || !*pl_error_text()) return;
    fprintf(stderr, "pleat-train: %s\n", pl_error_text());
    pl_error_set("");
}

static pl_status run(const run_options *o, const pl_program_facts *program)
{
    static const double meeting = 600; /* seconds; the run file's limit is not known yet */
    job j = {.console = pl_console_make(o->quiet, o->json)};
    bool agreed = false;
    program->watch_signals();
    pl_status status = pl_ranks_open(&j.ranks, meeting);
    if (status == PL_OK) {
        status = pl_ranks_agree(&j.ranks, look(&j, o, program));
        agreed = true;
    }
    if (status == PL_OK)
        status = pl_ranks_compare(
            &j.ranks, pl_tokens_fingerprint(pl_samples_tokens(j.setup.train)),
            "data.train: the processes do not find the same files: kinds or sizes differ");
    if (status == PL_OK) {
        agreed = false;
        status = train(&j, o, program);
    }
    complain(status);
    status = pl_ranks_close(&j.ranks, status, agreed);
    if (status == PL_OK) status = finish(&j);
    status = free_job(&j, status);
    return status;
}

pl_status pl_command_run(const pl_program_facts *program, int count, char **arguments)
{
    run_options o = {0};
    bool help = false;
    PL_TRY(pl_allocate(&o.settings, (size_t)count + 1, sizeof *o.settings, "arguments"));
    o.request.settings = o.settings;
    pl_status status = pl_arguments_parse(&help, &run_usage, count, arguments, take, &o);
    if (status == PL_OK && help)
        status = pl_command_help(&run_usage);
    else if (status == PL_OK && !o.request.file)
        status = pl_command_refuse(
            &run_usage, "no run file; for example 'pleat-train run examples/licenses.yaml'", NULL);
    else if (status == PL_OK)
        status = check_options(&o);
    if (status == PL_OK && !help) status = run(&o, program);
    pl_free(o.settings);
    return status;
}
