/* The engine of a walk: all ranks run their streams until nobody can go on.
 *
 * A rank's stream runs its next entry when the entries it waits for are done. A collective is
 * posted on the fake group and done when every member has posted it. When a whole round over the
 * ranks moves nothing and entries are left, the plans are in deadlock. Since each rank has one
 * communication stream in issue order, a walk that ends is itself an order of all collectives
 * that agrees with every rank's: there is no cycle among communicators.
 */
#include "sim/walk.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"

/* --- setting up --- */

static pl_status make_lists(pl_walk_lists *lists, const pl_section *section)
{
    lists->section = section;
    for (size_t i = 0; i < section->entry_count; ++i) ++lists->count[section->entries[i].stream];
    for (int s = 0; s < PL_STREAM_COUNT; ++s)
        PL_TRY(pl_allocate(&lists->entry[s], (size_t)lists->count[s], sizeof(int32_t), "streams"));
    memset(lists->count, 0, sizeof lists->count);
    for (size_t i = 0; i < section->entry_count; ++i) {
        int stream = section->entries[i].stream;
        lists->entry[stream][lists->count[stream]++] = (int32_t)i;
    }
    return PL_OK;
}

static const pl_walk_lists *lists_of(const pl_walk *walk, const pl_section *section)
{
    return &walk->lists[section - walk->world->plan->sections];
}

static bool is_collective(const pl_entry *entry)
{
    return entry->group != PL_GROUP_NONE && entry->name.operation != PL_OP_LOAD_BATCH;
}

/* What BUFFER holds before the program. */
static pl_value value_before(const pl_walk *walk, const pl_buffer *buffer, int64_t rank)
{
    pl_subject subject = (pl_subject)buffer->subject;
    bool whole = buffer->kind == PL_BUF_IGNORED;
    bool state = whole || buffer->kind == PL_BUF_PARAMETER || buffer->kind == PL_BUF_MASTER;
    if (buffer->layer >= walk->world->parts.layers) return 0;
    if (walk->program == PL_PROGRAM_SAVE && buffer->kind <= PL_BUF_IGNORED_V)
        return pl_walk_saved(walk->world, (pl_buffer_kind)buffer->kind, subject, buffer->layer,
                             rank);
    return state ? pl_walk_initial(walk->world, subject, buffer->layer, whole ? 0 : rank) : 0;
}

static pl_status start_rank(pl_walk *walk, int64_t rank)
{
    pl_walk_rank *r = &walk->ranks[rank];
    const pl_section *section = walk->world->section[walk->program][rank];
    r->section = section;
    PL_TRY(pl_allocate(&r->value, section->buffer_count, sizeof *r->value, "values"));
    PL_TRY(pl_allocate(&r->done, section->entry_count, sizeof *r->done, "entries"));
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        if (!is_collective(entry)) continue;
        size_t needed = pl_walk_scratch(entry, walk->world->groups.size[entry->group]);
        if (needed > r->scratch) r->scratch = needed;
    }
    PL_TRY(pl_allocate(&r->send, r->scratch, sizeof *r->send, "messages"));
    PL_TRY(pl_allocate(&r->recv, r->scratch, sizeof *r->recv, "messages"));
    for (size_t i = 0; i < section->buffer_count && !pl_expect_makes(walk->program); ++i)
        r->value[i] = value_before(walk, &section->buffers[i], rank);
    return PL_OK;
}

static pl_status start(pl_walk *walk)
{
    const pl_sim_world *world = walk->world;
    size_t ranks = (size_t)world->ranks;
    walk->parts = 3 + 2 * (size_t)world->parts.layers;
    for (int i = 0; i < 2; ++i)
        PL_TRY(pl_allocate(&walk->by_part[i], walk->parts, sizeof(pl_value), "values"));
    PL_TRY(pl_allocate(&walk->lists, world->plan->section_count, sizeof *walk->lists, "streams"));
    for (size_t i = 0; i < world->plan->section_count; ++i)
        PL_TRY(make_lists(&walk->lists[i], &world->plan->sections[i]));
    PL_TRY(pl_allocate(&walk->handles, ranks, sizeof(pl_process_group *), "groups"));
    PL_TRY(pl_allocate(&walk->ranks, ranks, sizeof *walk->ranks, "ranks"));
    for (int64_t rank = 0; rank < world->ranks; ++rank) PL_TRY(start_rank(walk, rank));
    return pl_group_fake_open(walk->handles, world->ranks, PL_FAKE_SUMS_MODULO);
}

