/* The commands of pleat-sim from inside: what they print is what plans, layouts and models say, the
 * table of operations is true of plans, and failing allocations end in words. Wrong usage is the
 * matter of tests/cli/cases.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/placement.h"
#include "common/table.h"
#include "sim/command.h"
#include "sim/figures.h"
#include "sim/operations.h"
#include "sim/options.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

#define TINY  "testdata/models/tiny-moe.json"
#define DENSE "testdata/models/tiny-dense.json"

typedef pl_status (*command)(pl_output *output, int count, char **arguments);

/* Run a command with the words of LINE, apart by blanks. */
static pl_status run(command run_command, pl_output *output, const char *line)
{
    enum { WORDS = 32 };
    char copy[600], *arguments[WORDS + 1] = {NULL};
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && count < WORDS; word = strtok(NULL, " "))
        arguments[count++] = word;
    return run_command(output, count, arguments);
}

static json_t *run_json(command run_command, const char *line)
{
    pl_output output = {0};
    json_error_t error;
    assert_ok(run(run_command, &output, line));
    json_t *value = json_loads(pl_text_string(&output.text), JSON_REJECT_DUPLICATES, &error);
    if (!value) fail_msg("no JSON at line %d: %s", error.line, error.text);
    pl_text_free(&output.text);
    return value;
}

/* The number at the end of PATH, keys apart by blanks. */
static int64_t number_at(json_t *value, const char *path)
{
    char copy[200];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *key = strtok(copy, " "); key; key = strtok(NULL, " "))
        value = json_object_get(value, key);
    if (!json_is_integer(value)) fail_msg("no number at '%s'", path);
    return json_integer_value(value);
}

/* A plan of MODEL under NOTATION with settings SET, each "key=value" and apart by blanks: start and
 * step, or ALL programs that the shape allows. */
static void make_plan_of(pl_plan *out, const char *model, const char *notation, const char *set,
                         bool all)
{
    char copy[400];
    pl_run start;
    pl_model opened;
    pl_plan_request request = {0};
    snprintf(copy, sizeof copy, "%s", set);
    pl_run_default(&start);
    assert_ok(pl_run_set_key(&start, "model", model, "--model"));
    assert_ok(pl_run_set_key(&start, "layout", notation, "--layout"));
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        assert_ok(pl_run_set(&start, word));
    assert_ok(pl_run_open(&start, &opened, &request.layout));
    assert_ok(pl_run_settings(&request.settings, &start, &opened, &request.layout));
    request.model = &opened;
    if (all) request.programs = plan_case_programs(&request.settings);
    request.keep_fp32 = (const char *const *)start.keep_fp32.words;
    request.keep_fp32_count = (int)start.keep_fp32.count;
    request.frozen = (const char *const *)start.frozen.words;
    request.frozen_count = (int)start.frozen.count;
    assert_ok(pl_plan_build(out, &request));
    pl_model_free(&opened);
    pl_run_free(&start);
}

static void make_plan(pl_plan *out, const char *model, const char *notation, const char *set)
{
    make_plan_of(out, model, notation, set, false);
}

/* --- operations --- */

typedef struct survey {
    pl_operation_facts table[PL_OPERATION_COUNT];
    pl_kind_set reads[PL_OPERATION_COUNT], writes[PL_OPERATION_COUNT]; /* seen in plans */
    bool seen[PL_OPERATION_COUNT];
    int64_t unexplained;
} survey;

static int count_of(pl_kind_set kinds)
{
    return __builtin_popcountll((uint64_t)kinds) + __builtin_popcountll((uint64_t)(kinds >> 64));
}

static void survey_entry(survey *s, const pl_section *section, const pl_entry *entry)
{
    int operation = entry->name.operation;
    const pl_operation_facts *facts = &s->table[operation];
    bool alone = operation == PL_OP_CONTROL && entry->group == PL_GROUP_NONE;
    s->seen[operation] = true;
    s->unexplained += entry->stream != (alone ? PL_STREAM_HOST : facts->stream);
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        pl_kind_set bit = (pl_kind_set)1 << section->buffers[use->buffer].kind;
        if (use->flags & PL_USE_READ) s->reads[operation] |= bit;
        if (use->flags & PL_USE_WRITE) s->writes[operation] |= bit;
    }
}

