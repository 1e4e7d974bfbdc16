#include "common/call_match.h"

#include <inttypes.h>

enum {
    DIFFERENT_OPERATION = 1,
    DIFFERENT_NAME = 2,
    DIFFERENT_DTYPE = 4,
    DIFFERENT_REDUCTION = 8,
    DIFFERENT_COUNT = 16,
    DIFFERENT_ROOT = 32,
    DIFFERENT_SEGMENTS = 64,
    DIFFERENCES = 7
};

static const char *const difference_names[DIFFERENCES] = {
    "operation", "entry", "element type", "reduction", "count", "root", "number of segments"};

void pl_group_print(pl_text *text, pl_group_role role, const pl_rank_set *members)
{
    pl_text_add_string(text, pl_group_role_name(role));
    pl_text_add_string(text, " ");
    pl_rank_set_print(text, members);
}

void pl_call_print(pl_text *text, const pl_call *call)
{
    pl_text_add_string(text, pl_collective_name(call->collective));
    if (call->reduction != PL_REDUCTION_NONE)
        pl_text_add(text, " %s", pl_reduction_name(call->reduction));
    pl_text_add_string(text, " (");
    pl_entry_name_print(text, call->name);
    const char *dtype = pl_dtype_name(call->dtype);
    if (call->segment_count > 0)
        pl_text_add(text, ", %d segment%s", call->segment_count,
                    call->segment_count == 1 ? "" : "s");
    else if (pl_collective_has_segments(call->collective))
        pl_text_add(text, ", %" PRId64 " x %s", call->count, dtype);
    else if (call->collective == PL_ALL_TO_ALL_UNEVEN)
        pl_text_add(text, ", %s", dtype);
    else if (call->collective == PL_SEND_RECEIVE)
        pl_text_add(text, ", %d transfers of %s", call->transfer_count, dtype);
    if (call->collective == PL_BROADCAST) pl_text_add(text, ", root %d", call->root);
    pl_text_add_string(text, ")");
}

void pl_call_print_absent(pl_text *text, const pl_process_group *group,
                          const pl_posted_call *posted)
{
    enum { SHOWN = 16 };
    int64_t absent = 0;
    for (int64_t member = 0; member < group->size; ++member) {
        if (posted[member].state != PL_CALL_ABSENT) continue;
        if (absent < SHOWN)
            pl_text_add(text, "%s%" PRId64, absent ? ", " : "; not arrived: ",
                        pl_rank_set_member(&group->members, member));
        ++absent;
    }
    if (absent > SHOWN) pl_text_add(text, " and %" PRId64 " more", absent - SHOWN);
}

pl_status pl_fail_with_text(pl_status code, pl_text *text)
{
    if (text->out_of_memory)
        pl_error_record("%s; too little memory for the details", pl_text_string(text));
    else
        pl_error_record("%s", pl_text_string(text));
    pl_text_free(text);
    return code;
}

/* What is different; in *SEGMENT_OUT the first segment that is, or -1. */
static int differences(const pl_posted_call *first, const pl_posted_call *second, int *segment_out)
{
    const pl_call *a = &first->call, *b = &second->call;
    int different = 0;
    *segment_out = -1;
    if (a->collective != b->collective) different |= DIFFERENT_OPERATION;
    if (!pl_entry_name_equal(a->name, b->name)) different |= DIFFERENT_NAME;
    if (different & DIFFERENT_OPERATION) return different;
    if (a->collective == PL_BARRIER) return different;
    if (a->reduction != b->reduction) different |= DIFFERENT_REDUCTION;
    if (a->collective == PL_BROADCAST && a->root != b->root) different |= DIFFERENT_ROOT;
    if (a->segment_count != b->segment_count) return different | DIFFERENT_SEGMENTS;
    const bool counts = pl_collective_has_segments(a->collective);
    for (int i = 0; i < first->segment_count; ++i) {
        const pl_segment *one = &first->segments[i], *other = &second->segments[i];
        int found = one->dtype != other->dtype ? DIFFERENT_DTYPE : 0;
        if (counts && one->count != other->count) found |= DIFFERENT_COUNT;
        if (!found) continue;
        if (a->segment_count > 0) *segment_out = i;
        return different | found;
    }
    return different;
}

/* Add "rank 5: all-gather (...)". */
static void print_member(pl_text *text, const pl_process_group *group, const pl_posted_call *posted,
                         int64_t member)
{
    pl_text_add(text, "rank %" PRId64 ": ", pl_rank_set_member(&group->members, member));
    pl_call_print(text, &posted[member].call);
}

/* Add the member and, unless SEGMENT is -1, ", segment 2: 8 x i32". */
static void print_different(pl_text *text, const pl_process_group *group,
                            const pl_posted_call *posted, int64_t member, int segment)
{
    print_member(text, group, posted, member);
    if (segment < 0) return;
    const pl_segment *own = &posted[member].segments[segment];
    pl_text_add(text, ", segment %d: %" PRId64 " x %s", segment, own->count,
                pl_dtype_name(own->dtype));
}

