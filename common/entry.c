#include "common/entry.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const operation_names[PL_OPERATION_COUNT] = {
    [PL_OP_LOAD_BATCH] = "load-batch",
    [PL_OP_COUNT_TOKENS] = "count-tokens",
    [PL_OP_COPY] = "copy",
    [PL_OP_INITIALIZE] = "initialize",
    [PL_OP_WRITE] = "write",
    [PL_OP_READ] = "read",
    [PL_OP_ZERO] = "zero",
    [PL_OP_CAST] = "cast",
    [PL_OP_GATHER] = "gather",
    [PL_OP_RESHARD] = "reshard",
    [PL_OP_REDUCE] = "reduce",
    [PL_OP_ACCUMULATE] = "accumulate",
    [PL_OP_EMBED] = "embed",
    [PL_OP_ATTENTION] = "attention",
    [PL_OP_MLP] = "mlp",
    [PL_OP_ROUTE] = "route",
    [PL_OP_EXCHANGE_COUNTS] = "exchange-counts",
    [PL_OP_BIND] = "bind",
    [PL_OP_PERMUTE] = "permute",
    [PL_OP_SHARE_ROUTES] = "share-routes",
    [PL_OP_DISPATCH] = "dispatch",
    [PL_OP_EXPERTS] = "experts",
    [PL_OP_COMBINE] = "combine",
    [PL_OP_MERGE] = "merge",
    [PL_OP_FINAL_NORM] = "final-norm",
    [PL_OP_LOSS] = "loss",
    [PL_OP_LOGITS] = "logits",
    [PL_OP_SAMPLE] = "sample",
    [PL_OP_BALANCE] = "balance",
    [PL_OP_ALL_REDUCE] = "all-reduce",
    [PL_OP_SCALE] = "scale",
    [PL_OP_GRADIENT_NORM] = "gradient-norm",
    [PL_OP_CLIP] = "clip",
    [PL_OP_STEP] = "step",
    [PL_OP_CONTROL] = "control",
};

static const char *const subject_names[PL_SUBJECT_COUNT] = {"embed",
                                                            "layer",
                                                            "experts",
                                                            "norm",
                                                            "head",
                                                            "batch",
                                                            "tokens",
                                                            "balance",
                                                            "dense-gradients",
                                                            "expert-gradients",
                                                            "ignored-gradients",
                                                            "gradients",
                                                            "dense-squares",
                                                            "expert-squares",
                                                            "parameters",
                                                            "loss",
                                                            "flags"};

static const char *const pass_names[PL_PASS_COUNT] = {"-", "f", "r", "bi", "bw", "b"};

static const char *const pass_words[PL_PASS_COUNT] = {
    "", "forward", "recompute", "backward-inputs", "backward-weights", "backward"};

static const char *const stream_names[PL_STREAM_COUNT] = {"compute", "communication", "copy",
                                                          "host"};

static int find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; ++i)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

const char *pl_operation_name(pl_operation operation) { return operation_names[operation]; }

bool pl_operation_parse(pl_operation *out, const char *name)
{
    int found = find(operation_names, PL_OPERATION_COUNT, name);
    if (found >= 0) *out = (pl_operation)found;
    return found >= 0;
}

const char *pl_pass_name(pl_pass pass) { return pass_names[pass]; }

bool pl_pass_parse(pl_pass *out, const char *name)
{
    int found = find(pass_names, PL_PASS_COUNT, name);
    if (found >= 0) *out = (pl_pass)found;
    return found >= 0;
}

const char *pl_stream_name(pl_stream stream) { return stream_names[stream]; }

bool pl_stream_parse(pl_stream *out, const char *name)
{
    int found = find(stream_names, PL_STREAM_COUNT, name);
    if (found >= 0) *out = (pl_stream)found;
    return found >= 0;
}

pl_entry_name pl_entry_name_make(pl_operation operation, pl_subject subject)
{
    pl_entry_name name = {.operation = (uint8_t)operation,
                          .subject = (uint8_t)subject,
                          .pass = PL_PASS_NONE,
                          .layer = -1,
                          .chunk = -1,
                          .round = -1,
                          .micro_batch = -1,
                          .ordinal = 0};
    return name;
}

bool pl_entry_name_equal(const pl_entry_name *a, const pl_entry_name *b)
{
    return a->operation == b->operation && a->subject == b->subject && a->pass == b->pass &&
           a->layer == b->layer && a->chunk == b->chunk && a->round == b->round &&
           a->micro_batch == b->micro_batch && a->ordinal == b->ordinal;
}

static bool has_layer(int subject)
{
    return subject == PL_SUBJECT_LAYER || subject == PL_SUBJECT_EXPERTS;
}

void pl_subject_print(pl_text *text, pl_subject subject, int32_t layer)
{
    pl_text_add_string(text, subject_names[subject]);
    if (!has_layer((int)subject)) return;
    pl_text_add_string(text, ".");
    pl_text_add_number(text, layer);
}

bool pl_subject_parse(pl_subject *subject, int32_t *layer, const char *word)
{
    size_t stem = strcspn(word, ".");
    for (int i = 0; i < PL_SUBJECT_COUNT; ++i) {
        if (strlen(subject_names[i]) != stem || strncmp(subject_names[i], word, stem) != 0)
            continue;
        int64_t number = -1;
        if (has_layer(i) != (word[stem] == '.')) return false;
        if (has_layer(i) && (!pl_parse_integer(&number, word + stem + 1) || number < 0 ||
                             number > INT32_MAX || (word[stem + 1] == '0' && word[stem + 2])))
            return false;
        *subject = (pl_subject)i;
        *layer = (int32_t)number;
        return true;
    }
    return false;
}

void pl_entry_name_print(pl_text *text, const pl_entry_name *name)
{
    pl_text_add(text, "%s ", operation_names[name->operation]);
    pl_subject_print(text, (pl_subject)name->subject, name->layer);
    if (name->chunk >= 0) pl_text_add(text, " chunk %" PRId32, name->chunk);
    if (name->round >= 0) pl_text_add(text, " round %" PRId32, name->round);
    if (name->micro_batch >= 0) pl_text_add(text, " mb %" PRId32, name->micro_batch);
    if (name->pass != PL_PASS_NONE) pl_text_add(text, " %s", pass_words[name->pass]);
    if (name->ordinal > 0) pl_text_add(text, " #%" PRId32, name->ordinal);
}
