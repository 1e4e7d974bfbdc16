/* Saving: what pl_checkpointing does for the ranks of a run, with values that are in memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/manifest_boxes.h"
#include "common/memory.h"
#include "tests/bench/checkpoint_rates.h"
#include "train/checkpointing.h"

static const double limit = 0.8;

static const char model[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\",\n"
    " \"attention_bias\": false, \"decoder_sparse_step\": 1, \"head_dim\": 64,\n"
    " \"hidden_act\": \"silu\", \"hidden_size\": 512, \"initializer_range\": 0.02,\n"
    " \"intermediate_size\": 1024, \"max_position_embeddings\": 2048, \"mlp_only_layers\": [],\n"
    " \"moe_intermediate_size\": 256, \"norm_topk_prob\": true, \"num_attention_heads\": 8,\n"
    " \"num_experts\": 64, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 6,\n"
    " \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0,\n"
    " \"router_aux_loss_coef\": 0.001, \"tie_word_embeddings\": false,\n"
    " \"torch_dtype\": \"float32\", \"vocab_size\": 32000}\n";

static const char run_file[] = "model: %s/model.json\n"
                               "layout: legacy:world=8,ep=4\n"
                               "data: {train: [%s/text], tokenizer: bytes, sequence: 64}\n"
                               "batch: {global: 8, micro: 1}\n"
                               "optimizer: {kind: adamw, lr: 1e-3}\n"
                               "checkpoint: {every: 1, keep: 0}\n"
                               "steps: 1000\n";

typedef struct saving saving;

typedef struct saving_rank {
    saving *all;
    int64_t rank;
    pl_checkpointing *checkpoints;
    char *values; /* of the largest box */
    int64_t longest;
    pl_status status;
    char words[1024];
    pthread_t thread;
} saving_rank;

struct saving {
    pl_setup setup;
    pl_run_facts facts;
    pl_kept_values *kept;
    saving_rank rank[RATES_RANKS];
    pthread_barrier_t gate;
    int64_t nonce, step;
};

static bool tell(void) { return fprintf(stderr, "checkpoint_rates: %s\n", pl_error_text()), false; }

/* --- a run --- */

static bool write_files(const rates *r)
{
    enum { LETTERS = 1 << 16 };
    char text[2048], *letters = malloc(LETTERS + 1);
    if (!letters) return false;
    for (int i = 0; i < LETTERS; ++i) letters[i] = (char)('a' + i * i % 23);
    letters[LETTERS] = '\0';
    snprintf(text, sizeof text, run_file, r->folder, r->folder);
    bool done = rates_write_file(r->folder, "model.json", model) &&
                rates_write_file(r->folder, "run.yaml", text) &&
                rates_write_file(r->folder, "text", letters);
    free(letters);
    return done;
}

static bool open_rank(saving *s, int64_t rank)
{
    const pl_model *m = &s->setup.plan.model;
    saving_rank *one = &s->rank[rank];
    pl_checkpoint_boxes boxes;
    *one = (saving_rank){.all = s, .rank = rank};
    if (pl_checkpoint_boxes_of_rank(&boxes, m, s->kept, &s->setup.layout, rank) != PL_OK)
        return tell();
    for (size_t i = 0; i < boxes.count; ++i)
        if (boxes.box[i].bytes > one->longest) one->longest = boxes.box[i].bytes;
    pl_checkpoint_boxes_free(&boxes);
    one->values = malloc((size_t)one->longest);
    if (!one->values) return perror("checkpoint_rates"), false;
    uint64_t x = (uint64_t)rank + 1;
    for (int64_t i = 0; i + 8 <= one->longest; i += 8) {
        x = x * 6364136223846793005U + 1442695040888963407U;
        memcpy(one->values + i, &x, 8);
    }
    const pl_checkpointing_request request = {&s->setup, &s->facts, rank};
    return pl_checkpointing_open(&one->checkpoints, &request) == PL_OK || tell();
}

static bool open_saving(saving *s, const rates *r)
{
    static const pl_program_facts program = {
        .name = "checkpoint_rates", .version = "0", .commit = ""};
    char file[RAW_PATH], output[RAW_PATH];
    snprintf(file, sizeof file, "%s/run.yaml", r->folder);
    snprintf(output, sizeof output, "%s/run", r->folder);
    const pl_setup_request request = {.file = file, .output = output};
    if (!write_files(r)) return false;
    if (mkdir(output, 0755) != 0) return perror(output), false;
    if (pl_setup_open(&s->setup, &request) != PL_OK) return tell();
    const pl_setup *setup = &s->setup;
    s->facts = (pl_run_facts){.program = &program,
                              .run = &setup->run,
                              .model = &setup->model,
                              .layout = &setup->layout,
                              .shape = &setup->settings.shape,
                              .backend = "none",
                              .ranks = "threads",
                              .order = "plan",
                              .resumed = -1};
    s->kept = calloc((size_t)setup->plan.model.tensor_count, sizeof *s->kept);
    if (!s->kept || pthread_barrier_init(&s->gate, NULL, RATES_RANKS) != 0) return false;
    pl_kept_values_of_training(s->kept, &setup->plan.model, &setup->settings.precision,
                               setup->settings.optimizer);
    for (int64_t rank = 0; rank < RATES_RANKS; ++rank)
        if (!open_rank(s, rank)) return false;
    s->nonce = pl_checkpointing_nonce(s->rank[0].checkpoints);
    return true;
}

