/* Run files: the good ones mean what they say, the wrong ones are refused in words. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "common/run_file.h"
#include "common/schema.h"
#include "tests/test.h"

#define FOLDER "testdata/run-files/"

/* A run that stands in TEXT, read, or the test fails. */
static pl_run parsed(const char *text)
{
    pl_run run;
    assert_ok(pl_run_parse(&run, text, "run.yaml"));
    return run;
}

/* All that a training program does with a run file before it trains. */
static pl_status take_all(const char *file)
{
    pl_run run;
    pl_model model;
    pl_layout layout;
    pl_settings settings;
    PL_TRY(pl_run_read(&run, file));
    pl_status status = pl_run_require_training(&run);
    if (status == PL_OK) status = pl_run_open(&run, &model, &layout);
    if (status == PL_OK) {
        status = pl_run_settings(&settings, &run, &model, &layout);
        pl_model_free(&model);
    }
    pl_run_free(&run);
    return status;
}

/* ---- good files ---- */

static void the_design_page_is_read(void **state)
{
    (void)state;
    pl_run run;
    pl_model model;
    pl_layout layout;
    pl_settings settings;
    assert_ok(take_all(FOLDER "design.yaml"));
    assert_ok(pl_run_read(&run, FOLDER "design.yaml"));
    assert_string_equal(run.model, "testdata/models/tiny-moe.json");
    assert_string_equal(run.layout, "legacy:world=8,ep=4");
    assert_int_equal(run.data.train.count, 1);
    assert_string_equal(run.data.train.words[0], "/usr/share/common-licenses");
    assert_int_equal(run.steps, 200);
    assert_true(run.optimizer.lr == 1e-3 && run.optimizer.schedule.warmup == 0.05);
    assert_ok(pl_run_open(&run, &model, &layout));
    assert_ok(pl_run_settings(&settings, &run, &model, &layout));
    assert_int_equal(layout.ep, 4);
    assert_int_equal(settings.shape.rounds, 8);
    assert_int_equal(settings.shape.sequence, 128);
    assert_int_equal(settings.precision.compute, PL_FP32);
    assert_int_equal(settings.precision.gather, PL_FP32);
    assert_true(settings.balance_coefficient == model.router_aux_loss_coef);
    assert_true(settings.balance_coefficient > 0);
    pl_model_free(&model);
    pl_run_free(&run);
}

static void every_key_lands_where_it_should(void **state)
{
    (void)state;
    pl_run run;
    assert_ok(pl_run_read(&run, FOLDER "full.yaml"));
    assert_int_equal(run.data.train.count, 3);
    assert_string_equal(run.data.train.words[1], "two words");
    assert_string_equal(run.data.train.words[2], "it's");
    assert_string_equal(run.data.validate.words[0], "three");
    assert_int_equal(run.data.sequence, 256);
    assert_int_equal(run.batch.global, 64);
    assert_int_equal(run.batch.micro, 2);
    assert_int_equal(run.batch.intra_layer, 4);
    assert_int_equal(run.policy.reshard, PL_RESHARD_PER_CALL);
    assert_int_equal(run.policy.prefetch, PL_PREFETCH_NEXT_UNIT);
    assert_int_equal(run.policy.recompute, PL_RECOMPUTE_FULL);
    assert_int_equal(run.policy.accumulate, PL_ACCUMULATE_UNSHARDED);
    assert_int_equal(run.policy.dispatch, PL_DISPATCH_ALL_GATHER);
    assert_int_equal(run.policy.routing, PL_ROUTING_BALANCED);
    assert_int_equal(run.precision.compute, PL_BF16);
    assert_int_equal(run.precision.gather, PL_BF16);
    assert_int_equal(run.precision.gradient, PL_FP32);
    assert_int_equal(run.balance.kind, PL_BALANCE_GLOBAL_BATCH);
    assert_true(run.balance.coefficient == 0.01);
    assert_int_equal(run.optimizer.kind, PL_OPTIMIZER_SGD);
    assert_true(run.optimizer.lr == 0.5 && run.optimizer.weight_decay == 0);
    assert_true(run.optimizer.beta1 == 0.8 && run.optimizer.beta2 == 0.999);
    assert_true(run.optimizer.epsilon == 1e-6 && run.optimizer.clip == 0);
    assert_int_equal(run.optimizer.schedule.kind, PL_SCHEDULE_COSINE);
    assert_true(run.optimizer.schedule.decay == 0.2 && run.optimizer.schedule.final == 0.05);
    assert_true(run.optimizer.schedule.warmup == 0.1 && run.optimizer.schedule.start == 0.01);
    assert_int_equal(run.workers, 3);
    assert_true(run.evaluate.every == 5 && run.evaluate.windows == 12);
    assert_true(run.checkpoint.every == 50 && run.checkpoint.keep == 3);
    assert_true(run.checkpoint.keep_every == 100 && run.checkpoint.write == PL_CHECKPOINT_BEHIND);
    assert_string_equal(run.init_from, "some/weights");
    assert_string_equal(run.output, "runs/full");
    assert_true(run.seed == INT64_MAX && run.steps == 10 && run.timeout == 2.5);
    assert_string_equal(run.keep_fp32.words[0], "*norm*");
    assert_int_equal(run.frozen.count, 2);
    /* the file names every key of the schema, so no key is left untested here */
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int i = 0; i < count; ++i)
        if (!pl_run_is_given(&run, keys[i].name)) fail_msg("%s is not in full.yaml", keys[i].name);
    pl_run_free(&run);
}

