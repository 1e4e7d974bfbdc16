/* What can go wrong: memory that runs out, a rank that fails, plans that make no sense. */
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/test.h"
#include "tests/train/edits.h"
#include "tests/train/lone_rank.h"
#include "tests/train/trial.h"

static const pl_shape shape = {8, 1, 1, 1};

/* --- memory --- */

static void every_allocation_of_a_step_may_fail(void **state)
{
    (void)state;
    int refused = 0;
    int64_t n = 0;
    for (bool failed = true; failed; ++n) {
        lone_rank lone = {.context = NULL};
        pl_program_result result;
        assert_ok(lone_plan(&lone.plan, "moe", "single:world=1", 0, (pl_policy){0}, shape));
        pl_allocation_fail_after(n);
        pl_status status = lone_open(&lone);
        if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_START, &result);
        if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_STEP, &result);
        failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        /* A chunk that is refused is asked for again, smaller: that may succeed. */
        if (status != PL_OK && status != PL_NO_MEMORY) fail_msg("%s", pl_error_text());
        assert_true(failed || status == PL_OK);
        refused += status == PL_NO_MEMORY;
        lone_close(&lone);
    }
    assert_true(refused > 20);
}

/* --- a rank that fails --- */

static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    (void)context;
    for (int64_t t = 0; t < sequence; ++t) {
        tokens[t] = (int32_t)((number * 31 + t * 7 + step) % 11);
        labels[t] = (int32_t)((number * 13 + t * 5) % 11);
    }
}

static trial make_trial(const pl_model *model, const char *layout)
{
    trial t = {.model = model, .layout = layout, .sample = sample, .context = model};
    t.settings = trial_settings(8, 1, 1, 1);
    t.steps = 1;
    t.seed = 4;
    t.workers = 1;
    t.timeout = 10;
    t.input = lone_input();
    return t;
}

typedef struct trouble {
    int64_t rank, entry;
} trouble;

static pl_status fail_there(void *context, int64_t rank, int64_t step, pl_executor *executor,
                            const pl_section *section, int64_t index)
{
    const trouble *there = context;
    (void)step;
    (void)executor;
    (void)section;
    if (rank == there->rank && index == there->entry) return PL_FAIL(PL_IO_FAILED, "a cosmic ray");
    return PL_OK;
}

static void a_rank_that_fails_ends_the_others_in_words(void **state)
{
    (void)state;
    static const int64_t entries[] = {0, 3, 17, 40, 61};
    pl_model model;
    assert_ok(plan_case_model(&model, "moe"));
    for (size_t i = 0; i < sizeof entries / sizeof *entries; ++i) {
        trouble there = {3, entries[i]};
        trial t = make_trial(&model, "decoupled:world=8,ep=4");
        t.watch = fail_there;
        t.watch_context = &there;
        trial_result r = trial_run(&t);
        assert_int_equal(r.status, PL_IO_FAILED);
        assert_non_null(strstr(r.words, "a cosmic ray"));
        assert_non_null(strstr(r.words, "rank 3, program step, entry "));
        trial_free(&r);
    }
    pl_model_free(&model);
}

/* The words of a rank that waits for one that failed. */
static pl_status stop_after(void *context, int64_t rank, int64_t step, pl_executor *executor,
                            const pl_section *section, int64_t index)
{
    const trouble *there = context;
    (void)step;
    (void)executor;
    (void)section;
    if (rank == there->rank && index == there->entry)
        return PL_FAIL(PL_PEER_FAILED, "hidden: the others must speak");
    return PL_OK;
}

static void those_who_wait_name_entry_and_group(void **state)
{
    (void)state;
    trouble there = {1, 4};
    pl_model model;
    assert_ok(plan_case_model(&model, "moe"));
    trial t = make_trial(&model, "folded:world=2");
    t.watch = stop_after;
    t.watch_context = &there;
    trial_result r = trial_run(&t);
    assert_int_equal(r.status, PL_PEER_FAILED);
    assert_non_null(strstr(r.words, "rank 1"));
    assert_non_null(strstr(r.words, "entry "));
    trial_free(&r);
    pl_model_free(&model);
}

