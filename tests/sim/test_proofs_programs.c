/* Proofs of the programs besides the step: damage made by hand in evaluate, generate, export, save
 * and load is found, and a program that is missing is named. */
#include "tests/sim/damage_cases.h"

static const plan_case single = {
    .name = "one micro-batch", .model = "moe", .layout = "decoupled:world=4,ep=2", .bf16 = true};

static const damage_case of_programs[] = {
    {"losses of an evaluation never summed",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_EVALUATE,
     {{WAIT, " control flags ", "", " loss head round=0 mb=1 "},
      {DROP, " all-reduce loss ", "", ""}},
     BIT(WORK) | BIT(COUNTS),
     0,
     PL_PROOF_COUNTS,
     {"evaluate: entry ", ", control flags", "the loss sums do not cover every rank"}},
    {"an evaluation that counts its own tokens",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_EVALUATE,
     {{WAIT, " control flags ", "", " count-tokens "}, {DROP, " all-reduce tokens ", "", ""}},
     BIT(WORK) | BIT(COUNTS),
     0,
     PL_PROOF_COUNTS,
     {"evaluate: entry ", ", control flags", "T is not the count of valid labels"}},
    {"T is not handed to the host",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_STEP,
     {{REPLACE, " control flags ", ",token_count begins", " begins"}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {": step: entry ", ", control flags", "does not read token_count"}},
    {"an evaluation of the wrong samples",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{WAIT, " embed embed round=0 mb=0 ", "", " copy batch round=0 mb=1 "},
      {REPLACE, " embed embed round=0 mb=0 ", "reads=", "reads=tokens.mb1,"}},
     BIT(GRADIENTS),
     0,
     PL_PROOF_GRADIENTS,
     {"rank 3: evaluate: entry ", ", embed embed round 0 mb 0", "another round or micro-batch"}},
    {"an evaluation with another layer's parameters",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_EVALUATE,
     {{REPLACE, " gather layer.0 round=0 pass=f ", "reads=", "reads=param.layer.1,"}},
     BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {"evaluate: entry ", ", attention layer.0 round 0 mb 0 forward", "full.layer.0"}},
    {"an evaluation that trains",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{ADD, " all-reduce loss ", "", "entry 9000 balance balance round=0 stream=compute\n"},
      {ADD, "entry 9000 ", "", "entry 9001 permute layer.0 round=0 mb=0 pass=bi stream=compute\n"}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {"rank 3: evaluate: entry 9000, balance balance round 0", "no such entry belongs"}},
    {"an evaluation of a second round",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{REPLACE, " merge layer.1 round=0 mb=1 ", "round=0", "round=1"}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {"rank 3: evaluate: entry ", ", merge layer.1 round 1 mb 1", "no such entry belongs"}},
    {"an evaluation with the products of a step",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{REPLACE, " loss head round=0 mb=0 ", "flops=", "flops=3"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: evaluate: entry ", ", loss head round 0 mb 0 forward", "must be"}},
    {"an evaluation that reads the batch of a step",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{REPLACE, "buffer batch ", "i32 128", "i32 256"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: evaluate: buffer batch must be", "i32 128"}},
    {"an evaluation that keeps what it gathered",
     &two_by_two,
     3,
     PL_PROGRAM_EVALUATE,
     {{DROP, " reshard head ", "", ""}},
     BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: evaluate: entry ", "leaves over at the end: full.head"}},
    {"an evaluation that gathers twice",
     &two_by_two,
     ALL_RANKS,
     PL_PROGRAM_EVALUATE,
     {{ADD, " reshard head ", "",
       "entry 9000 gather head round=0 pass=f ordinal=1 stream=communication waits=0 "
       "group=dense-shard bytes=144 wire=bf16 reads=param.head begins=full.head\n"
       "entry 9001 reshard head round=0 pass=f ordinal=1 stream=compute waits=9000 "
       "ends=full.head\n"}},
     BIT(WORK) | BIT(ORDERING) | BIT(GATHERS),
     0,
     PL_PROOF_GATHERS,
     {"evaluate: entry 9000, gather head round 0 forward", "nothing computes"}},
    {"a token drawn before its logits",
     &single,
     3,
     PL_PROGRAM_GENERATE,
     {{MOVE, " sample head ", "", " logits head "}},
     BIT(ORDERING) | BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: generate: entry ", ", sample head", "reads what does not live: logits.mb0"}},
    {"logits of every position",
     &single,
     3,
     PL_PROGRAM_GENERATE,
     {{REPLACE, " logits head ", "flops=", "flops=8"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: generate: entry ", ", logits head round 0 mb 0 forward", "must be 132"}},
    {"a token drawn on the device",
     &single,
     3,
     PL_PROGRAM_GENERATE,
     {{REPLACE, " sample head ", "stream=host", "stream=copy"}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {"rank 3: generate: entry ", ", sample head", "must run on stream host"}},
    {"another layer handed out",
     &two_by_two,
     3,
     PL_PROGRAM_EXPORT,
     {{REPLACE, " copy layer.0 ordinal=2 ", "reads=master.layer.0", "reads=master.norm"},
      {MOVE, "buffer master.norm ", "", "buffer outgoing.layer.0 "}},
     BIT(WORK) | BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {"rank 3: export: entry ", ", write layer.0", "does not hold the parameters of the rank"}},
    {"rows that the rank does not hold handed out",
     &two_by_two,
     3,
     PL_PROGRAM_EXPORT,
     {{REPLACE, " write experts.1 ", "elements=", "elements=1"}},
     BIT(TILING),
     0,
     PL_PROOF_TILING,
     {"rank 3: export: entry ", ", write experts.1", "but the rank holds"}},
    {"a part never handed out",
     &two_by_two,
     3,
     PL_PROGRAM_EXPORT,
     {{DROP, " write norm ", "", ""}},
     BIT(WORK) | BIT(LIFETIMES),
     0,
     PL_PROOF_WORK,
     {"rank 3: export: there is no entry write norm"}},
};

static const plan_case kept = {.name = "ignored and frozen",
                               .model = "moe",
                               .layout = "decoupled:world=4,ep=2",
                               .keep_fp32 = {"*layernorm*"},
                               .frozen = {"q_norm"},
                               .bf16 = true};

static const damage_case of_checkpoints[] = {
    {"a write dropped",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{DROP, " write layer.0 ordinal=2 ", "", ""}},
     BIT(WORK) | BIT(LIFETIMES),
     0,
     PL_PROOF_WORK,
     {"rank 3: save: there is no entry write layer.0"}},
    {"a read dropped",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{DROP, " read layer.0 ordinal=2 ", "", ""}},
     BIT(WORK) | BIT(ORDERING) | BIT(LIFETIMES) | BIT(UPDATE),
     0,
     PL_PROOF_UPDATE,
     {"rank 3: load: ", "adam_m.layer.0 does not end as it must: what was saved of it"}},
    {"a write of the wrong part",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{REPLACE, " copy layer.1 ordinal=12 ", "reads=master.layer.1", "reads=master.layer.0"}},
     BIT(WORK) | BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {"rank 3: save: entry ", ", write layer.1", "does not hold what the rank keeps",
      "host_master.layer.1"}},
    {"moments that change places on their way out",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{REPLACE, " copy head ordinal=13 ", "reads=adam_m.head", "reads=adam_v.head"}},
     BIT(WORK) | BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {"rank 3: save: entry ", ", write head", "does not hold what the rank keeps",
      "host_adam_m.head"}},
    {"masters handed out for parameters",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{REPLACE, " copy experts.1 ordinal=11 ", "reads=param", "reads=master"}},
     BIT(WORK) | BIT(PARAMETERS),
     0,
     PL_PROOF_PARAMETERS,
     {"rank 3: save: entry ", ", write experts.1", "host_param.experts.1"}},
    {"moments that change places on their way in",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{REPLACE, " copy layer.0 ordinal=9 ", "begins=ignored_m", "begins=ignored_v"},
      {REPLACE, " copy layer.0 ordinal=10 ", "begins=ignored_v", "begins=ignored_m"}},
     BIT(WORK) | BIT(UPDATE),
     0,
     PL_PROOF_UPDATE,
     {"rank 3: load: ignored_m.layer.0 does not end as it must: what was saved of it"}},
    {"a part that is never loaded",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{DROP, " read norm ordinal=3 ", "", ""},
      {DROP, " copy norm ordinal=7 ", "", ""},
      {DROP, "buffer host_adam_v.norm ", "", ""},
      {DROP, "buffer adam_v.norm ", "", ""}},
     BIT(WORK),
     0,
     PL_PROOF_WORK,
     {"rank 3: load: there is no entry copy norm"}},
    {"rows that the rank does not hold saved",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{REPLACE, " write layer.1 ordinal=3 ", "elements=", "elements=1"}},
     BIT(TILING),
     0,
     PL_PROOF_TILING,
     {"rank 3: save: entry ", ", write layer.1", "but the rank holds"}},
    {"rows that the rank does not hold loaded",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{REPLACE, " read layer.1 ordinal=5 ", "elements=", "elements=1"}},
     BIT(TILING),
     0,
     PL_PROOF_TILING,
     {"rank 3: load: entry ", ", read layer.1", "but the rank holds"}},
    {"a copy before what it brings is read",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{MOVE, " copy head ordinal=4 ", "", " read head "}},
     BIT(ORDERING) | BIT(LIFETIMES),
     0,
     PL_PROOF_LIFETIMES,
     {"rank 3: load: entry ", ", copy head", "reads what does not live: host_param.head"}},
    {"a host buffer of another size",
     &kept,
     3,
     PL_PROGRAM_SAVE,
     {{REPLACE, "buffer host_adam_v.head ", "fp32 ", "fp32 9"}},
     BIT(SIZES),
     0,
     PL_PROOF_SIZES,
     {"rank 3: save: buffer host_adam_v.head must be: host fp32 "}},
    {"a start in the place of a load",
     &kept,
     3,
     PL_PROGRAM_LOAD,
     {{REPLACE, " read head ", "read head ", "initialize head "}},
     BIT(WORK) | BIT(UPDATE),
     0,
     PL_PROOF_WORK,
     {"rank 3: load: entry ", ", initialize head", "no such entry belongs"}},
};