static void patterns_reach_the_model(void **state)
{
    (void)state;
    pl_run run;
    pl_model model;
    pl_layout layout;
    pl_settings settings;
    assert_ok(pl_run_read(&run, FOLDER "full.yaml"));
    assert_ok(pl_run_open(&run, &model, &layout));
    int64_t frozen = 0, ignored = 0;
    for (int64_t i = 0; i < model.tensor_count; ++i) {
        frozen += model.tensors[i].frozen;
        ignored += model.tensors[i].class_ == PL_CLASS_IGNORED;
    }
    assert_int_equal(frozen, 2);
    assert_int_equal(ignored, 4 * 4 + 1); /* four norms a layer and the last */
    assert_ok(pl_run_settings(&settings, &run, &model, &layout));
    assert_int_equal(settings.shape.rounds, 2); /* 64 / (2 * 4 * 4) */
    assert_true(settings.balance_coefficient == 0.01 && settings.clip == 0);
    assert_int_equal(settings.optimizer, PL_OPTIMIZER_SGD);
    assert_int_equal(settings.policy.reshard, PL_RESHARD_PER_CALL);
    pl_model_free(&model);
    pl_run_free(&run);
}

static void other_ways_to_write_yaml_are_read(void **state)
{
    (void)state;
    pl_run run;
    assert_ok(pl_run_read(&run, FOLDER "styles.yaml"));
    assert_string_equal(run.layout, "legacy:world=8,ep=4");
    assert_int_equal(run.policy.reshard, PL_RESHARD_NEVER);
    assert_int_equal(run.policy.dispatch, PL_DISPATCH_ALL_GATHER);
    assert_int_equal(run.data.train.count, 2);
    assert_string_equal(run.data.train.words[1], "b: c, d #e");
    assert_int_equal(run.data.validate.count, 1);
    assert_int_equal(run.optimizer.schedule.kind, PL_SCHEDULE_CONSTANT);
    pl_run_free(&run);
    run = parsed("\xEF\xBB\xBFsteps: 3\r\nseed: 4\r\n");
    assert_true(run.steps == 3 && run.seed == 4);
    pl_run_free(&run);
}

