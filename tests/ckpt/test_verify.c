/* Damage of every kind to a small checkpoint: none is passed over, and the words name the file. */
#include <fcntl.h>

#include "ckpt/store_reader.h"
#include "ckpt/store_verify.h"
#include "common/memory.h"
#include "tests/ckpt/checkpoint_trial.h"

/* A model so small that each byte of its checkpoint can have its turn, and the same with experts.
 */
static const char smallest[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 4, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 2,"
    " \"intermediate_size\": 2, \"vocab_size\": 4, \"max_position_embeddings\": 8,"
    " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
    " \"torch_dtype\": \"float32\"}";

static const char small[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 4, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 2,"
    " \"intermediate_size\": 2, \"moe_intermediate_size\": 2, \"num_experts\": 2,"
    " \"num_experts_per_tok\": 1, \"vocab_size\": 4, \"max_position_embeddings\": 8,"
    " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"norm_topk_prob\": true,"
    " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
    " \"torch_dtype\": \"float32\"}";

/* A checkpoint "step-1" in a folder of its own. */
typedef struct patient {
    scratch s;
    checkpoint_trial trial;
} patient;

static patient make_patient_of(const char *config, pl_dtype dtype, pl_optimizer optimizer,
                               const char *layout)
{
    patient p = {.s = make_scratch()};
    write_words(&p.s, "config.json", config);
    trial_open(&p.trial, in_scratch(&p.s, "config.json"), dtype, optimizer, NULL, NULL);
    assert_ok(trial_write(&p.trial, p.s.folder, 1, layout));
    return p;
}

static patient make_patient(pl_dtype dtype, pl_optimizer optimizer, const char *layout)
{
    return make_patient_of(small, dtype, optimizer, layout);
}

static void end_patient(patient *p)
{
    trial_close(&p->trial);
    remove_scratch(&p->s);
}

static pl_verify_report verify(const scratch *s, const char *name, int threads)
{
    char folder[SCRATCH_PATH];
    pl_verify_report report;
    snprintf(folder, sizeof folder, "%s", in_scratch(s, name));
    const pl_verify_request request = {.folder = folder, .threads = threads};
    assert_ok(pl_store_verify(&report, &request));
    return report;
}

/* Whether some damage of the report is of KIND (PL_DAMAGE_KIND_COUNT: of any) and of FILE. */
static bool names(const pl_verify_report *report, pl_damage_kind kind, const char *file)
{
    for (size_t i = 0; i < report->damages.count; ++i) {
        const pl_damage *damage = &report->damages.list[i];
        if ((kind == PL_DAMAGE_KIND_COUNT || damage->kind == kind) &&
            strcmp(damage->file, file) == 0)
            return true;
    }
    return false;
}

static size_t count_of(const scratch *s, const char *name)
{
    pl_verify_report report = verify(s, name, 2);
    size_t count = pl_damages_count(&report.damages);
    pl_verify_report_free(&report);
    return count;
}

/* The file in "step-1" has damage, and so it says. */
static void expect_damage(const patient *p, const char *file, const char *what, int64_t place)
{
    pl_verify_report report = verify(&p->s, "step-1", 1);
    if (pl_damages_count(&report.damages) == 0 || !names(&report, PL_DAMAGE_KIND_COUNT, file))
        fail_msg("%s of byte %lld of %s is passed over", what, (long long)place, file);
    pl_verify_report_free(&report);
}

/* --- each file of a checkpoint --- */

static void each_file(const patient *p, void (*visit)(const patient *p, const char *file))
{
    char files[64][256];
    int count = 0;
    DIR *list = opendir(in_scratch(&p->s, "step-1"));
    assert_non_null(list);
    for (struct dirent *entry = readdir(list); entry; entry = readdir(list)) {
        if (entry->d_name[0] == '.') continue;
        assert_true(count < 64);
        snprintf(files[count++], sizeof files[0], "%s", entry->d_name);
    }
    closedir(list);
    assert_true(count >= 5);
    for (int i = 0; i < count; ++i) visit(p, files[i]);
    assert_int_equal(count_of(&p->s, "step-1"), 0); /* all is as it was */
}

static const char *path_of(const patient *p, const char *file)
{
    char name[96];
    snprintf(name, sizeof name, "step-1/%s", file);
    return in_scratch(&p->s, name);
}

static void write_at(const char *path, int64_t place, const void *bytes, size_t count)
{
    int descriptor = open(path, O_WRONLY);
    assert_true(descriptor >= 0);
    assert_int_equal(pwrite(descriptor, bytes, count, (off_t)place), count);
    close(descriptor);
}

static bool every_bit(void) { return getenv("PLEAT_EVERY_BIT") != NULL; }

/* One bit of each STRIDE-th byte; with PLEAT_EVERY_BIT, all of them. */
static void flip(const patient *p, const char *file, size_t stride)
{
    char path[SCRATCH_PATH];
    size_t length = 0, flips = 0;
    snprintf(path, sizeof path, "%s", path_of(p, file));
    char *bytes = read_bytes(path, &length);
    for (size_t i = 0; i < length; i += stride) {
        for (size_t bit = every_bit() ? 0 : i % 8; bit < 8; bit += every_bit() ? 1 : 8) {
            char flipped = (char)(bytes[i] ^ (1 << bit));
            write_at(path, (int64_t)i, &flipped, 1);
            expect_damage(p, file, "a flip", (int64_t)i);
            ++flips;
        }
        write_at(path, (int64_t)i, &bytes[i], 1);
    }
    if (every_bit()) print_message("%s: %zu bits of %zu bytes found\n", file, flips, length);
    free(bytes);
}

static void flip_each(const patient *p, const char *file) { flip(p, file, 1); }

static void flip_some(const patient *p, const char *file) { flip(p, file, 97); }

static void each_flip_is_found(void **state)
{
    patient p = make_patient_of(smallest, PL_FP32, PL_OPTIMIZER_SGD, "single:world=1");
    (void)state;
    each_file(&p, flip_each);
    end_patient(&p);
    p = make_patient(PL_BF16, PL_OPTIMIZER_ADAMW, "legacy:world=2,ep=2");
    each_file(&p, flip_some);
    end_patient(&p);
}

/* Read every value of "step-1" into VALUES, one behind the other. */
static pl_status load_all(const patient *p, char *values)
{
    pl_store_reader *reader = NULL;
    PL_TRY(pl_store_reader_open(&reader, in_scratch(&p->s, "step-1")));
    const pl_manifest *m = pl_store_reader_manifest(reader);
    pl_status status = PL_OK;
    for (int64_t i = 0; status == PL_OK && i < m->model.tensor_count; ++i)
        for (int kind = 0; status == PL_OK && kind < PL_VALUE_KIND_COUNT; ++kind) {
            int64_t rows = pl_tensor_total_rows(&m->model.tensors[i]);
            if (!pl_keeps(&m->kept[i], (pl_value_kind)kind)) continue;
            status = pl_store_read(reader, (pl_value_kind)kind, i, 0, rows, values);
            values += rows * pl_kept_kind_row_bytes(&m->model.tensors[i], &m->kept[i],
                                                    (pl_value_kind)kind);
        }
    pl_store_reader_close(reader);
    return status;
}

enum { VALUES_MOST = 1 << 16 };

/* A load either fails or has every bit right: what a flip may hit without harm is a file of values
 * outside them, or the index. */
static void load_with_flips(const patient *p, const char *file)
{
    static char right[VALUES_MOST], loaded[VALUES_MOST];
    char path[SCRATCH_PATH];
    size_t length = 0, refused = 0;
    bool h5 = strstr(file, ".h5") != NULL;
    memset(right, 0, sizeof right);
    assert_ok(load_all(p, right));
    snprintf(path, sizeof path, "%s", path_of(p, file));
    char *bytes = read_bytes(path, &length);
    for (size_t i = 0; i < length; i += h5 ? 5 : 3) {
        char flipped = (char)(bytes[i] ^ (1 << i % 8));
        write_at(path, (int64_t)i, &flipped, 1);
        memset(loaded, 0, sizeof loaded);
        pl_status status = load_all(p, loaded);
        refused += status != PL_OK;
        bool harmless = h5 && memcmp(right, loaded, sizeof right) == 0;
        if (status == PL_OK ? !harmless : status != PL_BAD_INPUT && status != PL_UNSUPPORTED)
            fail_msg("a flip of byte %zu of %s: status %d", i, file, (int)status);
        write_at(path, (int64_t)i, &bytes[i], 1);
    }
    assert_true(refused > 0 || strcmp(file, PL_MANIFEST_INDEX) == 0);
    free(bytes);
}

static void no_load_takes_a_flip(void **state)
{
    patient p = make_patient(PL_BF16, PL_OPTIMIZER_ADAMW, "legacy:world=2,ep=2");
    (void)state;
    each_file(&p, load_with_flips);
    end_patient(&p);
}

/* --- files cut short, longer, gone --- */

/* Put COUNT bytes in the place of the file. */
static void replace_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void cut_short(const patient *p, const char *file)
{
    char path[SCRATCH_PATH];
    size_t length = 0;
    snprintf(path, sizeof path, "%s", path_of(p, file));
    char *bytes = read_bytes(path, &length);
    size_t step = length / 40 + 1;
    for (size_t kept = 0; kept < length; kept += step) {
        assert_int_equal(truncate(path, (off_t)kept), 0);
        expect_damage(p, file, "a cut", (int64_t)kept);
        replace_bytes(path, bytes, length);
    }
    assert_int_equal(truncate(path, (off_t)length - 1), 0);
    expect_damage(p, file, "a cut", (int64_t)length - 1);
    assert_int_equal(truncate(path, (off_t)length + 1), 0);
    replace_bytes(path, bytes, length);
    write_at(path, (int64_t)length, "\n", 1);
    expect_damage(p, file, "a byte more", (int64_t)length);
    replace_bytes(path, bytes, length);
    free(bytes);
}

static void each_cut_is_found(void **state)
{
    patient p = make_patient(PL_BF16, PL_OPTIMIZER_ADAMW, "legacy:world=2,ep=2");
    (void)state;
    each_file(&p, cut_short);
    end_patient(&p);
}

static void move_away(const patient *p, const char *file)
{
    char path[SCRATCH_PATH], away[SCRATCH_PATH];
    snprintf(path, sizeof path, "%s", path_of(p, file));
    snprintf(away, sizeof away, "%s", in_scratch(&p->s, "away"));
    assert_int_equal(rename(path, away), 0);
    if (strcmp(file, PL_MANIFEST_FILE) == 0) {
        const pl_verify_request request = {.folder = in_scratch(&p->s, "step-1"), .threads = 1};
        pl_verify_report report;
        assert_fails(PL_BAD_INPUT, pl_store_verify(&report, &request), "manifest.json",
                     "this folder is no checkpoint");
    } else {
        expect_damage(p, file, "the lack", 0);
    }
    assert_int_equal(mkdir(path, 0755), 0); /* something else in its place */
    expect_damage(p, file, "a folder in the place", 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rename(away, path), 0);
}

static void each_lack_is_found(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_SGD, "legacy:world=2,ep=2");
    (void)state;
    each_file(&p, move_away);
    end_patient(&p);
}

/* --- files of others --- */

static void swap(const char *a, const char *b)
{
    char away[SCRATCH_PATH];
    snprintf(away, sizeof away, "%s.away", a);
    assert_int_equal(rename(a, away), 0);
    assert_int_equal(rename(b, a), 0);
    assert_int_equal(rename(away, b), 0);
}

/* The two ranks hold rows of the same sizes. */
static void swapped_ranks_are_found(void **state)
{
    static const char *const endings[] = {".h5", ".json", ".sums"};
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_ADAMW, "legacy:world=2");
    (void)state;
    for (int i = 0; i < 3; ++i) {
        char first[64], second[64];
        snprintf(first, sizeof first, "rank-00000%s", endings[i]);
        snprintf(second, sizeof second, "rank-00001%s", endings[i]);
        swap(path_of(&p, first), path_of(&p, second));
        expect_damage(&p, first, "the other rank's file in the place", 0);
        expect_damage(&p, second, "the other rank's file in the place", 0);
        swap(path_of(&p, first), path_of(&p, second));
    }
    for (int i = 0; i < 3; ++i) { /* all three together */
        char first[64], second[64];
        snprintf(first, sizeof first, "rank-00000%s", endings[i]);
        snprintf(second, sizeof second, "rank-00001%s", endings[i]);
        swap(path_of(&p, first), path_of(&p, second));
    }
    expect_damage(&p, "rank-00000.json", "the other rank's files in the place", 0);
    end_patient(&p);
}

