/* pleat-sim check: prove plans, one for each layout. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json_text.h"
#include "common/memory.h"
#include "common/table.h"
#include "sim/check_checkpoint.h"
#include "sim/figures.h"
#include "sim/options.h"
#include "sim/proof.h"
#include "sim/verdict_text.h"

static const pl_usage check_usage = {
    .command = "check",
    .forms = "[RUN.yaml] [OPTION...]\n--plan=FILE [--json]\n--checkpoint=FOLDER "
             "[--layout=LAYOUT...] [--json]",
    .about =
        "Proves a plan for all ranks: that collectives match and cannot deadlock, that buffers\n"
        "are whole, ordered and let go, that every gradient is summed over the right ranks\n"
        "and scaled once. A proof that fails shows the smallest fault it found. RUN.yaml is\n"
        "checked exactly as pleat-train runs it (start, step, evaluate, export, with checkpoints\n"
        "save and load, or the programs that --program names; --program=generate is what\n"
        "sampling runs); options change it. A plan in a file must have start and step, or the\n"
        "programs named. Several --layout are compared in a table. Exit status: 0 proved,\n"
        "1 failed, 2 refused.\n\n"
        "With --checkpoint, proves instead that the files of a checkpoint hold every row of every\n"
        "value once, and that the ranks of each layout, or of its own, find in them what they\n"
        "load; and says how much comes from where. Values are not read: pleat-ckpt verify does.",
    .examples =
        "pleat-sim check --model qwen3-30b-a3b --layout legacy:world=64,ep=8\n"
        "pleat-sim check --model qwen3-30b-a3b --layout decoupled:world=64,ep=8 "
        "--set batch.intra_layer=4\n"
        "pleat-sim check run.yaml --layout legacy:world=16,ep=8 --layout folded:world=16,ep=8\n"
        "pleat-sim check run.yaml --program=generate\n"
        "pleat-sim check --plan plan.txt --json\n"
        "pleat-sim check --checkpoint runs/licenses --layout folded:world=16,ep=8",
    .takes = PL_TAKES_MODEL | PL_TAKES_LAYOUTS | PL_TAKES_SETTINGS | PL_TAKES_PLAN |
             PL_TAKES_PROGRAM | PL_TAKES_CHECKPOINT | PL_TAKES_JSON};

/* The programs that a plan is made of. */
static uint32_t programs_of(const pl_options *options)
{
    return options->programs ? options->programs : (uint32_t)PL_PROGRAMS_OF_RUN;
}

/* The programs that a plan must have in which FOUND are: those asked for; those that it was made
 * of; start and step where it was read from a file. */
static uint32_t programs_needed(const pl_options *options, uint32_t found)
{
    return options->programs || options->plan ? options->programs : found;
}

/* What came of one layout. */
typedef struct result {
    pl_status status;    /* PL_OK, PL_CHECK_FAILED, or why the plan was refused */
    pl_text description; /* of the plan; owned, as the next ones */
    pl_text reason;      /* of a refusal */
    char notation[PL_LAYOUT_TEXT];
    uint32_t programs; /* that the plan has */
    pl_check check;
    pl_figures figures;
} result;

static bool refused(const result *r)
{
    return r->status == PL_BAD_INPUT || r->status == PL_UNSUPPORTED;
}

static const char *verdict_of(const result *r)
{
    if (refused(r)) return "refused";
    return r->status == PL_OK ? "proved" : "failed";
}

static void free_result(result *r)
{
    pl_text_free(&r->description);
    pl_text_free(&r->reason);
    if (!refused(r)) pl_check_free(&r->check);
}

static void add_programs(pl_text *text, uint32_t programs)
{
    const char *lead = "  programs ";
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        if (!(programs >> i & 1U)) continue;
        pl_text_add(text, "%s%s", lead, pl_program_name((pl_program)i));
        lead = ", ";
    }
    pl_text_add_string(text, "\n");
}

