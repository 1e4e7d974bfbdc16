/* Damage of every kind to a small checkpoint: none is passed over, and the words name the file. */
#include <fcntl.h>

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

/* One bit of each byte, or of each STRIDE-th byte. */
static void flip(const patient *p, const char *file, size_t stride)
{
    char path[SCRATCH_PATH];
    size_t length = 0;
    snprintf(path, sizeof path, "%s", path_of(p, file));
    char *bytes = read_bytes(path, &length);
    for (size_t i = 0; i < length; i += stride) {
        char flipped = (char)(bytes[i] ^ (1 << i % 8));
        write_at(path, (int64_t)i, &flipped, 1);
        expect_damage(p, file, "a flip", (int64_t)i);
        write_at(path, (int64_t)i, &bytes[i], 1);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_flip_is_found),
        cmocka_unit_test(each_cut_is_found),
        cmocka_unit_test(each_lack_is_found),
        cmocka_unit_test(swapped_ranks_are_found),
        cmocka_unit_test(swapped_checkpoints_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