static void defaults_are_those_of_the_settings(void **state)
{
    (void)state;
    pl_run run;
    pl_model model;
    pl_layout layout;
    pl_settings settings, expected = pl_settings_default();
    pl_run_default(&run);
    assert_null(run.model);
    assert_ok(pl_run_set_key(&run, "model", "testdata/models/tiny-dense.json", "--model"));
    assert_ok(pl_run_set_key(&run, "layout", "single:world=8", "--layout"));
    assert_ok(pl_run_open(&run, &model, &layout));
    assert_ok(pl_run_settings(&settings, &run, &model, &layout));
    expected.balance = PL_BALANCE_NONE; /* the model is dense */
    assert_memory_equal(&settings.policy, &expected.policy, sizeof settings.policy);
    assert_memory_equal(&settings.precision, &expected.precision, sizeof settings.precision);
    assert_memory_equal(&settings.shape, &expected.shape, sizeof settings.shape);
    assert_int_equal(settings.balance, expected.balance);
    assert_int_equal(settings.optimizer, expected.optimizer);
    assert_true(settings.clip == expected.clip && settings.balance_coefficient == 0);
    assert_int_equal(run.balance.kind, pl_settings_default().balance);
    assert_true(run.workers == 0 && run.evaluate.every == 0 && run.evaluate.windows == 64);
    assert_true(!run.init_from && !run.output && run.optimizer.schedule.start == 0);
    pl_model_free(&model);
    pl_run_free(&run);
}

static void precision_follows_the_backend(void **state)
{
    (void)state;
    pl_run run = parsed("steps: 1\n");
    assert_int_equal(run.backend, PL_BACKEND_CPU);
    assert_int_equal(run.precision.compute, PL_FP32);
    assert_ok(pl_run_set(&run, "backend=cuda"));
    assert_int_equal(run.precision.compute, PL_BF16);
    assert_int_equal(run.precision.gather, PL_BF16);
    assert_int_equal(run.precision.gradient, PL_FP32);
    assert_ok(pl_run_set(&run, "precision.compute=fp32"));
    assert_int_equal(run.precision.compute, PL_FP32);
    assert_ok(pl_run_set(&run, "backend=auto")); /* what was given stays */
    assert_int_equal(run.precision.compute, PL_FP32);
    assert_int_equal(run.precision.gather, PL_BF16);
    pl_run_free(&run);
    assert_ok(pl_run_read(&run, FOLDER "cuda.yaml"));
    assert_int_equal(run.precision.compute, PL_BF16);
    assert_int_equal(run.precision.gather, PL_FP32);
    pl_run_free(&run);
}

/* ---- the schema ---- */

static void every_default_obeys_its_own_rules(void **state)
{
    (void)state;
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    pl_run defaults = parsed("seed: 1\n"), run = parsed("seed: 1\n");
    for (int i = 0; i < count; ++i) {
        assert_ptr_equal(pl_schema_find(keys[i].name), &keys[i]);
        assert_int_equal(pl_schema_index(&keys[i]), i);
        assert_false(pl_schema_is_section(keys[i].name));
        assert_true(strlen(keys[i].meaning) > 0);
        assert_true(keys[i].initial || keys[i].without);
        if (!keys[i].initial) continue;
        assert_ok(pl_run_set_key(&run, keys[i].name, keys[i].initial, "test"));
        if (!pl_schema_equal(&keys[i], &run, &defaults))
            fail_msg("the default of %s is not '%s'", keys[i].name, keys[i].initial);
    }
    assert_true(pl_run_equal(&run, &defaults));
    pl_run_free(&run);
    pl_run_free(&defaults);
}

/* Keys of one section stand together, or pl_run_write would open it twice. */
static void written_defaults_are_read_back(void **state)
{
    (void)state;
    pl_run run, back;
    pl_text text = {0};
    pl_run_default(&run);
    assert_ok(pl_run_write(&text, &run));
    assert_ok(pl_run_parse(&back, pl_text_string(&text), "written"));
    assert_true(pl_run_equal(&run, &back));
    pl_run_free(&back);
    pl_text_free(&text);
}

