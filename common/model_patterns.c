/* keep_fp32 and frozen: patterns over tensor names. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/model_internal.h"

/* '*' and '?' over the whole of NAME: on a mismatch the last '*' takes one more character. */
static bool wildcard_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            ++pattern;
            ++name;
        } else if (star) {
            pattern = star;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*') ++pattern;
    return !*pattern;
}

/* PART stands in NAME between dots or ends. */
static bool dotted_part_matches(const char *part, const char *name)
{
    size_t length = strlen(part);
    if (length == 0) return false;
    for (const char *at = strstr(name, part); at; at = strstr(at + 1, part)) {
        bool begins = at == name || at[-1] == '.';
        bool ends = at[length] == '\0' || at[length] == '.';
        if (begins && ends) return true;
    }
    return false;
}

static bool pattern_matches(const char *pattern, const char *name)
{
    if (strpbrk(pattern, "*?")) return wildcard_matches(pattern, name);
    return dotted_part_matches(pattern, name);
}

static const char *name_in(pl_text *buffer, const pl_tensor *tensor)
{
    pl_text_clear(buffer);
    pl_tensor_name(buffer, tensor);
    return pl_text_string(buffer);
}

/* How many of a stack's experts PATTERN matches by the names that they have on disk; *FIRST is
 * one of them. */
static int64_t count_experts(const char *pattern, const pl_tensor *tensor, pl_text *buffer,
                             int64_t *first)
{
    int64_t count = 0;
    for (int64_t expert = 0; expert < tensor->experts; ++expert) {
        pl_text_clear(buffer);
        pl_tensor_expert_name(buffer, tensor, expert);
        if (!pattern_matches(pattern, pl_text_string(buffer))) continue;
        if (count++ == 0) *first = expert;
    }
    return count;
}

/* A kind of pattern: the key of the run file, and the bit that it sets in the marks. */
typedef struct kind {
    const char *key;
    unsigned char bit;
    bool experts_allowed;
} kind;

static const kind keep_fp32_kind = {"keep_fp32", 1, false};
static const kind frozen_kind = {"frozen", 2, true};

static pl_status match_experts(bool *matched, const kind *k, const char *pattern,
                               const pl_tensor *tensor, pl_text *buffer)
{
    int64_t first = 0, count = 0;
    *matched = pattern_matches(pattern, name_in(buffer, tensor));
    if (!*matched) count = count_experts(pattern, tensor, buffer, &first);
    if (!*matched && count == 0) return PL_OK;
    if (*matched)
        name_in(buffer, tensor);
    else {
        pl_text_clear(buffer);
        pl_tensor_expert_name(buffer, tensor, first);
    }
    if (!k->experts_allowed)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: pattern '%s' matches the routed experts '%s'; allowed: patterns that "
                       "match other tensors only, since experts are always sharded",
                       k->key, pattern, pl_text_string(buffer));
    if (count > 0 && count < tensor->experts)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: pattern '%s' matches '%s' and %" PRId64 " of its layer's %" PRId64
                       " experts; allowed: all experts of a layer or none",
                       k->key, pattern, pl_text_string(buffer), count, tensor->experts);
    *matched = true;
    return PL_OK;
}

/* Words that names are made of, in the order in which a name has them. */
static const char *const name_words[] = {
    "model",
    "layers",
    "embed_tokens",
    "norm",
    "lm_head",
    "input_layernorm",
    "self_attn",
    "q_proj",
    "q_a_proj",
    "q_a_layernorm",
    "q_b_proj",
    "k_proj",
    "v_proj",
    "kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "kv_b_proj",
    "o_proj",
    "q_norm",
    "k_norm",
    "post_attention_layernorm",
    "mlp",
    "block_sparse_moe",
    "gate",
    "shared_experts",
    "experts",
    "gate_proj",
    "up_proj",
    "down_proj",
    "w1",
    "w3",
    "w2",
    "weight",
    "bias",
};

enum { NAME_WORDS = sizeof name_words / sizeof *name_words };