/* --- plans that make no sense --- */

typedef struct refusal {
    const char *what; /* is wrong */
    const char *word, *from, *to;
    const char *say[2];
} refusal;

/* Lines that contain WORD get TO for FROM; TO NULL drops them. */
static const refusal refusals[] = {
    {"a buffer too small", "buffer x.1.mb0 ", "fp32 192", "fp32 188", {"x.1.mb0", "188 bytes"}},
    {"a buffer too large", "buffer h.0.mb0 ", "fp32 192", "fp32 4096", {"h.0.mb0", "4096 bytes"}},
    {"saved values too small",
     "buffer save_attention.1.mb0 ",
     "u8 ",
     "u8 1",
     {"save_attention", ""}},
    {"a weight is not read", " attention layer.1 ", "param.layer.1,", "", {"must read", "'param"}},
    {"nothing is written",
     " final-norm norm round=0 mb=0 pass=f ",
     "begins=z.mb0",
     "",
     {"must write", "'z'"}},
    {"an input of another kind",
     " merge layer.0 round=0 mb=0 pass=f ",
     ",h.0.mb0",
     "",
     {"'h'", ""}},
    {"a buffer begun twice",
     " attention layer.1 round=0 mb=0 pass=f ",
     "begins=",
     "begins=x.0.mb0,",
     {"x.0.mb0", "while it lives"}},
    {"a buffer ended twice",
     " attention layer.1 round=0 mb=0 pass=f ",
     "begins=",
     "ends=tokens.mb0 begins=",
     {"tokens.mb0", "does not live"}},
    {"a part that is not there",
     " attention layer.1 round=0 mb=0 pass=f ",
     "attention layer.1",
     "attention gradients",
     {"no such part", "attention gradients"}},
    {"experts where there are none",
     " route layer.1 round=0 mb=0 pass=f ",
     "route layer.1",
     "route norm",
     {"no experts", ""}},
    {"a micro-batch that is not there", " copy batch ", "mb=0", "mb=5", {"micro-batches", ""}},
    {"a round that is not there", " copy batch ", "round=0", "round=3", {"rounds", ""}},
    {"the wrong class",
     "buffer x.1.mb0 activation",
     "activation",
     "host",
     {"x.1.mb0", "activation"}},
    {"no batch is loaded", " load-batch ", NULL, NULL, {"batch", ""}},
    {"no moments", " zero layer.1 ", NULL, NULL, {"adam_m.layer.1", "does not live"}},
    {"a cast of nothing",
     " scale gradients ",
     "scale gradients",
     "cast gradients",
     {"must read", "'gradpiece.embed'"}},
    {"a pass that experts lack",
     " experts experts.1 round=0 mb=0 pass=bi ",
     "pass=bi",
     "pass=b",
     {"bi and bw", ""}},
    {"a balance loss over T",
     " route layer.1 round=0 mb=0 pass=b ",
     "scale=T*1",
     "scale=1/T",
     {"not 1/T", ""}},
};

static void plans_that_make_no_sense_are_refused_in_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
        const refusal *r = &refusals[i];
        lone_rank lone = {.context = NULL};
        pl_plan plan;
        pl_text text = {0};
        pl_program_result result;
        assert_ok(lone_plan(&plan, "moe", "single:world=1", 0, (pl_policy){0}, shape));
        pl_plan_write(&text, &plan, -1);
        char *edited = r->from ? edit_replace(pl_text_string(&text), r->word, r->from, r->to)
                               : edit_drop(pl_text_string(&text), r->word);
        if (strcmp(edited, pl_text_string(&text)) == 0)
            fail_msg("%s: nothing was edited in\n%s", r->what, pl_text_string(&text));
        pl_plan_free(&plan);
        pl_text_free(&text);
        assert_ok(pl_plan_read(&lone.plan, edited, r->what));
        pl_status status = lone_open(&lone);
        if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_START, &result);
        if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_STEP, &result);
        if (status != PL_BAD_INPUT)
            fail_msg("%s: %s: %s", r->what, pl_status_name(status), pl_error_text());
        for (int j = 0; j < 2; ++j)
            if (!strstr(pl_error_text(), r->say[j]))
                fail_msg("%s: no '%s' in: %s", r->what, r->say[j], pl_error_text());
        lone_close(&lone);
        free(edited);
    }
}