static void fill_otherwise(unsigned char *values, const pl_checkpoint_box *box)
{
    for (int64_t i = 0; i < box->bytes; ++i)
        values[i] = (unsigned char)(trial_byte((pl_value_kind)box->kind, box->tensor, i) ^ 0x55);
}

static void swap_with_other(const patient *p, const char *file)
{
    char name[300];
    if (strcmp(file, "rank-00000.json") == 0) return; /* says the same of the same boxes but sums */
    snprintf(name, sizeof name, "step-2/%s", file);
    swap(path_of(p, file), in_scratch(&p->s, name));
    if (strcmp(file, PL_MANIFEST_INDEX) == 0) {
        assert_int_equal(count_of(&p->s, "step-1"), 0); /* it is the same, byte for byte */
    } else if (strcmp(file, PL_MANIFEST_FILE) == 0) {
        expect_damage(p, "rank-00000.json", "another manifest", 0);
    } else {
        expect_damage(p, file, "the other checkpoint's file in the place", 0);
    }
    swap(path_of(p, file), in_scratch(&p->s, name));
}

static void swapped_checkpoints_are_found(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_ADAMW, "single:world=1");
    (void)state;
    p.trial.fill = fill_otherwise;
    assert_ok(trial_write(&p.trial, p.s.folder, 2, "single:world=1"));
    each_file(&p, swap_with_other);
    end_patient(&p);
}