static bool some_tensor_has(const pl_model *model, const char *part, pl_text *buffer)
{
    for (int64_t i = 0; i < model->tensor_count; ++i)
        if (dotted_part_matches(part, name_in(buffer, &model->tensors[i]))) return true;
    return false;
}

/* Add PATTERN with its first unknown word replaced by the nearest that this model has. */
static void add_suggestion(pl_text *words, const pl_model *model, const char *pattern,
                           pl_text *buffer)
{
    enum { PART = 64 };
    const char *known[NAME_WORDS];
    int count = 0;
    for (int i = 0; i < NAME_WORDS; ++i)
        if (some_tensor_has(model, name_words[i], buffer)) known[count++] = name_words[i];
    for (const char *at = pattern; *at;) {
        char part[PART];
        size_t length = strcspn(at, ".*?");
        if (length > 0 && length < PART) {
            memcpy(part, at, length);
            part[length] = '\0';
            const char *near =
                some_tensor_has(model, part, buffer) ? NULL : pl_nearest(part, known, count);
            if (near) {
                pl_text_add(words, "; did you mean '%.*s%s%s'?", (int)(at - pattern), pattern, near,
                            at + length);
                return;
            }
        }
        at += length;
        at += strspn(at, ".*?");
    }
}

static pl_status refuse_unmatched(const kind *k, const char *pattern, const pl_model *model,
                                  pl_text *buffer)
{
    pl_text words = {0};
    int64_t example = model->tensor_count > 1 ? 1 : 0;
    add_suggestion(&words, model, pattern, buffer);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK) name_in(buffer, &model->tensors[example]);
    if (status == PL_OK) status = pl_text_status(buffer);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: pattern '%s' matches no tensor of %s%s Names are like '%s', layers "
                         "0 to %" PRId64,
                         k->key, pattern, model->name, words.length ? pl_text_string(&words) : ".",
                         pl_text_string(buffer), model->num_hidden_layers - 1);
    pl_text_free(&words);
    return status;
}

/* Set the kind's bit in MARKS of all tensors that PATTERN matches. */
static pl_status mark(unsigned char *marks, const kind *k, const char *pattern,
                      const pl_model *model, pl_text *buffer)
{
    bool any = false;
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        bool matched = false;
        if (tensor->experts > 0)
            PL_TRY(match_experts(&matched, k, pattern, tensor, buffer));
        else
            matched = pattern_matches(pattern, name_in(buffer, tensor));
        PL_TRY(pl_text_status(buffer));
        if (matched) marks[i] |= k->bit;
        any = any || matched;
    }
    return any ? PL_OK : refuse_unmatched(k, pattern, model, buffer);
}

static pl_status mark_all(unsigned char *marks, const kind *k, const char *const *patterns,
                          int count, const pl_model *model)
{
    pl_text buffer = {0};
    pl_status status = PL_OK;
    for (int i = 0; i < count && status == PL_OK; ++i)
        status = mark(marks, k, patterns[i], model, &buffer);
    pl_text_free(&buffer);
    return status;
}

pl_status pl_model_apply_patterns(pl_model *model, const char *const *keep_fp32,
                                  int keep_fp32_count, const char *const *frozen, int frozen_count)
{
    unsigned char *marks = NULL; /* the model changes only when every pattern is right */
    PL_TRY(pl_allocate(&marks, (size_t)model->tensor_count, 1, "marks of tensors"));
    pl_status status = mark_all(marks, &keep_fp32_kind, keep_fp32, keep_fp32_count, model);
    if (status == PL_OK) status = mark_all(marks, &frozen_kind, frozen, frozen_count, model);
    for (int64_t i = 0; i < model->tensor_count && status == PL_OK; ++i) {
        if (marks[i] & keep_fp32_kind.bit) model->tensors[i].class_ = PL_CLASS_IGNORED;
        if (marks[i] & frozen_kind.bit) model->tensors[i].frozen = true;
    }
    pl_free(marks);
    return status;
}
