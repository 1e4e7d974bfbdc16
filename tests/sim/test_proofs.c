/* Proofs: each holds for undamaged plans and fails, in words that lead to it, for a damage made by
 * hand in the plan's text. Random damage is tests/sim/test_mutations.c's. */
#include "sim/proof.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/damage_cases.h"

/* --- undamaged plans --- */

static void expect_proved(const plan_case *c, int64_t *checked)
{
    pl_plan plan;
    pl_check check;
    assert_ok(plan_case_build(&plan, c, false));
    assert_ok(pl_check_plan(&check, &plan));
    for (int i = 0; i < PL_PROOF_COUNT; ++i) {
        const pl_verdict *v = &check.verdict[i];
        if (v->outcome != PL_PROVED)
            fail_msg("%s, %s, %s: %s: %s", c->name, c->model, c->layout,
                     pl_proof_name((pl_proof_id)i), pl_text_string(&v->words));
        assert_int_equal(v->words.length, 0);
        checked[i] += v->checked;
    }
    assert_true(pl_check_proved(&check));
    assert_int_equal(check.ranks, plan.layout.world);
    assert_int_equal(check.sections, plan.section_count);
    pl_check_free(&check);
    pl_plan_free(&plan);
}

static void undamaged_plans_are_proved(void **state)
{
    int64_t checked[PL_PROOF_COUNT] = {0};
    uint64_t seed = 23;
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) expect_proved(&plan_forced_cases()[i], checked);
    for (int i = 0; i < 80; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        expect_proved(&c, checked);
    }
    for (int i = 0; i < PL_PROOF_COUNT; ++i) {
        assert_true(checked[i] > 100);
        assert_true(strlen(pl_proof_name((pl_proof_id)i)) > 0);
        assert_true(strlen(pl_proof_claim((pl_proof_id)i)) > 0);
    }
}

/* --- damage by proof --- */

static const plan_case legacy = {
    .name = "dense copies", .model = "mixed", .layout = "legacy:world=4,ep=2", .micro_batches = 2};
static const plan_case balanced = {.name = "balance",
                                   .model = "moe",
                                   .layout = "folded:world=4,ep=2",
                                   .rounds = 2,
                                   .balance = PL_BALANCE_GLOBAL_BATCH};

/* What each proof alone, or first, has to say about. */
enum { CROSSED = 6 };

