/* Faults in functions that plans, trainers and proofs share are found by proofs that do not call
 * them: the linker puts wrong variants in their place (tests/CMakeLists.txt, --wrap), which a
 * switch turns on. */
#include <inttypes.h>
#include <stdio.h>

#include "common/memory.h"
#include "common/placement.h"
#include "sim/proof.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

typedef enum fault {
    NO_FAULT,
    BALANCED_ROWS,     /* rows in pieces of even size, not in ceil chunks */
    LAST_ROW_LOST,     /* the last member that holds rows holds one less */
    NEXT_OWNER,        /* experts of the owner after one's own */
    GRAIN_FORGOTTEN,   /* grain=expert cut like grain=row */
    OWNERS_APART,      /* the ep group with the stride of the shard group */
    BLOCK_TURNED,      /* owner and shard in the other order */
    COPIES_FOR_SHARDS, /* the replica group of dense parameters as their shard group */
    SHARDS_FOR_COPIES, /* and the other way about */
    WORLD_FOR_DATA,    /* the batch index of another group */
    PADDING_FORGOTTEN, /* buffers of rows / shards, rounded down */
    PADDING_COUNTED,   /* padding among the elements that a rank holds */
    FAULTS
} fault;

static fault current;

/* --- the wrong variants --- */

pl_rank_set __real_pl_layout_group(const pl_layout *layout, pl_group_role role, int64_t rank);
pl_rank_set __wrap_pl_layout_group(const pl_layout *layout, pl_group_role role, int64_t rank);
pl_box __real_pl_placement_box(const pl_layout *layout, const pl_tensor *tensor, int64_t rank);
pl_box __wrap_pl_placement_box(const pl_layout *layout, const pl_tensor *tensor, int64_t rank);
int64_t __real_pl_placement_padded_rows(const pl_layout *layout, const pl_tensor *tensor);
int64_t __wrap_pl_placement_padded_rows(const pl_layout *layout, const pl_tensor *tensor);
int64_t __real_pl_parts_local_elements(const pl_parts *parts, const pl_model *model,
                                       const pl_layout *layout, int32_t part, int64_t rank,
                                       bool frozen);
int64_t __wrap_pl_parts_local_elements(const pl_parts *parts, const pl_model *model,
                                       const pl_layout *layout, int32_t part, int64_t rank,
                                       bool frozen);

/* COUNT members STRIDE apart, one of them RANK, in a block of ranks that begins at BASE. */
static pl_rank_set apart(int64_t base, int64_t rank, int64_t count, int64_t stride)
{
    pl_rank_set set = pl_rank_set_single(base + (rank - base) % stride);
    pl_rank_set_nest(&set, count, stride);
    return set;
}

pl_rank_set __wrap_pl_layout_group(const pl_layout *layout, pl_group_role role, int64_t rank)
{
    int64_t block = layout->ep * layout->expert_shards, base = rank / block * block;
    pl_rank_set set;
    if (current == OWNERS_APART && role == PL_GROUP_EXPERT_OWNER)
        return apart(base, rank, layout->ep, layout->expert_shards);
    if (current == BLOCK_TURNED && role == PL_GROUP_EXPERT_BLOCK) {
        set = pl_rank_set_single(base);
        pl_rank_set_nest(&set, layout->ep, 1);
        pl_rank_set_nest(&set, layout->expert_shards, layout->ep);
        return set;
    }
    if (current == COPIES_FOR_SHARDS && role == PL_GROUP_DENSE_SHARD)
        role = PL_GROUP_DENSE_REPLICA;
    else if (current == SHARDS_FOR_COPIES && role == PL_GROUP_DENSE_REPLICA)
        role = PL_GROUP_DENSE_SHARD;
    if (current == WORLD_FOR_DATA && role == PL_GROUP_DATA) role = PL_GROUP_EXPERT_OWNER;
    return __real_pl_layout_group(layout, role, rank);
}

/* The box of RANK in pieces of even size instead of ceil chunks. */
static pl_box balanced(const pl_layout *layout, const pl_tensor *tensor, int64_t rank)
{
    pl_group_role role = pl_placement_shard_role(tensor);
    int64_t shards = pl_layout_group_size(layout, role);
    int64_t index = pl_layout_group_index(layout, role, rank);
    int64_t rows = tensor->rows, first = 0;
    if (tensor->experts > 0) {
        rows = tensor->experts / layout->ep * tensor->rows;
        first = rows * pl_layout_group_index(layout, PL_GROUP_EXPERT_OWNER, rank);
    }
    return (pl_box){first + rows * index / shards, first + rows * (index + 1) / shards};
}

