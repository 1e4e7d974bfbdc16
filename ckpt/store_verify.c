#include "ckpt/store_verify.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_reader.h"
#include "ckpt/store_verify_work.h"
#include "common/file_bytes.h"
#include "common/memory.h"

enum { AHEAD = 64, FIRST_BYTES = 128 << 20 }; /* ranks whose lists are fetched together */

/* --- telling --- */

pl_status pl_verify_tell(pl_verification *v, pl_damage_kind kind, const pl_damage *damage,
                         const char *file, const char *words)
{
    pl_damage copy = damage ? *damage : (pl_damage){.tensor = -1};
    copy.kind = kind;
    pthread_mutex_lock(&v->lock);
    pl_status status = pl_damages_add(&v->report->damages, &copy, file, words);
    pthread_mutex_unlock(&v->lock);
    return status;
}

/* The words of a failure behind "FOLDER/FILE: ". */
static const char *without_path(const char *words, const char *folder, const char *file)
{
    const char *found = strstr(words, file);
    size_t length = strlen(file);
    if (strncmp(words, folder, strlen(folder)) != 0 || !found) return words;
    return strncmp(found + length, ": ", 2) == 0 ? found + length + 2 : words;
}

pl_status pl_verify_tell_failure(pl_verification *v, pl_damage_kind kind, const pl_damage *damage,
                                 const char *file, pl_status status)
{
    if (status != PL_BAD_INPUT && status != PL_IO_FAILED && status != PL_UNSUPPORTED) return status;
    return pl_verify_tell(v, kind, damage, file,
                          without_path(pl_error_text(), v->request->folder, file));
}

/* --- files --- */

/* The length of FILE, or -1 where it is not there, which is told. */
static pl_status measure(pl_verification *v, int64_t *bytes, const char *file)
{
    int descriptor = -1;
    pl_text path = {0};
    *bytes = -1;
    pl_status status = pl_manifest_path(&path, v->request->folder, file);
    if (status == PL_OK) {
        status = pl_file_open(&descriptor, bytes, pl_text_string(&path));
        if (descriptor >= 0) close(descriptor);
        if (status != PL_OK)
            status = pl_verify_tell_failure(v, PL_DAMAGE_MISSING, NULL, file, status);
    }
    pl_text_free(&path);
    ++v->report->files;
    return status;
}

/* ... and told too where it is not BYTES. *RIGHT: it is. */
static pl_status look(pl_verification *v, bool *right, int64_t *found, const char *file,
                      int64_t bytes)
{
    char words[96];
    PL_TRY(measure(v, found, file));
    *right = *found == bytes;
    if (*right || *found < 0) return PL_OK;
    snprintf(words, sizeof words, "%" PRId64 " bytes, and the manifest says %" PRId64, *found,
             bytes);
    return pl_verify_tell(v, PL_DAMAGE_LENGTH, NULL, file, words);
}

/* --- ranks --- */

/* A hint: it fails without a word, and allocates nothing. */
static void expect_file(const pl_verification *v, const char *name, int64_t offset, int64_t bytes)
{
    char path[4096];
    int descriptor = -1;
    int64_t length = 0;
    int characters = snprintf(path, sizeof path, "%s/%s", v->request->folder, name);
    if (characters < 0 || (size_t)characters >= sizeof path) return;
    if (pl_file_open(&descriptor, &length, path) != PL_OK) return;
    pl_file_expect(descriptor, offset, bytes);
    close(descriptor);
}

void pl_verify_expect(const pl_verification *v, int64_t rank, const char *ending, int64_t offset,
                      int64_t bytes)
{
    char name[PL_MANIFEST_NAME];
    pl_manifest_rank_file(v->report->manifest.ranks[rank].rank, ending, name);
    expect_file(v, name, offset, bytes);
}

static pl_status open_list(pl_verification *v, int64_t index)
{
    const pl_manifest_rank *facts = &v->report->manifest.ranks[index];
    pl_verify_rank *rank = &v->rank[index];
    char file[PL_MANIFEST_NAME];
    int64_t found = 0;
    bool right = false;
    pl_manifest_rank_file(facts->rank, ".json", file);
    PL_TRY(look(v, &right, &found, file, facts->boxes.bytes));
    if (!right) return PL_OK;
    pl_status status =
        pl_rank_boxes_read(&rank->boxes, &v->report->manifest, v->request->folder, index);
    rank->has_boxes = status == PL_OK;
    return rank->has_boxes ? PL_OK : pl_verify_tell_failure(v, PL_DAMAGE_LIST, NULL, file, status);
}

