#include "common/schema.h"

#include <inttypes.h>
#include <string.h>

#define AT(member) .offset = offsetof(pl_run, member)
#define CHOICE(member, names, value)                                                               \
    .type = PL_VALUE_CHOICE, AT(member), .choices = (names), .initial = (value)
#define INTEGER(member, from, to, value)                                                           \
    .type = PL_VALUE_INTEGER, AT(member), .least = (from), .most = (to), .initial = (value)
#define NUMBER(member, from, to, value)                                                            \
    .type = PL_VALUE_NUMBER, AT(member), .low = (from), .high = (to), .initial = (value)
#define BATCH_MOST ((int64_t)1 << 40)

static const char *const *float_names(int *count)
{
    static const char *const names[] = {"bf16", "fp32"};
    *count = 2;
    return names;
}

static const char *const *master_names(int *count)
{
    static const char *const names[] = {"fp32"};
    *count = 1;
    return names;
}

#define ELEMENT(member, names) .type = PL_VALUE_ELEMENT, AT(member), .choices = (names)

static const pl_schema_key keys[] = {
    {"model", "a config.json, a folder with one, or a built-in name", .type = PL_VALUE_WORD,
     AT(model), .without = "required"},
    {"layout", "the mesh layout, such as folded:world=64,pp=2,ep=8", .type = PL_VALUE_WORD,
     AT(layout), .without = "required"},
    {"backend", "what computes", CHOICE(backend, pl_backend_names, "cpu")},

    {"workers",
     "threads that compute, of one process and all its ranks; 0: the processors, shared by the "
     "processes of a machine",
     INTEGER(workers, 0, 4096, "0"), .unit = "threads"},

    {"data.train", "files and folders to train on", .type = PL_VALUE_LIST, AT(data.train),
     .without = "required to train"},
    {"data.validate", "files and folders to evaluate on", .type = PL_VALUE_LIST, AT(data.validate),
     .without = "none"},
    {"data.tokenizer", "how plain text becomes tokens",
     CHOICE(data.tokenizer, pl_tokenizer_names, "bytes")},
    {"data.sequence", "length of one sequence; 2 cp divides it when cp > 1",
     INTEGER(data.sequence, 1, (int64_t)1 << 30, "4096"), .unit = "tokens"},

    {"batch.global", "sequences of one step, over all ranks; accumulation follows from it",
     INTEGER(batch.global, 1, BATCH_MOST, NULL), .unit = "sequences",
     .without = "one round; required to train"},
    {"batch.micro", "sequences of one micro-batch of one data rank",
     INTEGER(batch.micro, 1, BATCH_MOST, "1"), .unit = "sequences"},
    {"batch.intra_layer", "micro-batches carried through every layer together",
     INTEGER(batch.intra_layer, 1, 4096, "1"), .unit = "micro-batches"},

    {"policy.reshard", "when a unit's gathered parameters are let go",
     CHOICE(policy.reshard, pl_reshard_names, "after-forward")},
    {"policy.prefetch", "how early a unit's gather is issued",
     CHOICE(policy.prefetch, pl_prefetch_names, "none")},
    {"policy.recompute", "what backward computes again instead of keeping it",
     CHOICE(policy.recompute, pl_recompute_names, "none")},
    {"policy.accumulate", "where gradients of several rounds are added up",
     CHOICE(policy.accumulate, pl_accumulate_names, "sharded")},
    {"policy.dispatch", "how tokens reach their experts",
     CHOICE(policy.dispatch, pl_dispatch_names, "all-to-all")},
    {"policy.routing", "by the router's scores, or forced to be even",
     CHOICE(policy.routing, pl_routing_names, "router")},

    {"precision.compute", "type of compute and activations",
     ELEMENT(precision.compute, float_names), .without = "fp32 on cpu, else bf16"},
    {"precision.gather", "type of parameters on the wire", ELEMENT(precision.gather, float_names),
     .without = "fp32 on cpu, else bf16"},
    {"precision.gradient", "type of gradients on the wire",
     ELEMENT(precision.gradient, float_names), .initial = "fp32"},
    {"precision.master", "type of master weights and optimizer state",
     ELEMENT(precision.master, master_names), .initial = "fp32"},

    {"balance.kind", "the counts that the load-balance loss is made of",
     CHOICE(balance.kind, pl_balance_names, "micro-step")},
    {"balance.coefficient", "weight of the load-balance loss; 0 switches it off",
     NUMBER(balance.coefficient, 0, 1e6, NULL), .without = "the model's router_aux_loss_coef"},

    {"optimizer.kind", "the update rule", CHOICE(optimizer.kind, pl_optimizer_names, "adamw")},
    {"optimizer.lr", "largest learning rate", NUMBER(optimizer.lr, 0, 1000, "3e-4")},
    {"optimizer.weight_decay", "decoupled weight decay",
     NUMBER(optimizer.weight_decay, 0, 1000, "0.1")},
    {"optimizer.beta1", "decay of the first moment", NUMBER(optimizer.beta1, 0, 1, "0.9"),
     .high_open = true},
    {"optimizer.beta2", "decay of the second moment", NUMBER(optimizer.beta2, 0, 1, "0.95"),
     .high_open = true},
    {"optimizer.epsilon", "added to the root of the second moment",
     NUMBER(optimizer.epsilon, 1e-37, 1, "1e-8")},
    {"optimizer.clip", "largest norm of all gradients; 0 switches clipping off",
     NUMBER(optimizer.clip, 0, 1e30, "1.0")},
    {"optimizer.schedule.kind", "course of the learning rate",
     CHOICE(optimizer.schedule.kind, pl_schedule_names, "wsd")},
    {"optimizer.schedule.warmup", "linear warm-up", NUMBER(optimizer.schedule.warmup, 0, 1, "0"),
     .unit = "part of steps"},
    {"optimizer.schedule.decay", "decay at the end (wsd)",
     NUMBER(optimizer.schedule.decay, 0, 1, "0.1"), .unit = "part of steps"},
    {"optimizer.schedule.start", "learning rate that the warm-up begins with",
     NUMBER(optimizer.schedule.start, 0, 1, "0"), .unit = "part of lr"},
    {"optimizer.schedule.final", "what the decay goes to, reached one step after the last",
     NUMBER(optimizer.schedule.final, 0, 1, "0"), .unit = "part of lr"},

    {"steps", "optimizer steps of the run", INTEGER(steps, 1, BATCH_MOST, NULL), .unit = "steps",
     .without = "required to train"},
    {"seed", "of initial weights and data order", INTEGER(seed, 0, INT64_MAX, "1")},
    {"evaluate.every", "how often data.validate is evaluated on; 0: only at the end",
     INTEGER(evaluate.every, 0, BATCH_MOST, "0"), .unit = "steps"},
    {"evaluate.windows", "held-out sequences read each time",
     INTEGER(evaluate.windows, 1, BATCH_MOST, "64"), .unit = "sequences"},
    {"checkpoint.every",
     "how often a checkpoint is written, and then also at the end and on a signal",
     INTEGER(checkpoint.every, 1, BATCH_MOST, NULL), .unit = "steps", .without = "no checkpoints"},
    {"checkpoint.keep", "latest checkpoints that are kept; 0: all",
     INTEGER(checkpoint.keep, 0, BATCH_MOST, "2")},
    {"checkpoint.keep_every", "those of steps divisible by it are kept for good; 0: none",
     INTEGER(checkpoint.keep_every, 0, BATCH_MOST, "0"), .unit = "steps"},
    {"checkpoint.write", "whether steps wait for the disk or go on beside it",
     CHOICE(checkpoint.write, pl_checkpoint_write_names, "wait")},
    {"init_from", "a Hugging Face folder or a checkpoint with the weights to start from",
     .type = PL_VALUE_WORD, AT(init_from), .without = "none: weights follow from seed"},
    {"output", "the folder of the run", .type = PL_VALUE_WORD, AT(output),
     .without = "none: pleat-train chooses one"},
    {"keep_fp32", "patterns of tensors kept whole and fp32 on every rank", .type = PL_VALUE_LIST,
     AT(keep_fp32), .without = "none"},
    {"frozen", "patterns of tensors that are not trained", .type = PL_VALUE_LIST, AT(frozen),
     .without = "none"},
    {"timeout", "longest wait for another rank", NUMBER(timeout, 0, 1e6, "600"), .low_open = true,
     .unit = "seconds"},
};