static void survey_plan(survey *s, const char *model, const char *notation, const char *set)
{
    pl_plan plan;
    make_plan_of(&plan, model, notation, set, true);
    for (size_t i = 0; i < plan.section_count; ++i)
        for (size_t j = 0; j < plan.sections[i].entry_count; ++j)
            survey_entry(s, &plan.sections[i], &plan.sections[i].entries[j]);
    pl_plan_free(&plan);
}

/* Policies that between them bring every operation with every kind of buffer. */
static void survey_all(survey *s)
{
    static const char *const models[] = {TINY, DENSE, "testdata/hf-configs/qwen3-moe-tied"};
    static const char *const sets[] = {
        "data.sequence=8",
        "data.sequence=8 precision.gradient=bf16 batch.global=32 keep_fp32=norm",
        "data.sequence=8 batch.intra_layer=2 policy.recompute=full policy.dispatch=all-gather",
        "data.sequence=8 precision.gather=fp32 batch.global=32 policy.reshard=per-call "
        "keep_fp32=[model.embed_tokens.weight,lm_head.weight,model.norm.weight]",
        "data.sequence=8 precision.compute=fp32 precision.gather=fp32 batch.global=32 "
        "keep_fp32=*layernorm*",
        "data.sequence=8 keep_fp32=*_proj.weight",
    };
    for (int i = 0; i < (int)(sizeof sets / sizeof *sets); ++i)
        for (int m = 0; m < 3; ++m) {
            bool experts_kept = i == 5 && m != 1;
            if (m == 2 && strstr(sets[i], "lm_head")) continue;
            if (experts_kept) continue;
            survey_plan(s, models[m], "single:world=1", sets[i]);
            survey_plan(s, models[m], "legacy:world=4,replicas=2", sets[i]);
            survey_plan(s, models[m], m == 1 ? "single:world=4" : "legacy:world=4,ep=2", sets[i]);
        }
    survey_plan(s, TINY, "single:world=1", "data.sequence=8 keep_fp32=lm_head");
    for (int set = 0; set < 4; ++set)
        survey_plan(s, TINY, "folded:world=8,ep=2,replicas=2",
                    set & 1 ? "data.sequence=8 balance.kind=global-batch batch.global=32"
                            : "data.sequence=8 frozen=*experts*");
    for (int i = 0; i < PL_OPERATION_COUNT; ++i) {
        s->unexplained += count_of(s->reads[i] & ~s->table[i].reads);
        s->unexplained += count_of(s->writes[i] & ~s->table[i].writes);
    }
}

static void start_survey(survey *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < PL_OPERATION_COUNT; ++i)
        s->table[i] = *pl_operation_describe((pl_operation)i);
}

/* No more is claimed than some plan does, and no less. */
static void the_table_of_operations_is_true(void **state)
{
    (void)state;
    static survey s;
    pl_text differences = {0};
    start_survey(&s);
    survey_all(&s);
    for (int i = 0; i < PL_OPERATION_COUNT; ++i) {
        const char *name = pl_operation_name((pl_operation)i);
        if (!s.seen[i]) pl_text_add(&differences, "; no plan has %s", name);
        for (int kind = 0; kind < PL_BUFFER_KIND_COUNT; ++kind) {
            const char *stem = pl_buffer_kind_stem((pl_buffer_kind)kind);
            if ((s.table[i].reads ^ s.reads[i]) >> kind & 1U)
                pl_text_add(&differences, "; %s reads %s", name, stem);
            if ((s.table[i].writes ^ s.writes[i]) >> kind & 1U)
                pl_text_add(&differences, "; %s writes %s", name, stem);
        }
    }
    if (differences.length > 0) fail_msg("table and plans differ%s", pl_text_string(&differences));
    assert_int_equal(s.unexplained, 0);
}

static void a_wrong_table_of_operations_is_noticed(void **state)
{
    (void)state;
    static survey s;
    start_survey(&s);
    s.table[PL_OP_MERGE].reads &= ~((pl_kind_set)1 << PL_BUF_ROUTE);
    survey_all(&s);
    assert_int_equal(s.unexplained, 1);
    start_survey(&s);
    s.table[PL_OP_CLIP].stream = PL_STREAM_HOST;
    survey_all(&s);
    assert_true(s.unexplained > 0);
}