static pl_status different_calls(const pl_process_group *group, const pl_posted_call *posted,
                                 int64_t first, int64_t second, int different, int segment)
{
    pl_text text = {0};
    pl_text_add_string(&text, "members of ");
    pl_group_print(&text, group->role, &group->members);
    pl_text_add_string(&text, " started different calls (");
    bool more = false;
    for (int bit = 0; bit < DIFFERENCES; ++bit) {
        if (!(different & (1 << bit))) continue;
        pl_text_add(&text, "%s%s", more ? ", " : "", difference_names[bit]);
        if (segment >= 0 && ((1 << bit) & (DIFFERENT_DTYPE | DIFFERENT_COUNT)))
            pl_text_add(&text, " of segment %d", segment);
        more = true;
    }
    pl_text_add_string(&text, "): ");
    print_different(&text, group, posted, first, segment);
    pl_text_add_string(&text, "; ");
    print_different(&text, group, posted, second, segment);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

pl_status pl_call_match(const pl_process_group *group, const pl_posted_call *posted, int64_t first,
                        int64_t second)
{
    int segment = -1;
    if (first == second) return PL_OK;
    int different = differences(&posted[first], &posted[second], &segment);
    if (!different) return PL_OK;
    return different_calls(group, posted, first, second, different, segment);
}

/* FROM sends SENT elements to member TO, which expects EXPECTED; negative: nothing at all. */
static pl_status unequal_counts(const pl_process_group *group, const pl_posted_call *posted,
                                int64_t from, int64_t to, const int64_t counts[2])
{
    pl_text text = {0};
    pl_text_add_string(&text, "members of ");
    pl_group_print(&text, group->role, &group->members);
    pl_text_add_string(&text, " disagree: ");
    print_member(&text, group, posted, from);
    if (counts[0] < 0)
        pl_text_add_string(&text, " sends nothing more");
    else
        pl_text_add(&text, " sends %" PRId64 " elements", counts[0]);
    pl_text_add(&text, " to rank %" PRId64 "; ", pl_rank_set_member(&group->members, to));
    print_member(&text, group, posted, to);
    if (counts[1] < 0)
        pl_text_add_string(&text, " expects nothing more");
    else
        pl_text_add(&text, " expects %" PRId64 " elements", counts[1]);
    pl_text_add(&text, " from rank %" PRId64, pl_rank_set_member(&group->members, from));
    return pl_fail_with_text(PL_INTERNAL, &text);
}

static pl_status match_uneven(const pl_process_group *group, const pl_posted_call *posted)
{
    for (int64_t from = 0; from < group->size; ++from) {
        const int64_t *send_counts = posted[from].call.send_counts;
        for (int64_t to = 0; to < group->size; ++to) {
            int64_t counts[2] = {send_counts[to], posted[to].call.recv_counts[from]};
            if (counts[0] != counts[1]) return unequal_counts(group, posted, from, to, counts);
        }
    }
    return PL_OK;
}

const pl_transfer *pl_transfer_partner(const pl_posted_call *posted, int64_t member, int index)
{
    const pl_transfer *own = posted[member].call.transfers;
    const pl_call *peer = &posted[own[index].peer].call;
    int before = 0;
    for (int i = 0; i < index; ++i)
        before += own[i].peer == own[index].peer && !own[i].is_send == !own[index].is_send;
    for (int i = 0; i < peer->transfer_count; ++i) {
        const pl_transfer *other = &peer->transfers[i];
        if (other->peer != member || !other->is_send == !own[index].is_send) continue;
        if (before-- == 0) return other;
    }
    return NULL;
}

static pl_status match_transfers(const pl_process_group *group, const pl_posted_call *posted)
{
    for (int64_t member = 0; member < group->size; ++member) {
        for (int i = 0; i < posted[member].call.transfer_count; ++i) {
            const pl_transfer *own = &posted[member].call.transfers[i];
            const pl_transfer *other = pl_transfer_partner(posted, member, i);
            if (other && other->count == own->count) continue;
            int64_t theirs = other ? other->count : -1;
            int64_t counts[2] = {own->is_send ? own->count : theirs,
                                 own->is_send ? theirs : own->count};
            return unequal_counts(group, posted, own->is_send ? member : own->peer,
                                  own->is_send ? own->peer : member, counts);
        }
    }
    return PL_OK;
}

pl_status pl_call_match_counts(const pl_process_group *group, const pl_posted_call *posted)
{
    switch (posted[0].call.collective) {
    case PL_ALL_TO_ALL_UNEVEN: return match_uneven(group, posted);
    case PL_SEND_RECEIVE: return match_transfers(group, posted);
    default: return PL_OK;
    }
}
