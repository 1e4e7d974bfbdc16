/* Reading Hugging Face folders for a model (testdata/hf): every row where it should be, and one
 * complaint about all that is wrong. */
#include "ckpt/safetensors_layout.h"
#include "ckpt/safetensors_set.h"
#include "ckpt/weights_folder.h"
#include "ckpt/weights_folder_values.h"
#include "common/dtype_convert.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/scratch.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny";
static const char *const tied = "testdata/hf/qwen3-moe-tied";
static const char *const sharded = "testdata/hf/qwen3-moe-tiny-bf16-sharded";

static void *room(int64_t bytes)
{
    void *memory = malloc((size_t)bytes + 1);
    assert_non_null(memory);
    return memory;
}

/* TENSOR whole, from its file by the file's own names: for tensors of experts one after another. */
static void *read_plainly(const pl_safetensors *file, const pl_tensor *tensor)
{
    int64_t count = tensor->experts > 0 ? tensor->experts : 1, bytes = 0;
    char *out = room(pl_tensor_elements(tensor) * 4);
    for (int64_t expert = 0; expert < count; ++expert) {
        pl_text name = {0};
        if (tensor->experts > 0)
            pl_tensor_expert_name(&name, tensor, expert);
        else
            pl_tensor_name(&name, tensor);
        const pl_safetensors_tensor *found = pl_safetensors_find(file, pl_text_string(&name));
        assert_non_null(found);
        assert_ok(pl_safetensors_read(file, found, 0, found->bytes, out + bytes));
        bytes += found->bytes;
        pl_text_free(&name);
    }
    assert_int_equal(bytes, pl_tensor_elements(tensor) * 4);
    return out;
}

/* Rows of TENSOR, cut in many ways, against FILE. */
static void compare_rows(const pl_weights *weights, const pl_safetensors *file,
                         const pl_tensor *tensor)
{
    int64_t rows = pl_tensor_total_rows(tensor), row = tensor->cols * 4;
    char *whole = read_plainly(file, tensor), *some = room(rows * row);
    for (int64_t step = 1; step <= rows; step = step * 3 + 1)
        for (int64_t begin = 0; begin < rows; begin += step) {
            int64_t end = begin + step < rows ? begin + step : rows;
            assert_ok(pl_weights_read(weights, tensor, begin, end, PL_FP32, some));
            assert_memory_equal(some, whole + begin * row, (size_t)((end - begin) * row));
        }
    assert_ok(pl_weights_read(weights, tensor, rows, rows, PL_FP32, some));
    free(whole);
    free(some);
}

static void any_rows_are_those_of_the_whole(void **state)
{
    (void)state;
    static const char *const folders[] = {
        "testdata/hf/qwen3-moe-tiny", "testdata/hf/qwen3-moe-dense-first",
        "testdata/hf/qwen3-moe-tied", "testdata/hf/deepseek-v2-tiny",
        "testdata/hf/deepseek-v2-group"};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; ++f) {
        char path[SCRATCH_PATH];
        pl_model model;
        pl_weights *weights = NULL;
        pl_safetensors file;
        snprintf(path, sizeof path, "%s/model.safetensors", folders[f]);
        assert_ok(pl_model_open(&model, folders[f]));
        assert_ok(pl_weights_open(&weights, folders[f], &model));
        assert_string_equal(pl_weights_notes(weights), "");
        assert_ok(pl_safetensors_open(&file, path));
        for (int64_t t = 0; t < model.tensor_count; ++t)
            compare_rows(weights, &file, &model.tensors[t]);
        pl_safetensors_close(&file);
        pl_weights_close(weights);
        pl_model_free(&model);
    }
}

/* Tensors of FILE that MODEL has otherwise, by name, shape or type, or not at all; and those that
 * MODEL has alone. */
static int64_t differences(const pl_model *model, const pl_safetensors *file)
{
    int64_t right = 0, expected = 0;
    pl_text name = {0};
    for (int64_t t = 0; t < model->tensor_count; ++t) {
        const pl_tensor *tensor = &model->tensors[t];
        int64_t count = tensor->experts > 0 ? tensor->experts : 1;
        for (int64_t expert = 0; expert < count; ++expert, ++expected) {
            assert_ok(pl_weights_name(&name, tensor, expert));
            const pl_safetensors_tensor *found = pl_safetensors_find(file, pl_text_string(&name));
            right += found && found->type == PL_SAFETENSORS_F32 &&
                     found->dimensions == tensor->dimensions && found->shape[0] == tensor->rows &&
                     (tensor->dimensions == 1 || found->shape[1] == tensor->cols);
        }
    }
    pl_text_free(&name);
    return file->tensor_count - right + expected - right;
}