pl_box __wrap_pl_placement_box(const pl_layout *layout, const pl_tensor *tensor, int64_t rank)
{
    pl_layout by_row = *layout;
    if (tensor->class_ == PL_CLASS_IGNORED) return __real_pl_placement_box(layout, tensor, rank);
    if (current == BALANCED_ROWS) return balanced(layout, tensor, rank);
    if (current == NEXT_OWNER && tensor->class_ == PL_CLASS_EXPERT) {
        pl_rank_set owners = __real_pl_layout_group(layout, PL_GROUP_EXPERT_OWNER, rank);
        int64_t index = pl_rank_set_index(&owners, rank) + 1;
        rank = pl_rank_set_member(&owners, index % pl_rank_set_size(&owners));
    }
    if (current == GRAIN_FORGOTTEN) by_row.grain = PL_GRAIN_ROW;
    pl_box box = __real_pl_placement_box(&by_row, tensor, rank);
    if (current == LAST_ROW_LOST && box.end == pl_tensor_total_rows(tensor) && box.begin < box.end)
        --box.end;
    return box;
}

int64_t __wrap_pl_placement_padded_rows(const pl_layout *layout, const pl_tensor *tensor)
{
    pl_group_role role = pl_placement_shard_role(tensor);
    int64_t rows = tensor->experts ? tensor->experts / layout->ep * tensor->rows : tensor->rows;
    if (current == PADDING_FORGOTTEN) return rows / pl_layout_group_size(layout, role);
    return __real_pl_placement_padded_rows(layout, tensor);
}

int64_t __wrap_pl_parts_local_elements(const pl_parts *parts, const pl_model *model,
                                       const pl_layout *layout, int32_t part, int64_t rank,
                                       bool frozen)
{
    const pl_part *p = &parts->part[part];
    if (current == PADDING_COUNTED) return frozen ? p->frozen_elements : p->trained_elements;
    return __real_pl_parts_local_elements(parts, model, layout, part, rank, frozen);
}

/* --- cases --- */

/* Rows that do not divide, several owners and copies. */
static const plan_case uneven = {
    .name = "uneven", .model = "moe", .layout = "decoupled:world=8,ep=2"};
static const plan_case by_expert = {
    .name = "whole experts", .model = "moe", .layout = "folded:world=12,ep=2,grain=expert"};
static const plan_case copies = {
    .name = "copies", .model = "mixed", .layout = "decoupled:world=8,ep=2,replicas=2"};
static const plan_case many_copies = {
    .name = "many copies", .model = "moe", .layout = "legacy:world=16,ep=8", .bf16 = true};
static const plan_case few_copies = {
    .name = "few copies", .model = "dense", .layout = "legacy:world=8,replicas=2"};