static void help_names_every_key(void **state)
{
    (void)state;
    int count = 0;
    const pl_schema_key *keys = pl_schema_keys(&count);
    for (int markdown = 0; markdown < 2; ++markdown) {
        pl_text text = {0};
        pl_run_describe_keys(&text, markdown);
        assert_ok(pl_text_status(&text));
        for (int i = 0; i < count; ++i) {
            assert_non_null(strstr(pl_text_string(&text), keys[i].name));
            assert_non_null(strstr(pl_text_string(&text), keys[i].meaning));
        }
        assert_non_null(strstr(pl_text_string(&text), "one of after-forward, never, per-call"));
        pl_text_free(&text);
    }
}

static void sections_name_their_members(void **state)
{
    (void)state;
    pl_text text = {0};
    pl_schema_add_members(&text, "optimizer");
    assert_string_equal(pl_text_string(&text),
                        "kind, lr, weight_decay, beta1, beta2, epsilon, clip, schedule");
    pl_text_free(&text);
    assert_true(pl_schema_is_section("optimizer.schedule"));
    assert_false(pl_schema_is_section("optim"));
    assert_false(pl_schema_is_section(""));
}

/* ---- writing ---- */

static void runs_survive_writing(void **state)
{
    (void)state;
    static const char *const files[] = {FOLDER "design.yaml", FOLDER "minimal.yaml",
                                        FOLDER "full.yaml", FOLDER "styles.yaml",
                                        FOLDER "cuda.yaml"};
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        pl_run run, back;
        pl_text text = {0}, again = {0};
        assert_ok(pl_run_read(&run, files[i]));
        assert_ok(pl_run_write(&text, &run));
        assert_ok(pl_run_parse(&back, pl_text_string(&text), "written"));
        assert_true(pl_run_equal(&run, &back));
        assert_ok(pl_run_write(&again, &back));
        assert_string_equal(pl_text_string(&text), pl_text_string(&again));
        assert_ok(pl_run_set(&back, "optimizer.beta1=0.123"));
        assert_false(pl_run_equal(&run, &back));
        pl_text_free(&text);
        pl_text_free(&again);
        pl_run_free(&run);
        pl_run_free(&back);
    }
}

static void odd_words_and_numbers_survive_writing(void **state)
{
    (void)state;
    static const char *const words[] = {"a b",      "it's",
                                        "\"",       "yes",
                                        "12",       "-",
                                        "- a",      "a: b",
                                        "#c",       "a #c",
                                        "*x",       "&x",
                                        "!x",       "{a}",
                                        "%x",       "@x",
                                        "`x",       "\\n",
                                        " lead",    "trail ",
                                        "~x",       "Null",
                                        "a,b",      "?",
                                        "\xC3\xA9", "\xF0\x9F\x99\x82",
                                        "---",      "...",
                                        "| a"};
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
        pl_run run, back;
        pl_text text = {0};
        pl_run_default(&run);
        assert_ok(pl_run_set_key(&run, "model", words[i], "test"));
        assert_ok(pl_run_set_key(&run, "data.train", words[i], "test"));
        assert_ok(pl_run_set(&run, "optimizer.lr=0.30000000000000004"));
        assert_ok(pl_run_set(&run, "timeout=1e-300"));
        assert_ok(pl_run_write(&text, &run));
        if (pl_run_parse(&back, pl_text_string(&text), "written") != PL_OK)
            fail_msg("'%s': %s", words[i], pl_error_text());
        if (!pl_run_equal(&run, &back)) fail_msg("'%s' became '%s'", words[i], back.model);
        pl_text_free(&text);
        pl_run_free(&run);
        pl_run_free(&back);
    }
    /* A quoted word that would mean nothing without its quotes. */
    pl_run run = parsed("model: 'null'\nlayout: '[a'\nkeep_fp32: ['~', \"null\"]\n"), back;
    pl_text text = {0};
    assert_ok(pl_run_write(&text, &run));
    assert_ok(pl_run_parse(&back, pl_text_string(&text), "written"));
    assert_true(pl_run_equal(&run, &back));
    pl_text_free(&text);
    pl_run_free(&run);
    pl_run_free(&back);
}