/* Hugging Face wrote the files: 83 and 137 tensors. */
static void deepseek_files_hold_the_list_and_no_more(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        int64_t tensors, parameters;
    } cases[] = {{"testdata/hf/deepseek-v2-tiny", 83, 78720},
                 {"testdata/hf/deepseek-v2-group", 137, 83016}};
    for (int i = 0; i < 2; ++i) {
        char path[SCRATCH_PATH];
        pl_model model;
        pl_safetensors file;
        snprintf(path, sizeof path, "%s/model.safetensors", cases[i].folder);
        assert_ok(pl_model_open(&model, cases[i].folder));
        assert_ok(pl_safetensors_open(&file, path));
        assert_int_equal(file.tensor_count, cases[i].tensors);
        assert_int_equal(pl_model_count(&model).total, cases[i].parameters);
        assert_int_equal(model.stored_dtype, PL_FP32);
        assert_int_equal(differences(&model, &file), 0);
        for (int64_t t = 0; t < model.tensor_count; ++t) {
            pl_tensor *tensor = &model.tensors[t];
            int64_t count = tensor->experts > 0 ? tensor->experts : 1;
            ++tensor->rows;
            assert_int_equal(differences(&model, &file), 2 * count);
            --tensor->rows;
        }
        pl_safetensors_close(&file);
        pl_model_free(&model);
    }
}

/* The weights of a small Mixtral by names that this test spells itself: expert E of layer L has
 * matrices of the one number 1000 L + 10 E + its own (1, 2 or 3). */
enum { LAYERS = 2, EXPERTS = 4, HIDDEN = 8, WIDTH = 6, NAME = 96 };

static const char mixtral_text[] =
    "{\"model_type\": \"mixtral\", \"vocab_size\": 5, \"hidden_size\": 8, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"intermediate_size\": 6, \"max_position_embeddings\": 16, \"num_local_experts\": 4, "
    "\"num_experts_per_tok\": 2}";

/* Shapes of w1, w2 and w3. */
static const int64_t expert_shapes[3][2] = {{WIDTH, HIDDEN}, {HIDDEN, WIDTH}, {WIDTH, HIDDEN}};

typedef struct written {
    char name[NAME];
    int64_t shape[2], dimensions;
    float value;
} written;

static void add_written(written *list, int *count, const char *name, int64_t rows, int64_t cols,
                        float value)
{
    written *w = &list[(*count)++];
    snprintf(w->name, sizeof w->name, "%s", name);
    w->shape[0] = rows;
    w->shape[1] = cols;
    w->dimensions = cols == 0 ? 1 : 2;
    w->value = value;
}

static void add_mixtral_layer(written *list, int *count, int layer)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } others[] = {{"input_layernorm", HIDDEN, 0},
                  {"post_attention_layernorm", HIDDEN, 0},
                  {"self_attn.q_proj", HIDDEN, HIDDEN},
                  {"self_attn.k_proj", HIDDEN / 2, HIDDEN},
                  {"self_attn.v_proj", HIDDEN / 2, HIDDEN},
                  {"self_attn.o_proj", HIDDEN, HIDDEN},
                  {"block_sparse_moe.gate", EXPERTS, HIDDEN}};
    char name[NAME];
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, others[i].name);
        add_written(list, count, name, others[i].rows, others[i].cols, 0);
    }
    for (int expert = 0; expert < EXPERTS; ++expert)
        for (int matrix = 0; matrix < 3; ++matrix) {
            snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight",
                     layer, expert, matrix + 1);
            add_written(list, count, name, expert_shapes[matrix][0], expert_shapes[matrix][1],
                        (float)(1000 * layer + 10 * expert + matrix + 1));
        }
}