/* --- count --- */

static void counts_are_printed_in_their_form(void **state)
{
    (void)state;
    static const char *const form =
        "{\"all_gather\":{\"total\":11,\"unused\":0,\"by_unit\":{"
        "\"experts\":{\"forward\":0,\"backward\":0},\"layer\":{\"forward\":4,\"backward\":3},"
        "\"embed\":{\"forward\":1,\"backward\":0},\"norm\":{\"forward\":1,\"backward\":1},"
        "\"head\":{\"forward\":1,\"backward\":0}}},\"reduce_scatter\":{\"total\":7},"
        "\"all_reduce\":{\"total\":N},\"all_to_all\":{\"total\":20},\"copies\":{\"total\":1},"
        "\"bytes\":{\"all_gather\":N,\"reduce_scatter\":N,\"all_reduce\":N,\"all_to_all\":N}}";
    json_t *value =
        run_json(pl_command_count, "count --model " TINY " --layout legacy:world=8,ep=4 "
                                   "--json");
    json_object_set_new(json_object_get(value, "all_reduce"), "total", json_string("N"));
    const char *key = NULL;
    json_t *member = NULL;
    json_object_foreach(json_object_get(value, "bytes"), key, member)
    {
        assert_true(json_integer_value(member) > 0);
        json_object_set_new(json_object_get(value, "bytes"), key, json_string("N"));
    }
    char *text = json_dumps(value, JSON_COMPACT);
    pl_text plain = {0}; /* N without its quotes */
    for (const char *c = text; *c; ++c)
        if (strncmp(c, "\"N\"", 3) == 0)
            pl_text_add_string(&plain, "N"), c += 2;
        else
            pl_text_add_bytes(&plain, c, 1);
    assert_string_equal(pl_text_string(&plain), form);
    pl_text_free(&plain);
    free(text);
    json_decref(value);
}

static void every_rank_can_be_counted(void **state)
{
    (void)state;
    char line[160];
    for (int rank = 0; rank < 6; ++rank) {
        snprintf(line, sizeof line,
                 "count --model " TINY " --layout decoupled:world=6,ep=2 --rank %d --json", rank);
        json_t *value = run_json(pl_command_count, line);
        assert_int_equal(number_at(value, "all_gather by_unit experts forward"), 4);
        assert_int_equal(number_at(value, "all_gather by_unit experts backward"), 3);
        json_decref(value);
    }
    pl_output output = {0};
    assert_fails(PL_BAD_INPUT,
                 run(pl_command_count, &output,
                     "count --model " TINY " --layout decoupled:world=6,ep=2 --rank 6"),
                 "no rank 6", "0 to 5");
    pl_text_free(&output.text);
}

/* --- layout --- */

static void holdings_of_all_ranks_make_the_model(void **state)
{
    (void)state;
    static const char *const notations[] = {"folded:world=6,ep=2", "single:world=8,ep=8",
                                            "legacy:world=8",
                                            "decoupled:world=16,ep=4,grain=expert"};
    pl_model model;
    assert_ok(pl_model_open(&model, TINY));
    int64_t total = pl_model_count(&model).total;
    for (int i = 0; i < 4; ++i) {
        pl_layout layout;
        int64_t elements = 0, dense = 0;
        assert_ok(pl_layout_parse(&layout, notations[i]));
        for (int rank = 0; rank < layout.world; ++rank) {
            char line[160];
            snprintf(line, sizeof line, "layout %s --model " TINY " --rank %d --json", notations[i],
                     rank);
            json_t *value = run_json(pl_command_layout, line);
            elements += number_at(value, "holds classes dense elements");
            dense += number_at(value, "holds classes dense elements");
            elements += number_at(value, "holds classes expert elements");
            json_decref(value);
        }
        assert_int_equal(elements, total);
        assert_true(dense < total); /* half of it would not have been enough */
    }
    pl_model_free(&model);
}

