/* A rank that fails, or never arrives, ends all others: in words, with status 3, and without
 * anybody waiting longer than the time limit. Ranks are threads here; processes are tests/cli's.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/train/doubles.h"
#include "tests/train/small_trials.h"

enum { RANKS = 8, CULPRIT = 3, WORDS = 4096, PATIENCE_SECONDS = 60 };

/* How the ranks of one run ended. */
typedef struct end {
    pl_status status;
    char words[WORDS];
} end;

typedef struct failing {
    pl_model model;
    trial t;
    double_device device[RANKS];
    pl_status load; /* what the culprit's samples end with in step LOAD_STEP */
    int64_t load_step;
    int64_t stop; /* the culprit stays away before this entry of step 0; -1: it does not */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int64_t ended_count;
    bool outlived; /* all others had ended before the culprit went on */
    end end[RANKS];
} failing;

/* --- what the ranks do --- */

static void note_end(void *context, int64_t rank, pl_status status, const char *words)
{
    failing *f = context;
    pthread_mutex_lock(&f->lock);
    f->end[rank].status = status;
    snprintf(f->end[rank].words, WORDS, "%s", words);
    ++f->ended_count;
    pthread_cond_broadcast(&f->ended);
    pthread_mutex_unlock(&f->lock);
}

/* Wait until all others are gone: had they waited for this rank, nobody would ever go on. */
static void stay_away(failing *f)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&f->lock);
    int result = 0;
    while (f->ended_count < RANKS - 1 && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&f->ended, &f->lock, &until);
    f->outlived = f->ended_count == RANKS - 1;
    pthread_mutex_unlock(&f->lock);
}

static pl_status watch(void *context, int64_t rank, int64_t step, pl_executor *executor,
                       const pl_section *section, int64_t index)
{
    failing *f = context;
    (void)executor;
    (void)section;
    if (rank == CULPRIT && step == 0 && index == f->stop) stay_away(f);
    return PL_OK;
}

static pl_status before_load(void *context, int64_t rank, int64_t step)
{
    const failing *f = context;
    if (rank != CULPRIT || f->load == PL_OK || step != f->load_step) return PL_OK;
    return PL_FAIL(f->load, "samples.bin: the disk is gone");
}

static pl_device *wrap_device(void *context, int64_t rank, pl_device *device)
{
    failing *f = context;
    return double_device_open(&f->device[rank], device);
}

/* --- runs --- */

static failing *open_failing(const char *layout)
{
    failing *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_ok(plan_case_model(&f->model, "mixed"));
    f->t = small_trial(&f->model, layout);
    f->t.timeout = 30;
    f->t.watch = watch;
    f->t.before_load = before_load;
    f->t.ended = note_end;
    f->t.wrap_device = wrap_device;
    f->t.watch_context = f->t.wrap_context = f->t.rank_context = f;
    f->stop = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->ended, NULL);
    return f;
}

static void close_failing(failing *f)
{
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
    pl_model_free(&f->model);
    free(f);
}

static pl_status run(failing *f)
{
    trial_result result = trial_run(&f->t);
    pl_status status = result.status;
    trial_free(&result);
    assert_int_equal(f->ended_count, RANKS);
    return status;
}

static void assert_says(const failing *f, int64_t rank, const char *words)
{
    if (!strstr(f->end[rank].words, words))
        fail_msg("rank %" PRId64 ": no '%s' in: %s", rank, words, f->end[rank].words);
}

/* All ranks ended with status 3; the culprit with STATUS, the others because of it. */
static void assert_all_ended(const failing *f, pl_status status, const char *cause)
{
    for (int64_t r = 0; r < RANKS; ++r) {
        pl_status found = f->end[r].status;
        assert_int_equal(pl_status_exit_code(found), 3);
        if (found != (r == CULPRIT ? status : PL_PEER_FAILED))
            fail_msg("rank %" PRId64 " ended with %s: %s", r, pl_status_name(found),
                     f->end[r].words);
        assert_says(f, r, cause);
        assert_says(f, r, "rank 3");
        assert_says(f, r, "entry ");
    }
}

/* --- a device that fails --- */

static void a_device_without_memory_ends_all_ranks(void **state)
{
    (void)state;
    static const char *const layouts[] = {"legacy:world=8,ep=4",
                                          "decoupled:world=8,ep=4,replicas=2"};
    int64_t runs = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; ++i) {
        for (int64_t after = 0, failed = 1; failed; after = 2 * after + 5, ++runs) {
            failing *f = open_failing(layouts[i]);
            f->device[CULPRIT].rule =
                (double_rule){.armed = true,
                              .act = DOUBLE_FAIL,
                              .counts = DOUBLE_OPERATIONS | DOUBLE_COPIES | DOUBLE_FILLS,
                              .after = 2 + after};
            pl_status status = run(f);
            const double_record *record = &f->device[CULPRIT].record;
            failed = record->acted;
            assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
            if (failed) {
                pl_text name = {0};
                pl_entry_name_print(&name, &record->entry);
                assert_all_ended(f, PL_NO_MEMORY, "no memory for the work space of");
                assert_says(f, CULPRIT, pl_text_string(&name));
                pl_text_free(&name);
            }
            close_failing(f);
        }
    }
    assert_true(runs > 12);
    print_message("a device that fails: %" PRId64 " runs\n", runs);
}