static void write_mixtral(const scratch *s)
{
    enum { MOST = 3 + LAYERS * (7 + EXPERTS * 3) };
    written list[MOST];
    pl_safetensors_item items[MOST];
    pl_text header = {0};
    int count = 0;
    int64_t total = 0;
    add_written(list, &count, "model.embed_tokens.weight", 5, HIDDEN, 0);
    add_written(list, &count, "model.norm.weight", HIDDEN, 0, 0);
    add_written(list, &count, "lm_head.weight", 5, HIDDEN, 0);
    for (int layer = 0; layer < LAYERS; ++layer) add_mixtral_layer(list, &count, layer);
    assert_int_equal(count, MOST);
    for (int i = 0; i < count; ++i)
        items[i] = (pl_safetensors_item){.name = list[i].name,
                                         .type = PL_SAFETENSORS_F32,
                                         .dimensions = list[i].dimensions,
                                         .shape = list[i].shape};
    assert_ok(pl_safetensors_layout(items, count, NULL, 0, &header, &total));
    char *whole = room(total);
    memcpy(whole, header.bytes, header.length);
    for (int i = 0; i < count; ++i)
        for (int64_t at = 0; at < items[i].bytes; at += 4)
            memcpy(whole + items[i].offset + at, &list[i].value, 4);
    write_bytes(s, "model.safetensors", whole, (size_t)total);
    write_words(s, "config.json", mixtral_text);
    free(whole);
    pl_text_free(&header);
}

/* Stacks come in the order gate, up, down: w1, w3, w2. */
static void mixtral_experts_are_found_by_their_names(void **state)
{
    (void)state;
    static const int matrices[] = {1, 3, 2};
    pl_model model;
    pl_weights *weights = NULL;
    int stacks = 0;
    float values[EXPERTS * WIDTH * HIDDEN];
    scratch s = make_scratch();
    write_mixtral(&s);
    assert_ok(pl_model_open(&model, s.folder));
    assert_ok(pl_weights_open(&weights, s.folder, &model));
    assert_string_equal(pl_weights_notes(weights), "");
    for (int64_t t = 0; t < model.tensor_count; ++t) {
        const pl_tensor *tensor = &model.tensors[t];
        int64_t rows = pl_tensor_total_rows(tensor);
        if (tensor->experts == 0) continue;
        assert_ok(pl_weights_read(weights, tensor, 0, rows, PL_FP32, values));
        for (int64_t i = 0; i < rows * tensor->cols; ++i) {
            int64_t expert = i / (tensor->rows * tensor->cols);
            assert_true(values[i] ==
                        (float)(1000 * tensor->layer + 10 * expert + matrices[stacks % 3]));
        }
        ++stacks;
    }
    assert_int_equal(stacks, LAYERS * 3);
    pl_weights_close(weights);
    pl_model_free(&model);
    remove_scratch(&s);
}

static void types_are_converted_to_the_nearest(void **state)
{
    (void)state;
    pl_model model;
    pl_weights *single = NULL, *halves = NULL;
    assert_ok(pl_model_open(&model, tiny));
    assert_ok(pl_weights_open(&single, tiny, &model));
    assert_ok(pl_weights_open(&halves, sharded, &model));
    for (int64_t t = 0; t < model.tensor_count; ++t) {
        const pl_tensor *tensor = &model.tensors[t];
        int64_t rows = pl_tensor_total_rows(tensor), count = pl_tensor_elements(tensor);
        float *values = room(count * 4), *widened = room(count * 4);
        uint16_t *narrowed = room(count * 2), *stored = room(count * 2), *fp16 = room(count * 2);
        assert_ok(pl_weights_read(single, tensor, 0, rows, PL_FP32, values));
        assert_ok(pl_weights_read(single, tensor, 0, rows, PL_BF16, narrowed));
        assert_ok(pl_weights_read(single, tensor, 0, rows, PL_FP16, fp16));
        assert_ok(pl_weights_read(halves, tensor, 0, rows, PL_BF16, stored));
        assert_ok(pl_weights_read(halves, tensor, 0, rows, PL_FP32, widened));
        assert_memory_equal(narrowed, stored, (size_t)count * 2); /* PyTorch rounded those */
        for (int64_t i = 0; i < count; ++i) {
            assert_true(widened[i] == pl_bf16_to_float(stored[i]));
            assert_int_equal(fp16[i], pl_float_to_fp16(values[i]));
        }
        assert_ok(pl_weights_read(halves, tensor, 0, rows, PL_FP16, fp16));
        for (int64_t i = 0; i < count; ++i) assert_int_equal(fp16[i], pl_float_to_fp16(widened[i]));
        free(values), free(widened), free(narrowed), free(stored), free(fp16);
    }
    pl_weights_close(single);
    pl_weights_close(halves);
    pl_model_free(&model);
}

