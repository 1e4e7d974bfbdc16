#include "tests/sim/campaign.h"

#include <inttypes.h>
#include <string.h>

/* --- sound plans --- */

static void describe_pair(pl_text *text, const pair_list *list, const pair *chosen)
{
    char layout[PL_LAYOUT_TEXT];
    pl_text_add(text, "%s, %s", list->models[chosen->model].name,
                pl_layout_format(&chosen->layout, layout));
}

static void add_failures(pl_text *failures, const pair_list *list, size_t i, const pl_check *check)
{
    pl_text_add(failures, "pair %zu (", i);
    describe_pair(failures, list, &list->pairs[i]);
    pl_text_add_string(failures, ") is not proved:\n");
    for (int j = 0; j < PL_PROOF_COUNT; ++j)
        if (check->verdict[j].outcome != PL_PROVED)
            pl_text_add(failures, "  %s: %s\n", pl_proof_name((pl_proof_id)j),
                        check->verdict[j].outcome == PL_UNDECIDED
                            ? "undecided"
                            : pl_text_string(&check->verdict[j].words));
}

/* The text of PLAN read back gives the same text. */
static pl_status comes_back(bool *same, const pl_plan *plan)
{
    pl_text first = {0}, second = {0};
    pl_plan read = {0};
    pl_plan_write(&first, plan, -1);
    pl_status status = pl_text_status(&first);
    if (status == PL_OK) status = pl_plan_read(&read, pl_text_string(&first), "plan");
    if (status == PL_OK) pl_plan_write(&second, &read, -1);
    *same = status == PL_OK && strcmp(pl_text_string(&first), pl_text_string(&second)) == 0;
    pl_plan_free(&read);
    pl_text_free(&first);
    pl_text_free(&second);
    return status;
}

pl_status campaign_prove(const pair_list *list, int64_t *proved_out, pl_text *failures)
{
    int64_t proved = 0;
    for (size_t i = 0; i < list->count; ++i) {
        pl_plan plan = {0};
        pl_check check = {0};
        bool same = false;
        PL_TRY(pair_plan(&plan, list, &list->pairs[i], PAIRS_NO_SPLIT));
        pl_status status = comes_back(&same, &plan);
        if (status == PL_OK) status = pl_check_programs(&check, &plan, list->pairs[i].programs);
        pl_plan_free(&plan);
        if (status != PL_OK) return status;
        bool holds = pl_check_proved(&check);
        if (!holds) add_failures(failures, list, i, &check);
        if (!same) pl_text_add(failures, "pair %zu does not come back from its text\n", i);
        proved += holds && same;
        pl_check_free(&check);
    }
    *proved_out = proved;
    return pl_text_status(failures);
}

/* --- damaged ones --- */

static void count_proofs(campaign_row *row, const damage *tried)
{
    pl_proof_id first = damage_first(tried);
    unsigned thing = tried->names_entry | tried->names_buffer;
    if (first < PL_PROOF_COUNT) ++row->first[first];
    for (int i = 0; i < PL_PROOF_COUNT; ++i) {
        row->failed[i] += tried->failed >> i & 1;
        row->entry[i] += tried->names_entry >> i & 1;
        row->thing[i] += thing >> i & 1;
        row->rank[i] += tried->names_rank >> i & 1;
    }
    row->nothing_named += thing == 0;
    row->no_rank += tried->names_rank == 0;
}

static void repeat_words(pl_text *text, const campaign *c, const damage *tried, uint64_t seed)
{
    pl_text_add(text, "seed %" PRIu64 ", ", seed);
    describe_pair(text, c->list, tried->chosen);
    if (tried->rank >= 0) pl_text_add(text, ", rank %" PRId64 " alone", tried->rank);
    pl_text_add(text, ":\n    %s\n", tried->done.words);
}

static void count_reason(campaign *c, int kind, const damage *tried, uint64_t seed)
{
    int i = 0;
    while (i < c->reason_count && strcmp(c->reason[i].words, tried->reason) != 0) ++i;
    if (i == CAMPAIGN_REASONS) return;
    campaign_reason *reason = &c->reason[i];
    if (i == c->reason_count) {
        ++c->reason_count;
        reason->words = tried->reason;
        repeat_words(&reason->example, c, tried, seed);
    }
    ++reason->count[kind];
}

