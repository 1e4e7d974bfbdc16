/* Loading: each rank of a layout reads the rows that it holds, as the trainer does. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/store_reader.h"
#include "common/placement.h"
#include "tests/bench/checkpoint_rates.h"

static const double limit = 0.8;

typedef struct loading {
    pl_store_reader *reader;
    pl_layout layout;
    int64_t bytes; /* atomic: that ranks have got */
    bool failed;   /* atomic */
} loading;

typedef struct loading_rank {
    loading *all;
    int64_t rank;
    pthread_t thread;
    char *room;
} loading_rank;

static int64_t row_bytes(const pl_manifest *m, int kind, int64_t tensor)
{
    if (!pl_keeps(&m->kept[tensor], (pl_value_kind)kind)) return 0;
    return pl_kept_kind_row_bytes(&m->model.tensors[tensor], &m->kept[tensor], (pl_value_kind)kind);
}

/* Room for the largest box of all ranks. */
static int64_t longest_box(const pl_manifest *m, const pl_layout *layout)
{
    int64_t longest = 1;
    for (int64_t rank = 0; rank < layout->world; ++rank)
        for (int64_t i = 0; i < m->model.tensor_count; ++i)
            for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
                pl_box box = pl_placement_box(layout, &m->model.tensors[i], rank);
                int64_t bytes = (box.end - box.begin) * row_bytes(m, kind, i);
                if (bytes > longest) longest = bytes;
            }
    return longest;
}

static pl_status load_all(loading_rank *one)
{
    loading *all = one->all;
    const pl_manifest *m = pl_store_reader_manifest(all->reader);
    for (int64_t i = 0; i < m->model.tensor_count; ++i)
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
            pl_box box = pl_placement_box(&all->layout, &m->model.tensors[i], one->rank);
            int64_t row = row_bytes(m, kind, i), bytes = (box.end - box.begin) * row;
            if (bytes == 0) continue;
            PL_TRY(
                pl_store_read(all->reader, (pl_value_kind)kind, i, box.begin, box.end, one->room));
            __atomic_fetch_add(&all->bytes, bytes, __ATOMIC_RELAXED);
        }
    return PL_OK;
}

static void *load_rank(void *context)
{
    loading_rank *one = context;
    if (load_all(one) == PL_OK) return NULL;
    fprintf(stderr, "checkpoint_rates: %s\n", pl_error_text());
    __atomic_store_n(&one->all->failed, true, __ATOMIC_RELAXED);
    return NULL;
}

/* Seconds from an unopened checkpoint to all values in memory. */
static double load_once(loading *all, const char *checkpoint, int64_t longest)
{
    loading_rank ranks[RATES_RANKS];
    all->bytes = 0;
    for (int i = 0; i < RATES_RANKS; ++i) {
        ranks[i] = (loading_rank){.all = all, .rank = i, .room = malloc((size_t)longest)};
        if (!ranks[i].room) exit(3);
        for (int64_t at = 0; at < longest; at += 4096) ranks[i].room[at] = 1;
    }
    double began = raw_now();
    if (pl_store_reader_open(&all->reader, checkpoint) != PL_OK) {
        fprintf(stderr, "checkpoint_rates: %s\n", pl_error_text());
        return -1;
    }
    for (int i = 0; i < RATES_RANKS; ++i)
        if (pthread_create(&ranks[i].thread, NULL, load_rank, &ranks[i]) != 0) exit(3);
    for (int i = 0; i < RATES_RANKS; ++i) pthread_join(ranks[i].thread, NULL);
    double seconds = raw_now() - began;
    for (int i = 0; i < RATES_RANKS; ++i) free(ranks[i].room);
    pl_store_reader_close(all->reader);
    return all->failed ? -1 : seconds;
}

static bool find_longest(int64_t *out, const char *checkpoint, const pl_layout *layout)
{
    pl_store_reader *reader = NULL;
    if (pl_store_reader_open(&reader, checkpoint) != PL_OK) return false;
    *out = longest_box(pl_store_reader_manifest(reader), layout);
    pl_store_reader_close(reader);
    return true;
}

static bool measure(rates *r, const char *checkpoint, const char *notation)
{
    loading all = {.reader = NULL};
    raw_files files;
    int64_t longest = 0;
    char what[160];
    rates_series series = {.count = 0};
    if (pl_layout_parse(&all.layout, notation) != PL_OK ||
        !find_longest(&longest, checkpoint, &all.layout) || !raw_list(&files, checkpoint, ".h5"))
        return fprintf(stderr, "checkpoint_rates: %s\n", pl_error_text()), false;
    for (; series.count < r->rounds; ++series.count)
        for (int turn = 0; turn < 2; ++turn) {
            bool raw = (turn + series.count) % 2 == 0;
            if (!raw_make_cold(checkpoint)) return false;
            double seconds =
                raw ? raw_read(&files, RATES_RANKS) : load_once(&all, checkpoint, longest);
            if (seconds < 0) return false;
            (raw ? series.yardstick : series.seconds)[series.count] = seconds;
        }
    series.yardstick_bytes = (double)files.bytes;
    series.bytes = (double)all.bytes;
    snprintf(what, sizeof what, "load by %s against raw cold read, 8 threads", notation);
    rates_say(r, &series, what, limit);
    return true;
}

bool rates_load(rates *r, const char *checkpoint)
{
    return measure(r, checkpoint, "folded:world=8,ep=8") &&
           measure(r, checkpoint, "decoupled:world=8,ep=2") &&
           measure(r, checkpoint, "decoupled:world=8,ep=4,replicas=2");
}