static void wrong_rows_and_types_are_refused(void **state)
{
    (void)state;
    pl_model model, other;
    pl_weights *weights = NULL;
    float out[1024];
    assert_ok(pl_model_open(&model, tiny));
    assert_ok(pl_model_open(&other, "testdata/hf/qwen3-moe-dense-first"));
    assert_ok(pl_weights_open(&weights, tiny, &model));
    const pl_tensor *embedding = &model.tensors[0];
    assert_fails(PL_INTERNAL, pl_weights_read(weights, embedding, 256, 258, PL_FP32, out),
                 "rows [256, 258)", "embed_tokens", "257");
    assert_fails(PL_INTERNAL, pl_weights_read(weights, embedding, -1, 1, PL_FP32, out), "[-1, 1)");
    assert_fails(PL_INTERNAL, pl_weights_read(weights, embedding, 0, 1, PL_FP64, out), "fp64",
                 "allowed: fp32, bf16, fp16");
    assert_fails(PL_INTERNAL, pl_weights_read(weights, &other.tensors[0], 0, 1, PL_FP32, out),
                 "no tensor of the model");
    pl_weights_close(weights);
    pl_model_free(&model);
    pl_model_free(&other);
}

static void weights_of_another_model_are_refused_at_once(void **state)
{
    (void)state;
    pl_model model;
    pl_weights *weights = NULL;
    assert_ok(pl_model_open(&model, "testdata/hf/qwen3-moe-dense-first"));
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, tiny, &model), tiny,
                 "not the weights of model 'qwen3-moe-dense-first'",
                 "missing (51): model.layers.0.mlp.gate_proj.weight", "and 43 more",
                 "model.embed_tokens.weight is F32 [257, 64]; allowed: F32, BF16 or F16 [259, 48]",
                 "unexpected (", "model.layers.0.mlp.experts.0.");
    assert_null(weights);
    pl_model_free(&model);
}

/* Write the tensors of the set at SOURCE into s/model.safetensors, but for the one named EXCEPT;
 * with the tensor ADDED of TYPE, SHAPE and BYTES (unless its name is NULL). */
static void copy_with(const scratch *s, const char *source, const char *except,
                      const pl_safetensors_item *added, const char *bytes)
{
    pl_safetensors_set set;
    pl_text header = {0};
    int64_t count = 0, total = 0;
    assert_ok(pl_safetensors_set_open(&set, source));
    pl_safetensors_item *items = room((set.place_count + 1) * (int64_t)sizeof *items);
    for (int64_t i = 0; i < set.place_count; ++i) {
        const pl_safetensors_tensor *tensor = set.places[i].tensor;
        if (except && strcmp(tensor->name, except) == 0) continue;
        items[count++] = (pl_safetensors_item){.name = tensor->name,
                                               .type = tensor->type,
                                               .dimensions = tensor->dimensions,
                                               .shape = tensor->shape};
    }
    if (added) items[count++] = *added;
    assert_ok(pl_safetensors_layout(items, count, NULL, 0, &header, &total));
    char *whole = room(total);
    memcpy(whole, header.bytes, header.length);
    for (int64_t i = 0; i < count; ++i) {
        const pl_safetensors_place *place = pl_safetensors_set_find(&set, items[i].name);
        if (added && i == count - 1)
            memcpy(whole + items[i].offset, bytes, (size_t)items[i].bytes);
        else
            assert_ok(pl_safetensors_read(place->file, place->tensor, 0, items[i].bytes,
                                          whole + items[i].offset));
    }
    write_bytes(s, "model.safetensors", whole, (size_t)total);
    free(whole);
    free(items);
    pl_text_free(&header);
    pl_safetensors_set_close(&set);
}

