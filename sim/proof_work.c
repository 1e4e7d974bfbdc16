/* Work: every entry is one that belongs, does what its name says, and none is missing. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/proof.h"

typedef struct work {
    const pl_sim_world *world;
    pl_verdict *verdict;
    const pl_section *section;
    int64_t rank;
    int32_t *table; /* hash table of entry numbers by name, -1 free */
    size_t size;
} work;

/* What must be, and the thing it is said of. */
static void fail(const work *w, const pl_entry *entry, const char *claim, const char *what)
{
    pl_verdict_fail(w->verdict, w->rank, w->section->program, w->section, entry, "%s %s", claim,
                    what);
}

/* --- names --- */

static size_t hash_name(const pl_entry_name *name)
{
    uint64_t hash = 0, word[3];
    memcpy(word, name, sizeof word);
    for (int i = 0; i < 3; ++i) hash = (hash ^ word[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 24);
}

_Static_assert(sizeof(pl_entry_name) == 24, "hash_name reads three words");

static size_t place_of(const work *w, const pl_entry_name *name)
{
    if (w->size == 0) return 0;
    size_t place = hash_name(name) % w->size;
    while (w->table[place] >= 0 &&
           !pl_entry_name_equal(&w->section->entries[w->table[place]].name, name))
        place = (place + 1) % w->size;
    return place;
}

static void check_unique(work *w)
{
    for (size_t i = 0; i < w->section->entry_count; ++i) {
        const pl_entry *entry = &w->section->entries[i];
        size_t place = place_of(w, &entry->name);
        if (w->table[place] < 0)
            w->table[place] = (int32_t)i;
        else
            pl_verdict_fail(w->verdict, w->rank, w->section->program, w->section, entry,
                            "a second entry of this name; the first is entry %u",
                            w->section->entries[w->table[place]].label);
    }
}

static bool check_present(void *context, const pl_entry_name *name)
{
    work *w = context;
    pl_expected_entry expected;
    pl_expect_entry(&expected, w->world, w->section->program, name);
    ++w->verdict->checked;
    if (!expected.wanted || expected.free || w->table[place_of(w, name)] >= 0) return true;
    pl_text words = {0};
    pl_entry_name_print(&words, name);
    fail(w, NULL, "there is no entry", pl_text_string(&words));
    pl_verdict_free_text(w->verdict, &words);
    return false;
}

/* --- uses --- */

static bool is_buffer(const pl_buffer *buffer, const pl_expected_use *use)
{
    bool part = pl_buffer_kind_scope((pl_buffer_kind)use->kind) == PL_SCOPE_PART;
    pl_buffer_scope scope = pl_buffer_kind_scope((pl_buffer_kind)use->kind);
    if (buffer->kind != use->kind) return false;
    if (part) return buffer->subject == use->subject && buffer->layer == use->layer;
    if (scope == PL_SCOPE_LAYER_MICRO_BATCH && buffer->layer != use->layer) return false;
    return scope == PL_SCOPE_ONE || buffer->micro_batch == use->micro_batch;
}

/* The use of ENTRY of the buffer that USE describes, or NULL. */
static const pl_use *find_use(const work *w, const pl_entry *entry, const pl_expected_use *use,
                              uint32_t flag)
{
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *found = &w->section->uses[entry->use_first + i];
        if ((found->flags & flag) && is_buffer(&w->section->buffers[found->buffer], use))
            return found;
    }
    return NULL;
}

static void fail_use(const work *w, const pl_entry *entry, const char *claim,
                     const pl_expected_use *use)
{
    pl_buffer buffer = {.kind = use->kind, .subject = use->subject, .layer = use->layer};
    buffer.micro_batch = use->micro_batch;
    pl_text name = {0};
    pl_buffer_print(&name, &buffer);
    fail(w, entry, claim, pl_text_string(&name));
    pl_verdict_free_text(w->verdict, &name);
}

static int64_t count_writes(const work *w, const pl_entry *entry)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        count += (w->section->uses[entry->use_first + i].flags & PL_USE_WRITE) != 0;
    return count;
}

