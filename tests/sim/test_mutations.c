/* Random damage to plans: hundreds of sound plans are proved, and each proof fails on each kind of
 * mutation that concerns it. The long run is tests/sim/mutation_campaign.c. */
#include "tests/test.h"

#include <stdio.h>

#include "common/memory.h"
#include "tests/sim/campaign.h"
#include "tests/sim/harmless.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif
#ifdef SLOW
enum { PLANS = 120, TRIES = 2, PATIENCE = 400 };
#else
enum { PLANS = 520, TRIES = 12, PATIENCE = 400 };
#endif
enum { SEED = 1 };

/* --- sound plans --- */

static void test_sound_plans_are_proved(void **state)
{
    const pair_list *list = *state;
    pl_text failures = {0};
    int64_t proved = 0;
    assert_ok(campaign_prove(list, &proved, &failures));
    if (proved != PLANS) fail_msg("%s", pl_text_string(&failures));
    print_message("%d pairs of (layout, policy), %zu distinct plans\n", PLANS, list->plan_count);
    pl_text_free(&failures);
}

static void test_pairs_cover_every_choice(void **state)
{
    const pair_list *list = *state;
    unsigned kinds = 0, reshard = 0, prefetch = 0, recompute = 0, dispatch = 0, models = 0;
    uint32_t programs = 0;
    for (size_t i = 0; i < list->count; ++i) {
        const pl_policy *policy = &list->pairs[i].settings.policy;
        kinds |= 1u << list->pairs[i].layout.kind;
        reshard |= 1u << policy->reshard;
        prefetch |= 1u << policy->prefetch;
        recompute |= 1u << policy->recompute;
        dispatch |= 1u << policy->dispatch;
        models |= 1u << list->pairs[i].model;
        programs |= list->pairs[i].programs;
    }
    assert_int_equal(kinds, (1u << PL_LAYOUT_KIND_COUNT) - 1);
    assert_int_equal(reshard, (1u << PL_RESHARD_COUNT) - 1);
    assert_int_equal(prefetch, (1u << PL_PREFETCH_COUNT) - 1);
    assert_int_equal(recompute, (1u << PL_RECOMPUTE_COUNT) - 1);
    assert_int_equal(dispatch, (1u << PL_DISPATCH_COUNT) - 1);
    assert_int_equal(models, (1u << PAIRS_MODELS) - 1);
    assert_int_equal(programs, (1u << PL_PROGRAM_COUNT) - 1);
}

/* --- the tool --- */

/* Length of the common beginning of two texts. */
static size_t common_start(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] && a[i] == b[i]) ++i;
    return i;
}

static bool in_section_of(const char *text, size_t at, const char *header)
{
    const char *found = strstr(text, header);
    if (!found) return false;
    const char *end = strstr(found, "\nend\n");
    return (size_t)(found - text) <= at && at <= (size_t)(end - text);
}

/* Whether AT is in a section of rank 0 alone. */
static bool in_own_section(const char *text, size_t at)
{
    bool inside = false;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        char header[48];
        snprintf(header, sizeof header, "section %s ranks 0\n", pl_program_name((pl_program)i));
        inside |= in_section_of(text, at, header);
    }
    return inside;
}

/* Damage the plan of pair SEED in a section of rank 0, and the same again. Only rank 0's own
 * sections may change (exchanged ranks concern two). */
static mutation_result damages(const pair_list *list, int kind, uint64_t seed)
{
    pl_text sound = {0};
    mutation one = {0}, again = {0};
    assert_ok(pair_text(&sound, list, &list->pairs[seed], 0));
    const char *text = pl_text_string(&sound);
    mutation_result result = mutation_make(&one, kind, seed, 0, text);
    if (result == MUTATION_DONE) {
        size_t at = common_start(text, one.text);
        assert_string_not_equal(text, one.text);
        assert_non_null(strstr(one.words, mutation_name(kind)));
        if (strcmp(mutation_name(kind), "ranks-swapped") != 0)
            assert_true(in_own_section(text, at));
        assert_int_equal(mutation_make(&again, kind, seed, 0, text), MUTATION_DONE);
        assert_string_equal(one.text, again.text);
    }
    mutation_free(&one);
    mutation_free(&again);
    pl_text_free(&sound);
    return result;
}