static const char *smaller_group(const char *text)
{
    return edit_replace(text, " gather layer.1 ", "group=dense-shard", "group=expert-owner");
}

static const char *average_of_counts(const char *text)
{
    return edit_replace(text, " all-reduce tokens ", "reduction=sum", "reduction=average");
}

static const char *no_bind(const char *text) { return edit_drop(text, " bind layer.1 "); }

static void collectives_that_make_no_sense_are_refused_on_every_rank(void **state)
{
    (void)state;
    static const struct {
        const char *(*edit)(const char *);
        const char *say;
    } cases[] = {{smaller_group, "group expert-owner has 2 ranks"},
                 {average_of_counts, "average of whole numbers"},
                 {no_bind, "rows.1.mb0"}};
    pl_model model;
    assert_ok(plan_case_model(&model, "moe"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        trial t = make_trial(&model, "decoupled:world=4,ep=2");
        t.edit = cases[i].edit;
        trial_result r = trial_run(&t);
        assert_int_equal(r.status, PL_BAD_INPUT);
        if (!strstr(r.words, cases[i].say)) fail_msg("no '%s' in: %s", cases[i].say, r.words);
        trial_free(&r);
    }
    pl_model_free(&model);
}

/* --- opening and outside --- */

static pl_status bad_tokens(void *context, const pl_shape *s, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    PL_TRY(lone_load(context, s, data_index, data_ranks, batch));
    batch[5] = 11;
    return PL_OK;
}

static void tokens_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    lone_rank lone = {.outside = {.load_batch = bad_tokens}};
    pl_program_result result;
    assert_ok(lone_plan(&lone.plan, "moe", "single:world=1", 0, (pl_policy){0}, shape));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &result));
    assert_fails(PL_BAD_INPUT, lone_run(&lone, PL_PROGRAM_STEP, &result), "token 11 at place 5",
                 "vocabulary has 11", "load-batch batch");
    lone_close(&lone);
}

static void a_step_before_the_start_and_a_missing_program_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; ++i) {
        lone_rank lone = {.context = NULL};
        pl_program_result result;
        assert_ok(lone_plan(&lone.plan, "moe", "single:world=1", 0, (pl_policy){0}, shape));
        assert_ok(lone_open(&lone));
        if (i == 0)
            assert_fails(PL_BAD_INPUT, lone_run(&lone, PL_PROGRAM_STEP, &result), "param.embed",
                         "does not live");
        else
            assert_fails(PL_BAD_INPUT, lone_run(&lone, PL_PROGRAM_EVALUATE, &result),
                         "no program evaluate");
        lone_close(&lone);
    }
}

static pl_status open_with(const char *layout, bool bf16)
{
    lone_rank lone = {.context = NULL};
    plan_case c = {.model = "moe", .layout = layout, .bf16 = bf16};
    pl_status status = plan_case_build(&lone.plan, &c, false);
    if (status == PL_OK) status = lone_open(&lone);
    lone_close(&lone);
    return status;
}

static void what_the_device_or_the_world_cannot_do_is_refused_at_once(void **state)
{
    (void)state;
    assert_fails(PL_UNSUPPORTED, open_with("single:world=1", true), "bf16", "fp32");
    assert_fails(PL_BAD_INPUT, open_with("single:world=2", false), "world of 2 ranks",
                 "there are 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_step_may_fail),
        cmocka_unit_test(a_rank_that_fails_ends_the_others_in_words),
        cmocka_unit_test(those_who_wait_name_entry_and_group),
        cmocka_unit_test(plans_that_make_no_sense_are_refused_in_words),
        cmocka_unit_test(collectives_that_make_no_sense_are_refused_on_every_rank),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test(a_step_before_the_start_and_a_missing_program_are_refused),
        cmocka_unit_test(what_the_device_or_the_world_cannot_do_is_refused_at_once),
    };
    return cmocka_run_group_tests_name("train/executor_failures", tests, NULL, NULL);
}