static void stop(pl_walk *walk)
{
    for (int64_t rank = 0; walk->ranks && rank < walk->world->ranks; ++rank) {
        pl_walk_rank *r = &walk->ranks[rank];
        for (int role = 0; role < PL_GROUP_ROLE_COUNT; ++role)
            pl_process_group_close(r->group[role]);
        if (walk->handles) pl_process_group_close(walk->handles[rank]);
        pl_free(r->value);
        pl_free(r->done);
        pl_free(r->send);
        pl_free(r->recv);
    }
    for (size_t i = 0; walk->lists && i < walk->world->plan->section_count; ++i)
        for (int s = 0; s < PL_STREAM_COUNT; ++s) pl_free(walk->lists[i].entry[s]);
    pl_free(walk->ranks);
    pl_free(walk->handles);
    pl_free(walk->lists);
    pl_free(walk->by_part[0]);
    pl_free(walk->by_part[1]);
}

/* --- one entry --- */

static bool waits_are_done(const pl_walk_rank *r, const pl_entry *entry)
{
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t wait = r->section->waits[entry->wait_first + i];
        if (wait != PL_WAIT_MISSING && !r->done[wait]) return false;
    }
    return true;
}

static pl_status post(pl_walk *walk, int64_t rank, const pl_entry *entry)
{
    pl_walk_rank *r = &walk->ranks[rank];
    pl_group_role role = (pl_group_role)entry->group;
    pl_call call = {0};
    if (!r->group[role]) {
        pl_rank_set members = pl_layout_group(&walk->world->plan->layout, role, rank);
        PL_TRY(pl_process_group_split(walk->handles[rank], role, &members, &r->group[role]));
    }
    pl_walk_fill(walk, rank, entry, &call);
    PL_TRY(pl_process_group_start(r->group[role], &call, &r->request));
    r->posted = true;
    return PL_OK;
}

/* Try to run the next entry of a stream. *MOVED says whether anything happened. */
static pl_status advance(pl_walk *walk, int64_t rank, int stream, bool *moved)
{
    pl_walk_rank *r = &walk->ranks[rank];
    const pl_walk_lists *lists = lists_of(walk, r->section);
    *moved = false;
    if (r->next[stream] == lists->count[stream]) return PL_OK;
    int32_t number = lists->entry[stream][r->next[stream]];
    const pl_entry *entry = &r->section->entries[number];
    if (!waits_are_done(r, entry)) return PL_OK;
    if (!is_collective(entry)) {
        pl_walk_compute(walk, rank, entry);
    } else {
        if (r->posted && r->in_flight != number) return PL_OK; /* another stream's call */
        if (!r->posted) PL_TRY(post(walk, rank, entry));
        r->in_flight = number;
        if (!pl_group_fake_is_done(r->group[entry->group], r->request)) return PL_OK;
        PL_TRY(pl_process_group_wait(r->group[entry->group], r->request));
        r->posted = false;
        pl_walk_take(walk, rank, entry);
    }
    r->done[number] = true;
    ++r->next[stream];
    *moved = true;
    return PL_OK;
}

/* --- where it stopped --- */

/* The stream of a rank at whose head it is stuck: a collective first, since others wait for it. */
static int stuck_stream(const pl_walk *walk, int64_t rank)
{
    static const int order[] = {PL_STREAM_COMMUNICATION, PL_STREAM_COMPUTE, PL_STREAM_COPY,
                                PL_STREAM_HOST};
    const pl_walk_rank *r = &walk->ranks[rank];
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        if (r->next[order[i]] < lists_of(walk, r->section)->count[order[i]]) return order[i];
    return -1;
}

static const pl_entry *head(const pl_walk *walk, int64_t rank, int stream)
{
    const pl_walk_rank *r = &walk->ranks[rank];
    return &r->section->entries[lists_of(walk, r->section)->entry[stream][r->next[stream]]];
}

/* Say which member of ENTRY's group RANK waits for; that member, or -1 when all have come. */
static int64_t say_missing(const pl_walk *walk, int64_t rank, const pl_entry *entry, pl_text *words)
{
    const int32_t *members =
        pl_expected_members(&walk->world->groups, (pl_group_role)entry->group, rank);
    pl_text_add(words, "waits in %s for", pl_group_role_name((pl_group_role)entry->group));
    for (int32_t i = 0; i < walk->world->groups.size[entry->group]; ++i) {
        const pl_walk_rank *other = &walk->ranks[members[i]];
        int at = stuck_stream(walk, members[i]);
        bool here = at == PL_STREAM_COMMUNICATION && other->posted &&
                    pl_entry_name_equal(&head(walk, members[i], at)->name, &entry->name);
        if (here) continue;
        pl_text_add(words, " rank %" PRId32 ", which is at ", members[i]);
        if (at < 0)
            pl_text_add_string(words, "its end");
        else
            pl_entry_name_print(words, &head(walk, members[i], at)->name);
        return members[i];
    }
    return -1;
}

enum { CHAIN_MOST = 8 };

/* Who waits for whom, from RANK on, until a rank comes again or is stuck otherwise: a cycle is seen
 * whole. */
