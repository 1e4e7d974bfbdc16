/* Random layouts, valid and invalid, against a checker that has its own arithmetic: it knows the
 * table of kinds in docs/architecture.md as divisions and remainders of rank numbers, and asks
 * the product only for what is to be checked.
 */
#include "tests/test.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/layout.h"
#include "common/placement.h"
#include "tests/common/placement_answers.h"

enum { LAYOUTS = 24000, SEED = 20240229, WORLD_MAX = 4096, COVER_MAX = 1 << 19 };

/* The numbers of a layout; all int64_t, so that equal shapes have equal bytes. */
typedef struct shape {
    int64_t kind, world, pp, cp, ep, replicas, grain;
} shape;

/* The splitmix64 generator. */
static uint64_t draw(uint64_t *generator)
{
    uint64_t z = *generator += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static int64_t pick(uint64_t *generator, int64_t low, int64_t high)
{
    return low + (int64_t)(draw(generator) % (uint64_t)(high - low + 1));
}

/* ---- the checker's own arithmetic ---- */

static bool divides(int64_t part, int64_t whole) { return part >= 1 && whole % part == 0; }

static bool is_valid(const shape *s)
{
    if (s->world < 1 || s->replicas < 1 || !divides(s->pp, s->world)) return false;
    int64_t n = s->world / s->pp;
    if (!divides(s->cp, n) || !divides(s->ep, n)) return false;
    switch (s->kind) {
    case PL_LAYOUT_SINGLE: return s->replicas == 1 && n % (s->cp * s->ep) == 0;
    case PL_LAYOUT_LEGACY: return (s->replicas == 1 || s->ep == 1) && divides(s->replicas, n);
    default: return divides(s->replicas, n) && divides(s->ep, n / s->replicas);
    }
}

/* Where a rank stands in its group of a role: groups with different keys are different. */
typedef struct place {
    int64_t key, index, size;
} place;

static place make_place(int64_t key, int64_t index, int64_t size)
{
    place p = {key, index, size};
    return p;
}

static place data_place(const shape *s, pl_group_role role, int64_t stage, int64_t l, int64_t n)
{
    int64_t batch = l / s->cp, slice = l % s->cp;
    if (s->kind == PL_LAYOUT_SINGLE) {
        batch = l / (s->cp * s->ep) * s->ep + l % s->ep;
        slice = l / s->ep % s->cp;
    }
    if (role == PL_GROUP_DATA) return make_place(stage * s->cp + slice, batch, n / s->cp);
    return make_place(stage * (n / s->cp) + batch, slice, s->cp);
}

static place dense_place(const shape *s, pl_group_role role, int64_t stage, int64_t l, int64_t n)
{
    int64_t shards = n / s->replicas, shard = l % shards, replica = l / shards;
    if (s->kind == PL_LAYOUT_LEGACY && s->ep > 1) {
        shards = n / s->ep;
        shard = l / s->ep;
        replica = l % s->ep;
    }
    if (role == PL_GROUP_DENSE_SHARD) return make_place(stage * n + replica, shard, shards);
    return make_place(stage * n + shard, replica, n / shards);
}

static place expert_place(const shape *s, pl_group_role role, int64_t stage, int64_t l, int64_t n)
{
    int64_t block = n / s->replicas, replica = l / block, shards = block / s->ep;
    int64_t owner = l % s->ep, shard = l % block / s->ep;
    switch (role) {
    case PL_GROUP_EXPERT_OWNER:
        return make_place((stage * s->replicas + replica) * shards + shard, owner, s->ep);
    case PL_GROUP_EXPERT_SHARD:
        return make_place((stage * s->replicas + replica) * s->ep + owner, shard, shards);
    case PL_GROUP_EXPERT_REPLICA:
        return make_place(stage * block + l % block, replica, s->replicas);
    default: return make_place(stage * s->replicas + replica, l % block, block);
    }
}

static place expected_place(const shape *s, pl_group_role role, int64_t rank)
{
    int64_t n = s->world / s->pp, stage = rank / n, l = rank % n;
    switch (role) {
    case PL_GROUP_NONE: return make_place(rank, 0, 1);
    case PL_GROUP_WORLD: return make_place(0, rank, s->world);
    case PL_GROUP_STAGE: return make_place(stage, l, n);
    case PL_GROUP_PIPELINE: return make_place(l, stage, s->pp);
    case PL_GROUP_DATA:
    case PL_GROUP_CONTEXT: return data_place(s, role, stage, l, n);
    case PL_GROUP_DENSE_SHARD:
    case PL_GROUP_DENSE_REPLICA: return dense_place(s, role, stage, l, n);
    default: return expert_place(s, role, stage, l, n);
    }
}

/* Rows that chunk number INDEX holds when every chunk but the last ones is full. */
static pl_box expected_chunk(int64_t rows, int64_t shards, int64_t index)
{
    int64_t chunk = (rows + shards - 1) / shards;
    pl_box box = {index * chunk, (index + 1) * chunk};
    if (box.begin > rows) box.begin = rows;
    if (box.end > rows) box.end = rows;
    return box;
}

static bool same_box(pl_box a, pl_box b)
{
    if (a.begin == a.end || b.begin == b.end) return a.begin == a.end && b.begin == b.end;
    return a.begin == b.begin && a.end == b.end;
}

/* ---- checks; each returns how many faults it saw ---- */

static int64_t check_members(const shape *s, const answers *from, const pl_layout *layout,
                             pl_group_role role, const pl_rank_set *set, int64_t key)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < pl_rank_set_size(set); ++i) {
        int64_t member = pl_rank_set_member(set, i);
        if (member < 0 || member >= s->world) return faults + 1;
        place there = expected_place(s, role, member);
        pl_rank_set own = from->group(layout, role, member);
        faults += there.key != key || there.index != i;
        faults += !pl_rank_set_equal(set, &own);
    }
    return faults;
}

