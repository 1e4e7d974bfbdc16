/* The notation of layouts: "KIND:key=value,key=value". */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "common/layout.h"
#include "common/layout_rules.h"

enum { WORD_MAX = 64 };

/* All keys that may be typed: the numbers of a layout, its grain, derived axes, axes to come. */
typedef enum typed_key {
    KEY_WORLD = PL_KEY_WORLD,
    KEY_PP = PL_KEY_PP,
    KEY_CP = PL_KEY_CP,
    KEY_EP = PL_KEY_EP,
    KEY_REPLICAS = PL_KEY_REPLICAS,
    KEY_GRAIN,
    KEY_DP,
    KEY_FSDP,
    KEY_DP_SHARD,
    KEY_EFSDP,
    KEY_EDP,
    KEY_TP,
    KEY_ETP,
    KEY_COUNT,
    KEYS_SHOWN = KEY_TP, /* tp and etp say nothing yet, so no message offers them */
    FIRST_DERIVED = KEY_DP
} typed_key;

static const char *const keys[KEY_COUNT] = {"world", "pp", "cp",   "ep",       "replicas",
                                            "grain", "dp", "fsdp", "dp_shard", "efsdp",
                                            "edp",   "tp", "etp"};

/* Spellings of other programs. With KEY the value carries over; otherwise ANSWER says what to
 * write. */
static const struct foreign {
    const char *name, *key, *answer;
} foreign_keys[] = {
    {"sharding_strategy", NULL, "full sharding needs no key, hybrid sharding is replicas=R"},
    {"reshard_after_forward", NULL, "it is no part of a layout: set policy.reshard"},
    {"decouple_ep_fsdp", NULL, "the kind says it: 'decoupled:' for true, 'legacy:' for false"},
    {"moe_parallel_folding", NULL, "the kind says it: 'folded:'"},
    {"hsdp_sharding_size", NULL, "write replicas=R, the ranks of a stage divided by that size"},
    {"data_parallel_shard_degree", NULL,
     "it follows from the others; dp_shard=S in kind decoupled checks it"},
    {"dp_shard_degree", NULL, "it follows from the others; dp_shard=S in kind decoupled checks it"},
    {"hsdp_replica", "replicas", NULL},
    {"hsdp_replicas", "replicas", NULL},
    {"replicate", "replicas", NULL},
    {"dp_replicate", "replicas", NULL},
    {"data_parallel_replicate_degree", "replicas", NULL},
    {"num_distributed_optimizer_instances", "replicas", NULL},
    {"expert_model_parallel_size", "ep", NULL},
    {"expert_parallel_size", "ep", NULL},
    {"expert_parallel_degree", "ep", NULL},
    {"ep_size", "ep", NULL},
    {"pipeline_model_parallel_size", "pp", NULL},
    {"pipeline_parallel_size", "pp", NULL},
    {"pipeline_parallel_degree", "pp", NULL},
    {"pp_size", "pp", NULL},
    {"context_parallel_size", "cp", NULL},
    {"context_parallel_degree", "cp", NULL},
    {"cp_size", "cp", NULL},
    {"sp_size", "cp", NULL},
    {"data_parallel_size", "dp", NULL},
    {"dp_size", "dp", NULL},
    {"expert_data_parallel_size", "edp", NULL},
    {"world_size", "world", NULL},
    {"ranks", "world", NULL},
    {"nproc", "world", NULL},
    {"gpus", "world", NULL},
    {"num_gpus", "world", NULL},
    {"tensor_model_parallel_size", "tp", NULL},
    {"tensor_parallel_size", "tp", NULL},
    {"tensor_parallel_degree", "tp", NULL},
    {"tp_size", "tp", NULL},
    {"expert_tensor_parallel_size", "etp", NULL},
    {"expert_tensor_parallel_degree", "etp", NULL},
    {"etp_size", "etp", NULL},
};

enum { FOREIGN_COUNT = sizeof foreign_keys / sizeof *foreign_keys };

/* A piece of the notation without the white space around it. */
typedef struct word {
    const char *begin;
    int length, column;
} word;

typedef struct parser {
    pl_layout_request request; /* number and column of the given keys up to KEY_REPLICAS */
    int column[KEY_COUNT];     /* 0: not given */
    int64_t number[KEY_COUNT];
} parser;

static word make_word(const parser *p, const char *begin, const char *end)
{
    while (begin < end && isspace((unsigned char)*begin)) ++begin;
    while (end > begin && isspace((unsigned char)end[-1])) --end;
    word w = {begin, (int)(end - begin), (int)(begin - p->request.notation) + 1};
    return w;
}

/* Copy W into BUFFER, cut to fit; a cut word matches nothing that is known. */
static const char *word_string(char buffer[WORD_MAX], word w)
{
    int length = w.length < WORD_MAX ? w.length : WORD_MAX - 1;
    memcpy(buffer, w.begin, (size_t)length);
    buffer[length] = '\0';
    return buffer;
}