static void test_every_kind_damages(void **state)
{
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        mutation_result result = MUTATION_NO_PLACE;
        for (uint64_t seed = 0; seed < 60 && result == MUTATION_NO_PLACE; ++seed)
            result = damages(*state, kind, seed);
        if (result != MUTATION_DONE) fail_msg("no place for %s", mutation_name(kind));
    }
    assert_int_equal(mutation_find("no-such-kind"), -1);
    assert_int_equal(mutation_find(mutation_name(3)), 3);
}

/* --- proofs against kinds --- */

/* Kinds of mutation that concern a proof. On each of the first list it must be seen to fail with
 * words that name the entry or a buffer of it, and a rank that the damage is on. On the second the
 * damage shows in values that reach another entry: the words name that one, and the rank. */
static const struct {
    pl_proof_id proof;
    const char *kinds, *effects;
} concerns[] = {
    {PL_PROOF_TILING,
     "ranks-swapped ordinal-changed layer-changed subject-changed operation-changed "
     "elements-changed",
     ""},
    {PL_PROOF_GROUPS, "group-changed group-removed group-added", ""},
    {PL_PROOF_WORK,
     "entry-dropped entry-doubled scale-changed scale-removed scale-added "
     "reduction-changed reduction-removed reduction-added stream-changed round-changed "
     "micro-batch-changed ordinal-changed chunk-changed pass-changed layer-changed "
     "exchange-renamed subject-changed operation-changed read-removed read-moved "
     "write-removed write-moved write-added begin-dropped "
     "begin-moved condition-dropped condition-added",
     ""},
    {PL_PROOF_SIZES,
     "bytes-changed bytes-rows wire-changed pass-changed flops-changed flops-rows "
     "buffer-bytes buffer-type buffer-class buffer-rows buffer-resident buffer-added",
     ""},
    {PL_PROOF_COLLECTIVES,
     "entry-dropped entry-doubled entries-swapped-far entry-earlier entry-later "
     "group-changed group-removed group-added reduction-changed reduction-removed "
     "reduction-added bytes-changed bytes-rows wire-changed round-changed "
     "micro-batch-changed ordinal-changed chunk-changed pass-changed layer-changed "
     "exchange-renamed subject-changed operation-changed",
     ""},
    {PL_PROOF_DEADLOCK,
     "entry-dropped entry-doubled entries-swapped-far entry-earlier entry-later "
     "group-changed group-removed group-added reduction-changed reduction-removed "
     "stream-changed round-changed micro-batch-changed ordinal-changed chunk-changed "
     "pass-changed layer-changed exchange-renamed subject-changed operation-changed "
     "wait-moved wait-added",
     ""},
    {PL_PROOF_ORDERING,
     "entry-dropped entry-doubled entries-swapped entries-swapped-far entry-earlier "
     "entry-later label-changed stream-changed wait-removed wait-moved wait-added "
     "read-moved read-added write-moved write-added begin-moved end-earlier end-later "
     "end-doubled",
     ""},
    {PL_PROOF_LIFETIMES,
     "entry-dropped entry-doubled entries-swapped entries-swapped-far entry-earlier "
     "entry-later read-moved read-added write-moved write-added begin-dropped "
     "begin-weakened begin-moved end-dropped end-earlier end-later end-doubled "
     "buffer-resident",
     ""},
    {PL_PROOF_GATHERS,
     "entry-doubled entries-swapped entries-swapped-far entry-later write-moved "
     "begin-dropped begin-weakened begin-moved",
     "entry-dropped entry-earlier pass-changed layer-changed operation-changed read-moved"},
    {PL_PROOF_PARAMETERS,
     "entry-earlier group-changed group-removed stream-changed wait-removed begin-dropped "
     "begin-moved",
     "read-moved"},
    {PL_PROOF_GRADIENTS,
     "entry-dropped entry-doubled entries-swapped entries-swapped-far entry-earlier "
     "entry-later scale-changed scale-removed reduction-changed operation-changed "
     "wait-removed wait-moved write-removed write-moved begin-dropped begin-moved",
     "label-changed group-added stream-changed pass-changed read-removed read-moved"},
    {PL_PROOF_COUNTS, "", "entry-dropped reduction-changed operation-changed write-removed"},
    {PL_PROOF_NORM, "",
     "label-changed group-removed reduction-changed wait-removed read-removed "
     "write-removed"},
    {PL_PROOF_UPDATE,
     "entry-dropped entry-doubled entries-swapped entry-earlier operation-changed "
     "write-removed write-moved begin-dropped begin-moved buffer-resident",
     "entries-swapped-far entry-later label-changed group-added scale-changed "
     "scale-removed reduction-changed stream-changed pass-changed layer-changed "
     "wait-removed wait-moved read-removed read-moved"},
};