static void members_are_given_in_closed_form(void **state)
{
    (void)state;
    pl_layout layout;
    assert_ok(pl_layout_parse(&layout, "folded:world=48,pp=2,cp=3,ep=4,replicas=2"));
    for (int rank = 0; rank < 48; ++rank) {
        char line[120];
        snprintf(line, sizeof line,
                 "layout folded:world=48,pp=2,cp=3,ep=4,replicas=2 --rank %d --json", rank);
        json_t *value = run_json(pl_command_layout, line);
        for (int i = PL_GROUP_WORLD; i < PL_GROUP_ROLE_COUNT; ++i) {
            json_t *group = json_object_get(json_object_get(value, "groups"),
                                            pl_group_role_name((pl_group_role)i));
            json_t *members = json_object_get(group, "members"), *axis = NULL;
            int64_t index = number_at(group, "index"), size = 1, at = number_at(members, "base");
            size_t place = 0;
            json_array_foreach(json_object_get(members, "axes"), place, axis) size *=
                number_at(axis, "count");
            assert_int_equal(size, number_at(group, "size"));
            assert_int_equal(number_at(group, "groups"), 48 / size);
            json_array_foreach(json_object_get(members, "axes"), place, axis)
            {
                size /= number_at(axis, "count");
                at += index / size * number_at(axis, "stride");
                index %= size;
            }
            assert_int_equal(at, rank); /* a rank's own index leads to itself */
        }
        json_decref(value);
    }
}

/* --- figures --- */

static void figures_are_those_of_all_ranks(void **state)
{
    (void)state;
    pl_plan plan;
    make_plan(&plan, TINY, "folded:world=12,ep=4,grain=expert", "data.sequence=8");
    pl_figures figures = pl_figures_make(&plan);
    int64_t least = INT64_MAX, most = 0;
    for (int64_t rank = 0; rank < 12; ++rank) {
        int64_t held = pl_held_elements(&plan, rank);
        if (held < least) least = held;
        if (held > most) most = held;
    }
    assert_true(least < most); /* 12 does not divide its rows */
    assert_int_equal(figures.elements.least, least);
    assert_int_equal(figures.elements.most, most);
    assert_int_equal(figures.ranks, 12);
    pl_plan_free(&plan);
}

static void bytes_follow_from_element_types(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int64_t bytes; /* an element: parameter, master, two moments */
    } cases[] = {
        {"data.sequence=8", 2 + 4 + 4 + 4},
        {"data.sequence=8 precision.gather=fp32", 4 + 4 + 4},
        {"data.sequence=8 optimizer.kind=sgd", 2 + 4},
        {"data.sequence=8 precision.gather=fp32 optimizer.kind=sgd", 4},
    };
    for (int i = 0; i < 4; ++i) {
        pl_plan plan;
        make_plan(&plan, TINY, "single:world=1", cases[i].set);
        pl_figures figures = pl_figures_make(&plan);
        assert_int_equal(figures.elements.most, pl_model_count(&plan.model).total);
        assert_int_equal(figures.bytes.least, figures.elements.most * cases[i].bytes);
        assert_int_equal(figures.bytes.most, figures.bytes.least);
        pl_plan_free(&plan);
    }
}

static void gathered_copies_are_summed_while_alive(void **state)
{
    (void)state;
    static const char *const sets[] = {
        "data.sequence=8 precision.compute=fp32 precision.gather=fp32 policy.reshard=never",
        "data.sequence=8 precision.compute=fp32 precision.gather=fp32"};
    int64_t most[2], all = 0;
    for (int i = 0; i < 2; ++i) {
        pl_plan plan;
        make_plan(&plan, TINY, "decoupled:world=4,ep=2", sets[i]);
        const pl_section *section = pl_plan_section(&plan, PL_PROGRAM_STEP, 0);
        most[i] = pl_figures_make(&plan).gathered_most;
        for (size_t b = 0; i == 0 && b < section->buffer_count; ++b)
            if (section->buffers[b].class_ == PL_BUFFER_GATHERED &&
                section->buffers[b].subject != PL_SUBJECT_EMBEDDING)
                all += section->buffers[b].bytes;
        pl_plan_free(&plan);
    }
    assert_int_equal(most[0], all); /* at the end of forward, all but what backward does not need */
    assert_true(most[1] > 0 && most[1] < most[0]);
}

