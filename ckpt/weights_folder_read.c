/* Reading the weights of a folder. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors_set.h"
#include "ckpt/weights_folder.h"
#include "ckpt/weights_folder_values.h"
#include "common/memory.h"

struct pl_weights {
    pl_safetensors_set set;
};

/* Values that are converted, or compared, at a time. */
enum { PIECE = 4096, MOST_BYTES = 4 };

/* Names of tensors that are wrong in one way; the first few are shown. */
enum { SHOWN_NAMES = 8 };

typedef struct complaint {
    pl_text words;
    int64_t count;
} complaint;

typedef struct checker {
    pl_safetensors_set *set; /* gets notes */
    bool *known;             /* by place: the model has it */
    complaint missing, wrong, unexpected, skipped;
} checker;

static void complain(complaint *c, const char *name)
{
    char shown[PL_SAFETENSORS_SHOWN];
    if (c->count++ < SHOWN_NAMES)
        pl_text_add(&c->words, "%s%s", c->count > 1 ? "; " : "", pl_safetensors_show(name, shown));
}

static void complain_of_shape(complaint *c, const pl_safetensors_tensor *found,
                              const pl_tensor *tensor)
{
    complain(c, found->name);
    if (c->count > SHOWN_NAMES) return;
    pl_text_add(&c->words, " is %s [", pl_safetensors_type_name(found->type));
    for (int64_t i = 0; i < found->dimensions && i < 8; ++i)
        pl_text_add(&c->words, "%s%" PRId64, i > 0 ? ", " : "", found->shape[i]);
    pl_text_add(&c->words, "]; allowed: F32, BF16 or F16 [%" PRId64, tensor->rows);
    if (tensor->dimensions == 2) pl_text_add(&c->words, ", %" PRId64, tensor->cols);
    pl_text_add_string(&c->words, "]");
}

static bool has_shape(const pl_safetensors_tensor *found, const pl_tensor *tensor)
{
    pl_dtype dtype;
    if (!pl_safetensors_type_dtype(&dtype, found->type) || !pl_weights_dtype_fits(dtype))
        return false;
    return found->dimensions == tensor->dimensions && found->shape[0] == tensor->rows &&
           (tensor->dimensions == 1 || found->shape[1] == tensor->cols);
}

static pl_status check_tensor(checker *c, const pl_tensor *tensor)
{
    pl_text name = {0};
    pl_status status = PL_OK;
    for (int64_t expert = 0; expert < pl_weights_count(tensor) && status == PL_OK; ++expert) {
        status = pl_weights_name(&name, tensor, expert);
        if (status != PL_OK) break;
        const pl_safetensors_place *place = pl_safetensors_set_find(c->set, pl_text_string(&name));
        if (!place)
            complain(&c->missing, pl_text_string(&name));
        else if (!has_shape(place->tensor, tensor))
            complain_of_shape(&c->wrong, place->tensor, tensor);
        if (place) c->known[place - c->set->places] = true;
    }
    pl_text_free(&name);
    return status;
}

static bool is_skipped(const char *name)
{
    static const char ending[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name);
    return length >= sizeof ending - 1 && strcmp(name + length - (sizeof ending - 1), ending) == 0;
}

/* Whether both tensors have the same bits. */
static pl_status same_bits(bool *out, const pl_safetensors_place *a, const pl_safetensors_place *b)
{
    char x[PIECE], y[PIECE];
    *out = a->tensor->type == b->tensor->type && a->tensor->bytes == b->tensor->bytes;
    for (int64_t first = 0; *out && first < a->tensor->bytes; first += PIECE) {
        int64_t rest = a->tensor->bytes - first, count = rest < PIECE ? rest : PIECE;
        PL_TRY(pl_safetensors_read(a->file, a->tensor, first, count, x));
        PL_TRY(pl_safetensors_read(b->file, b->tensor, first, count, y));
        *out = memcmp(x, y, (size_t)count) == 0;
    }
    return PL_OK;
}