/* ---- options ---- */

static void options_set_keys(void **state)
{
    (void)state;
    pl_run run = parsed("model: a\nlayout: single:world=2\nsteps: 5\n");
    assert_ok(pl_run_set(&run, "layout=folded:world=64,ep=8"));
    assert_string_equal(run.layout, "folded:world=64,ep=8");
    assert_ok(pl_run_set(&run, "data.train=[a, \"b c\"]"));
    assert_int_equal(run.data.train.count, 2);
    assert_string_equal(run.data.train.words[1], "b c");
    assert_ok(pl_run_set(&run, "data.train=x y"));
    assert_int_equal(run.data.train.count, 1);
    assert_ok(pl_run_set(&run, "keep_fp32=*norm*"));
    assert_string_equal(run.keep_fp32.words[0], "*norm*");
    assert_ok(pl_run_set(&run, "keep_fp32=[]"));
    assert_int_equal(run.keep_fp32.count, 0);
    assert_ok(pl_run_set(&run, "steps=7"));
    assert_int_equal(run.steps, 7);
    pl_run_free(&run);
}

static void wrong_options_are_refused_and_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *words[3];
    } cases[] = {
        {"policy.reshard=nevr", {"--set: policy.reshard", "'nevr'", "did you mean 'never'?"}},
        {"policy.reshard", {"--set", "KEY=VALUE", "'policy.reshard'"}},
        {"=never", {"--set", "KEY=VALUE", ""}},
        {"", {"--set", "KEY=VALUE", ""}},
        {"policy.reshard=", {"--set: policy.reshard", "''", ""}},
        {"policy=never", {"--set: policy", "keys are meant", "reshard"}},
        {"policy=[never]", {"--set: policy", "keys are meant", ""}},
        {"polcy.reshard=never", {"unknown key 'polcy.reshard'", "policy.reshard", ""}},
        {"ep_size=[4]", {"ep_size", "ep=... in layout", ""}},
        {"gradient_accumulation_steps=4", {"--set", "batch.global", ""}},
        {"eval_interval=10", {"--set", "evaluate.every", ""}},
        {"evaluate.every=-1", {"--set: evaluate.every", "'-1'", "at least 0"}},
        {"evaluate.windows=0", {"--set: evaluate.windows", "'0'", "at least 1"}},
        {"evaluate=5", {"--set: evaluate", "keys are meant", "every, windows"}},
        {"workers=-2", {"--set: workers", "'-2'", "at least 0 and at most 4096"}},
        {"workers=two", {"--set: workers", "'two'", "whole number"}},
        {"optimizer.schedule.start=1.5", {"schedule.start", "'1.5'", "at most 1"}},
        {"init_from=[a, b]", {"--set: init_from", "not a list", ""}},
        {"output=", {"--set: output", "''", ""}},
        {"steps=[1]", {"--set: steps", "not a list", ""}},
        {"steps={a: 1}", {"--set: steps", "whole number", ""}},
        {"steps=1e400", {"steps", "'1e400'", ""}},
        {"data.train=[a", {"--set:", "not YAML", ""}},
        {"data.train=[a]\nsteps: 4", {"one value", "", ""}},
        {"data.train=[[a]]", {"data.train", "holds a list", ""}},
        {"data.train=[a, '']", {"data.train", "empty", ""}},
        {"data.train=a\tb", {"data.train", "U+0009", ""}},
        {"model=\xFF", {"model", "UTF-8", ""}},
    };
    pl_run run = parsed("model: a\ndata: {train: [q]}\nsteps: 5\n"),
           same = parsed("model: a\ndata: {train: [q]}\nsteps: 5\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        assert_fails(PL_BAD_INPUT, pl_run_set(&run, cases[i].assignment), cases[i].words[0],
                     cases[i].words[1], cases[i].words[2]);
        assert_true(pl_run_equal(&run, &same));
    }
    pl_run_free(&run);
    pl_run_free(&same);
}