static const damage_case by_proof[] = {
    {"an element too many is scaled",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " scale gradients ", "elements=", "elements=1"}},
     BIT(TILING),
     0,
     PL_PROOF_TILING,
     {"rank 3: step: entry ", ", scale gradients", "but the rank holds"}},
    {"the batch of another group",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " load-batch ", "group=data", "group=expert-owner"}},
     BIT(GROUPS),
     0,
     PL_PROOF_GROUPS,
     {"rank 3: step: entry ", ", load-batch batch", "group=expert-owner, must be data {0,1,2,3}"}},
    {"an update in any case",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " step parameters ", " if=update", ""}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {"rank 3: step: entry ", ", step parameters", "must act only if"}},
    {"a buffer too large",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, "buffer x.0.mb0 ", "bf16 ", "bf16 1"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: step: ", "buffer x.0.mb0 must be", "bf16 96"}},
    {"products miscounted",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " attention layer.1 round=0 mb=1 pass=b ", "flops=", "flops=1"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: step: entry ", ", attention layer.1 round 0 mb 1 backward", "flops=1", "must be"}},
    {"two calls of a group in another order",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{MOVE, " dispatch layer.0 round=1 mb=0 pass=b ", "", " reshard experts.0 round=1 pass=b "}},
     BIT(COLLECTIVES) | BIT(DEADLOCK),
     CARRIED,
     PL_PROOF_COLLECTIVES,
     {"rank 2", "of group expert-owner {2,3} meets another call on rank 3",
      "dispatch layer.0 round 1 mb 1 backward"}},
    {"calls of two groups crossed",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{WAIT, " all-reduce expert-squares ", "", " gradient-norm "},
      {MOVE, " all-reduce expert-squares ", "", " all-reduce dense-squares "},
      {WAIT, " clip gradients ", "", " all-reduce dense-squares "}},
     BIT(DEADLOCK),
     CARRIED,
     PL_PROOF_DEADLOCK,
     {"all-reduce dense-squares", "waits in dense-shard for rank 3",
      "which is at all-reduce expert-squares", "; rank 3 waits in expert-block for rank "}},
    {"a wait forgotten",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " copy batch round=0 mb=0 ", " waits=0", ""}},
     BIT(ORDERING),
     0,
     PL_PROOF_ORDERING,
     {"rank 3: step: entry ", ", copy batch round 0 mb 0", "reads batch",
      "entry 0, load-batch batch, which writes it"}},
    {"a buffer left over",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " copy batch round=1 mb=1 ", " ends=batch", ""}},
     BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: step: entry ", "leaves over at the end: batch", "load-batch batch"}},
    {"a buffer let go too early",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " embed embed round=0 mb=0 ", "begins=x.0.mb0", "begins=x.0.mb0 ends=full.embed"}},
     BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: step: entry ", ", embed embed round 0 mb 1", "reads what does not live: full.embed",
      "embed embed round 0 mb 0"}},
    {"a gather for nothing",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{ADD, " embed embed round=1 mb=1 pass=bw ", "",
       "entry 9000 gather head round=1 pass=b stream=communication group=dense-shard bytes=144 "
       "wire=bf16 reads=param.head begins=full.head\n"
       "entry 9001 reshard head round=1 pass=b stream=compute waits=9000 ends=full.head\n"}},
     BIT(GATHERS),
     0,
     PL_PROOF_GATHERS,
     {"step: entry 9000, gather head round 1 backward", "nothing computes with what it gathers"}},
    {"another layer's parameters",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " gather layer.0 round=0 pass=f ", "reads=", "reads=param.layer.1,"}},
     BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {", attention layer.0 round 0 mb 0 forward",
      "does not hold the gathered parameters: full.layer.0"}},
    {"one micro-batch in place of another",
     &two_by_two,
     2,
     PL_PROGRAM_STEP,
     {{REPLACE, " final-norm norm round=1 mb=0 pass=b ", "reads=", "reads=dz.mb1,"}},
     BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {", gradient-norm gradients", "grad.embed is not a multiple",
      "tokens of rank 2, round 1, mb 0 do not count"}},
    {"losses summed before the last round",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{MOVE, " all-reduce loss ", "", " loss head round=1 mb=0 "},
      {WAIT, " all-reduce loss ", "", " loss head round=0 mb=1 "},
      {WAIT, " loss head round=1 mb=0 ", "", " all-reduce loss "}},
     BIT(COUNTS),
     0,
     PL_PROOF_COUNTS,
     {", all-reduce loss", "the loss sums do not cover every rank of the stage once"}},
    {"the squares of experts twice",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " all-reduce dense-squares ", "reads=", "reads=expert_squares,"}},
     BIT(NORM),
     0,
     PL_PROOF_NORM,
     {", all-reduce dense-squares", "does not count every element once"}},
    {"parameters cast before the update",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{MOVE, " cast parameters ", "", " step parameters "}},
     BIT(UPDATE),
     0,
     PL_PROOF_UPDATE,
     {"rank 3: step: param.embed does not end as it must: what it was, updated once"}},
};

static void each_proof_finds_its_damage(void **state)
{
    unsigned seen = 0;
    (void)state;
    for (size_t i = 0; i < sizeof by_proof / sizeof *by_proof; ++i) {
        assert_true(by_proof[i].failed & 1u << by_proof[i].shown);
        assert_int_equal(by_proof[i].failed & ((1u << by_proof[i].shown) - 1), 0);
        seen |= 1u << by_proof[i].shown;
    }
    assert_int_equal(seen, (1u << PL_PROOF_COUNT) - 1);
    expect_found(by_proof, sizeof by_proof / sizeof *by_proof);
}

/* --- gradients: whose tokens --- */