/* --- what is said --- */

static const pl_damage *only_damage(const pl_verify_report *report, pl_damage_kind kind)
{
    assert_int_equal(report->damages.count, 1);
    assert_int_equal(report->damages.list[0].kind, kind);
    return &report->damages.list[0];
}

/* A tensor of three blocks, the last of them short: the place of each is told, and neighbours are
 * told together. */
static void damage_of_values_has_its_place(void **state)
{
    enum { ROW = 64 * 4, ROWS = 257 * 40, BLOCK = PL_CHECKPOINT_BLOCK };
    static const char large[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 1,"
        " \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 2,"
        " \"intermediate_size\": 2, \"vocab_size\": 10280, \"max_position_embeddings\": 8,"
        " \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
        " \"torch_dtype\": \"float32\"}";
    patient p = make_patient_of(large, PL_FP32, PL_OPTIMIZER_SGD, "single:world=1");
    char path[SCRATCH_PATH];
    pl_rank_boxes boxes;
    pl_manifest manifest;
    (void)state;
    assert_ok(pl_manifest_read(&manifest, in_scratch(&p.s, "step-1")));
    assert_ok(pl_rank_boxes_read(&boxes, &manifest, in_scratch(&p.s, "step-1"), 0));
    const pl_checkpoint_box *box = pl_checkpoint_boxes_find(&boxes.boxes, PL_VALUE_PARAMETER, 0);
    assert_int_equal(box->bytes, ROWS * ROW);
    snprintf(path, sizeof path, "%s", path_of(&p, "rank-00000.h5"));
    write_at(path, box->offset + 2 * BLOCK + 100, "damage", 6);
    pl_verify_report report = verify(&p.s, "step-1", 3);
    const pl_damage *damage = only_damage(&report, PL_DAMAGE_VALUES);
    assert_int_equal(damage->tensor, 0);
    assert_int_equal(damage->row_begin, 2 * BLOCK / ROW);
    assert_int_equal(damage->row_end, ROWS);
    assert_int_equal(damage->byte_begin, box->offset + 2 * BLOCK);
    assert_int_equal(damage->byte_end, box->offset + box->bytes);
    pl_text words = {0};
    pl_damage_print(&words, damage, &report.manifest.model);
    assert_non_null(strstr(pl_text_string(&words),
                           "rows 8192-10279 of model.embed_tokens.weight (param), bytes "));
    pl_text_free(&words);
    pl_verify_report_free(&report);
    write_at(path, box->offset + BLOCK, "damage", 6);
    report = verify(&p.s, "step-1", 3);
    damage = only_damage(&report, PL_DAMAGE_VALUES); /* two blocks, one after the other */
    assert_int_equal(damage->row_begin, BLOCK / ROW);
    assert_int_equal(damage->row_end, ROWS);
    pl_verify_report_free(&report);
    pl_rank_boxes_free(&boxes);
    pl_manifest_free(&manifest);
    end_patient(&p);
}

/* Values are judged by what their sums would be, all together, where the sums are gone. */
static void values_are_judged_without_sums(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_SGD, "legacy:world=2");
    (void)state;
    assert_int_equal(unlink(path_of(&p, "rank-00001.sums")), 0);
    pl_verify_report report = verify(&p.s, "step-1", 2);
    only_damage(&report, PL_DAMAGE_MISSING);
    pl_verify_report_free(&report);
    write_at(path_of(&p, "rank-00001.h5"), 4000, "damaged, wherever that is", 25);
    report = verify(&p.s, "step-1", 2);
    assert_true(names(&report, PL_DAMAGE_MISSING, "rank-00001.sums"));
    assert_true(names(&report, PL_DAMAGE_VALUES, "rank-00001.h5") ||
                names(&report, PL_DAMAGE_OUTSIDE, "rank-00001.h5"));
    pl_verify_report_free(&report);
    end_patient(&p);
}

