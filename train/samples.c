#include "train/samples.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/data_permutation.h"

struct pl_samples {
    pl_tokens *tokens; /* owned */
    int64_t sequence, count;
    uint64_t seed;
};

/* A batch that is being filled. */
typedef struct filling {
    const pl_samples *samples;
    const pl_shape *shape;
    int64_t first; /* number of the first sample of all ranks */
    int64_t end;   /* in order: from this number on there are none */
    int64_t data_index, data_ranks;
    bool in_order;
    int32_t *window; /* [sequence + 1] */
} filling;

void pl_samples_describe(pl_text *text)
{
    pl_text_add_string(
        text,
        "Sample i is the S+1 tokens from token i*S on: the first S go in, the last S are the\n"
        "labels. What is left at the end is dropped: count = floor((tokens - 1) / S).\n"
        "A step of A rounds, M micro-batches, D data ranks and micro-batches of B sequences reads\n"
        "A*M*D*B samples, numbered over the whole run (step, round, ... from 0):\n\n"
        "    number = step*A*M*D*B + ((round*M + micro-batch)*D + data rank)*B + place\n"
        "    epoch  = floor(number / count)\n"
        "    sample = permutation of (seed, epoch) at (number mod count)\n\n"
        "Held-out data is read in order, sample = number, each time from the beginning.\n");
}

static pl_status check_count(const pl_samples *samples)
{
    int64_t tokens = pl_tokens_count(samples->tokens);
    if (samples->sequence < 1)
        return PL_FAIL(PL_INTERNAL, "samples of %" PRId64 " tokens", samples->sequence);
    if (samples->count > 0) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%" PRId64 " tokens in %" PRId64 " file%s; a sequence of %" PRId64
                   " and the label of its last token need %" PRId64,
                   tokens, pl_tokens_files(samples->tokens),
                   pl_tokens_files(samples->tokens) == 1 ? "" : "s", samples->sequence,
                   samples->sequence + 1);
}

pl_status pl_samples_open(pl_samples **out, const char *const *paths, size_t count,
                          int64_t vocabulary, int64_t sequence, uint64_t seed)
{
    pl_samples *samples = NULL;
    PL_TRY(pl_allocate(&samples, 1, sizeof *samples, "samples"));
    samples->sequence = sequence;
    samples->seed = seed;
    pl_status status = pl_tokens_open(&samples->tokens, paths, count, vocabulary);
    if (status == PL_OK && sequence > 0)
        samples->count = (pl_tokens_count(samples->tokens) - 1) / sequence;
    if (status == PL_OK) status = check_count(samples);
    if (status == PL_OK)
        *out = samples;
    else
        pl_samples_close(samples);
    return status;
}

void pl_samples_close(pl_samples *samples)
{
    if (!samples) return;
    pl_tokens_close(samples->tokens);
    pl_free(samples);
}

int64_t pl_samples_count(const pl_samples *samples) { return samples->count; }

const pl_tokens *pl_samples_tokens(const pl_samples *samples) { return samples->tokens; }

/* The window of the stream that is sample NUMBER of the run; -1 where there is none. */
static int64_t window_of(const filling *f, int64_t number)
{
    const pl_samples *s = f->samples;
    if (f->in_order) return number < f->end ? number : -1;
    pl_permutation order = pl_permutation_make(s->count, s->seed, (uint64_t)(number / s->count));
    return pl_permutation_at(&order, number % s->count);
}

static pl_status fill_sample(const filling *f, int64_t number, int32_t *tokens, int32_t *labels)
{
    const int64_t sequence = f->samples->sequence, window = window_of(f, number);
    if (window < 0) {
        for (int64_t i = 0; i < sequence; ++i) {
            tokens[i] = 0;
            labels[i] = -1;
        }
        return PL_OK;
    }
    PL_TRY(pl_tokens_read(f->samples->tokens, window * sequence, sequence + 1, f->window));
    memcpy(tokens, f->window, (size_t)sequence * sizeof *tokens);
    memcpy(labels, f->window + 1, (size_t)sequence * sizeof *labels);
    return PL_OK;
}