static void close_saving(saving *s)
{
    for (int rank = 0; rank < RATES_RANKS; ++rank) {
        pl_checkpointing_close(s->rank[rank].checkpoints);
        free(s->rank[rank].values);
    }
    pl_setup_free(&s->setup);
    free(s->kept);
}

/* --- a save --- */

static pl_status take_all(saving_rank *one)
{
    const saving *s = one->all;
    const pl_model *m = &s->setup.plan.model;
    pl_checkpoint_boxes boxes;
    PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, m, s->kept, &s->setup.layout, one->rank));
    pl_status status = PL_OK;
    for (size_t i = 0; status == PL_OK && i < boxes.count; ++i) {
        const pl_checkpoint_box *box = &boxes.box[i];
        status = pl_checkpointing_take(one->checkpoints, (pl_value_kind)box->kind,
                                       &m->tensors[box->tensor], box->row_begin, box->row_end,
                                       (pl_dtype)box->dtype, one->values);
    }
    pl_checkpoint_boxes_free(&boxes);
    if (status == PL_OK) status = pl_checkpointing_taken(one->checkpoints);
    return status;
}

static void *save_rank(void *context)
{
    saving_rank *one = context;
    const pl_manifest_progress progress = {one->all->step, one->all->step, 0, 0, 1};
    one->status = pl_checkpointing_begin(one->checkpoints, &progress, one->all->nonce);
    if (one->status == PL_OK) one->status = take_all(one);
    if (one->status != PL_OK) snprintf(one->words, sizeof one->words, "%s", pl_error_text());
    pthread_barrier_wait(&one->all->gate); /* the control entry of the program `save` */
    for (int i = 0; i < RATES_RANKS; ++i)
        if (one->all->rank[i].status != PL_OK) return NULL;
    if (pl_checkpointing_saved(one->checkpoints) != PL_OK) one->status = PL_IO_FAILED;
    return NULL;
}

static double save_once(saving *s)
{
    double began = raw_now();
    ++s->step;
    for (int i = 0; i < RATES_RANKS; ++i)
        if (pthread_create(&s->rank[i].thread, NULL, save_rank, &s->rank[i]) != 0) exit(3);
    for (int i = 0; i < RATES_RANKS; ++i) pthread_join(s->rank[i].thread, NULL);
    for (int i = 0; i < RATES_RANKS; ++i) {
        if (s->rank[i].status == PL_OK) continue;
        fprintf(stderr, "checkpoint_rates: rank %d: %s\n", i, s->rank[i].words);
        return -1;
    }
    return raw_now() - began;
}

/* --- rounds --- */

static void path_of(char *out, const rates *r, int64_t step)
{
    snprintf(out, RAW_PATH, "%s/run/checkpoints/step-%lld", r->folder, (long long)step);
}

static bool run_round(saving *s, const rates *r, rates_series *series, const raw_files *files)
{
    char raw[RAW_PATH], old[RAW_PATH];
    int n = series->count;
    snprintf(raw, sizeof raw, "%s/raw", r->folder);
    for (int turn = 0; turn < 2; ++turn) {
        if ((turn + n) % 2 == 0) {
            series->yardstick[n] = raw_write(files, raw, RATES_RANKS);
            if (series->yardstick[n] < 0 || !raw_remove(raw)) return false;
        } else {
            path_of(old, r, s->step);
            if (!raw_remove(old)) return false;
            series->seconds[n] = save_once(s);
            if (series->seconds[n] < 0) return false;
        }
    }
    ++series->count;
    return true;
}

static bool measure(rates *r, saving *s)
{
    char path[RAW_PATH];
    raw_files files;
    rates_series series = {.count = 0};
    if (save_once(s) < 0) return false; /* to know the files */
    path_of(path, r, s->step);
    if (!raw_list(&files, path, ".h5")) return false;
    series.bytes = series.yardstick_bytes = (double)files.bytes;
    while (series.count < r->rounds)
        if (!run_round(s, r, &series, &files)) return false;
    rates_say(r, &series, "save by 8 ranks against raw write and fsync, 8 threads", limit);
    return true;
}

bool rates_save(rates *r, const char *checkpoint)
{
    struct stat facts;
    saving *s = calloc(1, sizeof *s);
    bool done = s && open_saving(s, r) && measure(r, s);
    if (done && stat(checkpoint, &facts) != 0) done = (perror(checkpoint), false);
    if (s) close_saving(s);
    free(s);
    return done;
}