static void other_ranks_are_looked_at(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_SGD, "legacy:world=3");
    pl_rank_boxes boxes;
    pl_manifest manifest;
    (void)state;
    assert_ok(pl_manifest_read(&manifest, in_scratch(&p.s, "step-1")));
    assert_ok(pl_rank_boxes_read(&boxes, &manifest, in_scratch(&p.s, "step-1"), 2));
    write_at(path_of(&p, "rank-00000.json"), 10, "!", 1);
    write_at(path_of(&p, "rank-00001.sums"), 3, "!", 1);
    write_at(path_of(&p, "rank-00002.h5"), boxes.boxes.box[0].offset, "!", 1);
    write_at(path_of(&p, "index.h5"), 3, "?", 1);
    write_words(&p.s, "step-1/surplus", "");
    write_words(&p.s, "step-1/pinned", "");
    pl_verify_report report = verify(&p.s, "step-1", 2);
    assert_int_equal(report.damages.count, 5);
    assert_int_equal(pl_damages_count(&report.damages), 4);
    assert_int_equal(report.unseen, 1);
    assert_true(names(&report, PL_DAMAGE_LIST, "rank-00000.json"));
    assert_true(names(&report, PL_DAMAGE_SUMS, "rank-00001.sums"));
    assert_true(names(&report, PL_DAMAGE_VALUES, "rank-00002.h5"));
    assert_true(names(&report, PL_DAMAGE_INDEX, "index.h5"));
    assert_true(names(&report, PL_DAMAGE_SURPLUS, "surplus"));
    pl_verify_report_free(&report);
    pl_rank_boxes_free(&boxes);
    pl_manifest_free(&manifest);
    end_patient(&p);
}