/* A tied head may stand in the file too, if it says the same as the embedding. */
static pl_status check_tied_head(checker *c)
{
    bool same = false;
    const pl_safetensors_place *head = pl_safetensors_set_find(c->set, "lm_head.weight");
    const pl_safetensors_place *embedding =
        pl_safetensors_set_find(c->set, "model.embed_tokens.weight");
    if (!head || !embedding) return PL_OK;
    c->known[head - c->set->places] = true;
    PL_TRY(same_bits(&same, head, embedding));
    if (!same)
        complain(&c->wrong, "lm_head.weight differs from model.embed_tokens.weight, to which the "
                            "model ties it");
    return PL_OK;
}

static void add_complaint(pl_text *text, const char *what, const complaint *c)
{
    if (c->count == 0) return;
    pl_text_add(text, "\n  %s (%" PRId64 "): %s", what, c->count, pl_text_string(&c->words));
    if (c->count > SHOWN_NAMES) pl_text_add(text, "; and %" PRId64 " more", c->count - SHOWN_NAMES);
}

static pl_status say(const checker *c, const char *path, const pl_model *model)
{
    pl_text text = {0};
    if (c->missing.count == 0 && c->wrong.count == 0 && c->unexpected.count == 0) return PL_OK;
    add_complaint(&text, "missing", &c->missing);
    add_complaint(&text, "wrong", &c->wrong);
    add_complaint(&text, "unexpected", &c->unexpected);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = pl_text_status(&c->missing.words);
    if (status == PL_OK) status = pl_text_status(&c->wrong.words);
    if (status == PL_OK) status = pl_text_status(&c->unexpected.words);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT, "%s: these are not the weights of model '%s'%s", path,
                         model->name, pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

static void note_skipped(pl_text *notes, const char *path, const complaint *skipped)
{
    if (skipped->count == 0) return;
    pl_text_add(notes, "%s: not read, since they are no parameters (%" PRId64 "): %s%s\n", path,
                skipped->count, pl_text_string(&skipped->words),
                skipped->count > SHOWN_NAMES ? "; ..." : "");
    notes->out_of_memory |= skipped->words.out_of_memory;
}

static pl_status check_all(checker *c, const char *path, const pl_model *model)
{
    for (int64_t i = 0; i < model->tensor_count; ++i) PL_TRY(check_tensor(c, &model->tensors[i]));
    if (model->tie_word_embeddings) PL_TRY(check_tied_head(c));
    for (int64_t i = 0; i < c->set->place_count; ++i) {
        const char *name = c->set->places[i].tensor->name;
        if (!c->known[i]) complain(is_skipped(name) ? &c->skipped : &c->unexpected, name);
    }
    note_skipped(&c->set->notes, path, &c->skipped);
    return say(c, path, model);
}

static pl_status check(pl_safetensors_set *set, const char *path, const pl_model *model)
{
    checker c = {.set = set};
    PL_TRY(pl_allocate(&c.known, (size_t)set->place_count, sizeof *c.known, "known tensors"));
    pl_status status = check_all(&c, path, model);
    pl_free(c.known);
    pl_text_free(&c.missing.words);
    pl_text_free(&c.wrong.words);
    pl_text_free(&c.unexpected.words);
    pl_text_free(&c.skipped.words);
    return status;
}

pl_status pl_weights_open(pl_weights **out, const char *path, const pl_model *model)
{
    pl_weights *weights = NULL;
    PL_TRY(pl_allocate(&weights, 1, sizeof *weights, "weights"));
    pl_status status = pl_safetensors_set_open(&weights->set, path);
    if (status == PL_OK) status = check(&weights->set, path, model);
    if (status == PL_OK) status = pl_weights_note_config(&weights->set.notes, path, model);
    if (status == PL_OK)
        *out = weights;
    else
        pl_weights_close(weights);
    return status;
}

void pl_weights_close(pl_weights *weights)
{
    if (!weights) return;
    pl_safetensors_set_close(&weights->set);
    pl_free(weights);
}

const char *pl_weights_notes(const pl_weights *weights)
{
    return pl_text_string(&weights->set.notes);
}

/* COUNT values from number FIRST of PLACE. */
static pl_status read_values(const pl_safetensors_place *place, int64_t first, int64_t count,
                             pl_dtype dtype, void *out)
{
    char piece[PIECE * MOST_BYTES];
    pl_dtype stored = PL_FP32;
    if (!pl_safetensors_type_dtype(&stored, place->tensor->type))
        return PL_FAIL(PL_INTERNAL, "%s: the type was not checked", place->file->file);
    int64_t width = pl_dtype_bytes(stored);
    if (stored == dtype)
        return pl_safetensors_read(place->file, place->tensor, first * width, count * width, out);
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t now = count - done < PIECE ? count - done : PIECE;
        PL_TRY(pl_safetensors_read(place->file, place->tensor, (first + done) * width, now * width,
                                   piece));
        pl_weights_convert((char *)out + done * pl_dtype_bytes(dtype), dtype, piece, stored, now);
    }
    return PL_OK;
}

