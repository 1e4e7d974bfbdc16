/* What emitters write: the waits that buffers demand and no others, by a search of its own over
 * streams and waits; and the entries of cases that force each turn. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

static pl_plan build(const plan_case *c)
{
    pl_plan plan;
    pl_status status = plan_case_build(&plan, c, false);
    if (status != PL_OK) fail_msg("%s, %s: %s", c->name, c->layout, pl_error_text());
    return plan;
}

/* --- sets of entries --- */

/* A row of bits for each entry of a section. */
typedef struct bit_rows {
    size_t words;
    uint64_t *bits;
} bit_rows;

static bit_rows make_rows(size_t count)
{
    bit_rows rows = {.words = count / 64 + 1};
    assert_ok(pl_allocate(&rows.bits, rows.words * (count + 1), sizeof *rows.bits, "bits"));
    return rows;
}

static uint64_t *row(const bit_rows *rows, size_t i) { return rows->bits + i * rows->words; }

static bool has_bit(const uint64_t *bits, size_t i) { return bits[i / 64] >> (i % 64) & 1; }

static void set_bit(uint64_t *bits, size_t i) { bits[i / 64] |= UINT64_C(1) << (i % 64); }

/* How many of WANTED are not in FOUND. */
static size_t count_missing(const uint64_t *wanted, const uint64_t *found, size_t words)
{
    size_t count = 0;
    for (size_t i = 0; i < words; ++i)
        for (uint64_t left = wanted[i] & ~found[i]; left; left &= left - 1) ++count;
    return count;
}

/* --- what is done before what, and what must be --- */

enum { NO_WAIT = -1 };

/* Entry I comes after the one before it in its stream, after those it waits for (but for wait
 * number WITHOUT), and after all that they come after. */
static void find_done(const pl_section *section, const bit_rows *done, size_t i, int64_t without,
                      uint64_t *out)
{
    const pl_entry *entry = &section->entries[i];
    memset(out, 0, done->words * sizeof *out);
    for (uint32_t w = 0; w <= entry->wait_count; ++w) {
        int64_t before = NO_WAIT;
        if (w < entry->wait_count && (int64_t)w != without)
            before = section->waits[entry->wait_first + w];
        for (size_t j = i; w == entry->wait_count && j > 0 && before == NO_WAIT; --j)
            if (section->entries[j - 1].stream == entry->stream) before = (int64_t)j - 1;
        if (before == NO_WAIT) continue;
        set_bit(out, (size_t)before);
        for (size_t k = 0; k < done->words; ++k) out[k] |= row(done, (size_t)before)[k];
    }
}

static bool changes(const pl_use *use)
{
    return use->flags & (PL_USE_WRITE | PL_USE_BEGIN | PL_USE_END);
}

/* Whether two entries use one buffer, and one of them changes it or its life. */
static bool conflict(const pl_section *section, const pl_entry *a, const pl_entry *b)
{
    for (uint32_t i = 0; i < a->use_count; ++i)
        for (uint32_t j = 0; j < b->use_count; ++j) {
            const pl_use *x = &section->uses[a->use_first + i];
            const pl_use *y = &section->uses[b->use_first + j];
            if (x->buffer == y->buffer && (changes(x) || changes(y))) return true;
        }
    return false;
}

/* The reshard before entry I in the order of issue, which a gather waits for so that no more is
 * gathered at once than the plan says; NO_WAIT. */
static int64_t reshard_before(const pl_section *section, size_t i)
{
    if (section->entries[i].name.operation != PL_OP_GATHER) return NO_WAIT;
    for (size_t j = i; j > 0; --j)
        if (section->entries[j - 1].name.operation == PL_OP_RESHARD) return (int64_t)j - 1;
    return NO_WAIT;
}

/* What a look at a section found. */
typedef struct findings {
    size_t missing;     /* orders that buffers or bounds demand and nothing ensures */
    size_t superfluous; /* waits without which all demanded orders would still be ensured */
    size_t bounding;    /* waits that only the bound on gathered memory demands */
    size_t waits;
} findings;

static void look_at_waits(const pl_section *section, size_t i, const bit_rows *done,
                          const uint64_t *conflicts, findings *found)
{
    const pl_entry *entry = &section->entries[i];
    uint64_t *rest = NULL;
    int64_t bound = reshard_before(section, i);
    assert_ok(pl_allocate(&rest, done->words, sizeof *rest, "bits"));
    for (uint32_t w = 0; w < entry->wait_count; ++w) {
        find_done(section, done, i, w, rest);
        bool for_buffers = count_missing(conflicts, rest, done->words) > 0;
        bool for_bound = bound != NO_WAIT && !has_bit(rest, (size_t)bound);
        ++found->waits;
        found->superfluous += !for_buffers && !for_bound;
        found->bounding += !for_buffers && for_bound;
    }
    pl_free(rest);
}