static void say_chain(const pl_walk *walk, int64_t rank, pl_text *words)
{
    int64_t seen[CHAIN_MOST];
    for (int count = 0; count < CHAIN_MOST && rank >= 0; ++count) {
        int stream = stuck_stream(walk, rank);
        for (int i = 0; i < count; ++i)
            if (seen[i] == rank) return;
        if (stream != PL_STREAM_COMMUNICATION || !walk->ranks[rank].posted) return;
        seen[count] = rank;
        if (count > 0) pl_text_add(words, "; rank %" PRId64 " ", rank);
        rank = say_missing(walk, rank, head(walk, rank, stream), words);
    }
}

static void say_stuck(pl_walk *walk)
{
    for (int64_t rank = 0; rank < walk->world->ranks; ++rank) {
        const pl_walk_rank *r = &walk->ranks[rank];
        pl_text words = {0};
        int stream = stuck_stream(walk, rank);
        if (stream < 0) continue;
        const pl_entry *entry = head(walk, rank, stream);
        if (stream == PL_STREAM_COMMUNICATION && r->posted) {
            say_chain(walk, rank, &words);
        } else {
            for (uint32_t i = 0; i < entry->wait_count; ++i) {
                int32_t wait = r->section->waits[entry->wait_first + i];
                if (wait == PL_WAIT_MISSING || r->done[wait]) continue;
                pl_text_add(&words, "waits for entry %u, ", r->section->entries[wait].label);
                pl_entry_name_print(&words, &r->section->entries[wait].name);
                pl_text_add_string(&words, ", which never runs");
                break;
            }
        }
        pl_verdict_fail(&walk->verdicts[PL_PROOF_DEADLOCK], rank, walk->program, r->section, entry,
                        "%s", pl_text_string(&words));
        pl_verdict_free_text(&walk->verdicts[PL_PROOF_DEADLOCK], &words);
        return;
    }
}

/* --- running --- */

/* Run the streams of a rank as far as they go. A refusal of the fake group (members that call
 * different things) ends the walk: its words are the counter-example. */
static pl_status run_rank(pl_walk *walk, int64_t rank, bool *moved, bool *refused)
{
    bool again = true;
    *moved = false;
    while (again) {
        again = false;
        for (int stream = 0; stream < PL_STREAM_COUNT; ++stream) {
            bool one = false;
            pl_status status = advance(walk, rank, stream, &one);
            if (status == PL_NO_MEMORY) return status;
            *refused = status != PL_OK;
            if (*refused) {
                pl_verdict_fail(&walk->verdicts[PL_PROOF_DEADLOCK], rank, walk->program,
                                walk->ranks[rank].section, head(walk, rank, stream), "%s",
                                pl_error_text());
                return PL_OK;
            }
            again |= one;
        }
        *moved |= again;
    }
    return PL_OK;
}

/* Run until nothing moves. */
static pl_status run(pl_walk *walk, bool *finished)
{
    bool any = true, refused = false;
    *finished = false;
    while (any) {
        any = false;
        for (int64_t rank = 0; rank < walk->world->ranks; ++rank) {
            bool moved = false;
            PL_TRY(run_rank(walk, rank, &moved, &refused));
            if (refused) return PL_OK;
            any |= moved;
        }
    }
    for (int64_t rank = 0; rank < walk->world->ranks; ++rank) {
        if (stuck_stream(walk, rank) < 0) continue;
        say_stuck(walk);
        return PL_OK;
    }
    *finished = true;
    return PL_OK;
}

static const pl_proof_id carried[] = {PL_PROOF_PARAMETERS, PL_PROOF_GRADIENTS, PL_PROOF_COUNTS,
                                      PL_PROOF_NORM, PL_PROOF_UPDATE};

/* What a walk could not show stays undecided, unless it has failed already. */
static void say_undecided(pl_verdict *verdicts, pl_program program, const char *why)
{
    for (size_t i = 0; i < sizeof carried / sizeof *carried; ++i) {
        pl_verdict *verdict = &verdicts[carried[i]];
        if (verdict->outcome == PL_FAILED || verdict->words.length > 0) continue;
        pl_text_add(&verdict->words, "not decided: %s: %s", pl_program_name(program), why);
    }
}

static pl_status walk_once(pl_walk *walk, bool *finished)
{
    pl_walk_expected expected;
    *finished = false;
    PL_TRY(pl_walk_expected_make(&expected, walk->world, walk->program, &walk->probe));
    walk->expected = &expected;
    pl_status status = start(walk);
    if (status == PL_OK) status = run(walk, finished);
    for (int64_t rank = 0; status == PL_OK && *finished && rank < walk->world->ranks; ++rank)
        pl_walk_end(walk, rank);
    for (int64_t rank = 0; status == PL_OK && rank < walk->world->ranks; ++rank)
        walk->verdicts[PL_PROOF_DEADLOCK].checked +=
            (int64_t)walk->ranks[rank].section->entry_count;
    stop(walk);
    pl_walk_expected_free(&expected);
    return status;
}