/* A value that is found wrong later is traced to the last place that gave it. */
static void blame_goes_to_the_last_giver(void **state)
{
    (void)state;
    pl_model model;
    pl_layout layout;
    pl_settings settings;
    pl_run run = parsed("model: testdata/models/tiny-moe.json\n\nlayout:   single:world=7,ep=2\n"
                        "batch: {global: 60}\n");
    assert_fails(PL_BAD_INPUT, pl_run_open(&run, &model, &layout),
                 "run.yaml:3:11: layout 'single:world=7,ep=2'");
    assert_ok(pl_run_set_key(&run, "layout", "single:world=9,ep=2", "--layout"));
    assert_fails(PL_BAD_INPUT, pl_run_open(&run, &model, &layout),
                 "--layout: layout 'single:world=9");
    assert_ok(pl_run_set_key(&run, "layout", "single:world=8,ep=2", "--layout"));
    assert_ok(pl_run_open(&run, &model, &layout));
    assert_fails(PL_BAD_INPUT, pl_run_settings(&settings, &run, &model, &layout),
                 "run.yaml:4:17: batch.global: 60", "56 or 64");
    assert_ok(pl_run_set(&run, "batch.global=63"));
    assert_fails(PL_BAD_INPUT, pl_run_settings(&settings, &run, &model, &layout),
                 "--set: batch.global: 63");
    assert_ok(pl_run_set(&run, "batch.global=56"));
    assert_ok(pl_run_settings(&settings, &run, &model, &layout));
    assert_int_equal(settings.shape.rounds, 7);
    run.data.sequence = 0; /* set by a program, past the checks */
    assert_fails(PL_BAD_INPUT, pl_run_settings(&settings, &run, &model, &layout),
                 "run.yaml: data.sequence: 0");
    assert_fails(PL_BAD_INPUT, pl_run_blame(&run, "nonsense", PL_FAIL(PL_BAD_INPUT, "words")),
                 "run.yaml: nonsense: words");
    pl_model_free(&model);
    pl_run_free(&run);
}

static void training_needs_more(void **state)
{
    (void)state;
    pl_run run = parsed("model: a\n");
    assert_fails(PL_BAD_INPUT, pl_run_require_training(&run), "run.yaml: data.train: missing");
    assert_ok(pl_run_set(&run, "data.train=x"));
    assert_fails(PL_BAD_INPUT, pl_run_require_training(&run), "batch.global: missing");
    assert_ok(pl_run_set(&run, "batch.global=8"));
    assert_fails(PL_BAD_INPUT, pl_run_require_training(&run), "steps: missing", "steps: 200");
    assert_ok(pl_run_set(&run, "steps=8"));
    assert_ok(pl_run_require_training(&run));
    pl_run_free(&run);
}

/* ---- wrong files ---- */

/* Why FILE is not refused as EXPECTED ("words | words") says, or NULL when it is. */
static const char *check_refusal(const char *file, char *expected, char *reason, size_t size)
{
    pl_error_clear();
    pl_status status = take_all(file);
    if (status != PL_BAD_INPUT) {
        snprintf(reason, size, "status %s: %s", pl_status_name(status), pl_error_text());
        return reason;
    }
    if (strncmp(pl_error_text(), file, strlen(file)) != 0) {
        snprintf(reason, size, "does not begin with the file: %s", pl_error_text());
        return reason;
    }
    for (char *words = expected, *next = NULL; words; words = next) {
        next = strstr(words, " | ");
        if (next) {
            *next = '\0';
            next += 3;
        }
        if (*words && strstr(pl_error_text(), words)) continue;
        snprintf(reason, size, "no '%s' in: %s", words, pl_error_text());
        return reason;
    }
    return NULL;
}