/* Refusals are results; other failures of making and checking are the command's. */
static pl_status examine(result *r, const pl_options *options, const char *layout)
{
    pl_plan plan;
    memset(r, 0, sizeof *r);
    if (layout) snprintf(r->notation, sizeof r->notation, "%s", layout);
    r->status = pl_options_plan(&plan, options, &check_usage, layout, programs_of(options));
    if (refused(r)) {
        pl_text_add_string(&r->reason, pl_error_text());
        pl_status lost = pl_text_status(&r->reason);
        if (lost != PL_OK) pl_text_free(&r->reason);
        return lost;
    }
    PL_TRY(r->status);
    pl_layout_format(&plan.layout, r->notation);
    for (size_t i = 0; i < plan.section_count; ++i) r->programs |= 1U << plan.sections[i].program;
    pl_plan_describe(&r->description, &plan);
    add_programs(&r->description, r->programs);
    pl_status status = pl_text_status(&r->description);
    if (status == PL_OK)
        status = pl_check_programs(&r->check, &plan, programs_needed(options, r->programs));
    if (status == PL_OK) {
        r->figures = pl_figures_make(&plan);
        r->status = pl_check_proved(&r->check) ? PL_OK : PL_CHECK_FAILED;
    }
    pl_plan_free(&plan);
    if (status != PL_OK) pl_text_free(&r->description);
    return status;
}

/* --- for people --- */

static void add_proofs(pl_output *output, const pl_check *check, bool failed_only)
{
    for (int i = 0; i < PL_PROOF_COUNT; ++i) {
        const pl_verdict *verdict = &check->verdict[i];
        char facts[32];
        if (failed_only && verdict->outcome == PL_PROVED) continue;
        pl_verdict_add(output, verdict->outcome);
        pl_text_add(&output->text, " %-12s %s (%s facts)\n", pl_proof_name((pl_proof_id)i),
                    pl_proof_claim((pl_proof_id)i), pl_format_thousands(facts, verdict->checked));
        pl_verdict_add_words(&output->text, pl_text_string(&verdict->words));
    }
}

static void add_span(pl_table *table, pl_span span, const char *(*format)(char *, int64_t))
{
    char least[32], most[32];
    format(least, span.least);
    format(most, span.most);
    if (strcmp(least, most) == 0)
        pl_table_add(table, "%s", most);
    else
        pl_table_add(table, "%s to %s", least, most);
}

/* The columns that are about a step: of one rank, and of one step. */
static void add_step(pl_table *table, const pl_figures *f)
{
    add_span(table, f->elements, pl_format_thousands);
    add_span(table, f->bytes, pl_format_bytes);
    pl_table_add_bytes(table, f->gathered_most);
    pl_table_add_number(table, f->counts.gathers);
    pl_table_add_number(table, f->counts.reduces);
    pl_table_add_bytes(table, f->counts.gather_bytes);
    pl_table_add_bytes(table, f->counts.reduce_bytes);
    pl_table_add_bytes(table, f->counts.all_reduce_bytes);
    pl_table_add_bytes(table, f->counts.exchange_bytes);
}

enum { STEP_COLUMNS = 9 };

static void add_nothing(pl_table *table, int columns)
{
    for (int i = 0; i < columns; ++i) pl_table_add(table, "-");
}

static void add_row(pl_table *table, const result *r)
{
    const pl_figures *f = &r->figures;
    pl_table_add(table, "%s", r->notation);
    pl_table_add(table, "%s", verdict_of(r));
    if (refused(r)) {
        add_nothing(table, table->columns - 2);
        return;
    }
    pl_table_add_number(table, f->ranks);
    pl_table_add_number(table, f->classes);
    pl_table_add_number(table, r->check.entries);
    if (f->classes > 0)
        add_step(table, f);
    else
        add_nothing(table, STEP_COLUMNS);
    pl_table_add(table, "%.2f", r->check.seconds);
}