/* The tensor of the files that expert EXPERT of TENSOR is; NAME is room for its name. */
static pl_status find_place(const pl_safetensors_place **out, const pl_weights *weights,
                            const pl_tensor *tensor, int64_t expert, pl_text *name)
{
    PL_TRY(pl_weights_name(name, tensor, expert));
    *out = pl_safetensors_set_find(&weights->set, pl_text_string(name));
    if (!*out || !has_shape((*out)->tensor, tensor))
        return PL_FAIL(PL_INTERNAL, "%s is no tensor of the model that was checked",
                       pl_text_string(name));
    return PL_OK;
}

static pl_status read_range(const pl_weights *weights, const pl_tensor *tensor, int64_t first,
                            int64_t count, pl_dtype dtype, char *out)
{
    int64_t each = tensor->rows * tensor->cols, now = 0;
    pl_text name = {0};
    pl_status status = PL_OK;
    for (int64_t done = 0; done < count && status == PL_OK; done += now) {
        const pl_safetensors_place *place = NULL;
        int64_t expert = (first + done) / each, inside = (first + done) % each;
        now = count - done < each - inside ? count - done : each - inside;
        status = find_place(&place, weights, tensor, expert, &name);
        if (status == PL_OK)
            status = read_values(place, inside, now, dtype, out + done * pl_dtype_bytes(dtype));
    }
    pl_text_free(&name);
    return status;
}

pl_status pl_weights_read_values(const pl_weights *weights, const pl_tensor *tensor, int64_t first,
                                 int64_t count, pl_dtype dtype, void *out)
{
    int64_t all = pl_tensor_elements(tensor);
    if (first < 0 || count < 0 || first > all || count > all - first)
        return PL_FAIL(PL_INTERNAL, "values [%" PRId64 ", +%" PRId64 ") of %s, which has %" PRId64,
                       first, count, tensor->suffix, all);
    PL_TRY(pl_weights_check_rows(tensor, 0, 0, dtype));
    return read_range(weights, tensor, first, count, dtype, out);
}

pl_status pl_weights_read(const pl_weights *weights, const pl_tensor *tensor, int64_t row_begin,
                          int64_t row_end, pl_dtype dtype, void *out)
{
    PL_TRY(pl_weights_check_rows(tensor, row_begin, row_end, dtype));
    return read_range(weights, tensor, row_begin * tensor->cols,
                      (row_end - row_begin) * tensor->cols, dtype, out);
}

static pl_status stored_dtype(pl_dtype *out, const pl_weights *weights, const pl_tensor *tensor,
                              pl_text *name)
{
    pl_safetensors_type first = PL_SAFETENSORS_F32;
    for (int64_t expert = 0; expert < pl_weights_count(tensor); ++expert) {
        const pl_safetensors_place *place = NULL;
        PL_TRY(find_place(&place, weights, tensor, expert, name));
        if (expert == 0) first = place->tensor->type;
        if (place->tensor->type != first)
            return PL_FAIL(PL_UNSUPPORTED,
                           "%s is %s, and that of expert 0 is %s: the experts of a layer are kept "
                           "as one tensor of one type",
                           pl_text_string(name), pl_safetensors_type_name(place->tensor->type),
                           pl_safetensors_type_name(first));
    }
    (void)pl_safetensors_type_dtype(out, first); /* has_shape has looked at it */
    return PL_OK;
}

pl_status pl_weights_stored_dtype(pl_dtype *out, const pl_weights *weights, const pl_tensor *tensor)
{
    pl_text name = {0};
    pl_status status = stored_dtype(out, weights, tensor, &name);
    pl_text_free(&name);
    return status;
}