/* --- whose tokens are wrong --- */

/* Walk with the tokens of some sources alone: the wrong gradient's ratio is then their weight, 1
 * if they are right. Verdicts of such a walk are thrown away. */
static pl_status weigh(const pl_walk *found, const pl_walk_probe *sources, pl_value *weight)
{
    pl_verdict scratch[PL_PROOF_COUNT];
    memset(scratch, 0, sizeof scratch);
    bool finished = false;
    pl_walk walk = {.world = found->world, .program = found->program, .verdicts = scratch};
    walk.probe = *sources;
    walk.wrong = true;
    walk.wrong_rank = found->wrong_rank;
    walk.wrong_buffer = found->wrong_buffer;
    pl_status status = walk_once(&walk, &finished);
    for (int i = 0; i < PL_PROOF_COUNT; ++i) pl_text_free(&scratch[i].words);
    *weight = walk.ratio;
    return status;
}

static void say_weight(pl_text *words, pl_value weight)
{
    if (weight == 0) {
        pl_text_add_string(words, "do not count");
    } else if (weight <= 64) {
        pl_text_add(words, "count %" PRIu64 " times", weight);
    } else {
        pl_text_add_string(words, "are weighed wrongly");
    }
}

/* Halve [*FIRST, *LAST], a range within SOURCES, down to one that weighs wrongly: of two halves the
 * lower one if it is wrong. */
static pl_status narrow(const pl_walk *found, const pl_walk_probe *sources, int64_t *first,
                        int64_t *last)
{
    while (*first < *last) {
        int64_t whole_last = *last;
        pl_value weight = 0;
        *last = *first + (*last - *first) / 2;
        PL_TRY(weigh(found, sources, &weight));
        if (weight != 1) continue;
        *first = *last + 1;
        *last = whole_last;
    }
    return PL_OK;
}

/* Name the rank and micro-batch whose tokens do not weigh 1/T, by halving. */
static pl_status name_source(const pl_walk *found)
{
    const pl_shape *shape = &found->world->plan->settings.shape;
    pl_text *words = &found->verdicts[PL_PROOF_GRADIENTS].words;
    pl_walk_probe sources = {true, 0, found->world->ranks - 1, 0,
                             shape->rounds * shape->intra_layer - 1};
    pl_value weight = 0;
    PL_TRY(weigh(found, &sources, &weight));
    if (weight == 1) {
        if (pl_walk_balances(found->world, &found->probe))
            pl_text_add_string(words, "; every token weighs 1/T: it is the load-balance loss that "
                                      "does not weigh coefficient / micro-steps");
        return PL_OK;
    }
    PL_TRY(narrow(found, &sources, &sources.first_rank, &sources.last_rank));
    PL_TRY(narrow(found, &sources, &sources.first_step, &sources.last_step));
    PL_TRY(weigh(found, &sources, &weight));
    pl_text_add(words, "; tokens of rank %" PRId64 ", round %" PRId64 ", mb %" PRId64 " ",
                sources.first_rank, sources.first_step / shape->intra_layer,
                sources.first_step % shape->intra_layer);
    say_weight(words, weight);
    return PL_OK;
}

/* --- the proofs --- */

static pl_status prove_program(const pl_sim_world *world, pl_verdict *verdicts, pl_program program,
                               bool *finished)
{
    pl_walk walk = {.world = world, .program = program, .verdicts = verdicts};
    *finished = false;
    if (!world->section[program]) {
        *finished = !(world->programs >> program & 1U);
        if (!*finished) say_undecided(verdicts, program, "the plan has no such program");
        return PL_OK;
    }
    if (!pl_sim_world_holds_shape(world)) {
        say_undecided(verdicts, program,
                      "a rank has fewer entries than the shape has micro-batches");
        return PL_OK;
    }
    PL_TRY(walk_once(&walk, finished));
    if (!*finished) say_undecided(verdicts, program, "the ranks do not run to the end");
    if (*finished && walk.wrong) return name_source(&walk);
    return PL_OK;
}

pl_status pl_prove_by_walking(const pl_sim_world *world, pl_verdict *verdicts)
{
    bool all = true;
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        bool finished = false;
        PL_TRY(prove_program(world, verdicts, (pl_program)program, &finished));
        all &= finished;
    }
    if (!all) return PL_OK;
    pl_verdict_close(&verdicts[PL_PROOF_DEADLOCK]);
    for (size_t i = 0; i < sizeof carried / sizeof *carried; ++i)
        pl_verdict_close(&verdicts[carried[i]]);
    return PL_OK;
}