static void damage_of_checkpoints_is_found(void **state)
{
    (void)state;
    expect_found(of_checkpoints, sizeof of_checkpoints / sizeof *of_checkpoints);
}

static void damage_of_other_programs_is_found(void **state)
{
    (void)state;
    expect_found(of_programs, sizeof of_programs / sizeof *of_programs);
}

static pl_check check_build(uint32_t built, uint32_t wanted)
{
    pl_model model;
    pl_plan_request request;
    pl_plan plan;
    pl_check check;
    assert_ok(plan_case_model(&model, single.model));
    assert_ok(plan_case_request(&request, &single, &model));
    request.programs = built;
    assert_ok(pl_plan_build(&plan, &request));
    assert_ok(pl_check_programs(&check, &plan, wanted));
    pl_plan_free(&plan);
    pl_model_free(&model);
    return check;
}

static void programs_that_are_missing_are_named(void **state)
{
    const uint32_t both = PL_PROGRAMS_START | PL_PROGRAMS_STEP;
    (void)state;
    pl_check check = check_build(both, 0);
    assert_true(pl_check_proved(&check));
    pl_check_free(&check);
    check = check_build(both, both | PL_PROGRAMS_EXPORT);
    assert_int_equal(outcomes(&check, PL_FAILED), BIT(WORK));
    assert_int_equal(outcomes(&check, PL_UNDECIDED), BIT(DEADLOCK) | CARRIED);
    assert_non_null(strstr(pl_text_string(&check.verdict[PL_PROOF_WORK].words), "no export"));
    assert_non_null(strstr(pl_text_string(&check.verdict[PL_PROOF_NORM].words),
                           "not decided: export: the plan has no such program"));
    pl_check_free(&check);
    check = check_build(PL_PROGRAMS_GENERATE, PL_PROGRAMS_GENERATE);
    assert_true(pl_check_proved(&check));
    assert_true(check.verdict[PL_PROOF_WORK].checked > 100);
    pl_check_free(&check);
    check = check_build(PL_PROGRAMS_GENERATE, 0);
    assert_false(pl_check_proved(&check));
    assert_non_null(strstr(pl_text_string(&check.verdict[PL_PROOF_WORK].words), "no start"));
    pl_check_free(&check);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_of_other_programs_is_found),
        cmocka_unit_test(damage_of_checkpoints_is_found),
        cmocka_unit_test(programs_that_are_missing_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