/* What a buffer holds goes on in what is added to it: a write that does not begin it reads it. */
static void check_updates(const work *w, const pl_entry *entry)
{
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &w->section->uses[entry->use_first + i];
        if ((use->flags & (PL_USE_READ | PL_USE_WRITE | PL_USE_BEGIN)) != PL_USE_WRITE) continue;
        pl_text name = {0};
        pl_buffer_print(&name, &w->section->buffers[use->buffer]);
        fail(w, entry, "writes what lives, and so must also read,", pl_text_string(&name));
        pl_verdict_free_text(w->verdict, &name);
    }
}

/* A reshard lets go the gathered copy of its own unit: of its part, or of the layer's experts. */
static void check_reshard(const work *w, const pl_entry *entry)
{
    if (entry->name.operation != PL_OP_RESHARD) return;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_buffer *buffer =
            &w->section->buffers[w->section->uses[entry->use_first + i].buffer];
        bool own =
            buffer->subject == entry->name.subject ||
            (buffer->subject == PL_SUBJECT_EXPERTS && entry->name.subject == PL_SUBJECT_LAYER);
        if (buffer->kind == PL_BUF_FULL && own && buffer->layer == entry->name.layer) continue;
        pl_text name = {0};
        pl_buffer_print(&name, buffer);
        fail(w, entry, "must not let go", pl_text_string(&name));
        pl_verdict_free_text(w->verdict, &name);
    }
}

/* Uses that go over all trained parts: gradients, and the state that the update writes. */
typedef struct tally {
    const work *w;
    const pl_entry *entry;
    int64_t writes; /* how many of the entry's writes are accounted for */
} tally;

static void need(tally *t, pl_buffer_kind kind, pl_subject subject, int32_t layer, bool writes)
{
    pl_expected_use use = {(uint8_t)kind, (uint8_t)subject, layer, -1};
    if (!find_use(t->w, t->entry, &use, writes ? PL_USE_WRITE : PL_USE_READ))
        fail_use(t->w, t->entry, writes ? "does not write" : "does not read", &use);
    t->writes += writes;
}

static void need_gradients(tally *t, const pl_expected_part *part, pl_subject subject,
                           int32_t layer, unsigned covers, bool writes)
{
    unsigned class_ = subject == PL_SUBJECT_EXPERTS ? PL_COVERS_EXPERTS : PL_COVERS_DENSE;
    if (part->trained > 0 && (covers & class_)) need(t, PL_BUF_GRADIENT, subject, layer, writes);
    if (part->whole > 0 && (covers & PL_COVERS_IGNORED))
        need(t, PL_BUF_IGNORED_GRADIENT, subject, layer, writes);
}

static void need_state(tally *t, const pl_expected_part *part, pl_subject subject, int32_t layer)
{
    const pl_settings *settings = &t->w->world->plan->settings;
    bool masters = settings->precision.gather != PL_FP32;
    bool adam = settings->optimizer == PL_OPTIMIZER_ADAMW;
    if (part->trained > 0) {
        need(t, masters ? PL_BUF_MASTER : PL_BUF_PARAMETER, subject, layer, true);
        if (adam) need(t, PL_BUF_ADAM_M, subject, layer, true);
        if (adam) need(t, PL_BUF_ADAM_V, subject, layer, true);
    }
    if (part->whole > 0) {
        need(t, PL_BUF_IGNORED, subject, layer, true);
        if (adam) need(t, PL_BUF_IGNORED_M, subject, layer, true);
        if (adam) need(t, PL_BUF_IGNORED_V, subject, layer, true);
    }
}

static void need_of_part(tally *t, const pl_expected_entry *expected, pl_subject subject,
                         int32_t layer)
{
    const pl_expected_part *part = pl_expected_part_of(&t->w->world->parts, subject, layer);
    need_gradients(t, part, subject, layer, expected->reads_gradients, false);
    need_gradients(t, part, subject, layer, expected->writes_gradients, true);
    if (expected->writes_state) need_state(t, part, subject, layer);
    if (expected->writes_parameters && part->trained > 0) {
        need(t, PL_BUF_MASTER, subject, layer, false);
        need(t, PL_BUF_PARAMETER, subject, layer, true);
    }
}