enum { KEYS = sizeof keys / sizeof *keys };
_Static_assert((int)KEYS <= (int)PL_RUN_KEYS, "a place for each key");

const pl_schema_key *pl_schema_keys(int *count)
{
    *count = KEYS;
    return keys;
}

int pl_schema_index(const pl_schema_key *key) { return (int)(key - keys); }

const pl_schema_key *pl_schema_find(const char *name)
{
    for (int i = 0; i < KEYS; ++i)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

/* What stands behind "SECTION." in NAME, or NULL when NAME is not inside SECTION; all are inside
 * "". */
static const char *inside(const char *name, const char *section)
{
    size_t length = strlen(section);
    if (length == 0) return name;
    return strncmp(name, section, length) == 0 && name[length] == '.' ? name + length + 1 : NULL;
}

bool pl_schema_is_section(const char *name)
{
    if (!*name) return false;
    for (int i = 0; i < KEYS; ++i)
        if (inside(keys[i].name, name)) return true;
    return false;
}

void pl_schema_add_members(pl_text *text, const char *section)
{
    const char *last = "";
    size_t last_length = 0;
    for (int i = 0; i < KEYS; ++i) {
        const char *member = inside(keys[i].name, section);
        if (!member) continue;
        size_t length = strcspn(member, ".");
        if (length == last_length && strncmp(member, last, length) == 0) continue;
        pl_text_add(text, "%s%.*s", last_length ? ", " : "", (int)length, member);
        last = member;
        last_length = length;
    }
}

enum { SHOWN_MOST = 5000 };

static void add_number_range(pl_text *text, const pl_schema_key *key)
{
    pl_text_add(text, "a number %s %g", key->low_open ? "above" : "of at least", key->low);
    if (key->high < SHOWN_MOST)
        pl_text_add(text, " and %s %g", key->high_open ? "below" : "at most", key->high);
}

void pl_schema_add_allowed(pl_text *text, const pl_schema_key *key)
{
    int count = 0;
    const char *const *names = NULL;
    switch (key->type) {
    case PL_VALUE_WORD: pl_text_add_string(text, "a word"); break;
    case PL_VALUE_LIST: pl_text_add_string(text, "a list of words"); break;
    case PL_VALUE_INTEGER:
        pl_text_add(text, "a whole number of at least %" PRId64, key->least);
        if (key->most < SHOWN_MOST) pl_text_add(text, " and at most %" PRId64, key->most);
        break;
    case PL_VALUE_NUMBER: add_number_range(text, key); break;
    case PL_VALUE_CHOICE:
    case PL_VALUE_ELEMENT:
        names = key->choices(&count);
        pl_text_add_string(text, count > 1 ? "one of " : "always ");
        for (int i = 0; i < count; ++i) pl_text_add(text, "%s%s", i ? ", " : "", names[i]);
        break;
    }
}

static void add_default(pl_text *text, const pl_schema_key *key)
{
    pl_text_add_string(text, key->initial ? key->initial : key->without);
}

static void describe_markdown(pl_text *text)
{
    pl_text_add_string(text, "| Key | Value | Default | Meaning |\n|---|---|---|---|\n");
    for (int i = 0; i < KEYS; ++i) {
        pl_text_add(text, "| `%s` | ", keys[i].name);
        pl_schema_add_allowed(text, &keys[i]);
        if (keys[i].unit) pl_text_add(text, " (%s)", keys[i].unit);
        pl_text_add_string(text, " | ");
        add_default(text, &keys[i]);
        pl_text_add(text, " | %s |\n", keys[i].meaning);
    }
}

void pl_run_describe_keys(pl_text *text, bool markdown)
{
    if (markdown) {
        describe_markdown(text);
        return;
    }
    for (int i = 0; i < KEYS; ++i) {
        pl_text_add(text, "  %-26s %s", keys[i].name, keys[i].meaning);
        if (keys[i].unit) pl_text_add(text, " (%s)", keys[i].unit);
        pl_text_add(text, "\n  %-26s ", "");
        pl_schema_add_allowed(text, &keys[i]);
        pl_text_add_string(text, "; default: ");
        add_default(text, &keys[i]);
        pl_text_add_string(text, "\n");
    }
}