static void figures_of_absurd_plans_are_bounded(void **state)
{
    (void)state;
    pl_plan plan;
    make_plan(&plan, TINY, "decoupled:world=4,ep=2", "data.sequence=8");
    for (size_t i = 0; i < plan.section_count; ++i)
        for (size_t b = 0; b < plan.sections[i].buffer_count; ++b)
            plan.sections[i].buffers[b].bytes = INT64_MAX;
    pl_figures figures = pl_figures_make(&plan);
    assert_true(figures.bytes.most == INT64_MAX && figures.gathered_most == INT64_MAX);
    plan.section_count = 0; /* as of a text with no step */
    assert_int_equal(pl_figures_make(&plan).classes, 0);
    plan.section_count = 2;
    pl_plan_free(&plan);
    assert_true(pl_bounded_sum(INT64_MAX, 1) == INT64_MAX && pl_bounded_sum(2, 3) == 5);
    assert_true(pl_bounded_product(INT64_MAX, 2) == INT64_MAX && pl_bounded_product(2, 3) == 6);
}

/* --- tables --- */

static void tables_are_aligned(void **state)
{
    (void)state;
    pl_table table = {.columns = 3, .left = 1 | 4};
    pl_text text = {0};
    static const char *const cells[] = {
        "name", "size", "what", "\xc3\xa4\xc3\xb6", "1234567", "one", "long name", "", ""};
    for (int i = 0; i < 9; ++i) pl_table_add(&table, "%s", cells[i]);
    pl_table_print(&text, &table, 1);
    assert_string_equal(pl_text_string(&text), " name          size  what\n"
                                               " \xc3\xa4\xc3\xb6         1234567  one\n"
                                               " long name\n");
    pl_table_free(&table);
    pl_text_free(&text);
    pl_text none = {0};
    pl_allocation_fail_after(0);
    pl_table lost = {.columns = 1};
    pl_table_add(&lost, "x");
    pl_allocation_fail_after(-1);
    pl_table_print(&none, &lost, 0);
    assert_fails(PL_NO_MEMORY, pl_text_status(&none), "out of memory");
    pl_table_free(&lost);
    pl_text_free(&none);
}

/* --- check --- */

static void refusals_stand_in_json_and_words(void **state)
{
    (void)state;
    pl_output output = {0};
    assert_fails(PL_BAD_INPUT,
                 run(pl_command_check, &output,
                     "check --model " TINY " --layout folded:world=12,ep=8 --json"),
                 "ep=8", "would fit");
    assert_true(output.stands);
    json_t *value = json_loads(pl_text_string(&output.text), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(value, "verdict")), "refused");
    assert_non_null(strstr(json_string_value(json_object_get(value, "reason")), "would fit"));
    json_decref(value);
    pl_text_free(&output.text);
    pl_output plain = {0};
    assert_fails(
        PL_UNSUPPORTED,
        run(pl_command_check, &plain, "check --model " TINY " --layout folded:world=8,pp=2"),
        "pp=2");
    assert_int_equal(plain.text.length, 0);
    pl_text_free(&plain.text);
}

static void several_layouts_are_one_table(void **state)
{
    (void)state;
    json_t *value =
        run_json(pl_command_check, "check --model " TINY " --set data.sequence=8 --layout "
                                   "legacy:world=4,ep=2 --layout single:world=2 --json");
    assert_string_equal(json_string_value(json_object_get(value, "verdict")), "proved");
    json_t *layouts = json_object_get(value, "layouts");
    assert_int_equal(json_array_size(layouts), 2);
    assert_int_equal(number_at(json_array_get(layouts, 0), "ranks"), 4);
    assert_int_equal(number_at(json_array_get(layouts, 1), "ranks"), 2);
    json_decref(value);
}

/* The words of the array under KEY, apart by blanks. */
static void join_words(char *out, size_t size, json_t *value, const char *key)
{
    json_t *word = NULL;
    size_t i = 0;
    *out = '\0';
    json_array_foreach(json_object_get(value, key), i, word)
    {
        size_t length = strlen(out);
        snprintf(out + length, size - length, "%s%s", i ? " " : "", json_string_value(word));
    }
}