pl_status campaign_try(campaign *c, int kind, uint64_t seed, bool one_rank)
{
    damage tried = {0};
    campaign_row *row = &c->row[kind];
    PL_TRY(damage_try(&tried, c->list, kind, seed, one_rank));
    ++row->tried;
    ++row->outcome[tried.outcome];
    if (tried.outcome == DAMAGE_CAUGHT) {
        bool first = row->nothing_named == 0;
        count_proofs(row, &tried);
        if (first && row->nothing_named > 0) {
            repeat_words(&c->unnamed, c, &tried, seed);
            pl_text_add_string(&c->unnamed, pl_text_string(&tried.words));
        }
    }
    if (tried.outcome == DAMAGE_CAUGHT && tried.reason) {
        ++c->disputed_count;
        repeat_words(&c->disputed, c, &tried, seed);
        pl_text_add(&c->disputed, "    %s\n%s", tried.reason, pl_text_string(&tried.words));
    }
    if (tried.outcome == DAMAGE_HARMLESS) count_reason(c, kind, &tried, seed);
    if (tried.outcome == DAMAGE_UNEXPLAINED) {
        ++c->unexplained_count;
        repeat_words(&c->unexplained, c, &tried, seed);
    }
    damage_free(&tried);
    return pl_text_status(&c->unexplained);
}

pl_status campaign_run(campaign *c, uint64_t seed, int64_t tries)
{
    for (int64_t i = 0; i < tries; ++i)
        for (int kind = 0; kind < mutation_kinds(); ++kind)
            PL_TRY(campaign_try(c, kind, pairs_random(&seed, 1ull << 62), i % 2 != 0));
    return PL_OK;
}

/* --- tables --- */

static void report_row(pl_text *text, const campaign_row *row, int kind)
{
    pl_text_add(text, "%-20s %6" PRId64, mutation_name(kind), row->tried);
    for (int i = 0; i < DAMAGE_OUTCOMES; ++i) pl_text_add(text, " %6" PRId64, row->outcome[i]);
    pl_text_add(text, " %6" PRId64 " %6" PRId64 "\n", row->nothing_named, row->no_rank);
}

static void report_outcomes(pl_text *text, const campaign *c)
{
    campaign_row sum = {0};
    pl_text_add(text, "%-20s %6s %6s %6s %6s %6s %6s %6s %6s %6s\n", "kind", "tried", "caught",
                "refuse", "harml.", "UNEXPL", "same", "none", "unnam.", "norank");
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        const campaign_row *row = &c->row[kind];
        report_row(text, row, kind);
        sum.tried += row->tried;
        for (int i = 0; i < DAMAGE_OUTCOMES; ++i) sum.outcome[i] += row->outcome[i];
        sum.nothing_named += row->nothing_named;
        sum.no_rank += row->no_rank;
    }
    pl_text_add(text, "%-20s %6" PRId64, "all", sum.tried);
    for (int i = 0; i < DAMAGE_OUTCOMES; ++i) pl_text_add(text, " %6" PRId64, sum.outcome[i]);
    pl_text_add(text, " %6" PRId64 " %6" PRId64 "\n", sum.nothing_named, sum.no_rank);
}

static void report_proofs(pl_text *text, const campaign *c)
{
    pl_text_add_string(text, "\nproofs that fail: failing/naming the entry or a buffer of it, "
                             "+first to fail\n");
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        const campaign_row *row = &c->row[kind];
        pl_text_add(text, "%-20s", mutation_name(kind));
        for (int i = 0; i < PL_PROOF_COUNT; ++i)
            if (row->failed[i] > 0)
                pl_text_add(text, " %s %" PRId64 "/%" PRId64 "+%" PRId64,
                            pl_proof_name((pl_proof_id)i), row->failed[i], row->thing[i],
                            row->first[i]);
        pl_text_add_string(text, "\n");
    }
}

static void report_reasons(pl_text *text, const campaign *c)
{
    pl_text_add_string(text, "\nundetected and harmless\n");
    for (int i = 0; i < c->reason_count; ++i) {
        const campaign_reason *reason = &c->reason[i];
        pl_text_add(text, "- %s:", reason->words);
        for (int kind = 0; kind < mutation_kinds(); ++kind)
            if (reason->count[kind] > 0)
                pl_text_add(text, " %s %" PRId64, mutation_name(kind), reason->count[kind]);
        pl_text_add(text, "\n  for example %s", pl_text_string(&reason->example));
    }
}

void campaign_report(pl_text *text, const campaign *c)
{
    report_outcomes(text, c);
    report_proofs(text, c);
    report_reasons(text, c);
    pl_text_add(text,
                "\ncaught, but no proof names the entry or its buffers; the first of each "
                "kind\n%s",
                pl_text_string(&c->unnamed));
    pl_text_add(text, "\ncaught, though called harmless: %" PRId64 "\n%s", c->disputed_count,
                pl_text_string(&c->disputed));
    pl_text_add(text, "\nUNEXPLAINED: %" PRId64 "\n%s", c->unexplained_count,
                pl_text_string(&c->unexplained));
}

void campaign_free(campaign *c)
{
    for (int i = 0; i < c->reason_count; ++i) pl_text_free(&c->reason[i].example);
    pl_text_free(&c->unexplained);
    pl_text_free(&c->unnamed);
    pl_text_free(&c->disputed);
    memset(c, 0, sizeof *c);
}