static const damage_case gradients[] = {
    {"copies never summed",
     &legacy,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{WAIT, " scale gradients ", "", " reduce embed "},
      {DROP, " all-reduce dense-gradients ", "", ""}},
     BIT(WORK) | BIT(ORDERING) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"grad.embed is not a multiple", "tokens of rank ", "round 0, mb 0 do not count"}},
    {"copies summed over the shards",
     &legacy,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " all-reduce dense-gradients ", "group=dense-replica", "group=dense-shard"}},
     BIT(GROUPS) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"grad.embed is not a multiple", "tokens of rank ", "round 0, mb 0 do not count"}},
    {"copies summed over the shards on one rank",
     &legacy,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " all-reduce dense-gradients ", "group=dense-replica", "group=dense-shard"}},
     BIT(GROUPS) | BIT(COLLECTIVES) | BIT(DEADLOCK),
     CARRIED,
     PL_PROOF_GROUPS,
     {"rank 3: step: entry ", ", all-reduce dense-gradients",
      "group=dense-shard, must be dense-replica {2,3}"}},
    {"copies summed twice",
     &legacy,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{ADD, " all-reduce dense-gradients ", "",
       "entry 9000 all-reduce dense-gradients ordinal=1 stream=communication group=dense-replica "
       "bytes=1 wire=fp32 reduction=sum scale=1 reads=grad.head writes=grad.head\n"},
      {WAIT, " scale gradients ", "", "entry 9000 "}},
     BIT(WORK) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"grad.head is 2 times what it must be", "tokens of rank 0, round 0, mb 0 count 2 times"}},
    {"a reduction forgotten",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{DROP, " accumulate experts.1 round=1 ", "", ""}},
     BIT(WORK) | BIT(LIFETIMES) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"grad.experts.1", "tokens of rank 0, round 1, mb 0 do not count"}},
    {"an average",
     &legacy,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " all-reduce dense-gradients ", "reduction=sum", "reduction=average"}},
     BIT(WORK) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"grad.embed is 1/2 times what it must be",
      "tokens of rank 0, round 0, mb 0 are weighed wrongly"}},
    {"not scaled by T",
     &legacy,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " scale gradients ", "scale=1/T", "scale=1/4"}},
     BIT(WORK) | BIT(GRADIENTS) | BIT(UPDATE),
     0,
     PL_PROOF_GRADIENTS,
     {"rank 0", "grad.embed is not a multiple", "tokens of rank 0, round 0, mb 0"}},
};

static void gradients_name_the_tokens(void **state)
{
    (void)state;
    expect_found(gradients, sizeof gradients / sizeof *gradients);
}

/* --- more than one proof, start programs, counts --- */

static const damage_case others[] = {
    {"a wait for what comes later",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{WAIT, " embed embed round=0 mb=0 ", "", " clip gradients "}},
     BIT(DEADLOCK) | BIT(ORDERING),
     CARRIED,
     PL_PROOF_ORDERING,
     {"rank 3: step: entry ", ", embed embed round 0 mb 0", "which is issued after it"}},
    {"a wait for nothing",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{REPLACE, " embed embed round=0 mb=0 ", "waits=", "waits=7777,"}},
     BIT(ORDERING),
     0,
     PL_PROOF_ORDERING,
     {"rank 3: step: entry ", ", embed embed round 0", "not in the plan"}},
    {"counts of one round alone",
     &balanced,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{DROP, " all-reduce balance round=1 ", "", ""}},
     BIT(WORK) | BIT(ORDERING) | BIT(COUNTS),
     0,
     PL_PROOF_COUNTS,
     {", balance balance round 1", "load-balance counts do not cover"}},
    {"T of one rank",
     &balanced,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{DROP, " all-reduce tokens ", "", ""}},
     BIT(WORK) | BIT(GRADIENTS) | BIT(COUNTS) | BIT(UPDATE),
     0,
     PL_PROOF_COUNTS,
     {"T is not the count of valid labels"}},
    {"a loss that joins no sum",
     &two_by_two,
     3,
     PL_PROGRAM_STEP,
     {{DROP, " loss head round=1 mb=1 ", "", ""}},
     BIT(WORK) | BIT(LIFETIMES) | BIT(GRADIENTS) | BIT(COUNTS) | BIT(UPDATE),
     0,
     PL_PROOF_WORK,
     {"rank 3: step: there is no entry loss head round 1 mb 1 forward"}},
    {"start: an element too few",
     &two_by_two,
     3,
     PL_PROGRAM_START,
     {{REPLACE, " initialize head ", "elements=1", "elements="}},
     BIT(TILING),
     0,
     PL_PROOF_TILING,
     {"rank 3: start: entry ", ", initialize head", "elements=", "but the rank holds"}},
    {"start: moments not made",
     &two_by_two,
     3,
     PL_PROGRAM_START,
     {{DROP, " zero experts.1 ", "", ""}},
     BIT(WORK) | BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: start: is never made: adam_m.experts.1"}},
    {"start: values cast before they are there",
     &two_by_two,
     3,
     PL_PROGRAM_START,
     {{MOVE, " cast head ", "", " copy head "}},
     BIT(ORDERING) | BIT(LIFETIMES),
     0,
     PL_PROOF_ORDERING,
     {"rank 3: start: entry ", ", cast head"}},
};

