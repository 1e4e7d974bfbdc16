#include "sim/check_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/json_text.h"
#include "common/memory.h"
#include "common/table.h"
#include "sim/checkpoint_proof.h"
#include "sim/verdict_text.h"

/* What came of one layout. */
typedef struct loaded {
    pl_status status; /* PL_OK, PL_CHECK_FAILED, or why the layout was refused */
    pl_layout layout;
    pl_text reason; /* of a refusal; owned */
    char notation[PL_LAYOUT_TEXT];
    pl_checkpoint_load load;
} loaded;

typedef struct findings {
    pl_checkpoint_subject subject;
    pl_checkpoint_verdict files, tiles;
    loaded *loads;
    int load_count;
} findings;

static void free_findings(findings *f)
{
    for (int i = 0; i < f->load_count; ++i) {
        pl_text_free(&f->loads[i].reason);
        pl_text_free(&f->loads[i].load.verdict.words);
    }
    pl_free(f->loads);
    pl_text_free(&f->files.words);
    pl_text_free(&f->tiles.words);
    pl_checkpoint_subject_free(&f->subject);
}

static bool refused(const loaded *l)
{
    return l->status == PL_BAD_INPUT || l->status == PL_UNSUPPORTED;
}

/* --- looking --- */

/* A layout that is refused is a result; other failures are the command's. NOTATION NULL: the
 * checkpoint's own. */
static pl_status examine_load(loaded *l, const pl_checkpoint_subject *subject, const char *notation)
{
    if (notation) snprintf(l->notation, sizeof l->notation, "%s", notation);
    l->layout = subject->manifest.layout;
    l->status = notation ? pl_layout_parse(&l->layout, notation) : PL_OK;
    if (l->status == PL_OK) {
        pl_layout_format(&l->layout, l->notation);
        l->status = pl_checkpoint_prove_load(&l->load, subject, &l->layout);
    }
    if (refused(l)) {
        pl_text_add_string(&l->reason, pl_error_text());
        return pl_text_status(&l->reason);
    }
    PL_TRY(l->status);
    if (l->load.verdict.failed) l->status = PL_CHECK_FAILED;
    return PL_OK;
}

static pl_status examine(findings *f, const pl_options *options)
{
    int count = options->layout_count > 0 ? options->layout_count : 1;
    PL_TRY(pl_checkpoint_subject_open(&f->subject, options->checkpoint));
    PL_TRY(pl_checkpoint_prove_files(&f->files, &f->subject));
    PL_TRY(pl_checkpoint_prove_tiles(&f->tiles, &f->subject));
    PL_TRY(pl_allocate(&f->loads, (size_t)count, sizeof *f->loads, "layouts"));
    f->load_count = count;
    for (int i = 0; i < count; ++i)
        PL_TRY(examine_load(&f->loads[i], &f->subject,
                            options->layout_count > 0 ? options->layouts[i] : NULL));
    return PL_OK;
}

/* A proof that failed comes before a layout that is refused: it is the checkpoint that is wrong. */
static pl_status worst_of(const findings *f)
{
    pl_status worst = f->files.failed || f->tiles.failed ? PL_CHECK_FAILED : PL_OK;
    for (int i = 0; i < f->load_count; ++i)
        if (worst == PL_OK || f->loads[i].status == PL_CHECK_FAILED) worst = f->loads[i].status;
    return worst;
}

static const char *word_of(pl_status status)
{
    if (status == PL_OK) return "proved";
    return status == PL_CHECK_FAILED ? "failed" : "refused";
}

/* --- for people --- */

static void add_proof(pl_output *output, const char *name, const char *claim, const char *what,
                      const pl_checkpoint_verdict *verdict)
{
    char number[32];
    pl_verdict_add(output, verdict->failed ? PL_FAILED : PL_PROVED);
    pl_text_add(&output->text, " %-12s %s (%s %s)\n", name, claim,
                pl_format_thousands(number, verdict->checked), what);
    pl_verdict_add_words(&output->text, pl_text_string(&verdict->words));
}

static void add_row(pl_table *table, const loaded *l)
{
    pl_table_add(table, "%s", l->notation);
    pl_table_add(table, "%s", word_of(l->status));
    if (refused(l)) {
        for (int i = 2; i < table->columns; ++i) pl_table_add(table, "-");
        return;
    }
    pl_table_add_number(table, l->layout.world);
    pl_table_add_number(table, l->load.reads);
    pl_table_add_bytes(table, l->load.bytes);
    pl_table_add_bytes(table, l->load.most_bytes);
    pl_table_add_bytes(table, l->load.own_bytes);
    pl_table_add_bytes(table, l->load.bytes - l->load.own_bytes);
}

static void add_table(pl_text *text, const findings *f)
{
    static const char *const heads[] = {"layout", "verdict",       "ranks",      "reads",
                                        "loaded", "one rank most", "own number", "moves"};
    enum { COLUMNS = sizeof heads / sizeof *heads };
    pl_table table = {.columns = COLUMNS, .left = 1 | 2};
    for (int i = 0; i < COLUMNS; ++i) pl_table_add(&table, "%s", heads[i]);
    for (int i = 0; i < f->load_count; ++i) add_row(&table, &f->loads[i]);
    pl_table_print(text, &table, 0);
    pl_table_free(&table);
    pl_text_add_string(text, "\nBytes of values. What a rank finds in the file of the rank of its "
                             "own number need not move.\n");
}