static void a_tied_head_is_absent_or_equal(void **state)
{
    (void)state;
    pl_model model;
    pl_weights *weights = NULL;
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, tied));
    const pl_tensor *embedding = &model.tensors[0];
    const int64_t shape[2] = {embedding->rows, embedding->cols};
    int64_t count = pl_tensor_elements(embedding);
    pl_safetensors_item head = {
        .name = "lm_head.weight", .type = PL_SAFETENSORS_F32, .dimensions = 2, .shape = shape};
    char *values = room(count * 4);
    assert_ok(pl_weights_open(&weights, tied, &model));
    assert_ok(pl_weights_read(weights, embedding, 0, embedding->rows, PL_FP32, values));
    pl_weights_close(weights);
    copy_with(&s, tied, NULL, &head, values);
    assert_ok(pl_weights_open(&weights, s.folder, &model));
    pl_weights_close(weights);
    values[count * 4 - 1] ^= 1;
    copy_with(&s, tied, NULL, &head, values);
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model), "wrong (1): lm_head",
                 "differs from model.embed_tokens.weight");
    head.type = PL_SAFETENSORS_BF16;
    copy_with(&s, tied, NULL, &head, values);
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model), "wrong (1): lm_head");
    free(values);
    pl_model_free(&model);
    remove_scratch(&s);
}

static void single_faults_are_named(void **state)
{
    (void)state;
    static const char name[] = "model.norm.weight";
    static const char zeros[64 * 8] = {0};
    const int64_t long_shape[1] = {65}, right[1] = {64}, flat[2] = {1, 64};
    pl_model model;
    pl_weights *weights = NULL;
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, tiny));
    copy_with(&s, tiny, name, NULL, NULL);
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model),
                 "missing (1): model.norm.weight");
    copy_with(&s, tiny, "model.layers.2.mlp.experts.7.down_proj.weight", NULL, NULL);
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model),
                 "missing (1): model.layers.2.mlp.experts.7.down_proj.weight");
    const struct {
        pl_safetensors_item item;
        const char *words;
    } cases[] = {
        {{.name = name, .type = PL_SAFETENSORS_F32, .dimensions = 1, .shape = long_shape},
         "model.norm.weight is F32 [65]; allowed: F32, BF16 or F16 [64]"},
        {{.name = name, .type = PL_SAFETENSORS_F32, .dimensions = 2, .shape = flat},
         "is F32 [1, 64]; allowed"},
        {{.name = name, .type = PL_SAFETENSORS_F64, .dimensions = 1, .shape = right},
         "is F64 [64]; allowed"},
        {{.name = name, .type = PL_SAFETENSORS_F32, .dimensions = 0, .shape = right},
         "is F32 []; allowed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        copy_with(&s, tiny, name, &cases[i].item, zeros);
        assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model),
                     "wrong (1): ", cases[i].words);
    }
    pl_safetensors_item extra = {
        .name = "model.extra", .type = PL_SAFETENSORS_F32, .dimensions = 1, .shape = right};
    copy_with(&s, tiny, NULL, &extra, zeros);
    assert_fails(PL_BAD_INPUT, pl_weights_open(&weights, s.folder, &model),
                 "unexpected (1): model.extra");
    extra.name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    copy_with(&s, tiny, NULL, &extra, zeros);
    assert_ok(pl_weights_open(&weights, s.folder, &model)); /* old files hold it */
    pl_weights_close(weights);
    pl_model_free(&model);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_open(&model, tied));
    const pl_tensor *tensor = &model.tensors[model.tensor_count - 2];
    assert_true(tensor->experts > 0);
    int64_t rows = pl_tensor_total_rows(tensor);
    float *values = room(pl_tensor_elements(tensor) * 4);
    pl_status status = PL_NO_MEMORY;
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_weights *weights = NULL;
        pl_allocation_fail_after(after);
        status = pl_weights_open(&weights, tied, &model);
        if (status == PL_OK) status = pl_weights_read(weights, tensor, 0, rows, PL_FP32, values);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        pl_weights_close(weights);
        assert_in_range(after, 0, 10000);
    }
    pl_allocation_fail_after(-1);
    free(values);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_rows_are_those_of_the_whole),
        cmocka_unit_test(deepseek_files_hold_the_list_and_no_more),
        cmocka_unit_test(mixtral_experts_are_found_by_their_names),
        cmocka_unit_test(types_are_converted_to_the_nearest),
        cmocka_unit_test(wrong_rows_and_types_are_refused),
        cmocka_unit_test(weights_of_another_model_are_refused_at_once),
        cmocka_unit_test(a_tied_head_is_absent_or_equal),
        cmocka_unit_test(single_faults_are_named),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