/* What is checked is what is run: four programs, with checkpoints six, or those that are named. */
static void programs_are_those_of_the_command(void **state)
{
    static const struct {
        const char *arguments, *programs;
    } cases[] = {
        {"", "start step evaluate export"},
        {" --set batch.intra_layer=2", "start step evaluate export"},
        {" --set checkpoint.every=5", "start step evaluate export save load"},
        {" --program step", "step"},
        {" --program export --program start --program export", "start export"},
        {" --program all", "start step evaluate generate export save load"},
        {" --program load --program save", "save load"},
        {" --program generate --set batch.intra_layer=2 --set batch.global=64", "generate"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char line[240], found[80];
        snprintf(line, sizeof line,
                 "check --model " TINY
                 " --layout legacy:world=2,ep=2 --set data.sequence=8 --json%s",
                 cases[i].arguments);
        json_t *value = run_json(pl_command_check, line);
        assert_string_equal(json_string_value(json_object_get(value, "verdict")), "proved");
        join_words(found, sizeof found, value, "programs");
        assert_string_equal(found, cases[i].programs);
        json_decref(value);
    }
    pl_output output = {0};
    assert_fails(PL_BAD_INPUT,
                 run(pl_command_check, &output,
                     "check --model " TINY " --layout single:world=2 --set batch.intra_layer=2 "
                     "--program all"),
                 "one sequence at a time", "intra_layer=2", "plan of its own");
    pl_text_free(&output.text);
}

/* --- failing allocations --- */

/* Proofs prepare words that only a failure would need: to lose those, and yet prove, is fine. */
static void bear(command run_command, const char *line)
{
    bool proves = run_command == pl_command_check;
    for (int64_t after = 0;; ++after) {
        pl_output output = {0};
        pl_allocation_fail_after(after);
        pl_status status = run(run_command, &output, line);
        int happened = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        pl_text_free(&output.text);
        if (!happened) {
            assert_true(after > 0);
            assert_int_equal(status, PL_OK);
            return;
        }
        if (status != PL_NO_MEMORY && !(proves && status == PL_OK))
            fail_msg("allocation %d of '%s': %s", (int)after, line, pl_status_name(status));
    }
}

static void failing_allocations_end_in_words(void **state)
{
    (void)state;
    bear(pl_command_layout, "layout --help");
    bear(pl_command_layout, "layout folded:world=16,cp=2,ep=4");
    bear(pl_command_layout, "layout --layout folded:world=16,cp=2 --model " DENSE " --json");
    bear(pl_command_layout, "layout folded:world=16,cp=2,ep=4 --model " TINY);
    bear(pl_command_plan, "plan --operations");
    bear(pl_command_plan, "plan --model " DENSE " --layout single:world=2 --split 1");
    bear(pl_command_count, "count --model " DENSE " --layout single:world=2");
    bear(pl_command_count, "count --model " DENSE " --layout single:world=2 --json");
    bear(pl_command_check, "check --model " DENSE " --layout single:world=1");
    bear(pl_command_check, "check --model " DENSE " --layout single:world=1 --json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_operations_is_true),
        cmocka_unit_test(a_wrong_table_of_operations_is_noticed),
        cmocka_unit_test(counts_are_printed_in_their_form),
        cmocka_unit_test(every_rank_can_be_counted),
        cmocka_unit_test(holdings_of_all_ranks_make_the_model),
        cmocka_unit_test(members_are_given_in_closed_form),
        cmocka_unit_test(figures_are_those_of_all_ranks),
        cmocka_unit_test(bytes_follow_from_element_types),
        cmocka_unit_test(gathered_copies_are_summed_while_alive),
        cmocka_unit_test(figures_of_absurd_plans_are_bounded),
        cmocka_unit_test(tables_are_aligned),
        cmocka_unit_test(refusals_stand_in_json_and_words),
        cmocka_unit_test(several_layouts_are_one_table),
        cmocka_unit_test(programs_are_those_of_the_command),
        cmocka_unit_test(failing_allocations_end_in_words),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