static void add_subject(pl_text *text, const pl_checkpoint_subject *subject)
{
    const pl_manifest *m = &subject->manifest;
    char notation[PL_LAYOUT_TEXT];
    pl_text_add(text,
                "checkpoint %s\n  step %" PRId64 " of %s, in the files of %" PRId64
                " ranks of %s\n\n",
                pl_text_string(&subject->folder), m->progress.step, m->model.name, m->rank_count,
                pl_layout_format(&m->layout, notation));
}

static void print(pl_output *output, const findings *f)
{
    pl_text *text = &output->text;
    add_subject(text, &f->subject);
    add_proof(output, "files", "every file is there and as long as the manifest says", "files",
              &f->files);
    add_proof(output, "tiles", "every row of every value stands in exactly one rank's file",
              "pieces", &f->tiles);
    for (int i = 0; i < f->load_count; ++i) {
        char claim[PL_LAYOUT_TEXT + 64];
        const loaded *l = &f->loads[i];
        snprintf(claim, sizeof claim, "every rank of %s finds each row it holds once", l->notation);
        if (!refused(l)) add_proof(output, "loads", claim, "reads", &l->load.verdict);
    }
    pl_text_add_string(text, "\n");
    add_table(text, f);
}

/* --- for machines --- */

static void put_verdict(pl_json_builder *json, json_t *object, const pl_checkpoint_verdict *verdict)
{
    pl_json_put_string(json, object, "verdict", verdict->failed ? "failed" : "proved");
    pl_json_put(json, object, "counterexample",
                verdict->failed ? pl_json_words(pl_text_string(&verdict->words)) : json_null());
}

static json_t *proof_of(pl_json_builder *json, const char *name,
                        const pl_checkpoint_verdict *verdict)
{
    json_t *object = json_object();
    pl_json_put_string(json, object, "name", name);
    put_verdict(json, object, verdict);
    return object;
}

static json_t *load_of(pl_json_builder *json, const loaded *l)
{
    json_t *object = json_object();
    pl_json_put_string(json, object, "layout", l->notation);
    if (refused(l)) {
        pl_json_put_string(json, object, "verdict", "refused");
        pl_json_put_string(json, object, "reason", pl_text_string(&l->reason));
        return object;
    }
    put_verdict(json, object, &l->load.verdict);
    pl_json_put_number(json, object, "ranks", l->layout.world);
    pl_json_put_number(json, object, "reads", l->load.reads);
    pl_json_put_number(json, object, "bytes", l->load.bytes);
    pl_json_put_number(json, object, "most_bytes", l->load.most_bytes);
    pl_json_put_number(json, object, "own_bytes", l->load.own_bytes);
    return object;
}

static pl_status print_json(pl_text *text, const findings *f)
{
    pl_json_builder json = {.failed = false};
    const pl_manifest *manifest = &f->subject.manifest;
    char notation[PL_LAYOUT_TEXT];
    json_t *top = json_object(), *proofs = json_array(), *loads = json_array();
    pl_json_put_string(&json, top, "verdict", word_of(worst_of(f)));
    pl_json_put_string(&json, top, "checkpoint", pl_text_string(&f->subject.folder));
    pl_json_put_string(&json, top, "model", manifest->model.name);
    pl_json_put_number(&json, top, "step", manifest->progress.step);
    pl_json_put_string(&json, top, "layout", pl_layout_format(&manifest->layout, notation));
    pl_json_append(&json, proofs, proof_of(&json, "files", &f->files));
    pl_json_append(&json, proofs, proof_of(&json, "tiles", &f->tiles));
    pl_json_put(&json, top, "proofs", proofs);
    for (int i = 0; i < f->load_count; ++i)
        pl_json_append(&json, loads, load_of(&json, &f->loads[i]));
    pl_json_put(&json, top, "loads", loads);
    return pl_json_finish(&json, text, top);
}

/* --- the command --- */

/* The checkpoint says which model it is of and how it came about. */
static pl_status check_options(const pl_options *options, const pl_usage *usage)
{
    const char *other = options->model           ? "--model"
                        : options->plan          ? "--plan"
                        : options->programs      ? "--program"
                        : options->setting_count ? "--set"
                        : options->word_count    ? options->words[0]
                                                 : NULL;
    pl_text text = {0};
    if (!other) return PL_OK;
    pl_text_add_string(&text, "--checkpoint goes with --layout and --json only, not with ");
    pl_text_add_quoted(&text, other);
    return pl_usage_refuse(usage, &text);
}

/* The reasons of all refusals are the command's words. */
static pl_status set_reasons(const findings *f)
{
    pl_text text = {0};
    for (int i = 0; i < f->load_count; ++i)
        if (refused(&f->loads[i]))
            pl_text_add(&text, "%s%s", text.length ? "\n  " : "",
                        pl_text_string(&f->loads[i].reason));
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) pl_error_set(pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

static pl_status report(pl_output *output, const pl_options *options, const findings *f)
{
    pl_status worst = worst_of(f);
    if (options->json)
        PL_TRY(print_json(&output->text, f));
    else
        print(output, f);
    output->stands = true;
    if (worst == PL_BAD_INPUT || worst == PL_UNSUPPORTED) PL_TRY(set_reasons(f));
    return worst;
}

pl_status pl_check_checkpoint(pl_output *output, const pl_options *options, const pl_usage *usage)
{
    findings f = {.load_count = 0};
    PL_TRY(check_options(options, usage));
    pl_status status = examine(&f, options);
    if (status == PL_OK) status = report(output, options, &f);
    free_findings(&f);
    return status;
}