static findings look(const pl_section *section)
{
    findings found = {0};
    bit_rows done = make_rows(section->entry_count);
    uint64_t *conflicts = NULL;
    assert_ok(pl_allocate(&conflicts, done.words, sizeof *conflicts, "bits"));
    for (size_t i = 0; i < section->entry_count; ++i) {
        int64_t bound = reshard_before(section, i);
        memset(conflicts, 0, done.words * sizeof *conflicts);
        for (size_t j = 0; j < i; ++j)
            if (conflict(section, &section->entries[j], &section->entries[i]))
                set_bit(conflicts, j);
        find_done(section, &done, i, NO_WAIT, row(&done, i));
        found.missing += count_missing(conflicts, row(&done, i), done.words);
        found.missing += bound != NO_WAIT && !has_bit(row(&done, i), (size_t)bound);
        look_at_waits(section, i, &done, conflicts, &found);
    }
    pl_free(conflicts);
    pl_free(done.bits);
    return found;
}

/* --- waits --- */

/* Adds to TOTAL. */
static void expect_just_the_waits(const plan_case *c, findings *total)
{
    pl_plan plan = build(c);
    for (size_t i = 0; i < plan.section_count; ++i) {
        const pl_section *section = &plan.sections[i];
        findings found = look(section);
        if (found.missing > 0 || found.superfluous > 0)
            fail_msg("%s, %s %s, %s: %zu orders missing, %zu waits superfluous", c->name, c->model,
                     c->layout, pl_program_name(section->program), found.missing,
                     found.superfluous);
        total->waits += found.waits;
        total->bounding += found.bounding;
    }
    pl_plan_free(&plan);
}

static void waits_are_those_that_buffers_demand(void **state)
{
    findings total = {0};
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i)
        expect_just_the_waits(&plan_forced_cases()[i], &total);
    for (int i = 0; i < 25; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        expect_just_the_waits(&c, &total);
    }
    assert_true(total.waits > 1000);
    assert_true(total.bounding > 10);
}

static const plan_case plain = {
    .name = "plain", .model = "mixed", .layout = "decoupled:world=4,ep=2", .micro_batches = 2};

static void each_dropped_wait_would_be_seen(void **state)
{
    (void)state;
    pl_plan plan = build(&plain);
    pl_section *section = plan_case_section(&plan, PL_PROGRAM_STEP, 0);
    for (size_t i = 0; i < section->entry_count; ++i) {
        pl_entry *entry = &section->entries[i];
        uint32_t count = entry->wait_count;
        int32_t *waits = section->waits + entry->wait_first;
        for (uint32_t w = 0; w < count; ++w) {
            int32_t dropped = waits[w];
            waits[w] = waits[count - 1];
            entry->wait_count = count - 1;
            assert_true(look(section).missing > 0);
            entry->wait_count = count;
            waits[w] = dropped;
        }
    }
    assert_int_equal(look(section).missing, 0);
    pl_plan_free(&plan);
}

static void an_added_wait_would_be_seen(void **state)
{
    (void)state;
    pl_plan plan = build(&plain);
    pl_section *section = plan_case_section(&plan, PL_PROGRAM_STEP, 0);
    size_t added = 0;
    assert_ok(pl_grow(&section->waits, &section->wait_capacity, section->wait_count + 1,
                      sizeof *section->waits, "waits"));
    /* every entry that waits for nothing, made to wait for the first one */
    for (size_t i = 1; i < section->entry_count; ++i) {
        pl_entry *entry = &section->entries[i];
        if (entry->wait_count > 0 || entry->stream == section->entries[0].stream) continue;
        section->waits[section->wait_count] = 0;
        entry->wait_first = (uint32_t)section->wait_count;
        entry->wait_count = 1;
        assert_true(look(section).superfluous > 0);
        entry->wait_count = 0;
        ++added;
    }
    assert_true(added > 20);
    pl_plan_free(&plan);
}

/* --- forced cases --- */

enum { WORDS = 6 };