static void read_expected(char *out, size_t size, const char *file)
{
    static const char beginning[] = "# expect: ";
    char *bytes = NULL;
    size_t length = 0;
    assert_ok(pl_read_file(&bytes, &length, file, 1 << 20));
    if (strncmp(bytes, beginning, sizeof beginning - 1) != 0) fail_msg("%s: no '# expect'", file);
    char *line = bytes + sizeof beginning - 1;
    line[strcspn(line, "\n")] = '\0';
    snprintf(out, size, "%s", line);
    pl_free(bytes);
}

static void wrong_files_are_refused_in_words(void **state)
{
    (void)state;
    DIR *folder = opendir(FOLDER "wrong");
    assert_non_null(folder);
    int files = 0, failures = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char file[400], expected[1000], reason[5000];
        if (entry->d_name[0] == '.') continue;
        snprintf(file, sizeof file, FOLDER "wrong/%s", entry->d_name);
        read_expected(expected, sizeof expected, file);
        ++files;
        if (!check_refusal(file, expected, reason, sizeof reason)) continue;
        print_error("%s\n    %s\n", file, reason);
        ++failures;
    }
    closedir(folder);
    print_message("%d wrong run files\n", files);
    assert_int_equal(failures, 0);
    assert_true(files >= 100);
}

/* The driver above is no rubber stamp. */
static void the_driver_notices_what_is_not_refused(void **state)
{
    (void)state;
    char reason[5000], expected[100] = "steps", other[100] = "steps | no such words";
    assert_non_null(check_refusal(FOLDER "design.yaml", expected, reason, sizeof reason));
    assert_non_null(strstr(reason, "status OK"));
    assert_null(check_refusal(FOLDER "wrong/steps-zero.yaml", expected, reason, sizeof reason));
    assert_non_null(check_refusal(FOLDER "wrong/steps-zero.yaml", other, reason, sizeof reason));
    assert_non_null(strstr(reason, "no such words"));
}