/* Groups partition the ranks; sizes, members and indices are those of the table. */
static int64_t check_groups(const shape *s, const answers *from, const pl_layout *layout)
{
    int64_t faults = 0;
    for (int r = 0; r < PL_GROUP_ROLE_COUNT; ++r) {
        pl_group_role role = (pl_group_role)r;
        int64_t ranks = 0;
        for (int64_t rank = 0; rank < s->world; ++rank) {
            place here = expected_place(s, role, rank);
            pl_rank_set set = from->group(layout, role, rank);
            faults += pl_rank_set_size(&set) != here.size;
            faults += pl_rank_set_index(&set, rank) != here.index;
            faults += pl_layout_group_index(layout, role, rank) != here.index;
            if (here.index != 0) continue;
            ranks += pl_rank_set_size(&set);
            faults += check_members(s, from, layout, role, &set, here.key);
        }
        faults += ranks != s->world;
        faults += pl_layout_group_size(layout, role) != expected_place(s, role, 0).size;
    }
    return faults;
}

/* How often each row of each replica of a tensor is held. */
static unsigned char cover[COVER_MAX];

static int64_t add_to_cover(int64_t replica, int64_t rows, pl_box box)
{
    if (box.begin < 0 || box.begin > box.end || box.end > rows) return 1;
    for (int64_t row = box.begin; row < box.end; ++row) ++cover[replica * rows + row];
    return 0;
}

static int64_t holes_in_cover(int64_t replicas, int64_t rows)
{
    int64_t faults = 0;
    for (int64_t i = 0; i < replicas * rows; ++i) faults += cover[i] != 1;
    return faults;
}

static int64_t check_dense(const shape *s, const answers *from, const pl_layout *layout,
                           int64_t rows)
{
    int64_t replicas = expected_place(s, PL_GROUP_DENSE_REPLICA, 0).size, faults = 0;
    int64_t n = s->world / s->pp, padded = pl_placement_dense_padded(layout, rows);
    assert_true(s->pp * replicas * rows <= COVER_MAX);
    memset(cover, 0, (size_t)(s->pp * replicas * rows));
    for (int64_t rank = 0; rank < s->world; ++rank) {
        place shard = expected_place(s, PL_GROUP_DENSE_SHARD, rank);
        place replica = expected_place(s, PL_GROUP_DENSE_REPLICA, rank);
        pl_rank_set twins = from->group(layout, PL_GROUP_DENSE_REPLICA, rank);
        pl_box box = from->dense(layout, rows, rank);
        faults += !same_box(box, expected_chunk(rows, shard.size, shard.index));
        faults += !same_box(box, from->dense(layout, rows, pl_rank_set_member(&twins, 0)));
        faults += box.end - box.begin > padded || (shard.index == 0 && box.end != padded);
        faults += add_to_cover(rank / n * replicas + replica.index, rows, box);
    }
    return faults + holes_in_cover(s->pp * replicas, rows);
}