/* What the step of rank 0 must have and must not have, in the order of plan_forced_cases. */
static const struct {
    const char *has[WORDS], *lacks[WORDS];
} forced[PLAN_FORCED_CASES] = {
    /* frozen embedding */
    {.has = {" attention layer.0 round=0 mb=0 pass=bw ", " attention layer.1 round=0 mb=0 pass=b ",
             " gather embed round=1 pass=f "},
     .lacks = {" embed embed round=0 mb=0 pass=bw ", " reduce embed ", "gradsum.embed", "dx.0.mb0",
               "master.embed", "adam_m.embed"}},
    /* frozen embedding, tied */
    {.has = {" loss head round=0 mb=0 pass=f ", "begins=dz.mb0"},
     .lacks = {"gradsum.embed", "grad.embed", " reduce head "}},
    /* frozen lowest layer */
    {.has = {" attention layer.1 round=0 mb=1 pass=bw ", " gather layer.0 round=0 pass=f ",
             "ends=full.layer.0"},
     .lacks = {" mlp layer.0 round=0 mb=0 pass=b", " attention layer.0 round=0 mb=0 pass=b",
               " gather layer.0 round=0 pass=b ", "save_mlp.0", "save_attention.0", "dx.1."}},
    /* frozen lower layers */
    {.has = {" attention layer.2 round=0 mb=0 pass=bw ", " experts experts.1 round=0 mb=0 pass=f "},
     .lacks = {" experts experts.1 round=0 mb=0 pass=b", " route layer.1 round=0 mb=0 pass=b",
               "save_experts.1", "gradsum.layer.1", "dx.2."}},
    /* only the head trains */
    {.has = {" reduce head round=0 pass=bw ", "grad.head"},
     .lacks = {" final-norm norm round=0 mb=0 pass=b", "dz.mb0", "pass=bi", "grad.norm",
               "expert-squares"}},
    /* all experts frozen */
    {.has = {" experts experts.0 round=0 mb=0 pass=bi ", " experts experts.0 round=0 mb=0 pass=r ",
             " dispatch layer.0 round=0 mb=0 pass=r ", "dsend.0.mb0", "wire.experts.0"},
     .lacks = {" experts experts.0 round=0 mb=0 pass=bw", "dact.", " reduce experts",
               "expert-squares", "grad.experts"}},
    /* all but experts frozen */
    {.has = {" experts experts.0 round=0 mb=0 pass=bw ", " route layer.1 round=0 mb=0 pass=bi ",
             " attention layer.1 round=0 mb=0 pass=bi ", " all-reduce expert-squares "},
     .lacks = {" route layer.0 round=0 mb=0 pass=b", "droute.0", "dense-squares", " reduce layer",
               " dispatch layer.0 round=0 mb=0 pass=b", "grad.layer"}},
    /* all but experts frozen, all-gather */
    {.has = {" share-routes layer.0 round=0 mb=0 pass=f ",
             " share-routes layer.1 round=0 mb=0 pass=b ",
             " attention layer.0 round=0 mb=0 pass=r ", "reduction=sum"},
     .lacks = {" bind ", " exchange-counts ", " permute ",
               " share-routes layer.0 round=0 mb=0 pass=b", "rows.0"}},
    /* only norms train */
    {.has = {" attention layer.0 round=0 mb=0 pass=bw ", " final-norm norm round=0 mb=0 pass=b ",
             "gradsum.layer.0"},
     .lacks = {"grad.head", "grad.experts", " embed embed round=0 mb=0 pass=bw"}},
    /* router held whole */
    {.has = {"ignored_grad.layer.0", " all-reduce ignored-gradients ", "ignored_squares",
             " all-reduce balance round=1 ", "scale=T*1/2"},
     .lacks = {"ignored_grad.experts", "ignored_grad.embed"}},
    /* q_norm held whole, frozen too */
    {.has = {"buffer ignored.layer.0 shard fp32 32 resident",
             "buffer ignored_m.layer.0 shard fp32 16 resident", "ignored_grad.layer.0"},
     .lacks = {"ignored.norm"}},
    /* tied head, never */
    {.has = {" gather embed round=0 pass=f ", " reshard embed round=1 ", "gradsum.embed"},
     .lacks = {" gather embed round=1", "gather embed round=0 pass=f ordinal=1", " gather head",
               "param.head"}},
    /* tied head, after forward */
    {.has = {" gather embed round=0 pass=f ", " gather embed round=1 pass=f ",
             " reshard embed round=0 pass=f ordinal=1 "},
     .lacks = {" gather embed round=0 pass=f ordinal=1", " gather head", "grad.head"}},
    /* tied head, per call */
    {.has = {" gather embed round=0 mb=1 pass=f ", " gather embed round=0 mb=1 pass=f ordinal=1 ",
             " gather layer.1 round=1 mb=1 pass=b "},
     .lacks = {" gather embed round=0 pass=f", " gather head"}},
    /* one owner */
    {.has = {" permute layer.0 round=0 mb=0 pass=f ", "reads=full.experts.0,send.0.mb0,route.0.mb0",
             "balance_total", " gather experts.0 "},
     .lacks = {" dispatch ", " combine ", " exchange-counts ", " bind ", "*R", "*C"}},
    /* one owner, all-gather, one rank */
    {.has = {" control flags stream=host", "reads=param.experts.0,y.0.mb0,route.0.mb0",
             " cast parameters "},
     .lacks = {"stream=communication", " gather ", " all-reduce ", " permute ", "gradsum.",
               " share-routes "}},
    /* no experts */
    {.has = {" all-reduce dense-gradients stream=communication waits=", "group=dense-replica",
             " cast layer.0 round=0 pass=bw ", " cast layer.0 round=0 pass=bw ordinal=1 "},
     .lacks = {"experts", "expert-", " route ", "balance"}},
    /* experts in the middle layer */
    {.has = {" mlp layer.0 round=0 mb=0 pass=b ", " route layer.1 round=0 mb=0 pass=b ",
             " mlp layer.2 round=0 mb=0 pass=f ", " all-reduce expert-gradients "},
     .lacks = {" route layer.0", " route layer.2", " mlp layer.1", "param.experts.0",
               " all-reduce balance "}},
    /* experts above a dense layer */
    {.has = {" mlp layer.0 round=0 mb=0 pass=r ", " reduce layer.0 round=2 pass=bw ",
             " merge layer.1 round=0 mb=0 pass=bi ", "grad.experts.1"},
     .lacks = {" gather experts", " reduce experts", " reduce layer.0 round=0",
               " attention layer.2 round=0 mb=0 pass=r ", "gradsum.experts", "full.experts"}},
};