static pl_status fill(const filling *f, int32_t *batch)
{
    const pl_shape *shape = f->shape;
    const int64_t half = shape->micro_batch * shape->sequence;
    for (int64_t step = 0; step < shape->rounds * shape->intra_layer; ++step) {
        int32_t *tokens = batch + step * 2 * half, *labels = tokens + half;
        int64_t first = f->first + (step * f->data_ranks + f->data_index) * shape->micro_batch;
        for (int64_t place = 0; place < shape->micro_batch; ++place)
            PL_TRY(fill_sample(f, first + place, tokens + place * shape->sequence,
                               labels + place * shape->sequence));
    }
    return PL_OK;
}

/* Samples of one step of all ranks. */
static pl_status step_samples(int64_t *out, const pl_shape *shape, int64_t data_ranks)
{
    int64_t samples = 0;
    PL_TRY(pl_multiply(&samples, shape->rounds, shape->intra_layer, "micro-steps"));
    PL_TRY(pl_multiply(&samples, samples, data_ranks, "micro-batches of a step"));
    return pl_multiply(out, samples, shape->micro_batch, "samples of a step");
}

static pl_status check(const filling *f)
{
    int64_t samples = 0, end = 0;
    if (f->shape->sequence != f->samples->sequence)
        return PL_FAIL(PL_INTERNAL, "sequences of %" PRId64 " from samples of %" PRId64,
                       f->shape->sequence, f->samples->sequence);
    if (f->data_index < 0 || f->data_index >= f->data_ranks || f->first < 0)
        return PL_FAIL(PL_INTERNAL, "data rank %" PRId64 " of %" PRId64 ", first sample %" PRId64,
                       f->data_index, f->data_ranks, f->first);
    PL_TRY(step_samples(&samples, f->shape, f->data_ranks));
    return pl_add(&end, f->first, samples, "samples of the run");
}

static pl_status load(filling *f, int32_t *batch)
{
    PL_TRY(check(f));
    PL_TRY(pl_allocate(&f->window, (size_t)f->samples->sequence + 1, sizeof *f->window,
                       "tokens of a sample"));
    pl_status status = fill(f, batch);
    pl_free(f->window);
    return status;
}

pl_status pl_samples_load_from(const pl_samples *samples, int64_t first, const pl_shape *shape,
                               int64_t data_index, int64_t data_ranks, int32_t *batch)
{
    filling f = {.samples = samples,
                 .shape = shape,
                 .first = first,
                 .data_index = data_index,
                 .data_ranks = data_ranks};
    return load(&f, batch);
}

pl_status pl_samples_load(const pl_samples *samples, int64_t step, const pl_shape *shape,
                          int64_t data_index, int64_t data_ranks, int32_t *batch)
{
    int64_t first = 0;
    PL_TRY(step_samples(&first, shape, data_ranks));
    PL_TRY(pl_multiply(&first, step, first, "samples of the run"));
    return pl_samples_load_from(samples, first, shape, data_index, data_ranks, batch);
}

pl_status pl_samples_load_in_order(const pl_samples *samples, int64_t first, int64_t most,
                                   const pl_shape *shape, int64_t data_index, int64_t data_ranks,
                                   int32_t *batch)
{
    filling f = {.samples = samples,
                 .shape = shape,
                 .first = first,
                 .end = most < samples->count ? most : samples->count,
                 .data_index = data_index,
                 .data_ranks = data_ranks,
                 .in_order = true};
    return load(&f, batch);
}

pl_status pl_samples_entropy(const pl_samples *samples, int64_t most, double *nats_out)
{
    int32_t first = 0; /* it is no label, but is read */
    int64_t windows = most < samples->count ? most : samples->count;
    if (most < 1) return PL_FAIL(PL_INTERNAL, "entropy of %" PRId64 " samples", most);
    PL_TRY(pl_tokens_read(samples->tokens, 0, 1, &first));
    return pl_tokens_entropy(samples->tokens, 1, windows * samples->sequence, nats_out);
}