static void giants_are_refused(void **state)
{
    (void)state;
    pl_run run;
    pl_text text = {0};
    while (text.length <= 1 << 20) pl_text_add_string(&text, "# a comment that goes on and on\n");
    assert_fails(PL_BAD_INPUT, pl_run_parse(&run, pl_text_string(&text), "giant"), "giant",
                 "at most 1048576");
    static const struct {
        const char *first, *more, *words;
    } cases[] = {
        {"model: ", "[", "holds a list"},     {"", "[", "keys and values"},
        {"", "{a: ", "nested deeper than 8"}, {"", "- ", "keys and values"},
        {"", "? ", "a key must be a word"},   {"model: '", "x", "not YAML"},
        {"", "x", "keys and values"},         {"a: {", "b, ", "given twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_text_clear(&text);
        pl_text_add_string(&text, cases[i].first);
        while (text.length < (1 << 20) - 8) pl_text_add_string(&text, cases[i].more);
        assert_fails(PL_BAD_INPUT, pl_run_parse(&run, pl_text_string(&text), "giant"), "giant",
                     cases[i].words);
    }
    pl_text_clear(&text);
    for (int i = 0; i <= PL_YAML_MAX_KEYS; ++i) pl_text_add(&text, "key%d: 1\n", i);
    assert_fails(PL_BAD_INPUT, pl_run_parse(&run, pl_text_string(&text), "giant"), "giant:1001:1",
                 "more than 1000 keys");
    pl_text_clear(&text);
    pl_text_add_string(&text, "data: {train: [a");
    for (int i = 0; i < 100000; ++i) pl_text_add_string(&text, ", a");
    pl_text_add_string(&text, "]}\n");
    assert_ok(pl_run_parse(&run, pl_text_string(&text), "giant"));
    assert_int_equal(run.data.train.count, 100001);
    pl_run_free(&run);
    pl_text_free(&text);
}

static void files_that_are_none_are_refused(void **state)
{
    (void)state;
    pl_run run;
    assert_fails(PL_BAD_INPUT, pl_run_read(&run, FOLDER "none.yaml"), "none.yaml", "No such file");
    assert_fails(PL_BAD_INPUT, pl_run_read(&run, "testdata"), "testdata", "regular");
    assert_fails(PL_BAD_INPUT, pl_run_parse(&run, "", "run.yaml"), "run.yaml: empty");
}

/* A file changed anywhere is read or refused, never worse; words always name the file. Each mark
 * takes every third position, another third than the mark before it. */
static void damaged_files_are_read_or_refused(void **state)
{
    (void)state;
    static const char marks[] = "{}[]:,'\"*&!#|>%@-? \n\t\x01\xFF";
    char *bytes = NULL;
    size_t length = 0;
    int refused = 0;
    assert_ok(pl_read_file(&bytes, &length, FOLDER "full.yaml", 1 << 20));
    for (size_t mark = 0; mark < sizeof marks - 1; ++mark) {
        for (size_t i = mark % 3; i < length; i += 3) {
            char kept = bytes[i];
            pl_run run;
            bytes[i] = marks[mark];
            pl_error_clear();
            pl_status status = pl_run_parse(&run, bytes, "damaged");
            bytes[i] = kept;
            if (status == PL_OK) {
                pl_run_free(&run);
                continue;
            }
            ++refused;
            assert_int_equal(status, PL_BAD_INPUT);
            assert_true(strncmp(pl_error_text(), "damaged:", 8) == 0);
        }
    }
    assert_true(refused > 2000);
    pl_free(bytes);
}

/* ---- memory ---- */

static pl_status read_set_and_write(void)
{
    pl_run run;
    pl_text text = {0};
    PL_TRY(pl_run_read(&run, FOLDER "full.yaml"));
    pl_status status = pl_run_set(&run, "data.train=[a, b]");
    if (status == PL_OK) status = pl_run_set(&run, "model=testdata/models/tiny-dense.json");
    if (status == PL_OK) status = pl_run_write(&text, &run);
    pl_text_free(&text);
    pl_run_free(&run);
    return status;
}

static pl_status refuse_something(void)
{
    pl_run run;
    pl_status status = pl_run_read(&run, FOLDER "wrong/unknown-key.yaml");
    return status == PL_BAD_INPUT ? PL_OK : status;
}

static pl_status open_all(void) { return take_all(FOLDER "full.yaml"); }

static int count_allocations(pl_status (*call)(void))
{
    for (int n = 0;; ++n) {
        pl_allocation_fail_after(n);
        pl_status status = call();
        int failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (!failed) {
            assert_int_equal(status, PL_OK);
            return n;
        }
        if (status != PL_NO_MEMORY)
            fail_msg("allocation %d: %s: %s", n, pl_status_name(status), pl_error_text());
    }
}

static void allocation_failures_have_words(void **state)
{
    (void)state;
    assert_true(count_allocations(read_set_and_write) > 100);
    assert_true(count_allocations(refuse_something) > 10);
    assert_true(count_allocations(open_all) > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_design_page_is_read),
        cmocka_unit_test(every_key_lands_where_it_should),
        cmocka_unit_test(patterns_reach_the_model),
        cmocka_unit_test(other_ways_to_write_yaml_are_read),
        cmocka_unit_test(defaults_are_those_of_the_settings),
        cmocka_unit_test(precision_follows_the_backend),
        cmocka_unit_test(every_default_obeys_its_own_rules),
        cmocka_unit_test(written_defaults_are_read_back),
        cmocka_unit_test(help_names_every_key),
        cmocka_unit_test(sections_name_their_members),
        cmocka_unit_test(runs_survive_writing),
        cmocka_unit_test(odd_words_and_numbers_survive_writing),
        cmocka_unit_test(options_set_keys),
        cmocka_unit_test(wrong_options_are_refused_and_change_nothing),
        cmocka_unit_test(blame_goes_to_the_last_giver),
        cmocka_unit_test(training_needs_more),
        cmocka_unit_test(wrong_files_are_refused_in_words),
        cmocka_unit_test(the_driver_notices_what_is_not_refused),
        cmocka_unit_test(giants_are_refused),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(damaged_files_are_read_or_refused),
        cmocka_unit_test(allocation_failures_have_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