static void other_damage_is_found(void **state)
{
    (void)state;
    expect_found(others, sizeof others / sizeof *others);
}

static void a_plan_that_stops_leaves_proofs_undecided(void **state)
{
    const damage_case *crossed = &by_proof[CROSSED];
    (void)state;
    assert_int_equal(crossed->shown, PL_PROOF_DEADLOCK);
    char *text = damage_text(base_text(crossed->base, crossed->rank), crossed);
    pl_check check = check_text(text);
    assert_int_equal(outcomes(&check, PL_UNDECIDED), CARRIED);
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        if (check.verdict[i].outcome == PL_UNDECIDED)
            assert_non_null(strstr(pl_text_string(&check.verdict[i].words), "not decided"));
    assert_false(pl_check_proved(&check));
    pl_check_free(&check);
    free(text);
}

/* A shared section is spoken of by its first rank, with how many it stands for. */
static void shared_sections_say_how_many(void **state)
{
    static const plan_case even = {.name = "even", .model = "moe", .layout = "folded:world=1"};
    damage_case d = by_proof[2];
    (void)state;
    d.rank = ALL_RANKS;
    char *text = damage_text(base_text(d.base, d.rank), &d);
    pl_check check = check_text(text);
    const char *words = pl_text_string(&check.verdict[PL_PROOF_WORK].words);
    assert_ptr_equal(strstr(words, "rank 0 (one of "), words);
    assert_non_null(strstr(words, "alike): step: entry "));
    pl_check_free(&check);
    free(text);
    text = damage_text(base_text(&even, ALL_RANKS), &d);
    check = check_text(text);
    words = pl_text_string(&check.verdict[PL_PROOF_WORK].words);
    assert_ptr_equal(strstr(words, "rank 0: step: entry "), words);
    pl_check_free(&check);
    free(text);
}

/* --- damage of any kind ends --- */

/* Lines of the last section are moved about: ranks in conflict stop, and say so. */
static void ranks_in_conflict_do_not_hang(void **state)
{
    uint64_t seed = 29;
    int stopped = 0;
    (void)state;
    for (int i = 0; i < 60; ++i) {
        pl_plan plan;
        pl_check check;
        assert_ok(plan_case_build(&plan, i % 2 ? &two_by_two : &legacy, false));
        assert_ok(pl_plan_split_rank(&plan, i % 4));
        pl_section *own = plan_case_section(&plan, PL_PROGRAM_STEP, i % 4);
        for (int swap = 0; swap < 1 + i % 3; ++swap) {
            int a = plan_case_draw(&seed, (int)own->entry_count);
            int b = plan_case_draw(&seed, (int)own->entry_count);
            pl_entry kept = own->entries[a];
            own->entries[a] = own->entries[b];
            own->entries[b] = kept;
        }
        assert_ok(pl_check_plan(&check, &plan));
        bool stuck = check.verdict[PL_PROOF_DEADLOCK].outcome == PL_FAILED;
        stopped += stuck;
        for (int p = PL_PROOF_PARAMETERS; p < PL_PROOF_COUNT && stuck; ++p)
            assert_true(check.verdict[p].outcome != PL_PROVED);
        pl_check_free(&check);
        pl_plan_free(&plan);
    }
    assert_true(stopped > 20);
}

/* Whether TEXT still reads; *PROVED: ... and is proved. */
static bool check_if_read(const char *text, bool *proved)
{
    pl_plan plan = {0};
    pl_check check = {0};
    *proved = false;
    if (pl_plan_read(&plan, text, "changed.plan") != PL_OK) return false;
    assert_ok(pl_check_plan(&check, &plan));
    *proved = pl_check_proved(&check);
    pl_check_free(&check);
    pl_plan_free(&plan);
    return true;
}