static pl_status open_sums(pl_verification *v, int64_t index)
{
    const pl_manifest_rank *facts = &v->report->manifest.ranks[index];
    pl_verify_rank *rank = &v->rank[index];
    const pl_checkpoint_source source = {
        .rank = facts->rank, .sums = facts->sums.bytes / 8, .sums_hash = facts->sums.hash};
    char file[PL_MANIFEST_NAME];
    int64_t found = 0;
    bool right = false;
    pl_manifest_rank_file(facts->rank, ".sums", file);
    PL_TRY(look(v, &right, &found, file, facts->sums.bytes));
    if (right) {
        pl_status status = pl_store_read_sums(&rank->sums, v->request->folder, &source);
        if (status != PL_OK) PL_TRY(pl_verify_tell_failure(v, PL_DAMAGE_SUMS, NULL, file, status));
    }
    if (rank->sums || !rank->has_boxes) return PL_OK;
    return pl_allocate(&rank->found, (size_t)rank->boxes.boxes.sums, sizeof *rank->found,
                       "sums of a rank");
}

static pl_status open_rank(pl_verification *v, int64_t index)
{
    const pl_manifest_rank *facts = &v->report->manifest.ranks[index];
    pl_verify_rank *rank = &v->rank[index];
    char file[PL_MANIFEST_NAME];
    bool right = false;
    PL_TRY(open_list(v, index));
    PL_TRY(open_sums(v, index));
    pl_manifest_rank_file(facts->rank, ".h5", file);
    PL_TRY(look(v, &right, &rank->data_bytes, file, facts->data.bytes));
    if (rank->has_boxes && rank->data_bytes >= 0) v->bytes += facts->data.bytes;
    v->report->pieces += (int64_t)rank->boxes.boxes.count;
    v->report->unseen += !rank->has_boxes;
    return PL_OK;
}

static void expect_lists(const pl_verification *v, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end && i < v->report->manifest.rank_count; ++i) {
        pl_verify_expect(v, i, ".json", 0, v->report->manifest.ranks[i].boxes.bytes);
        pl_verify_expect(v, i, ".sums", 0, v->report->manifest.ranks[i].sums.bytes);
    }
}

/* The values that are read first can come while the lists are looked at. */
static void expect_first(const pl_verification *v)
{
    const pl_manifest *m = &v->report->manifest;
    int64_t left = FIRST_BYTES;
    expect_file(v, PL_MANIFEST_INDEX, 0, m->index.bytes < left ? m->index.bytes : left);
    for (int64_t i = 0; i < m->rank_count && left > 0; ++i) {
        int64_t bytes = m->ranks[i].data.bytes < left ? m->ranks[i].data.bytes : left;
        pl_verify_expect(v, i, ".h5", 0, bytes);
        left -= bytes;
    }
}

static pl_status open_ranks(pl_verification *v)
{
    const pl_manifest *m = &v->report->manifest;
    int64_t found = 0;
    PL_TRY(pl_allocate(&v->rank, (size_t)m->rank_count, sizeof *v->rank, "files of ranks"));
    for (int64_t i = 0; i < m->rank_count; ++i) {
        if (i % AHEAD == 0) expect_lists(v, i, i + AHEAD);
        if (i == 0) expect_first(v);
        PL_TRY(open_rank(v, i));
    }
    PL_TRY(look(v, &v->has_index, &found, PL_MANIFEST_INDEX, m->index.bytes));
    v->index_bytes = m->index.bytes;
    if (v->has_index) v->bytes += v->index_bytes;
    return PL_OK;
}

/* Where the sums of a rank are damaged, those of its values are the same, or all of its values are
 * in doubt. */
static pl_status judge_rank(pl_verification *v, int64_t index)
{
    const pl_verify_rank *rank = &v->rank[index];
    char file[PL_MANIFEST_NAME], *packed = NULL;
    if (!rank->found || rank->data_bytes < 0 || rank->unreadable) return PL_OK;
    int64_t count = rank->boxes.boxes.sums;
    PL_TRY(pl_allocate(&packed, (size_t)count, 8, "sums of a rank"));
    for (int64_t i = 0; i < count; ++i) pl_put_little_endian(packed + 8 * i, rank->found[i]);
    bool same = pl_hash(packed, (size_t)count * 8) == rank->boxes.sums_hash;
    pl_free(packed);
    if (same) return PL_OK;
    pl_manifest_rank_file(rank->boxes.rank, ".h5", file);
    return pl_verify_tell(
        v, PL_DAMAGE_VALUES, NULL, file,
        "some of its values are damaged; without the sums it cannot be said which");
}

/* --- cover --- */