static int64_t check_experts(const shape *s, const answers *from, const pl_layout *layout,
                             int64_t owned, int64_t rows)
{
    int64_t experts = owned * s->ep, total = experts * rows, block = owned * rows, faults = 0;
    int64_t n = s->world / s->pp, padded = pl_placement_expert_padded(layout, experts, rows);
    int64_t grain = s->grain == PL_GRAIN_EXPERT ? rows : 1;
    assert_true(s->pp * s->replicas * total <= COVER_MAX);
    memset(cover, 0, (size_t)(s->pp * s->replicas * total));
    for (int64_t rank = 0; rank < s->world; ++rank) {
        int64_t owner = expected_place(s, PL_GROUP_EXPERT_OWNER, rank).index;
        place shard = expected_place(s, PL_GROUP_EXPERT_SHARD, rank);
        place replica = expected_place(s, PL_GROUP_EXPERT_REPLICA, rank);
        pl_rank_set twins = from->group(layout, PL_GROUP_EXPERT_REPLICA, rank);
        pl_box box = from->expert(layout, experts, rows, rank);
        pl_box want = expected_chunk(block / grain, shard.size, shard.index);
        want.begin = owner * block + want.begin * grain;
        want.end = owner * block + want.end * grain;
        faults += !same_box(box, want);
        faults +=
            !same_box(box, from->expert(layout, experts, rows, pl_rank_set_member(&twins, 0)));
        /* Inside the owner's block of whole experts: with the cover, its group holds all of it. */
        faults += box.begin < owner * block || box.end > (owner + 1) * block;
        faults += box.begin % grain != 0 || box.end % grain != 0;
        faults += box.end - box.begin > padded;
        faults += shard.index == 0 && box.end - box.begin != padded;
        faults += add_to_cover(rank / n * s->replicas + replica.index, total, box);
    }
    return faults + holes_in_cover(s->pp * s->replicas, total);
}

static int64_t check_layout(const shape *s, const answers *from, const pl_layout *layout,
                            uint64_t *generator)
{
    int64_t shards = expected_place(s, PL_GROUP_DENSE_SHARD, 0).size;
    int64_t faults = check_groups(s, from, layout);
    faults += check_dense(s, from, layout, pick(generator, 0, 3 * shards + 2));
    faults += check_dense(s, from, layout, pick(generator, 1, 20));
    int64_t owned = pick(generator, 1, 6), rows = pick(generator, 1, 9);
    return faults + check_experts(s, from, layout, owned, rows);
}

/* ---- random shapes ---- */

static int64_t random_factor(uint64_t *generator)
{
    return pick(generator, 0, 2) ? pick(generator, 1, 4) : pick(generator, 1, 16);
}

static int64_t random_divisor(uint64_t *generator, int64_t number)
{
    int64_t divisor = pick(generator, 1, number < 40 ? number : 40);
    while (number % divisor) --divisor;
    return divisor;
}

/* A shape made to fit. Most worlds are small, so that many can be tried. */
static shape fitting_shape(uint64_t *generator)
{
    int64_t limit = pick(generator, 0, 15) ? 128 : WORLD_MAX;
    shape s;
    do {
        s.kind = pick(generator, 0, PL_LAYOUT_KIND_COUNT - 1);
        s.grain = pick(generator, 0, 1);
        s.pp = pick(generator, 0, 1) ? 1 : random_factor(generator);
        s.ep = random_factor(generator);
        s.replicas = pick(generator, 0, 1) ? 1 : random_factor(generator);
        int64_t n = s.ep * random_factor(generator) * random_factor(generator);
        if (s.kind == PL_LAYOUT_SINGLE) s.replicas = 1;
        if (s.kind == PL_LAYOUT_LEGACY && s.ep > 1) s.replicas = 1;
        n *= s.replicas;
        s.cp = random_divisor(generator, s.kind == PL_LAYOUT_SINGLE ? n / s.ep : n);
        s.world = s.pp * n;
    } while (s.world > limit);
    return s;
}

static shape random_shape(uint64_t *generator)
{
    shape s = fitting_shape(generator);
    int64_t *const numbers[] = {&s.world, &s.pp, &s.cp, &s.ep, &s.replicas};
    int64_t change = pick(generator, 0, 7), which = pick(generator, 0, 4);
    switch (change) {
    case 0: *numbers[which] += pick(generator, -2, 3); break;
    case 1: *numbers[which] = random_factor(generator); break;
    case 2:
        s.world = pick(generator, 1, 300);
        for (int i = 1; i < 5; ++i) *numbers[i] = pick(generator, 1, 4);
        break;
    case 3: s.kind = pick(generator, 0, PL_LAYOUT_KIND_COUNT - 1); break;
    default: break;
    }
    return s;
}