/* The first of WANTED that is not in TEXT (or is, when ABSENT); NULL when all is well. */
static const char *wrong_word(const char *text, const char *const *words, bool absent)
{
    for (int i = 0; i < WORDS && words[i]; ++i)
        if ((strstr(text, words[i]) == NULL) != absent) return words[i];
    return NULL;
}

static char *step_text(const plan_case *c)
{
    pl_plan plan = build(c);
    pl_text text = {0};
    for (size_t i = plan.section_count; i-- > 0;)
        if (plan.sections[i].program == PL_PROGRAM_START) plan.sections[i].entry_count = 0;
    pl_plan_write(&text, &plan, 0);
    assert_ok(pl_text_status(&text));
    char *step = strstr(text.bytes, "section step");
    assert_non_null(step);
    memmove(text.bytes, step, strlen(step) + 1);
    pl_plan_free(&plan);
    return text.bytes;
}

static void forced_cases_have_their_entries(void **state)
{
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) {
        const plan_case *c = &plan_forced_cases()[i];
        char *text = step_text(c);
        const char *missing = wrong_word(text, forced[i].has, false);
        const char *present = wrong_word(text, forced[i].lacks, true);
        if (missing) fail_msg("%s: no '%s'", c->name, missing);
        if (present) fail_msg("%s: '%s'", c->name, present);
        free(text);
    }
}

/* The words of one case do not fit the others: they tell something. */
static void forced_cases_differ(void **state)
{
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) {
        int fits = 0;
        for (int j = 0; j < PLAN_FORCED_CASES; ++j) {
            char *text = step_text(&plan_forced_cases()[j]);
            fits +=
                !wrong_word(text, forced[i].has, false) && !wrong_word(text, forced[i].lacks, true);
            free(text);
        }
        assert_in_range(fits, 1, PLAN_FORCED_CASES / 3);
    }
}

static void prefetching_gathers_a_unit_ahead(void **state)
{
    plan_case c = plain;
    (void)state;
    for (int ahead = 0; ahead < 2; ++ahead) {
        c.policy.prefetch = ahead ? PL_PREFETCH_NEXT_UNIT : PL_PREFETCH_NONE;
        char *text = step_text(&c);
        const char *gather = strstr(text, " gather layer.0 round=0 pass=f ");
        const char *embed = strstr(text, " embed embed round=0 mb=0 pass=f ");
        assert_non_null(gather);
        assert_non_null(embed);
        assert_int_equal(gather < embed, ahead);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_are_those_that_buffers_demand),
        cmocka_unit_test(each_dropped_wait_would_be_seen),
        cmocka_unit_test(an_added_wait_would_be_seen),
        cmocka_unit_test(forced_cases_have_their_entries),
        cmocka_unit_test(forced_cases_differ),
        cmocka_unit_test(prefetching_gathers_a_unit_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