static const struct {
    fault fault;
    pl_proof_id proof; /* the first that fails */
    const plan_case *c;
    const char *words[3];
} cases[] = {
    {BALANCED_ROWS,
     PL_PROOF_TILING,
     &uneven,
     {"rank 0", "model.embed_tokens.weight: holds rows 0 to 1, must hold 0 to 2", ""}},
    {LAST_ROW_LOST,
     PL_PROOF_TILING,
     &uneven,
     {"rank 5", "model.embed_tokens.weight: holds rows 10 to 10, must hold 10 to 11", ""}},
    {NEXT_OWNER,
     PL_PROOF_TILING,
     &uneven,
     {"rank 0", "experts.gate_proj.weight: holds rows 20 to 25, must hold 0 to 5", ""}},
    {GRAIN_FORGOTTEN,
     PL_PROOF_TILING,
     &by_expert,
     {"rank 0", "experts.gate_proj.weight: holds rows 0 to 4, must hold 0 to 5", ""}},
    {OWNERS_APART,
     PL_PROOF_GROUPS,
     &uneven,
     {"rank 0", "group expert-owner is {0,4}, must be {0,1}", ""}},
    {BLOCK_TURNED,
     PL_PROOF_GROUPS,
     &uneven,
     {"group expert-block is", "must be {0,1,2,3,4,5,6,7}", ""}},
    {COPIES_FOR_SHARDS,
     PL_PROOF_GROUPS,
     &copies,
     {"rank 0", "group dense-shard is {0,4}, must be {0,1,2,3}", ""}},
    {COPIES_FOR_SHARDS,
     PL_PROOF_GROUPS,
     &many_copies,
     {"rank 0", "group dense-shard is {0..7}, must be {0,8}", ""}},
    {SHARDS_FOR_COPIES,
     PL_PROOF_GROUPS,
     &copies,
     {"rank 0", "group dense-replica is {0..3}, must be {0,4}", ""}},
    {SHARDS_FOR_COPIES,
     PL_PROOF_GROUPS,
     &few_copies,
     {"rank 0", "group dense-replica is {0..3}, must be {0,4}", ""}},
    {WORLD_FOR_DATA,
     PL_PROOF_GROUPS,
     &uneven,
     {"rank 0", "group data is {0,1}, must be {0,1,2,3,4,5,6,7}", ""}},
    {PADDING_FORGOTTEN,
     PL_PROOF_TILING,
     &uneven,
     {"rank 0", "model.embed_tokens.weight: 2 rows do not fit a buffer of 1", ""}},
    {PADDING_COUNTED,
     PL_PROOF_TILING,
     &uneven,
     {"rank 4", "elements against rank 0, whose plan it shares", ""}},
};

static pl_check check_case(const plan_case *c, fault with)
{
    pl_plan plan;
    pl_check check;
    current = with;
    assert_ok(plan_case_build(&plan, c, false));
    assert_ok(pl_check_plan(&check, &plan));
    current = NO_FAULT;
    pl_plan_free(&plan);
    return check;
}

static pl_proof_id first_failed(const pl_check *check)
{
    int proof = 0;
    while (proof < PL_PROOF_COUNT && check->verdict[proof].outcome != PL_FAILED) ++proof;
    return (pl_proof_id)proof;
}

static void faults_of_shared_functions_are_found(void **state)
{
    bool seen[FAULTS] = {[NO_FAULT] = true};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_check check = check_case(cases[i].c, cases[i].fault);
        pl_proof_id first = first_failed(&check);
        if (first == PL_PROOF_COUNT) fail_msg("fault %d: everything is proved", (int)i);
        const char *words = pl_text_string(&check.verdict[first].words);
        bool named = first == cases[i].proof;
        for (int j = 0; j < 3; ++j) named = named && strstr(words, cases[i].words[j]);
        if (!named) fail_msg("fault %d: %s: %s", (int)i, pl_proof_name(first), words);
        seen[cases[i].fault] = true;
        pl_check_free(&check);
    }
    for (int i = 0; i < FAULTS; ++i) assert_true(seen[i]);
}

static void without_faults_everything_is_proved(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_check check = check_case(cases[i].c, NO_FAULT);
        assert_true(pl_check_proved(&check));
        pl_check_free(&check);
    }
}

/* Sizes are worked out afresh too: buffers that forget padding are found by their bytes. */
static void forgotten_padding_is_found_by_its_bytes(void **state)
{
    (void)state;
    pl_check check = check_case(&uneven, PADDING_FORGOTTEN);
    const pl_verdict *sizes = &check.verdict[PL_PROOF_SIZES];
    assert_int_equal(sizes->outcome, PL_FAILED);
    assert_non_null(strstr(pl_text_string(&sizes->words), "must be"));
    pl_check_free(&check);
}

/* The walk goes over the groups as they are: whose tokens a wrong group leaves out is said. */
static void wrong_groups_leave_out_tokens(void **state)
{
    (void)state;
    pl_check check = check_case(&few_copies, COPIES_FOR_SHARDS);
    const pl_verdict *gradients = &check.verdict[PL_PROOF_GRADIENTS];
    assert_int_equal(gradients->outcome, PL_FAILED);
    assert_non_null(strstr(pl_text_string(&gradients->words), "tokens of rank"));
    pl_check_free(&check);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_everything_is_proved),
        cmocka_unit_test(faults_of_shared_functions_are_found),
        cmocka_unit_test(forgotten_padding_is_found_by_its_bytes),
        cmocka_unit_test(wrong_groups_leave_out_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