static void check_uses(const work *w, const pl_entry *entry, const pl_expected_entry *expected)
{
    tally t = {w, entry, expected->writes};
    for (int i = 0; i < expected->reads; ++i)
        if (!find_use(w, entry, &expected->read[i], PL_USE_READ))
            fail_use(w, entry, "does not read", &expected->read[i]);
    for (int i = 0; i < expected->writes; ++i)
        if (!find_use(w, entry, &expected->write[i], PL_USE_WRITE))
            fail_use(w, entry, "does not write", &expected->write[i]);
    if (expected->reads_gradients || expected->writes_gradients || expected->writes_state ||
        expected->writes_parameters) {
        static const pl_subject single[] = {PL_SUBJECT_EMBEDDING, PL_SUBJECT_NORM, PL_SUBJECT_HEAD};
        for (int i = 0; i < 3; ++i) need_of_part(&t, expected, single[i], -1);
        for (int32_t layer = 0; layer < w->world->parts.layers; ++layer) {
            need_of_part(&t, expected, PL_SUBJECT_LAYER, layer);
            need_of_part(&t, expected, PL_SUBJECT_EXPERTS, layer);
        }
    }
    if (count_writes(w, entry) != t.writes)
        pl_verdict_fail(w->verdict, w->rank, w->section->program, w->section, entry,
                        "writes %" PRId64 " buffers where it must write %" PRId64,
                        count_writes(w, entry), t.writes);
}

/* --- entries --- */

static void check_attributes(const work *w, const pl_entry *entry,
                             const pl_expected_entry *expected)
{
    pl_text must = {0};
    if (entry->stream != (uint8_t)expected->stream)
        fail(w, entry, "must run on stream", pl_stream_name(expected->stream));
    if (entry->peer != -1) fail(w, entry, "must not name", "a peer: all members take part");
    if (entry->predicate != (uint8_t)expected->predicate)
        fail(w, entry, "must act",
             expected->predicate == PL_IF_UPDATE
                 ? "only if the norm is finite and T > 0 (if=update)"
                 : "always, not only if=update");
    pl_scale_print(&must, expected->scale);
    if (entry->scale.numerator != expected->scale.numerator ||
        entry->scale.denominator != expected->scale.denominator ||
        entry->scale.tokens != expected->scale.tokens)
        fail(w, entry, "scale must be", pl_text_string(&must));
    pl_verdict_free_text(w->verdict, &must);
    if (entry->reduction != (uint8_t)expected->reduction)
        fail(w, entry, "reduction must be", pl_reduction_name(expected->reduction));
}

static void check_entry(const work *w, const pl_entry *entry)
{
    pl_expected_entry expected;
    pl_expect_entry(&expected, w->world, w->section->program, &entry->name);
    ++w->verdict->checked;
    if (!expected.wanted) {
        fail(w, entry, "no such entry", "belongs in this program");
        return;
    }
    check_attributes(w, entry, &expected);
    check_uses(w, entry, &expected);
    check_updates(w, entry);
    check_reshard(w, entry);
}

static pl_status check_section(work *w)
{
    w->size = w->section->entry_count * 2 + 16;
    PL_TRY(pl_allocate(&w->table, w->size, sizeof *w->table, "names of entries"));
    for (size_t i = 0; i < w->size; ++i) w->table[i] = -1;
    check_unique(w);
    for (size_t i = 0; i < w->section->entry_count; ++i) check_entry(w, &w->section->entries[i]);
    if (pl_sim_world_holds_shape(w->world))
        pl_expect_names(w->world, w->section->program, check_present, w);
    else
        fail(w, NULL, "there are fewer entries", "than micro-batches of the shape");
    pl_free(w->table);
    return PL_OK;
}

pl_status pl_prove_work(const pl_sim_world *world, pl_verdict *verdict)
{
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        if (!world->section[program] && (world->programs >> program & 1U))
            pl_verdict_fail(verdict, -1, (pl_program)program, NULL, NULL,
                            "the plan has no %s program", pl_program_name((pl_program)program));
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        work w = {.world = world, .verdict = verdict, .section = section};
        w.rank = pl_section_first_rank(section);
        PL_TRY(check_section(&w));
    }
    return PL_OK;
}
