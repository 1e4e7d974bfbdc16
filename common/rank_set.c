#include "common/rank_set.h"

enum { LISTED_WHOLE = 3, LISTED_FIRST = 8 };

pl_rank_set pl_rank_set_single(int64_t rank)
{
    pl_rank_set set = {.base = rank};
    return set;
}

void pl_rank_set_nest(pl_rank_set *set, int64_t count, int64_t stride)
{
    if (count == 1) return;
    if (set->axes > 0 && set->axis[set->axes - 1].stride == count * stride) {
        set->axis[set->axes - 1].count *= count;
        set->axis[set->axes - 1].stride = stride;
        return;
    }
    /* Neighbouring axes of a mesh merge, so PL_MESH_AXES axes need half as many entries here. */
    if (set->axes == PL_RANK_SET_AXES) return;
    set->axis[set->axes].count = count;
    set->axis[set->axes].stride = stride;
    ++set->axes;
}

int64_t pl_rank_set_size(const pl_rank_set *set)
{
    int64_t size = 1;
    for (int a = 0; a < set->axes; ++a) size *= set->axis[a].count;
    return size;
}

int64_t pl_rank_set_member(const pl_rank_set *set, int64_t index)
{
    int64_t rank = set->base;
    for (int a = set->axes - 1; a >= 0; --a) {
        rank += index % set->axis[a].count * set->axis[a].stride;
        index /= set->axis[a].count;
    }
    return rank;
}

int64_t pl_rank_set_index(const pl_rank_set *set, int64_t rank)
{
    int64_t rest = rank - set->base, index = 0;
    if (rest < 0) return -1;
    for (int a = 0; a < set->axes; ++a) {
        int64_t along = rest / set->axis[a].stride;
        if (along >= set->axis[a].count) return -1;
        rest -= along * set->axis[a].stride;
        index = index * set->axis[a].count + along;
    }
    return rest == 0 ? index : -1;
}

bool pl_rank_set_equal(const pl_rank_set *a, const pl_rank_set *b)
{
    if (a->base != b->base || a->axes != b->axes) return false;
    for (int i = 0; i < a->axes; ++i)
        if (a->axis[i].count != b->axis[i].count || a->axis[i].stride != b->axis[i].stride)
            return false;
    return true;
}

static void print_list(pl_text *text, const pl_rank_set *set, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        if (i) pl_text_add_string(text, ",");
        pl_text_add_number(text, pl_rank_set_member(set, i));
    }
}

void pl_rank_set_print(pl_text *text, const pl_rank_set *set)
{
    int64_t size = pl_rank_set_size(set);
    pl_text_add_string(text, "{");
    if (size <= LISTED_WHOLE || (set->axes > 1 && size <= LISTED_FIRST)) {
        print_list(text, set, size);
    } else if (set->axes == 1) {
        pl_text_add_number(text, set->base);
        pl_text_add_string(text, "..");
        pl_text_add_number(text, pl_rank_set_member(set, size - 1));
        if (set->axis[0].stride != 1) {
            pl_text_add_string(text, ":");
            pl_text_add_number(text, set->axis[0].stride);
        }
    } else {
        print_list(text, set, LISTED_FIRST);
        pl_text_add_string(text, ",... ");
        pl_text_add_number(text, size);
        pl_text_add_string(text, " ranks");
    }
    pl_text_add_string(text, "}");
}