static bool listed(const char *kinds, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = strstr(kinds, name); at; at = strstr(at + 1, name))
        if ((at == kinds || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* Proofs that KIND concerns, by name or by its effects. */
static unsigned proofs_of(int kind, bool effects)
{
    unsigned proofs = 0;
    for (size_t i = 0; i < sizeof concerns / sizeof *concerns; ++i)
        if (listed(effects ? concerns[i].effects : concerns[i].kinds, mutation_name(kind)))
            proofs |= 1u << concerns[i].proof;
    return proofs;
}

/* Try mutations of KIND until all WANTED proofs failed by name and all EFFECTS failed; returns
 * those that did not. */
static unsigned never_failed(campaign *c, int kind, unsigned wanted, unsigned effects)
{
    unsigned missing = wanted | effects;
    uint64_t seed = SEED + (uint64_t)kind * 1000;
    for (int i = 0; i < PATIENCE && (i < TRIES || missing); ++i) {
        campaign_row before = c->row[kind], *row = &c->row[kind];
        assert_ok(campaign_try(c, kind, pairs_random(&seed, 1ull << 62), i % 2 != 0));
        for (int j = 0; j < PL_PROOF_COUNT; ++j) {
            bool named = row->thing[j] > before.thing[j];
            if (row->rank[j] > before.rank[j] && (named || (effects >> j & 1)))
                missing &= ~(1u << j);
        }
    }
    return missing;
}

/* Of what is caught, next to all is named; rank and entry. */
static void check_named(const campaign *c, pl_text *words)
{
    int64_t caught = 0, unnamed = 0, no_rank = 0;
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        caught += c->row[kind].outcome[DAMAGE_CAUGHT];
        unnamed += c->row[kind].nothing_named;
        no_rank += c->row[kind].no_rank;
    }
    print_message("%lld caught, %lld of them without a name, %lld without a rank\n",
                  (long long)caught, (long long)unnamed, (long long)no_rank);
    if (unnamed * 100 > caught || no_rank > 0)
        pl_text_add(words, "too many without name or rank:\n%s", pl_text_string(&c->unnamed));
}

static void test_each_proof_fails_on_what_concerns_it(void **state)
{
    campaign c = {.list = *state};
    pl_text words = {0};
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        unsigned missing = never_failed(&c, kind, proofs_of(kind, false), proofs_of(kind, true));
        for (int j = 0; j < PL_PROOF_COUNT; ++j)
            if (missing >> j & 1)
                pl_text_add(&words, "%s never failed on %s as it must\n",
                            pl_proof_name((pl_proof_id)j), mutation_name(kind));
    }
    check_named(&c, &words);
    pl_text_add_string(&words, pl_text_string(&c.unexplained));
    if (words.length > 0) fail_msg("%s", pl_text_string(&words));
    pl_text_free(&words);
    campaign_free(&c);
}