static pl_status refuse(const parser *p, int column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static pl_status refuse(const parser *p, int column, const char *format, ...)
{
    pl_text text = {0};
    pl_layout_add_place(&text, p->request.notation, column);
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

static pl_status refuse_choice(const parser *p, word w, const char *what,
                               const char *const *choices, int count)
{
    char given[WORD_MAX];
    word_string(given, w);
    pl_text text = {0};
    pl_layout_add_place(&text, p->request.notation, w.column);
    pl_text_add(&text, "unknown %s '%s'", what, given);
    pl_text_add_choices(&text, given, choices, count);
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

static pl_status parse_kind(parser *p, word w)
{
    char name[WORD_MAX];
    const char *kinds[PL_LAYOUT_KIND_COUNT];
    for (int k = 0; k < PL_LAYOUT_KIND_COUNT; ++k)
        kinds[k] = pl_layout_kind_name((pl_layout_kind)k);
    if (w.length == 0)
        return refuse(p, w.column, "no kind before ':'; write it as in 'folded:world=8,ep=2'");
    if (pl_layout_kind_parse(&p->request.kind, word_string(name, w))) return PL_OK;
    return refuse_choice(p, w, "kind", kinds, PL_LAYOUT_KIND_COUNT);
}

static pl_status parse_grain(parser *p, word value)
{
    char name[WORD_MAX];
    const char *grains[PL_GRAIN_COUNT];
    word_string(name, value);
    for (int grain = 0; grain < PL_GRAIN_COUNT; ++grain) {
        grains[grain] = pl_grain_name((pl_grain)grain);
        if (strcmp(name, grains[grain]) != 0) continue;
        p->request.grain = (pl_grain)grain;
        return PL_OK;
    }
    return refuse_choice(p, value, "grain", grains, PL_GRAIN_COUNT);
}

static pl_status parse_number(const parser *p, int64_t *out, word key, word value)
{
    char digits[WORD_MAX];
    if (value.length < WORD_MAX && pl_parse_integer(out, word_string(digits, value))) return PL_OK;
    return refuse(p, value.column, "%.*s=%.*s is no whole number from 1 to 2147483647", key.length,
                  key.begin, value.length < WORD_MAX ? value.length : WORD_MAX, value.begin);
}

/* Tensor axes are always 1 so far, under whatever name. */
static pl_status check_tensor_axis(const parser *p, word key, int64_t number)
{
    pl_text text = {0};
    if (number == 1) return PL_OK;
    pl_layout_add_place(&text, p->request.notation, key.column);
    if (number < 1) {
        pl_text_add(&text, "%.*s=%" PRId64 " is out of range; 1 would fit, or leave it out",
                    key.length, key.begin, number);
        return pl_layout_refuse(PL_BAD_INPUT, &text);
    }
    pl_text_add(&text,
                "%.*s=%" PRId64 ": this version has no tensor parallelism; leave it out, and use "
                "ep, cp or pp instead",
                key.length, key.begin, number);
    return pl_layout_refuse(PL_UNSUPPORTED, &text);
}

static pl_status answer_foreign(const parser *p, const struct foreign *foreign, word key,
                                word value)
{
    if (!foreign->key)
        return refuse(p, key.column, "'%.*s' is another program's key: %s", key.length, key.begin,
                      foreign->answer);
    if (strcmp(foreign->key, "tp") == 0 || strcmp(foreign->key, "etp") == 0) {
        int64_t number = 1;
        PL_TRY(parse_number(p, &number, key, value));
        PL_TRY(check_tensor_axis(p, key, number));
    }
    return refuse(p, key.column, "'%.*s' is another program's key; write %s=%.*s", key.length,
                  key.begin, foreign->key, value.length < WORD_MAX ? value.length : WORD_MAX,
                  value.begin);
}

static pl_status answer_unknown(const parser *p, word key, word value)
{
    char name[WORD_MAX];
    const char *foreign_names[FOREIGN_COUNT];
    word_string(name, key);
    for (int i = 0; i < FOREIGN_COUNT; ++i) {
        if (pl_same_word(name, foreign_keys[i].name))
            return answer_foreign(p, &foreign_keys[i], key, value);
        foreign_names[i] = foreign_keys[i].name;
    }
    const char *near = pl_nearest(name, keys, KEYS_SHOWN);
    if (!near) near = pl_nearest(name, foreign_names, FOREIGN_COUNT);
    for (int i = 0; near && i < FOREIGN_COUNT; ++i)
        if (near == foreign_names[i]) return answer_foreign(p, &foreign_keys[i], key, value);
    return refuse_choice(p, key, "key", keys, KEYS_SHOWN);
}

static pl_status parse_value(parser *p, typed_key k, word key, word value)
{
    if (value.length == 0)
        return refuse(p, value.column, "nothing after '%s='; write a value", keys[k]);
    if (p->column[k])
        return refuse(p, key.column, "%s is given twice, first at column %d", keys[k],
                      p->column[k]);
    p->column[k] = key.column;
    if (k == KEY_GRAIN) return parse_grain(p, value);
    PL_TRY(parse_number(p, &p->number[k], key, value));
    if (k == KEY_TP || k == KEY_ETP) return check_tensor_axis(p, key, p->number[k]);
    if (k < KEY_GRAIN) {
        p->request.number[k] = p->number[k];
        p->request.column[k] = key.column;
    }
    return PL_OK;
}

static pl_status parse_pair(parser *p, word pair)
{
    const char *end = pair.begin + pair.length;
    const char *equals = memchr(pair.begin, '=', (size_t)pair.length);
    if (pair.length == 0)
        return refuse(p, pair.column,
                      "nothing here; write key=value, and no comma before the first or after the "
                      "last");
    word key = make_word(p, pair.begin, equals ? equals : end);
    if (!equals)
        return refuse(p, key.column, "'%.*s' has no value; write %.*s=VALUE",
                      key.length < WORD_MAX ? key.length : WORD_MAX, key.begin,
                      key.length < WORD_MAX ? key.length : WORD_MAX, key.begin);
    if (key.length == 0) return refuse(p, key.column, "no key before '='");
    char name[WORD_MAX];
    word_string(name, key);
    word value = make_word(p, equals + 1, end);
    for (int k = 0; k < KEY_COUNT; ++k)
        if (strcmp(name, keys[k]) == 0) return parse_value(p, (typed_key)k, key, value);
    return answer_unknown(p, key, value);
}

/* What the derived axis KEY must be; 0 where the kind has no such axis. */
static int64_t derived_number(const pl_layout *layout, typed_key key)
{
    pl_layout_kind kind = layout->kind;
    switch ((int)key) {
    case KEY_DP:
        return kind == PL_LAYOUT_SINGLE ? layout->data_ranks / layout->ep : layout->data_ranks;
    case KEY_FSDP: return kind == PL_LAYOUT_LEGACY ? layout->dense_shards : 0;
    case KEY_DP_SHARD: return kind == PL_LAYOUT_DECOUPLED ? layout->dense_shards : 0;
    case KEY_EFSDP: return kind == PL_LAYOUT_DECOUPLED ? layout->expert_shards : 0;
    case KEY_EDP: return kind == PL_LAYOUT_FOLDED ? layout->stage_ranks / layout->ep : 0;
    default: return 0;
    }
}

static pl_status refuse_absent_axis(const parser *p, const pl_layout *layout, typed_key key)
{
    pl_text text = {0};
    pl_layout_add_place(&text, p->request.notation, p->column[key]);
    pl_text_add(&text, "kind %s has no axis %s; it has", pl_layout_kind_name(layout->kind),
                keys[key]);
    for (int k = FIRST_DERIVED; k < KEYS_SHOWN; ++k) {
        int64_t number = derived_number(layout, (typed_key)k);
        if (number) pl_text_add(&text, " %s=%" PRId64, keys[k], number);
    }
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

static pl_status check_derived(const parser *p, const pl_layout *layout)
{
    char canonical[PL_LAYOUT_TEXT];
    for (int k = FIRST_DERIVED; k < KEYS_SHOWN; ++k) {
        if (!p->column[k]) continue;
        int64_t right = derived_number(layout, (typed_key)k);
        if (!right) return refuse_absent_axis(p, layout, (typed_key)k);
        if (p->number[k] != right)
            return refuse(p, p->column[k],
                          "%s=%" PRId64 ", but %s=%" PRId64 " follows from '%s'; leave it out or "
                          "write that",
                          keys[k], p->number[k], keys[k], right,
                          pl_layout_format(layout, canonical));
    }
    return PL_OK;
}

static pl_status parse_pairs(parser *p, const char *rest)
{
    const char *comma = rest;
    while (comma) {
        comma = strchr(rest, ',');
        PL_TRY(parse_pair(p, make_word(p, rest, comma ? comma : rest + strlen(rest))));
        if (comma) rest = comma + 1;
    }
    return PL_OK;
}

pl_status pl_layout_parse(pl_layout *out, const char *notation)
{
    static const char example[] = "write for example 'folded:world=8,ep=2'";
    parser p = {.request = {.notation = notation, .number = {0, 1, 1, 1, 1}}};
    if (!notation || !*notation) return PL_FAIL(PL_BAD_INPUT, "layout: none is given; %s", example);
    size_t length = strlen(notation);
    if (length > 4096)
        return PL_FAIL(PL_BAD_INPUT, "layout: %zu characters are no layout; %s", length, example);
    const char *colon = strchr(notation, ':');
    word all = make_word(&p, notation, notation + length);
    if (!colon && memchr(notation, '=', length))
        return refuse(&p, all.column, "no kind and ':' in front; %s", example);
    PL_TRY(parse_kind(&p, make_word(&p, notation, colon ? colon : notation + length)));
    if (!colon || colon == all.begin + all.length - 1)
        return refuse(&p, all.column + all.length, "world is missing; write '%s:world=8'",
                      pl_layout_kind_name(p.request.kind));
    PL_TRY(parse_pairs(&p, colon + 1));
    if (!p.column[KEY_WORLD])
        return refuse(&p, all.column + all.length, "world is missing; add ',world=8'");
    pl_layout layout;
    PL_TRY(pl_layout_build(&layout, &p.request));
    PL_TRY(check_derived(&p, &layout));
    *out = layout;
    return PL_OK;
}
