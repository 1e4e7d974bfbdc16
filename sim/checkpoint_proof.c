#include "sim/checkpoint_proof.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/manifest_find.h"
#include "ckpt/manifest_reshard.h"
#include "common/placement.h"

/* --- the checkpoint --- */

static pl_status read_lists(pl_checkpoint_subject *s)
{
    const char *folder = pl_text_string(&s->folder);
    PL_TRY(pl_checkpoint_map_begin(&s->map, s->manifest.rank_count));
    for (int64_t i = 0; i < s->manifest.rank_count; ++i) {
        pl_rank_boxes boxes;
        PL_TRY(pl_rank_boxes_read(&boxes, &s->manifest, folder, i));
        pl_status status = pl_checkpoint_map_add(&s->map, &boxes, i);
        pl_rank_boxes_free(&boxes);
        PL_TRY(status);
    }
    return pl_checkpoint_map_sort(&s->map, &s->manifest.model);
}

pl_status pl_checkpoint_subject_open(pl_checkpoint_subject *out, const char *given)
{
    pl_checkpoint_subject subject;
    memset(&subject, 0, sizeof subject);
    pl_status status = pl_checkpoint_find(&subject.folder, given);
    if (status == PL_OK) {
        status = pl_manifest_read(&subject.manifest, pl_text_string(&subject.folder));
        subject.has_manifest = status == PL_OK;
    }
    if (status == PL_OK) status = read_lists(&subject);
    if (status == PL_OK)
        *out = subject;
    else
        pl_checkpoint_subject_free(&subject);
    return status;
}

void pl_checkpoint_subject_free(pl_checkpoint_subject *subject)
{
    pl_checkpoint_map_free(&subject->map);
    if (subject->has_manifest) pl_manifest_free(&subject->manifest);
    pl_text_free(&subject->folder);
    memset(subject, 0, sizeof *subject);
}

/* --- faults --- */

enum { FAULTS_SHOWN = 4 };

/* Begin the line of a fault, or count it among those that are not shown. */
static pl_text *begin_fault(pl_checkpoint_verdict *verdict, int64_t *faults)
{
    verdict->failed = true;
    return ++*faults <= FAULTS_SHOWN ? &verdict->words : NULL;
}

static pl_status end_faults(pl_checkpoint_verdict *verdict, int64_t faults)
{
    if (faults > FAULTS_SHOWN)
        pl_text_add(&verdict->words, "and %" PRId64 " more\n", faults - FAULTS_SHOWN);
    return pl_text_status(&verdict->words);
}

/* --- files --- */

static pl_status look_at_file(pl_checkpoint_verdict *out, int64_t *faults,
                              const pl_checkpoint_subject *s, const char *name, int64_t bytes)
{
    struct stat facts;
    pl_text path = {0};
    PL_TRY(pl_manifest_path(&path, pl_text_string(&s->folder), name));
    bool there = stat(pl_text_string(&path), &facts) == 0;
    int cause = errno;
    pl_text_free(&path);
    ++out->checked;
    if (there && S_ISREG(facts.st_mode) && facts.st_size == bytes) return PL_OK;
    pl_text *words = begin_fault(out, faults);
    if (!words) return PL_OK;
    if (!there)
        pl_text_add(words, "%s: %s\n", name, strerror(cause));
    else if (!S_ISREG(facts.st_mode))
        pl_text_add(words, "%s: it is no regular file\n", name);
    else
        pl_text_add(words, "%s: it has %" PRId64 " bytes, not %" PRId64 "\n", name,
                    (int64_t)facts.st_size, bytes);
    return PL_OK;
}

pl_status pl_checkpoint_prove_files(pl_checkpoint_verdict *out, const pl_checkpoint_subject *s)
{
    char name[PL_MANIFEST_NAME];
    int64_t faults = 0;
    *out = (pl_checkpoint_verdict){.failed = false};
    PL_TRY(look_at_file(out, &faults, s, PL_MANIFEST_INDEX, s->manifest.index.bytes));
    for (int64_t i = 0; i < s->manifest.rank_count; ++i) {
        const pl_manifest_rank *rank = &s->manifest.ranks[i];
        pl_manifest_rank_file(rank->rank, ".h5", name);
        PL_TRY(look_at_file(out, &faults, s, name, rank->data.bytes));
        pl_manifest_rank_file(rank->rank, ".sums", name);
        PL_TRY(look_at_file(out, &faults, s, name, rank->sums.bytes));
    }
    return end_faults(out, faults);
}

/* --- tiles --- */