static pl_status tell_cover(void *context, const pl_cover_fault *fault)
{
    pl_verification *v = context;
    const pl_damage damage = {.tensor = fault->tensor,
                              .kept = (pl_value_kind)fault->kind,
                              .row_begin = fault->row_begin,
                              .row_end = fault->row_end};
    pl_text words = {0};
    pl_cover_fault_print(&words, fault);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK)
        status =
            pl_verify_tell(v, PL_DAMAGE_COVER, &damage, PL_MANIFEST_FILE, pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

/* Only where all lists are there: what a damaged one has is not known. */
static pl_status check_cover(pl_verification *v)
{
    const pl_manifest *m = &v->report->manifest;
    pl_checkpoint_map map = {0};
    for (int64_t i = 0; i < m->rank_count; ++i)
        if (!v->rank[i].has_boxes) return PL_OK;
    pl_status status = pl_checkpoint_map_begin(&map, m->rank_count);
    for (int64_t i = 0; status == PL_OK && i < m->rank_count; ++i)
        status = pl_checkpoint_map_add(&map, &v->rank[i].boxes, i);
    if (status == PL_OK) status = pl_checkpoint_map_sort(&map, &m->model);
    if (status == PL_OK) status = pl_checkpoint_map_check(&map, &m->model, m->kept, tell_cover, v);
    pl_checkpoint_map_free(&map);
    return status;
}

/* --- surplus --- */

static bool has_rank(const pl_manifest *m, int64_t rank)
{
    int64_t low = 0, high = m->rank_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (m->ranks[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->rank_count && m->ranks[low].rank == rank;
}

static bool belongs(const pl_manifest *m, const char *name)
{
    static const char *const others[] = {".", "..", PL_MANIFEST_FILE, PL_MANIFEST_INDEX,
                                         PL_CHECKPOINT_PIN};
    static const char *const endings[] = {".json", ".sums", ".h5"};
    char again[PL_MANIFEST_NAME];
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i)
        if (strcmp(name, others[i]) == 0) return true;
    if (strncmp(name, "rank-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
    int64_t rank = strtoll(name + 5, NULL, 10);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i)
        if (strcmp(name, pl_manifest_rank_file(rank, endings[i], again)) == 0)
            return has_rank(m, rank);
    return false;
}

static pl_status note_surplus(pl_verification *v)
{
    DIR *list = opendir(v->request->folder);
    if (!list) return PL_FAIL(PL_IO_FAILED, "%s: %s", v->request->folder, strerror(errno));
    pl_status status = PL_OK;
    for (const struct dirent *entry = readdir(list); status == PL_OK && entry;
         entry = readdir(list))
        if (!belongs(&v->report->manifest, entry->d_name))
            status = pl_verify_tell(v, PL_DAMAGE_SURPLUS, NULL, entry->d_name, "");
    closedir(list);
    return status;
}

/* --- the whole --- */

static pl_status look_at_all(pl_verification *v)
{
    const pl_manifest *m = &v->report->manifest;
    PL_TRY(open_ranks(v));
    PL_TRY(check_cover(v));
    PL_TRY(pl_verify_work(v));
    for (int64_t i = 0; i < m->rank_count; ++i) PL_TRY(judge_rank(v, i));
    return note_surplus(v);
}

/* A damaged manifest is damage; none, or one of a later form, is something else. */
static pl_status read_manifest(pl_verification *v)
{
    pl_verify_report *report = v->report;
    struct stat info;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, v->request->folder, PL_MANIFEST_FILE);
    if (status == PL_OK && stat(pl_text_string(&path), &info) != 0)
        status = PL_FAIL(PL_BAD_INPUT, "%s: %s: this folder is no checkpoint",
                         pl_text_string(&path), strerror(errno));
    pl_text_free(&path);
    PL_TRY(status);
    ++report->files;
    status = pl_manifest_read(&report->manifest, v->request->folder);
    report->has_manifest = status == PL_OK;
    if (status != PL_BAD_INPUT && status != PL_IO_FAILED) return status;
    return pl_verify_tell_failure(v, PL_DAMAGE_MANIFEST, NULL, PL_MANIFEST_FILE, status);
}

static pl_status open_lock(pl_verification *v)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error == 0) {
        error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        if (error == 0) error = pthread_cond_init(&v->changed, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    if (error == 0) {
        error = pthread_mutex_init(&v->lock, NULL);
        if (error != 0) pthread_cond_destroy(&v->changed);
    }
    if (error != 0) return PL_FAIL(PL_NO_MEMORY, "no lock for verifying: error %d", error);
    v->has_lock = true;
    return PL_OK;
}

static void close_all(pl_verification *v)
{
    for (int64_t i = 0; v->rank && i < v->report->manifest.rank_count; ++i) {
        pl_rank_boxes_free(&v->rank[i].boxes);
        pl_free(v->rank[i].sums);
        pl_free(v->rank[i].found);
    }
    pl_free(v->rank);
    pl_text_free(&v->words);
    if (!v->has_lock) return;
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
}

pl_status pl_store_verify(pl_verify_report *out, const pl_verify_request *request)
{
    pl_verify_report report = {.has_manifest = false};
    pl_verification v = {.request = request, .report = &report};
    pl_status status = open_lock(&v);
    if (status == PL_OK) status = read_manifest(&v);
    if (status == PL_OK && report.has_manifest) status = look_at_all(&v);
    close_all(&v);
    pl_damages_sort(&report.damages);
    if (status == PL_OK)
        *out = report;
    else
        pl_verify_report_free(&report);
    return status;
}

void pl_verify_report_free(pl_verify_report *report)
{
    if (report->has_manifest) pl_manifest_free(&report->manifest);
    pl_damages_free(&report->damages);
    *report = (pl_verify_report){.has_manifest = false};
}