/* --- samples that cannot be read --- */

static void samples_that_cannot_be_read_end_all_ranks(void **state)
{
    (void)state;
    for (int64_t step = 0; step < 2; ++step) {
        failing *f = open_failing("folded:world=8,ep=4");
        f->load = PL_IO_FAILED;
        f->load_step = step;
        assert_int_equal(run(f), PL_IO_FAILED);
        assert_all_ended(f, PL_IO_FAILED, "samples.bin: the disk is gone");
        assert_says(f, CULPRIT, "load-batch batch");
        close_failing(f);
    }
}

/* --- a rank that never arrives --- */

/* Groups of all ranks, so that nobody else is waited for just as long. */
typedef struct absence {
    const char *layout;
    const char *entry; /* the culprit stays away from the first whose name begins like this */
    const char *group;
} absence;

static const absence absences[] = {
    {"legacy:world=8,ep=4", "all-reduce tokens", "in stage {0..7}"},
    {"legacy:world=8", "gather layer.1", "in dense-shard {0..7}"},
    {"decoupled:world=8,ep=8", "exchange-counts layer.1", "in expert-owner {0..7}"},
    {"folded:world=8,ep=8", "combine layer.2", "in expert-owner {0..7}"},
    {"single:world=8,ep=4", "control flags", "in world {0..7}"},
};
enum { ABSENCES = sizeof absences / sizeof *absences };

/* Its place in the step of the culprit. */
static int64_t find_entry(const failing *f, const absence *a)
{
    pl_plan plan;
    pl_plan_request request = {.model = &f->model, .settings = f->t.settings};
    int64_t found = -1;
    assert_ok(pl_layout_parse(&request.layout, a->layout));
    assert_ok(pl_plan_build(&plan, &request));
    const pl_section *section = pl_plan_section(&plan, PL_PROGRAM_STEP, CULPRIT);
    for (size_t i = 0; i < section->entry_count && found < 0; ++i) {
        pl_text name = {0};
        pl_entry_name_print(&name, &section->entries[i].name);
        if (strncmp(pl_text_string(&name), a->entry, strlen(a->entry)) == 0) found = (int64_t)i;
        pl_text_free(&name);
    }
    pl_plan_free(&plan);
    assert_true(found >= 0);
    return found;
}

static void *run_apart(void *context)
{
    failing *f = context;
    trial_result result = trial_run(&f->t);
    trial_free(&result);
    return NULL;
}

static void assert_named_as_missing(const failing *f, const absence *a)
{
    assert_true(f->outlived);
    assert_int_equal(f->ended_count, RANKS);
    for (int64_t r = 0; r < RANKS; ++r) {
        assert_int_equal(pl_status_exit_code(f->end[r].status), 3);
        assert_int_equal(f->end[r].status, PL_TIMED_OUT); /* all are members */
        assert_says(f, r, a->entry);
        assert_says(f, r, a->group);
        assert_says(f, r, "not arrived: 3\n");
        assert_says(f, r, "program step, entry ");
    }
    assert_says(f, CULPRIT, "rank 3 was to start");
}

/* Side by side, since all that they do is wait. */
static void a_rank_that_never_arrives_is_named(void **state)
{
    (void)state;
    failing *runs[ABSENCES];
    pthread_t threads[ABSENCES];
    for (int i = 0; i < ABSENCES; ++i) {
        runs[i] = open_failing(absences[i].layout);
        runs[i]->t.timeout = 2;
        runs[i]->stop = find_entry(runs[i], &absences[i]);
    }
    for (int i = 0; i < ABSENCES; ++i)
        assert_int_equal(pthread_create(&threads[i], NULL, run_apart, runs[i]), 0);
    for (int i = 0; i < ABSENCES; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < ABSENCES; ++i) {
        assert_named_as_missing(runs[i], &absences[i]);
        close_failing(runs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_without_memory_ends_all_ranks),
        cmocka_unit_test(samples_that_cannot_be_read_end_all_ranks),
        cmocka_unit_test(a_rank_that_never_arrives_is_named),
    };
    return cmocka_run_group_tests_name("train/failing_ranks", tests, NULL, NULL);
}
