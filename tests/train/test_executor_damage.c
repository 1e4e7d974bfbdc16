/* Plans damaged at random: whatever their text says, the executor ends in a status, and everything
 * can be closed. Nothing crashes, nothing hangs, nothing is lost (the sanitizers look).
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/test.h"
#include "tests/tools/mutation.h"
#include "tests/train/lone_rank.h"
#include "tests/train/small_trials.h"

enum { SEEDS = 2, SEEDS_TOGETHER = 1 };

typedef struct tally {
    int unread, refused, done;
} tally;

static void count(tally *t, pl_status status, const char *words)
{
    if (status == PL_OK) {
        ++t->done;
        return;
    }
    ++t->refused;
    /* What is refused is refused in words; a broken rule of pleat's own would be a defect, but for
     * what operations and groups say of arguments that the text decides. */
    if (words[0] == '\0') fail_msg("refused without a word");
}

static char *plan_text(const char *model, const char *layout, pl_policy policy)
{
    pl_plan plan;
    pl_text text = {0};
    assert_ok(lone_plan(&plan, model, layout, 0, policy, (pl_shape){8, 1, 2, 1}));
    pl_plan_write(&text, &plan, -1);
    assert_ok(pl_text_status(&text));
    pl_plan_free(&plan);
    return text.bytes;
}

static void run_alone(const char *text, tally *t)
{
    lone_rank lone = {.context = NULL};
    pl_program_result result;
    if (pl_plan_read(&lone.plan, text, "damaged") != PL_OK) {
        ++t->unread;
        return;
    }
    pl_error_clear();
    pl_status status = lone_open(&lone);
    if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_START, &result);
    if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_STEP, &result);
    if (status == PL_OK) status = lone_run(&lone, PL_PROGRAM_STEP, &result);
    count(t, status, pl_error_text());
    lone_close(&lone);
}

static void a_rank_alone_survives_any_damage(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        pl_policy policy;
    } cases[] = {
        {"mixed", {0}},
        {"moe-tied", {.dispatch = PL_DISPATCH_ALL_GATHER, .recompute = PL_RECOMPUTE_FULL}}};
    tally t = {0, 0, 0};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        char *text = plan_text(cases[c].model, "single:world=1", cases[c].policy);
        for (int kind = 0; kind < mutation_kinds(); ++kind) {
            for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
                mutation m;
                if (mutation_make(&m, kind, seed, MUTATION_ANY_RANK, text) != MUTATION_DONE)
                    continue;
                run_alone(m.text, &t);
                mutation_free(&m);
            }
        }
        free(text);
    }
    assert_true(t.refused > 15);
    assert_true(t.done > 15);
}

static void ranks_together_survive_any_damage(void **state)
{
    (void)state;
    pl_model model;
    tally t = {0, 0, 0};
    assert_ok(plan_case_model(&model, "moe"));
    char *text = plan_text("moe", "decoupled:world=4,ep=2", (pl_policy){0});
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        for (uint64_t seed = 1; seed <= SEEDS_TOGETHER; ++seed) {
            mutation m;
            if (mutation_make(&m, kind, seed, MUTATION_ANY_RANK, text) != MUTATION_DONE) continue;
            trial one = small_trial(&model, "decoupled:world=4,ep=2");
            one.settings.shape = (pl_shape){8, 1, 2, 1};
            one.plan_text = m.text;
            one.steps = 1;
            one.timeout = 0.2;
            one.order = kind % 2 ? PL_ORDER_PLAN : PL_ORDER_RANDOM;
            trial_result r = trial_run(&one);
            count(&t, r.status, r.words);
            trial_free(&r);
            mutation_free(&m);
        }
    }
    assert_true(t.refused > 10);
    assert_true(t.done > 10);
    free(text);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_alone_survives_any_damage),
        cmocka_unit_test(ranks_together_survive_any_damage),
    };
    return cmocka_run_group_tests_name("train/executor_damage", tests, NULL, NULL);
}