typedef struct tiling {
    pl_checkpoint_verdict *verdict;
    const pl_model *model;
    int64_t faults;
} tiling;

static pl_status take_fault(void *context, const pl_cover_fault *fault)
{
    tiling *t = context;
    pl_text *words = begin_fault(t->verdict, &t->faults);
    if (!words) return PL_OK;
    pl_checkpoint_rows_print(words, &t->model->tensors[fault->tensor], (pl_value_kind)fault->kind,
                             fault->row_begin, fault->row_end);
    pl_text_add_string(words, " ");
    pl_cover_fault_print(words, fault);
    pl_text_add_string(words, "\n");
    return PL_OK;
}

pl_status pl_checkpoint_prove_tiles(pl_checkpoint_verdict *out, const pl_checkpoint_subject *s)
{
    tiling t = {.verdict = out, .model = &s->manifest.model};
    *out = (pl_checkpoint_verdict){.checked = (int64_t)s->map.count};
    PL_TRY(pl_checkpoint_map_check(&s->map, t.model, s->manifest.kept, take_fault, &t));
    return end_faults(out, t.faults);
}

/* --- loading --- */

typedef struct loading {
    pl_checkpoint_load *out;
    const pl_checkpoint_subject *subject;
    int64_t rank, rank_bytes, faults;
} loading;

/* The rank needs rows [begin, end), which WHERE says where they are instead of once. */
static void refuse_rows(loading *l, const pl_tensor *tensor, pl_value_kind kind, int64_t begin,
                        int64_t end, const char *where)
{
    pl_text *words = begin_fault(&l->out->verdict, &l->faults);
    if (!words) return;
    pl_text_add(words, "rank %" PRId64 " needs ", l->rank);
    pl_checkpoint_rows_print(words, tensor, kind, begin, end);
    pl_text_add(words, ", which are %s\n", where);
}

/* Go through the places of the rows in BOX that one rank holds of one value. */
static void load_box(loading *l, int64_t number, pl_value_kind kind, pl_box box)
{
    const pl_manifest *manifest = &l->subject->manifest;
    const pl_tensor *tensor = &manifest->model.tensors[number];
    int64_t row = pl_kept_kind_row_bytes(tensor, &manifest->kept[number], kind);
    int64_t next = box.begin;
    size_t count = 0;
    const pl_checkpoint_piece *pieces = pl_checkpoint_map_pieces(
        &l->subject->map, manifest->model.tensor_count, kind, number, &count);
    for (size_t i = pl_checkpoint_piece_at(pieces, count, box.begin);
         i < count && pieces[i].row_begin < box.end; ++i) {
        int64_t begin = pieces[i].row_begin > box.begin ? pieces[i].row_begin : box.begin;
        int64_t end = pieces[i].row_end < box.end ? pieces[i].row_end : box.end;
        if (begin > next) refuse_rows(l, tensor, kind, next, begin, "in no rank's file");
        if (begin < next)
            refuse_rows(l, tensor, kind, begin, end < next ? end : next, "in two ranks' files");
        if (end > next) next = end;
        ++l->out->reads;
        ++l->out->verdict.checked;
        l->rank_bytes += (end - begin) * row;
        if (l->subject->map.source[pieces[i].source].rank == l->rank)
            l->out->own_bytes += (end - begin) * row;
    }
    if (next < box.end) refuse_rows(l, tensor, kind, next, box.end, "in no rank's file");
}

static void load_rank(loading *l, const pl_layout *layout)
{
    const pl_manifest *manifest = &l->subject->manifest;
    l->rank_bytes = 0;
    for (int64_t number = 0; number < manifest->model.tensor_count; ++number) {
        pl_box box = pl_placement_box(layout, &manifest->model.tensors[number], l->rank);
        for (int kind = 0; box.end > box.begin && kind < PL_VALUE_KIND_COUNT; ++kind)
            if (pl_keeps(&manifest->kept[number], (pl_value_kind)kind))
                load_box(l, number, (pl_value_kind)kind, box);
    }
    l->out->bytes += l->rank_bytes;
    if (l->rank_bytes > l->out->most_bytes) l->out->most_bytes = l->rank_bytes;
}

pl_status pl_checkpoint_prove_load(pl_checkpoint_load *out, const pl_checkpoint_subject *subject,
                                   const pl_layout *layout)
{
    loading l = {.out = out, .subject = subject};
    *out = (pl_checkpoint_load){.reads = 0};
    PL_TRY(pl_reshard_check(layout, &subject->manifest.model));
    for (; l.rank < layout->world; ++l.rank) load_rank(&l, layout);
    return end_faults(&out->verdict, l.faults);
}