static void add_table(pl_text *text, const result *results, int count)
{
    static const char *const heads[] = {"layout",      "verdict",    "ranks",    "classes",
                                        "entries",     "parameters", "resident", "gathered at most",
                                        "gathers",     "reduces",    "gathered", "reduced",
                                        "all-reduced", "exchanged",  "seconds"};
    enum { COLUMNS = sizeof heads / sizeof *heads };
    pl_table table = {.columns = COLUMNS, .left = 1 | 2};
    for (int i = 0; i < COLUMNS; ++i) pl_table_add(&table, "%s", heads[i]);
    for (int i = 0; i < count; ++i) add_row(&table, &results[i]);
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
    pl_text_add_string(text, "\nEntries are those of all ranks and programs, classes those of the "
                             "step; the rest is of one rank: parameters\nwithout padding, bytes of "
                             "parameters, masters and moments (resident), bytes of gathered\n"
                             "parameters alive at once; times and bytes are those of one step.\n");
}

/* The same for one layout in few words: lines that scripts can read, too. */
static void add_summary(pl_text *text, const result *r)
{
    const pl_counts *counts = &r->figures.counts;
    char a[32], b[32], c[32], d[32];
    bool even = r->figures.bytes.least == r->figures.bytes.most;
    pl_text_add(text, "\nholds    %s%s%s\n", even ? "" : pl_format_bytes(a, r->figures.bytes.least),
                even ? "" : " to ", pl_format_bytes(b, r->figures.bytes.most));
    pl_text_add(text, "gathers  %s times, %s\n", pl_format_thousands(a, counts->gathers),
                pl_format_bytes(b, counts->gather_bytes));
    pl_text_add(text, "moves    gathered %s, reduced %s, all-reduced %s, exchanged %s\n",
                pl_format_bytes(a, counts->gather_bytes), pl_format_bytes(b, counts->reduce_bytes),
                pl_format_bytes(c, counts->all_reduce_bytes),
                pl_format_bytes(d, counts->exchange_bytes));
}

static void print_one(pl_output *output, const result *r)
{
    pl_text *text = &output->text;
    pl_text_add_string(text, pl_text_string(&r->description));
    pl_text_add_string(text, "\n");
    add_proofs(output, &r->check, false);
    if (r->figures.classes > 0) add_summary(text, r);
    pl_text_add_string(text, "\n");
    add_table(text, r, 1);
}

static void print_several(pl_output *output, const result *results, int count)
{
    pl_text *text = &output->text;
    const result *first = NULL;
    for (int i = count - 1; i >= 0; --i)
        if (!refused(&results[i])) first = &results[i];
    if (first) { /* all but the first line says the same of every layout */
        const char *settings = strchr(pl_text_string(&first->description), '\n');
        pl_text_add_string(text, settings ? settings + 1 : "");
        pl_text_add_string(text, "\n");
    }
    add_table(text, results, count);
    for (int i = 0; i < count; ++i) {
        if (results[i].status == PL_OK) continue;
        pl_text_add(text, "\n%s: %s\n", results[i].notation, verdict_of(&results[i]));
        if (refused(&results[i]))
            pl_verdict_add_words(text, pl_text_string(&results[i].reason));
        else
            add_proofs(output, &results[i].check, true);
    }
}

/* --- for machines --- */

static json_t *proof_of(pl_json_builder *json, const pl_verdict *verdict, pl_proof_id proof)
{
    json_t *object = json_object();
    bool holds = verdict->outcome == PL_PROVED;
    pl_json_put_string(json, object, "name", pl_proof_name(proof));
    pl_json_put_string(json, object, "verdict", pl_verdict_name(verdict->outcome));
    pl_json_put(json, object, "counterexample",
                holds ? json_null() : pl_json_words(pl_text_string(&verdict->words)));
    return object;
}