/* --- checkpoints that were written wrong: every hash is right --- */

/* The files of one rank, to be written again otherwise. */
typedef struct forgery {
    const patient *p;
    pl_manifest manifest;
    pl_rank_boxes boxes;
    int64_t index;
} forgery;

static forgery open_forgery(const patient *p, int64_t index)
{
    forgery f = {.p = p, .index = index};
    assert_ok(pl_manifest_read(&f.manifest, in_scratch(&p->s, "step-1")));
    assert_ok(pl_rank_boxes_read(&f.boxes, &f.manifest, in_scratch(&p->s, "step-1"), index));
    return f;
}

static void close_forgery(forgery *f)
{
    char name[PL_MANIFEST_NAME];
    pl_text text = {0};
    pl_manifest_rank *facts = &f->manifest.ranks[f->index];
    facts->sums.hash = f->boxes.sums_hash;
    facts->data.hash = pl_hash_pair(f->boxes.sums_hash, f->boxes.outside_hash);
    assert_ok(pl_rank_boxes_write(&text, &f->boxes));
    facts->boxes = (pl_file_facts){(int64_t)text.length, pl_hash(text.bytes, text.length)};
    pl_manifest_rank_file(facts->rank, ".json", name);
    replace_bytes(path_of(f->p, name), text.bytes, text.length);
    assert_ok(pl_manifest_write(&text, &f->manifest));
    replace_bytes(path_of(f->p, PL_MANIFEST_FILE), text.bytes, text.length);
    pl_text_free(&text);
    pl_rank_boxes_free(&f->boxes);
    pl_manifest_free(&f->manifest);
}