/* Every kind but those that the reader refuses concerns some proof, every proof some kind. */
static void test_table_is_whole(void **state)
{
    unsigned proofs = 0;
    (void)state;
    for (int kind = 0; kind < mutation_kinds(); ++kind) {
        const char *name = mutation_name(kind);
        bool refused = strcmp(name, "buffer-dropped") == 0 || strcmp(name, "buffer-doubled") == 0;
        unsigned own = proofs_of(kind, false);
        if ((own != 0) == refused) fail_msg("%s concerns no proof", name);
        proofs |= own | proofs_of(kind, true);
    }
    assert_int_equal(proofs, (1u << PL_PROOF_COUNT) - 1);
    for (size_t i = 0; i < 2 * sizeof concerns / sizeof *concerns; ++i) {
        char name[32];
        int length = 0;
        const char *at = i % 2 ? concerns[i / 2].effects : concerns[i / 2].kinds;
        for (; sscanf(at, "%31s%n", name, &length) == 1; at += length)
            if (mutation_find(name) < 0) fail_msg("no kind '%s'", name);
    }
}

/* --- what is called harmless --- */

/* A plan of a few entries: two that add to a sum, and a sum that is reduced and scaled. */
static const char small_plan[] =
    "pleat-plan 1\nmodel {\"model_type\": \"qwen3\", \"num_hidden_layers\": 1, \"hidden_size\": 4, "
    "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 4, "
    "\"intermediate_size\": 4, \"vocab_size\": 4, \"max_position_embeddings\": 8}\n"
    "layout folded:world=2\n"
    "policy reshard=never prefetch=none recompute=none accumulate=sharded dispatch=all-to-all "
    "routing=router\n"
    "precision compute=fp32 gather=fp32 gradient=fp32 master=fp32\n"
    "shape sequence=8 micro_batch=1 intra_layer=2 rounds=1\n"
    "objective balance=none coefficient=0 optimizer=adamw clip=1\n"
    "section step ranks 0-1\n"
    "buffer x.0.mb0 activation fp32 64\nbuffer x.0.mb1 activation fp32 64\n"
    "buffer x.1.mb0 activation fp32 64\nbuffer loss_sum work fp64 16\n"
    "buffer clip work fp64 24\nbuffer grad.norm gradient fp32 64\n"
    "entry 0 embed embed mb=0 stream=compute begins=x.0.mb0,loss_sum,grad.norm\n"
    "entry 1 embed embed mb=1 stream=compute begins=x.0.mb1\n"
    "entry 2 all-reduce loss stream=communication group=stage bytes=16 wire=fp64 reduction=sum "
    "begins=clip\n"
    "entry 3 attention layer.0 mb=0 stream=compute waits=2 reads=x.0.mb0,clip,loss_sum "
    "writes=loss_sum ends=x.0.mb0,clip\n"
    "entry 4 attention layer.0 mb=1 stream=compute reads=x.0.mb1,loss_sum writes=loss_sum "
    "ends=x.0.mb1\n"
    "entry 5 all-reduce dense-gradients stream=compute group=stage bytes=64 wire=fp32 "
    "reduction=sum reads=grad.norm writes=grad.norm\n"
    "entry 6 scale gradients stream=compute scale=1/T reads=grad.norm writes=grad.norm\n"
    "entry 7 control flags stream=compute ends=loss_sum,grad.norm\nend\n";