/* Derived axes of valid shapes by the table: one that the kind has, in the notation. */
static int print_derived(char *text, size_t size, const shape *s, uint64_t *generator)
{
    int64_t n = s->world / s->pp, which = pick(generator, 0, 1);
    switch (s->kind) {
    case PL_LAYOUT_SINGLE: return snprintf(text, size, ",dp=%" PRId64, n / s->cp / s->ep);
    case PL_LAYOUT_LEGACY:
        return snprintf(text, size, ",fsdp=%" PRId64 ",dp=%" PRId64, n / s->ep / s->replicas,
                        n / s->cp);
    case PL_LAYOUT_DECOUPLED:
        if (which) return snprintf(text, size, ",dp_shard=%" PRId64, n / s->replicas);
        return snprintf(text, size, ",efsdp=%" PRId64, n / s->replicas / s->ep);
    default: return snprintf(text, size, " , edp=%" PRId64, n / s->ep);
    }
}

/* One of the many ways to write S. */
static void print_shape(char *text, size_t size, const shape *s, uint64_t *generator)
{
    static const char *const kinds[] = {"single", "legacy", "decoupled", "folded"};
    static const char *const keys[] = {"world", "pp", "cp", "ep", "replicas"};
    const int64_t numbers[] = {s->world, s->pp, s->cp, s->ep, s->replicas};
    size_t used = (size_t)snprintf(text, size, "%s:", kinds[s->kind]);
    int64_t first = pick(generator, 0, 4);
    const char *comma = "";
    for (int64_t i = first; i < first + 5; ++i) {
        int64_t k = i % 5;
        if (k != 0 && numbers[k] == 1 && pick(generator, 0, 3)) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s%s=%" PRId64, comma,
                                 pick(generator, 0, 5) ? "" : " ", keys[k], numbers[k]);
        comma = ",";
    }
    if (s->grain == PL_GRAIN_EXPERT || !pick(generator, 0, 3))
        used += (size_t)snprintf(text + used, size - used, ",grain=%s",
                                 s->grain == PL_GRAIN_EXPERT ? "expert" : "row");
    if (is_valid(s) && !pick(generator, 0, 2))
        print_derived(text + used, size - used, s, generator);
}

/* ---- tests ---- */

static bool holds_shape(const pl_layout *layout, const shape *s)
{
    return (int64_t)layout->kind == s->kind && (int64_t)layout->grain == s->grain &&
           layout->world == s->world && layout->pp == s->pp && layout->cp == s->cp &&
           layout->ep == s->ep && layout->replicas == s->replicas &&
           layout->stage_ranks == s->world / s->pp &&
           layout->data_ranks == s->world / s->pp / s->cp;
}

static int compare_shapes(const void *a, const void *b) { return memcmp(a, b, sizeof(shape)); }

static int64_t count_distinct(shape *shapes, int64_t count)
{
    int64_t distinct = 0;
    qsort(shapes, (size_t)count, sizeof *shapes, compare_shapes);
    for (int64_t i = 0; i < count; ++i)
        distinct += i == 0 || compare_shapes(&shapes[i - 1], &shapes[i]) != 0;
    return distinct;
}

/* Who follows what refusals offer ("KEY=NUMBER would fit") arrives at a layout. */
static void follow_refusals(shape s, const char *notation)
{
    static const char *const keys[] = {"world=", "pp=", "cp=", "ep=", "replicas="};
    int64_t *const numbers[] = {&s.world, &s.pp, &s.cp, &s.ep, &s.replicas};
    for (int step = 0; step < 12; ++step) {
        pl_layout layout;
        pl_status status = pl_layout_make(&layout, (pl_layout_kind)s.kind, s.world, s.pp, s.cp,
                                          s.ep, s.replicas, (pl_grain)s.grain);
        assert_int_equal(status == PL_OK, is_valid(&s));
        if (status == PL_OK) return;
        const char *offer = strstr(pl_error_text(), " would fit");
        if (!offer) {
            fail_msg("nothing offered: %s", pl_error_text());
            return;
        }
        while (offer[-1] != ' ') --offer;
        for (int k = 0; k < 5; ++k)
            if (strncmp(offer, keys[k], strlen(keys[k])) == 0)
                *numbers[k] = strtoll(offer + strlen(keys[k]), NULL, 10);
    }
    fail_msg("no layout after 12 offers from '%s': %s", notation, pl_error_text());
}