static json_t *json_of(pl_json_builder *json, const result *r)
{
    json_t *object = json_object();
    pl_json_put_string(json, object, "verdict", verdict_of(r));
    if (*r->notation) pl_json_put_string(json, object, "layout", r->notation);
    if (refused(r)) {
        pl_json_put_string(json, object, "reason", pl_text_string(&r->reason));
        return object;
    }
    json_t *proofs = json_array(), *programs = json_array();
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i)
        if (r->programs >> i & 1U)
            pl_json_append(json, programs, json_string(pl_program_name((pl_program)i)));
    pl_json_put(json, object, "programs", programs);
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        pl_json_append(json, proofs, proof_of(json, &r->check.verdict[i], (pl_proof_id)i));
    pl_json_put(json, object, "proofs", proofs);
    pl_json_put_number(json, object, "ranks", r->figures.ranks);
    pl_json_put_number(json, object, "classes", r->figures.classes);
    pl_json_put(json, object, "seconds", json_real(r->check.seconds));
    return object;
}

/* The worst of all results: failed before refused, since it is the plan that is wrong. */
static const result *worst_of(const result *results, int count)
{
    const result *worst = &results[0];
    for (int i = 1; i < count; ++i)
        if (worst->status == PL_OK || results[i].status == PL_CHECK_FAILED) worst = &results[i];
    return worst;
}

static pl_status print_json(pl_text *text, const result *results, int count)
{
    pl_json_builder json = {false};
    if (count == 1) return pl_json_finish(&json, text, json_of(&json, results));
    json_t *top = json_object(), *list = json_array();
    pl_json_put_string(&json, top, "verdict", verdict_of(worst_of(results, count)));
    for (int i = 0; i < count; ++i) pl_json_append(&json, list, json_of(&json, &results[i]));
    pl_json_put(&json, top, "layouts", list);
    return pl_json_finish(&json, text, top);
}

/* --- the command --- */

/* The reasons of all refusals, each once, are the command's words. */
static pl_status set_reasons(const result *results, int count)
{
    pl_text text = {0};
    for (int i = 0; i < count; ++i) {
        const char *reason = pl_text_string(&results[i].reason);
        if (!refused(&results[i]) || strstr(pl_text_string(&text), reason)) continue;
        pl_text_add(&text, "%s%s", text.length ? "\n  " : "", reason);
    }
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) pl_error_set(pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

static bool all_refused(const result *results, int count)
{
    for (int i = 0; i < count; ++i)
        if (!refused(&results[i])) return false;
    return true;
}

static pl_status report(pl_output *output, const pl_options *options, const result *results,
                        int count)
{
    const result *worst = worst_of(results, count);
    if (options->json)
        PL_TRY(print_json(&output->text, results, count));
    else if (count == 1 && !refused(worst))
        print_one(output, worst);
    else if (!all_refused(results, count))
        print_several(output, results, count);
    output->stands = true;
    if (refused(worst)) PL_TRY(set_reasons(results, count));
    return worst->status;
}

static pl_status run(pl_output *output, const pl_options *options)
{
    result *results = NULL;
    int count = options->layout_count > 1 ? options->layout_count : 1, done = 0;
    pl_status status = PL_OK;
    if (options->help) {
        pl_usage_print(&output->text, &check_usage);
        return PL_OK;
    }
    if (options->checkpoint) return pl_check_checkpoint(output, options, &check_usage);
    PL_TRY(pl_allocate(&results, (size_t)count, sizeof *results, "results"));
    while (status == PL_OK && done < count) {
        status =
            examine(&results[done], options, options->layout_count ? options->layouts[done] : NULL);
        done += status == PL_OK;
    }
    if (status == PL_OK) status = report(output, options, results, count);
    while (done > 0) free_result(&results[--done]);
    pl_free(results);
    return status;
}

pl_status pl_command_check(pl_output *output, int count, char **arguments)
{
    pl_options options;
    PL_TRY(pl_options_parse(&options, &check_usage, count, arguments));
    pl_status status = run(output, &options);
    pl_options_free(&options);
    return pl_output_status(output, status);
}