/* Replacing the first OLD by NEW; WORDS of the reason, NULL where there must be none. */
static const struct {
    const char *old, *new, *words;
} edits[] = {
    {"entry 1 embed", "entry 9 embed", "say the same"},
    {"group=stage", "group=world", "same ranks"},
    {"stream=compute ends=loss_sum", "stream=compute waits=2 ends=loss_sum", "ordered as before"},
    {"waits=2 reads=x.0.mb0", "waits=1,2 reads=x.0.mb0", "ordered as before"},
    {"reads=x.0.mb0,clip,loss_sum", "reads=x.0.mb0,x.0.mb1,clip,loss_sum", "one more read"},
    {"ends=loss_sum,grad.norm", "ends=grad.norm,loss_sum", "say the same"},
    {"entry 3 attention layer.0 mb=0 stream=compute waits=2 reads=x.0.mb0,clip,loss_sum "
     "writes=loss_sum ends=x.0.mb0,clip\nentry 4 attention layer.0 mb=1 stream=compute "
     "reads=x.0.mb1,loss_sum writes=loss_sum ends=x.0.mb1\n",
     "entry 4 attention layer.0 mb=1 stream=compute "
     "reads=x.0.mb1,loss_sum writes=loss_sum ends=x.0.mb1\n"
     "entry 3 attention layer.0 mb=0 stream=compute waits=2 reads=x.0.mb0,clip,loss_sum "
     "writes=loss_sum ends=x.0.mb0,clip\n",
     "two additions"},
    {"entry 5 all-reduce dense-gradients stream=compute group=stage bytes=64 wire=fp32 "
     "reduction=sum reads=grad.norm writes=grad.norm\n"
     "entry 6 scale gradients stream=compute scale=1/T reads=grad.norm writes=grad.norm\n",
     "entry 6 scale gradients stream=compute scale=1/T reads=grad.norm writes=grad.norm\n"
     "entry 5 all-reduce dense-gradients stream=compute group=stage bytes=64 wire=fp32 "
     "reduction=sum reads=grad.norm writes=grad.norm\n",
     "scaling and summing"},
    {"ends=x.0.mb1\nentry 5", "\nentry 5", NULL},
    {"group=stage", "group=context", NULL},
    {" waits=2", "", NULL},
    {" waits=2", " waits=7", NULL},
    {"ends=x.0.mb0,clip", "ends=clip", NULL},
    {"entry 3 attention", "entry 3 mlp", NULL},
    {"bytes=16", "bytes=8", NULL},
    {"scale=1/T", "scale=1/2*T", NULL},
    {"begins=x.0.mb0,", "begins=x.0.mb0,x.1.mb0,", NULL},
    {"writes=loss_sum ends=x.0.mb1", "ends=x.0.mb1", NULL},
    {"reads=x.0.mb1,loss_sum", "reads=x.0.mb1,x.0.mb0,loss_sum", NULL},
    {"buffer clip work fp64 24", "buffer clip work fp64 16", NULL},
    {"begins=x.0.mb1\nentry 2", "begins=x.0.mb1 ends=x.0.mb0\nentry 2", NULL},
};

static void test_reasons(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; ++i) {
        char changed[4096];
        const char *at = strstr(small_plan, edits[i].old), *reason = NULL;
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - small_plan), small_plan,
                 edits[i].new, at + strlen(edits[i].old));
        assert_ok(harmless_reason(&reason, small_plan, changed));
        bool right = edits[i].words ? reason && strstr(reason, edits[i].words) : !reason;
        if (!right)
            fail_msg("'%s' for '%s': %s", edits[i].new, edits[i].old,
                     reason ? reason : "no reason");
    }
}

/* --- memory --- */

static pl_status make_and_free(void)
{
    pair_list list = {0};
    PL_TRY(pairs_make(&list, SEED, 2));
    pairs_free(&list);
    return PL_OK;
}

static pl_status ask_reason(void)
{
    const char *reason = NULL;
    char changed[4096];
    const char *at = strstr(small_plan, " waits=2");
    snprintf(changed, sizeof changed, "%.*s%s", (int)(at - small_plan), small_plan, at + 8);
    return harmless_reason(&reason, small_plan, changed);
}

static void test_allocation_failures(void **state)
{
    pl_status (*const bodies[])(void) = {make_and_free, ask_reason};
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; ++i)
        for (int64_t n = 0;; ++n) {
            pl_allocation_fail_after(n);
            pl_status status = bodies[i]();
            int failed = pl_allocation_failed();
            pl_allocation_fail_after(-1);
            if (!failed) {
                assert_int_equal(status, PL_OK);
                break;
            }
            assert_int_equal(status, PL_NO_MEMORY);
        }
}

static int make_pairs(void **state)
{
    static pair_list list;
    *state = &list;
    if (pairs_make(&list, SEED, PLANS) == PL_OK) return 0;
    print_error("%s\n", pl_error_text());
    return 1;
}

static int free_pairs(void **state)
{
    pairs_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_plans_are_proved),
        cmocka_unit_test(test_pairs_cover_every_choice),
        cmocka_unit_test(test_every_kind_damages),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_table_is_whole),
        cmocka_unit_test(test_each_proof_fails_on_what_concerns_it),
    };
    return cmocka_run_group_tests(tests, make_pairs, free_pairs);
}