/* folded, decoupled and (without replicas) single place alike; the first two group alike too. */
static int64_t check_siblings(const shape *s, const pl_layout *layout)
{
    int64_t faults = 0;
    pl_layout other;
    if (s->kind == PL_LAYOUT_LEGACY) return 0;
    assert_ok(pl_layout_make(
        &other, s->kind == PL_LAYOUT_DECOUPLED ? PL_LAYOUT_FOLDED : PL_LAYOUT_DECOUPLED, s->world,
        s->pp, s->cp, s->ep, s->replicas, (pl_grain)s->grain));
    for (int64_t rank = 0; rank < s->world; ++rank) {
        faults += !same_box(pl_placement_dense_box(layout, 37, rank),
                            pl_placement_dense_box(&other, 37, rank));
        faults += !same_box(pl_placement_expert_box(layout, 3 * s->ep, 5, rank),
                            pl_placement_expert_box(&other, 3 * s->ep, 5, rank));
        for (int r = 0; r < PL_GROUP_ROLE_COUNT && s->kind != PL_LAYOUT_SINGLE; ++r) {
            pl_rank_set a = pl_layout_group(layout, (pl_group_role)r, rank);
            pl_rank_set b = pl_layout_group(&other, (pl_group_role)r, rank);
            faults += !pl_rank_set_equal(&a, &b);
        }
    }
    return faults;
}

static void test_random_layouts(void **state)
{
    (void)state;
    static shape seen[LAYOUTS];
    uint64_t generator = SEED;
    int64_t valid = 0, invalid = 0, kinds[PL_LAYOUT_KIND_COUNT] = {0};
    for (int i = 0; i < LAYOUTS; ++i) {
        char notation[256], canonical[PL_LAYOUT_TEXT];
        shape s = random_shape(&generator);
        pl_layout layout, again;
        print_shape(notation, sizeof notation, &s, &generator);
        pl_status status = pl_layout_parse(&layout, notation);
        if ((status == PL_OK) != is_valid(&s))
            fail_msg("'%s' is %s: %s", notation, is_valid(&s) ? "valid" : "invalid",
                     status == PL_OK ? "accepted" : pl_error_text());
        if (status != PL_OK) {
            assert_int_equal(status, PL_BAD_INPUT);
            follow_refusals(s, notation);
            ++invalid;
            continue;
        }
        assert_true(holds_shape(&layout, &s));
        assert_ok(pl_layout_parse(&again, pl_layout_format(&layout, canonical)));
        assert_true(pl_layout_equal(&layout, &again));
        int64_t faults = check_layout(&s, &own_answers, &layout, &generator);
        faults += check_siblings(&s, &layout);
        if (faults) fail_msg("%" PRId64 " faults in '%s'", faults, canonical);
        ++kinds[s.kind];
        seen[valid++] = s;
    }
    int64_t distinct = count_distinct(seen, valid);
    printf("seed %d: %d layouts, %" PRId64 " invalid, %" PRId64 " valid (single %" PRId64
           ", legacy %" PRId64 ", decoupled %" PRId64 ", folded %" PRId64 "), %" PRId64
           " distinct valid ones\n",
           SEED, LAYOUTS, invalid, valid, kinds[0], kinds[1], kinds[2], kinds[3], distinct);
    assert_true(valid >= 10000 && invalid >= 4000 && distinct >= 4000);
    for (int k = 0; k < PL_LAYOUT_KIND_COUNT; ++k) assert_true(kinds[k] >= 1000);
}

static void test_checker_sees_faults(void **state)
{
    (void)state;
    const answers faulty[] = {
        {pl_layout_group, balanced_box, pl_placement_expert_box},
        {pl_layout_group, shifted_box, pl_placement_expert_box},
        {pl_layout_group, pl_placement_dense_box, next_owner_box},
        {pl_layout_group, pl_placement_dense_box, row_grain_box},
        {outer_ep_group, pl_placement_dense_box, pl_placement_expert_box},
    };
    enum { FAULTS = sizeof faulty / sizeof *faulty, TRIES = 400 };
    int caught[FAULTS] = {0};
    uint64_t generator = SEED + 1;
    for (int i = 0; i < TRIES; ++i) {
        shape s = fitting_shape(&generator);
        pl_layout layout;
        assert_true(is_valid(&s));
        assert_ok(pl_layout_make(&layout, (pl_layout_kind)s.kind, s.world, s.pp, s.cp, s.ep,
                                 s.replicas, (pl_grain)s.grain));
        for (int f = 0; f < FAULTS; ++f)
            caught[f] += check_layout(&s, &faulty[f], &layout, &generator) > 0;
        assert_int_equal(check_layout(&s, &own_answers, &layout, &generator), 0);
    }
    printf("of %d layouts, faults seen with balanced chunks in %d, a row held twice in %d, owner "
           "off by one in %d, grain ignored in %d, ep outside in %d\n",
           TRIES, caught[0], caught[1], caught[2], caught[3], caught[4]);
    for (int f = 0; f < FAULTS; ++f) assert_true(caught[f] > TRIES / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_checker_sees_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