static void rows_twice_and_nowhere_are_found(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_SGD, "legacy:world=2");
    forgery f = open_forgery(&p, 1);
    (void)state;
    assert_int_equal(f.boxes.boxes.box[0].row_begin, 2); /* of four */
    f.boxes.boxes.box[0].row_begin = 1;
    f.boxes.boxes.box[0].row_end = 3;
    close_forgery(&f);
    pl_verify_report report = verify(&p.s, "step-1", 2);
    assert_int_equal(report.damages.count, 2);
    const pl_damage *twice = &report.damages.list[0], *nowhere = &report.damages.list[1];
    assert_true(twice->kind == PL_DAMAGE_COVER && nowhere->kind == PL_DAMAGE_COVER);
    assert_true(twice->row_begin == 1 && twice->row_end == 2);
    assert_non_null(strstr(twice->words, "are twice there: rank 0 and rank 1"));
    assert_true(nowhere->row_begin == 3 && nowhere->row_end == 4);
    assert_non_null(strstr(nowhere->words, "are in no rank's file"));
    pl_verify_report_free(&report);
    end_patient(&p);
}

/* The list has the two moments of a tensor the other way round, and so have the sums; HDF5 knows
 * better. */
static void datasets_elsewhere_are_found(void **state)
{
    char path[SCRATCH_PATH], eight[8];
    size_t length = 0;
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_ADAMW, "single:world=1");
    forgery f = open_forgery(&p, 0);
    (void)state;
    pl_checkpoint_box *box = f.boxes.boxes.box;
    size_t tensors = f.boxes.boxes.count / 3, m = tensors, v = 2 * tensors;
    assert_true(box[m].kind == PL_VALUE_ADAM_M && box[v].kind == PL_VALUE_ADAM_V);
    assert_true(box[m].tensor == 0 && box[v].tensor == 0);
    int64_t offset = box[m].offset;
    box[m].offset = box[v].offset;
    box[v].offset = offset;
    snprintf(path, sizeof path, "%s", path_of(&p, "rank-00000.sums"));
    char *sums = read_bytes(path, &length);
    memcpy(eight, sums + 8 * m, 8);
    memcpy(sums + 8 * m, sums + 8 * v, 8);
    memcpy(sums + 8 * v, eight, 8);
    f.boxes.sums_hash = pl_hash(sums, length);
    replace_bytes(path, sums, length);
    free(sums);
    close_forgery(&f);
    pl_verify_report report = verify(&p.s, "step-1", 2);
    const pl_damage *damage = only_damage(&report, PL_DAMAGE_DATASETS);
    assert_string_equal(damage->file, "rank-00000.h5");
    assert_non_null(strstr(damage->words, "dataset /adam_m/model.embed_tokens.weight"));
    pl_verify_report_free(&report);
    end_patient(&p);
}

/* --- memory --- */

static void failing_allocations_are_told(void **state)
{
    patient p = make_patient(PL_FP32, PL_OPTIMIZER_SGD, "legacy:world=2");
    const pl_verify_request request = {.folder = in_scratch(&p.s, "step-1"), .threads = 2};
    int64_t failures = 0;
    (void)state;
    write_at(path_of(&p, "rank-00001.sums"), 3, "!", 1); /* so that there is something to tell */
    for (int64_t after = 0;; ++after) {
        pl_verify_report report;
        pl_allocation_fail_after(after);
        pl_status status = pl_store_verify(&report, &request);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (!failed) {
            assert_ok(status);
            pl_verify_report_free(&report);
            break;
        }
        assert_int_equal(status, PL_NO_MEMORY);
        ++failures;
    }
    assert_true(failures > 50);
    end_patient(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_flip_is_found),
        cmocka_unit_test(no_load_takes_a_flip),
        cmocka_unit_test(each_cut_is_found),
        cmocka_unit_test(each_lack_is_found),
        cmocka_unit_test(swapped_ranks_are_found),
        cmocka_unit_test(swapped_checkpoints_are_found),
        cmocka_unit_test(damage_of_values_has_its_place),
        cmocka_unit_test(values_are_judged_without_sums),
        cmocka_unit_test(other_ranks_are_looked_at),
        cmocka_unit_test(rows_twice_and_nowhere_are_found),
        cmocka_unit_test(datasets_elsewhere_are_found),
        cmocka_unit_test(failing_allocations_are_told),
    };
    if (every_bit()) cmocka_set_test_filter("each_flip_is_found");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
