/* What values must come out of a walk, worked out from groups, model and settings alone. */
#include <string.h>

#include "common/memory.h"
#include "sim/walk.h"

static const uint64_t prime = (uint64_t)PL_FAKE_PRIME;

/* --- the field --- */

pl_value pl_value_add(pl_value a, pl_value b)
{
    pl_value sum = a + b;
    return sum >= prime ? sum - prime : sum;
}

__extension__ typedef unsigned __int128 wide;

pl_value pl_value_multiply(pl_value a, pl_value b)
{
    wide product = (wide)a * b;
    pl_value low = (pl_value)(product & prime), high = (pl_value)(product >> 61);
    return pl_value_add(low, high);
}

pl_value pl_value_inverse(pl_value a)
{
    pl_value result = 1;
    for (uint64_t power = prime - 2; power; power >>= 1) {
        if (power & 1) result = pl_value_multiply(result, a);
        a = pl_value_multiply(a, a);
    }
    return result;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

pl_value pl_value_random(uint64_t what, int64_t a, int64_t b, int64_t c)
{
    uint64_t x = mix(what * 0x9e3779b97f4a7c15u + (uint64_t)a);
    x = mix(x + 0x9e3779b97f4a7c15u * (uint64_t)(b + 1));
    x = mix(x + 0xd1b54a32d192ed03u * (uint64_t)(c + 1));
    x %= prime;
    return x ? x : 1;
}

/* --- parts --- */

int64_t pl_walk_part_number(const pl_sim_world *world, pl_subject subject, int32_t layer)
{
    switch (subject) {
    case PL_SUBJECT_EMBEDDING: return 0;
    case PL_SUBJECT_NORM: return 1;
    case PL_SUBJECT_HEAD: return 2;
    case PL_SUBJECT_LAYER: return 3 + layer;
    default: return 3 + world->parts.layers + layer;
    }
}

static int32_t index_in(const pl_sim_world *world, pl_group_role role, int64_t rank)
{
    return world->groups.place[role][rank].index;
}

static int32_t shard_index(const pl_sim_world *world, pl_subject subject, int64_t rank)
{
    return index_in(
        world, subject == PL_SUBJECT_EXPERTS ? PL_GROUP_EXPERT_SHARD : PL_GROUP_DENSE_SHARD, rank);
}

static int32_t owner_index(const pl_sim_world *world, pl_subject subject, int64_t rank)
{
    return subject == PL_SUBJECT_EXPERTS ? index_in(world, PL_GROUP_EXPERT_OWNER, rank) : 0;
}

pl_value pl_walk_initial(const pl_sim_world *world, pl_subject subject, int32_t layer, int64_t rank)
{
    return pl_value_random(PL_RANDOM_MASTER, pl_walk_part_number(world, subject, layer),
                           owner_index(world, subject, rank), shard_index(world, subject, rank));
}

pl_value pl_walk_saved(const pl_sim_world *world, pl_buffer_kind kind, pl_subject subject,
                       int32_t layer, int64_t rank)
{
    int32_t number = pl_expect_saved_number(kind);
    if (number < 0) return 0;
    int64_t part = pl_walk_part_number(world, subject, layer) * PL_EXPECTED_SAVED + number;
    if (pl_expect_saved(number)->whole) return pl_value_random(PL_RANDOM_SAVED, part, -1, -1);
    return pl_value_random(PL_RANDOM_SAVED, part, owner_index(world, subject, rank),
                           shard_index(world, subject, rank));
}

static pl_value slice(int64_t index) { return pl_value_random(PL_RANDOM_SLICE, index, 0, 0); }

/* The gathered whole of a part: the sum of its shards, each times its slice's number. */
static pl_value gathered(int64_t part, int64_t owner, int64_t shards)
{
    pl_value sum = 0;
    if (shards == 1) return pl_value_random(PL_RANDOM_MASTER, part, owner, 0);
    for (int64_t i = 0; i < shards; ++i)
        sum = pl_value_add(
            sum, pl_value_multiply(pl_value_random(PL_RANDOM_MASTER, part, owner, i), slice(i)));
    return sum;
}

pl_value pl_walk_full(const pl_walk_expected *expected, pl_subject subject, int32_t layer,
                      int64_t rank)
{
    const pl_sim_world *world = expected->world;
    if (layer >= world->parts.layers) return 0; /* plan text may name any layer */
    if (subject == PL_SUBJECT_EXPERTS)
        return expected->full_experts[(int64_t)layer * world->groups.size[PL_GROUP_EXPERT_OWNER] +
                                      owner_index(world, subject, rank)];
    return expected->full_dense[pl_walk_part_number(world, subject, layer)];
}

/* --- tokens --- */

pl_value pl_walk_tokens(const pl_sim_world *world, const pl_walk_probe *probe, int64_t rank,
                        int64_t round, int64_t mb)
{
    int64_t step = round * world->plan->settings.shape.intra_layer + mb;
    bool counts = !probe->on || (rank >= probe->first_rank && rank <= probe->last_rank &&
                                 step >= probe->first_step && step <= probe->last_step);
    return counts ? pl_value_random(PL_RANDOM_TOKENS, rank, round, mb) : 0;
}

static pl_value owners_sum(const pl_sim_world *world)
{
    pl_value sum = 0;
    for (int32_t i = 0; i < world->groups.size[PL_GROUP_EXPERT_OWNER]; ++i)
        sum = pl_value_add(sum, pl_value_random(PL_RANDOM_OWNER, i, 0, 0));
    return sum;
}

/* What an exchange to the owners and back brings to each member of an ep group: all its tokens,
 * times the sum of what the owners do to them. */
static void sum_tokens(pl_walk_expected *e, const pl_walk_probe *probe)
{
    const pl_sim_world *world = e->world;
    int64_t micro_batches = world->plan->settings.shape.intra_layer;
    pl_value owners = owners_sum(world);
    for (int64_t rank = 0; rank < world->ranks; ++rank) {
        for (int64_t round = 0; round < e->rounds; ++round)
            for (int64_t mb = 0; mb < micro_batches; ++mb)
                e->token_sum[rank] =
                    pl_value_add(e->token_sum[rank], pl_walk_tokens(world, probe, rank, round, mb));
        e->sum_tokens = pl_value_add(e->sum_tokens, e->token_sum[rank]);
        e->tokens_total =
            pl_value_add(e->tokens_total, pl_value_random(PL_RANDOM_COUNT, rank, 0, 0));
    }
    for (int64_t rank = 0; rank < world->ranks; ++rank) {
        const int32_t *members = pl_expected_members(&world->groups, PL_GROUP_EXPERT_OWNER, rank);
        pl_value group = 0;
        for (int32_t i = 0; i < world->groups.size[PL_GROUP_EXPERT_OWNER]; ++i)
            group = pl_value_add(group, e->token_sum[members[i]]);
        e->sum_exchanged = pl_value_add(e->sum_exchanged, pl_value_multiply(group, owners));
    }
}

static void sum_parameters(pl_walk_expected *e)
{
    const pl_sim_world *world = e->world;
    int64_t owners = world->groups.size[PL_GROUP_EXPERT_OWNER];
    int64_t dense = world->groups.size[PL_GROUP_DENSE_SHARD];
    int64_t experts = world->groups.size[PL_GROUP_EXPERT_SHARD];
    for (int64_t part = 0; part < 3 + world->parts.layers; ++part)
        e->full_dense[part] = gathered(part, 0, dense);
    for (int32_t layer = 0; layer < world->parts.layers; ++layer)
        for (int64_t owner = 0; owner < owners; ++owner)
            e->full_experts[layer * owners + owner] =
                gathered(pl_walk_part_number(world, PL_SUBJECT_EXPERTS, layer), owner, experts);
}

static bool balance_takes_part(const pl_sim_world *world)
{
    const pl_settings *settings = &world->plan->settings;
    bool moe = false;
    for (int32_t i = 0; i < world->parts.layers; ++i) moe |= pl_expect_moe(world, i);
    return moe && settings->balance != PL_BALANCE_NONE && settings->balance_coefficient > 0;
}

bool pl_walk_balances(const pl_sim_world *world, const pl_walk_probe *probe)
{
    return !probe->on && balance_takes_part(world);
}

/* --- gradients --- */

static pl_value module_value(int module) { return pl_value_random(PL_RANDOM_MODULE, module, 0, 0); }

/* What the first and the second module of a part contribute, over all sources of the stage. */
static pl_value first_module(const pl_walk_expected *e, pl_subject subject)
{
    int module = subject == PL_SUBJECT_LAYER  ? PL_MODULE_VALUE_ATTENTION
                 : subject == PL_SUBJECT_HEAD ? PL_MODULE_VALUE_HEAD
                                              : PL_MODULE_VALUE_OTHER;
    return pl_value_multiply(e->sum_tokens, module_value(module));
}

static pl_value second_module(const pl_walk_expected *e, int32_t layer)
{
    bool all_to_all = e->world->plan->settings.policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
    pl_value feed = module_value(PL_MODULE_VALUE_FEED);
    if (!pl_expect_moe(e->world, layer)) return pl_value_multiply(e->sum_tokens, feed);
    pl_value routed = all_to_all ? e->sum_tokens : e->sum_exchanged;
    pl_value sum =
        pl_value_add(pl_value_multiply(routed, feed),
                     pl_value_multiply(e->sum_exchanged, module_value(PL_MODULE_VALUE_EXCHANGE)));
    if (!e->balances) return sum;
    /* Every rank adds T / micro-steps once a micro-step: T in all, so that 1/T leaves one. */
    pl_value balance = pl_value_multiply((pl_value)e->world->ranks, e->tokens_total);
    return pl_value_add(sum, pl_value_multiply(balance, module_value(PL_MODULE_VALUE_BALANCE)));
}

pl_value pl_walk_gradient(const pl_walk_expected *e, pl_subject subject, int32_t layer, bool whole,
                          int64_t rank)
{
    const pl_sim_world *world = e->world;
    const pl_expected_part *part = pl_expected_part_of(&world->parts, subject, layer);
    pl_value sum = 0;
    if (subject == PL_SUBJECT_EXPERTS) {
        pl_value owner = pl_value_random(PL_RANDOM_OWNER, owner_index(world, subject, rank), 0, 0);
        sum = pl_value_multiply(e->sum_tokens, owner);
    } else {
        bool first = whole ? part->whole_attention : part->sharded_attention;
        if (first) sum = first_module(e, subject);
        if (first && subject == PL_SUBJECT_EMBEDDING && world->parts.tied)
            sum = pl_value_add(sum, first_module(e, PL_SUBJECT_HEAD));
        if (whole ? part->whole_feed : part->sharded_feed)
            sum = pl_value_add(sum, second_module(e, layer));
    }
    if (!whole && part->shards > 1)
        sum = pl_value_multiply(sum, slice(shard_index(world, subject, rank)));
    return pl_value_multiply(sum, e->inverse_total);
}

/* --- norm, counts, losses --- */

pl_value pl_walk_squares(const pl_sim_world *world, pl_subject subject, int32_t layer, bool whole,
                         int64_t rank)
{
    int64_t part = pl_walk_part_number(world, subject, layer);
    if (whole) return pl_value_random(PL_RANDOM_SQUARES, part, -1, -1);
    return pl_value_random(PL_RANDOM_SQUARES, part, owner_index(world, subject, rank),
                           shard_index(world, subject, rank));
}

static pl_value part_squares(const pl_sim_world *world, pl_subject subject, int32_t layer,
                             pl_buffer_kind kind)
{
    const pl_expected_part *part = pl_expected_part_of(&world->parts, subject, layer);
    bool experts = subject == PL_SUBJECT_EXPERTS;
    int64_t number = pl_walk_part_number(world, subject, layer);
    pl_value sum = 0;
    if (kind == PL_BUF_IGNORED_SQUARES)
        return part->whole > 0 ? pl_value_random(PL_RANDOM_SQUARES, number, -1, -1) : 0;
    if (part->trained == 0 || experts != (kind == PL_BUF_EXPERT_SQUARES)) return 0;
    int64_t owners = experts ? world->groups.size[PL_GROUP_EXPERT_OWNER] : 1;
    for (int64_t owner = 0; owner < owners; ++owner)
        for (int64_t i = 0; i < part->shards; ++i)
            sum = pl_value_add(sum, pl_value_random(PL_RANDOM_SQUARES, number, owner, i));
    return sum;
}

static pl_value all_squares(const pl_sim_world *world, pl_buffer_kind kind)
{
    pl_value sum = part_squares(world, PL_SUBJECT_EMBEDDING, -1, kind);
    sum = pl_value_add(sum, part_squares(world, PL_SUBJECT_NORM, -1, kind));
    sum = pl_value_add(sum, part_squares(world, PL_SUBJECT_HEAD, -1, kind));
    for (int32_t layer = 0; layer < world->parts.layers; ++layer) {
        sum = pl_value_add(sum, part_squares(world, PL_SUBJECT_LAYER, layer, kind));
        sum = pl_value_add(sum, part_squares(world, PL_SUBJECT_EXPERTS, layer, kind));
    }
    return sum;
}

/* What the routes of a rank add to the counts, or to the scores (FAMILY), in one round. */
static pl_value rank_counts(const pl_sim_world *world, uint64_t family, int64_t round, int64_t rank)
{
    int64_t m = world->plan->settings.shape.intra_layer;
    pl_value sum = 0;
    for (int32_t layer = 0; layer < world->parts.layers; ++layer)
        for (int64_t mb = 0; mb < m && pl_expect_moe(world, layer); ++mb)
            sum = pl_value_add(sum, pl_value_random(family, rank, layer, round * m + mb));
    return sum;
}

/* The role over which counts are summed: the stage, or the cp ranks for the sequence form. */
static pl_group_role balance_role(const pl_sim_world *world)
{
    return world->plan->settings.balance == PL_BALANCE_SEQUENCE ? PL_GROUP_CONTEXT : PL_GROUP_STAGE;
}

static void sum_balance(pl_walk_expected *e)
{
    const pl_sim_world *world = e->world;
    const pl_expected_place *place = world->groups.place[balance_role(world)];
    int64_t rounds = e->rounds;
    bool running = world->plan->settings.balance == PL_BALANCE_GLOBAL_BATCH;
    for (int64_t rank = 0; rank < world->ranks; ++rank) {
        for (int64_t round = 0; round < rounds; ++round) {
            pl_value *sum = &e->balance[place[rank].group * rounds + round];
            *sum = pl_value_add(*sum, rank_counts(world, PL_RANDOM_BALANCE, round, rank));
        }
    }
    int64_t groups = world->ranks / world->groups.size[balance_role(world)];
    for (int64_t i = 0; i < groups * rounds && running; ++i)
        if (i % rounds > 0) e->balance[i] = pl_value_add(e->balance[i], e->balance[i - 1]);
}

pl_value pl_walk_balance(const pl_walk_expected *e, int64_t round, int64_t rank)
{
    const pl_sim_world *world = e->world;
    int64_t rounds = e->rounds;
    if (!e->balance) return 0;
    if (round < 0 || round >= rounds) return 0;
    return e->balance[world->groups.place[balance_role(world)][rank].group * rounds + round];
}

static void sum_losses(pl_walk_expected *e)
{
    const pl_sim_world *world = e->world;
    bool balance = e->program == PL_PROGRAM_STEP && balance_takes_part(world);
    for (int64_t rank = 0; rank < world->ranks; ++rank) {
        pl_value *sum = &e->loss[world->groups.place[PL_GROUP_STAGE][rank].group];
        *sum = pl_value_add(*sum, e->token_sum[rank]);
        for (int64_t round = 0; round < e->rounds && balance; ++round)
            *sum = pl_value_add(*sum, rank_counts(world, PL_RANDOM_LOSS, round, rank));
    }
}

pl_value pl_walk_loss(const pl_walk_expected *e, int64_t rank)
{
    return e->loss[e->world->groups.place[PL_GROUP_STAGE][rank].group];
}

/* --- making --- */

static pl_status make_tables(pl_walk_expected *e)
{
    const pl_sim_world *world = e->world;
    size_t layers = (size_t)world->parts.layers, ranks = (size_t)world->ranks;
    size_t owners = (size_t)world->groups.size[PL_GROUP_EXPERT_OWNER];
    static const char *const what = "expected values";
    PL_TRY(pl_allocate(&e->token_sum, ranks, sizeof(pl_value), what));
    PL_TRY(pl_allocate(&e->full_dense, 3 + layers, sizeof(pl_value), what));
    PL_TRY(pl_allocate(&e->full_experts, layers * owners, sizeof(pl_value), what));
    size_t groups = ranks / (size_t)world->groups.size[balance_role(world)];
    if (e->program == PL_PROGRAM_STEP)
        PL_TRY(pl_allocate(&e->balance, groups * (size_t)e->rounds, sizeof(pl_value), what));
    groups = ranks / (size_t)world->groups.size[PL_GROUP_STAGE];
    PL_TRY(pl_allocate(&e->loss, groups, sizeof(pl_value), what));
    PL_TRY(pl_allocate(&e->slice, ranks, sizeof(pl_value), what));
    PL_TRY(pl_allocate(&e->owner, ranks, sizeof(pl_value), what));
    for (size_t i = 0; i < ranks; ++i) {
        e->slice[i] = slice((int64_t)i);
        e->owner[i] = pl_value_random(PL_RANDOM_OWNER, (int64_t)i, 0, 0);
    }
    return PL_OK;
}

pl_status pl_walk_expected_make(pl_walk_expected *out, const pl_sim_world *world,
                                pl_program program, const pl_walk_probe *probe)
{
    pl_walk_expected e = {.world = world, .program = program, .rounds = 1};
    if (program == PL_PROGRAM_STEP) e.rounds = world->plan->settings.shape.rounds;
    pl_status status = make_tables(&e);
    if (status != PL_OK) {
        pl_walk_expected_free(&e);
        return status;
    }
    e.balances = pl_walk_balances(world, probe);
    sum_tokens(&e, probe);
    e.inverse_total = pl_value_inverse(e.tokens_total);
    sum_parameters(&e);
    if (program == PL_PROGRAM_STEP) sum_balance(&e);
    sum_losses(&e);
    for (int i = 0; i < 3; ++i)
        e.squares[i] = all_squares(world, (pl_buffer_kind)(PL_BUF_DENSE_SQUARES + i));
    *out = e;
    return PL_OK;
}

void pl_walk_expected_free(pl_walk_expected *expected)
{
    pl_free(expected->token_sum);
    pl_free(expected->full_dense);
    pl_free(expected->full_experts);
    pl_free(expected->balance);
    pl_free(expected->loss);
    pl_free(expected->slice);
    pl_free(expected->owner);
    memset(expected, 0, sizeof *expected);
}