static void changed_bytes_do_no_harm(void **state)
{
    static const char likely[] = "0123456789 ,.=-*RTabcdefghilmnoprstuvwx_";
    uint64_t seed = 31;
    int read = 0, proved = 0;
    (void)state;
    char *text = base_text(&balanced, 1);
    for (int i = 0; i < 600; ++i) {
        size_t at = (size_t)plan_case_draw(&seed, (int)strlen(text));
        char kept = text[at];
        bool holds = false;
        text[at] = likely[plan_case_draw(&seed, sizeof likely - 1)];
        read += check_if_read(text, &holds);
        proved += holds;
        text[at] = kept;
    }
    assert_true(read > 5);
    assert_true(proved < read);
    free(text);
}

/* Sizes of the header that no plan could have: the proofs say no, and come to an end. */
static void absurd_headers_are_checked(void **state)
{
    static const char *const shapes[][2] = {
        {"sequence=8", "sequence=2147483647"},
        {"micro_batch=1", "micro_batch=1048576"},
        {"rounds=2", "rounds=1048576"},
        {"intra_layer=1", "intra_layer=4096"},
        {"sequence=8 micro_batch=1 intra_layer=1 rounds=2",
         "sequence=2147483647 micro_batch=1048576 intra_layer=4096 rounds=1048576"},
        {"\"hidden_size\": 6", "\"hidden_size\": 2147483647"},
        {"\"head_dim\": 4", "\"head_dim\": 2147483646"},
        {"\"moe_intermediate_size\": 5", "\"moe_intermediate_size\": 2147483647"},
        {"\"vocab_size\": 11", "\"vocab_size\": 2147483647"},
    };
    (void)state;
    char *base = base_text(&balanced, 1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        char *copy = NULL;
        bool proved = true;
        assert_ok(pl_duplicate(&copy, base, "text"));
        char *at = strstr(copy, shapes[i][0]);
        if (!at) fail_msg("no '%s' in the header", shapes[i][0]);
        copy = splice(copy, (size_t)(at - copy), strlen(shapes[i][0]), shapes[i][1]);
        check_if_read(copy, &proved);
        assert_false(proved);
        free(copy);
    }
    free(base);
}

/* --- failing allocations --- */

static void fail_each_allocation(const pl_plan *plan, bool proved)
{
    pl_status status = PL_OK;
    pl_check check = {0};
    int64_t n = -1;
    for (int failed = 1; failed;) {
        pl_allocation_fail_after(++n);
        status = pl_check_plan(&check, plan);
        failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (failed && status != PL_NO_MEMORY)
            fail_msg("allocation %" PRId64 " of a check fails: %s", n, pl_status_name(status));
    }
    assert_ok(status);
    assert_int_equal(pl_check_proved(&check), proved);
    pl_check_free(&check);
    assert_true(n > 100);
}

static void failed_allocations_are_reported(void **state)
{
    static const plan_case small = {
        .name = "small", .model = "moe", .layout = "legacy:world=2,ep=2"};
    pl_plan plan;
    (void)state;
    assert_ok(plan_case_build(&plan, &small, false));
    fail_each_allocation(&plan, true);
    /* ... and when there is much to say: every entry is of another kind than it should be */
    assert_ok(pl_plan_split_rank(&plan, 1));
    pl_section *own = plan_case_section(&plan, PL_PROGRAM_STEP, 1);
    for (size_t i = 0; i < own->entry_count; ++i) {
        own->entries[i].elements += 1;
        own->entries[i].flops += 1;
        if (own->entries[i].wait_count > 1) own->entries[i].wait_count = 1;
    }
    for (size_t i = 0; i < own->buffer_count; ++i) own->buffers[i].bytes += 1;
    fail_each_allocation(&plan, false);
    pl_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undamaged_plans_are_proved),
        cmocka_unit_test(each_proof_finds_its_damage),
        cmocka_unit_test(gradients_name_the_tokens),
        cmocka_unit_test(other_damage_is_found),
        cmocka_unit_test(a_plan_that_stops_leaves_proofs_undecided),
        cmocka_unit_test(shared_sections_say_how_many),
        cmocka_unit_test(ranks_in_conflict_do_not_hang),
        cmocka_unit_test(changed_bytes_do_no_harm),
        cmocka_unit_test(absurd_headers_are_checked),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
