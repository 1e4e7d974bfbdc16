#include "common/layout_rules.h"

#include <inttypes.h>
#include <string.h>

/* Ranks are numbered by int in MPI and NCCL. */
static const int64_t world_max = INT32_MAX;

/* A longer notation would push the reason out of the message. */
enum { QUOTED_MAX = 200 };

static const char *const key_names[PL_LAYOUT_KEY_COUNT] = {"world", "pp", "cp", "ep", "replicas"};

void pl_layout_add_place(pl_text *text, const char *notation, int column)
{
    pl_text_add_string(text, "layout");
    if (notation)
        pl_text_add(text, " '%.*s%s'", QUOTED_MAX, notation,
                    strlen(notation) > QUOTED_MAX ? "..." : "");
    if (notation && column > 0) pl_text_add(text, ", column %d", column);
    pl_text_add_string(text, ": ");
}

pl_status pl_layout_refuse(pl_status code, pl_text *text)
{
    pl_status status = pl_text_status(text);
    if (status == PL_OK) status = PL_FAIL(code, "%s", pl_text_string(text));
    pl_text_free(text);
    return status;
}

static void consider_divisor(int64_t divisor, int64_t given, int64_t *below, int64_t *above)
{
    if (divisor <= given && divisor > *below) *below = divisor;
    if (divisor >= given && (*above == 0 || divisor < *above)) *above = divisor;
}

void pl_layout_add_divisors(pl_text *text, const char *key, int64_t number, int64_t given)
{
    int64_t below = 0, above = 0; /* 0: none */
    for (int64_t d = 1; d <= number / d; ++d) {
        if (number % d != 0) continue;
        consider_divisor(d, given, &below, &above);
        consider_divisor(number / d, given, &below, &above);
    }
    if (below) pl_text_add(text, "%s=%" PRId64, key, below);
    if (below && above && above != below) pl_text_add_string(text, " or ");
    if (above && above != below) pl_text_add(text, "%s=%" PRId64, key, above);
}

static void begin_refusal(pl_text *text, const pl_layout_request *request, pl_layout_key key)
{
    pl_layout_add_place(text, request->notation, request->column[key]);
}

/* Only the world needs an upper bound: the others must divide it. */
static pl_status check_range(const pl_layout_request *request, pl_layout_key key)
{
    int64_t number = request->number[key];
    if (number >= 1 && (key != PL_KEY_WORLD || number <= world_max)) return PL_OK;
    pl_text text = {0};
    begin_refusal(&text, request, key);
    pl_text_add(&text, "%s=%" PRId64 " is out of range, %s; %s=%" PRId64 " would fit",
                key_names[key], number, key == PL_KEY_WORLD ? "1 to 2147483647" : "at least 1",
                key_names[key], number < 1 ? 1 : world_max);
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

/* The number of KEY divides COUNT: the world for pp, the ranks of a stage for the others. */
static pl_status check_divides(const pl_layout_request *request, pl_layout_key key, int64_t count)
{
    int64_t number = request->number[key];
    if (count % number == 0) return PL_OK;
    pl_text text = {0};
    begin_refusal(&text, request, key);
    pl_text_add(&text, "%s=%" PRId64 " does not divide ", key_names[key], number);
    if (key == PL_KEY_PP)
        pl_text_add(&text, "world=%" PRId64 "; ", count);
    else
        pl_text_add(&text,
                    "the %" PRId64 " ranks of a stage (world/pp = %" PRId64 "/%" PRId64 "); ",
                    count, request->number[PL_KEY_WORLD], request->number[PL_KEY_PP]);
    pl_layout_add_divisors(&text, key_names[key], count, number);
    pl_text_add_string(&text, " would fit");
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

static pl_status check_single(const pl_layout_request *request, int64_t stage_ranks)
{
    int64_t cp = request->number[PL_KEY_CP], ep = request->number[PL_KEY_EP];
    int64_t replicas = request->number[PL_KEY_REPLICAS];
    pl_text text = {0};
    if (replicas != 1) {
        begin_refusal(&text, request, PL_KEY_REPLICAS);
        pl_text_add(&text,
                    "replicas=%" PRId64 " in kind single, which has no replicas (decoupled and "
                    "folded do); replicas=1 would fit",
                    replicas);
        return pl_layout_refuse(PL_BAD_INPUT, &text);
    }
    if (cp == 1) return check_divides(request, PL_KEY_EP, stage_ranks);
    if (stage_ranks / cp % ep == 0) return PL_OK;
    begin_refusal(&text, request, PL_KEY_EP);
    pl_text_add(&text,
                "cp*ep = %" PRId64 "*%" PRId64 " does not divide the %" PRId64
                " ranks of a stage, as kind single needs (folded and decoupled do not); with "
                "cp=%" PRId64 ", ",
                cp, ep, stage_ranks, cp);
    pl_layout_add_divisors(&text, "ep", stage_ranks / cp, ep);
    pl_text_add_string(&text, " would fit");
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

/* Replicas of whole layers only: an ep group replicates the dense parameters already. */
static pl_status check_legacy(const pl_layout_request *request, int64_t stage_ranks)
{
    int64_t ep = request->number[PL_KEY_EP], replicas = request->number[PL_KEY_REPLICAS];
    PL_TRY(check_divides(request, PL_KEY_EP, stage_ranks));
    if (replicas == 1 || ep == 1) return check_divides(request, PL_KEY_REPLICAS, stage_ranks);
    pl_text text = {0};
    begin_refusal(&text, request, PL_KEY_REPLICAS);
    pl_text_add(&text,
                "replicas=%" PRId64 " with ep=%" PRId64 ": kind legacy has replicas only where "
                "ep is 1 (decoupled has both); replicas=1 or ep=1 would fit",
                replicas, ep);
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

/* decoupled, folded: an ep group lies within one replica. */
static pl_status check_two_level(const pl_layout_request *request, int64_t stage_ranks)
{
    int64_t ep = request->number[PL_KEY_EP], replicas = request->number[PL_KEY_REPLICAS];
    PL_TRY(check_divides(request, PL_KEY_REPLICAS, stage_ranks));
    if (replicas == 1) return check_divides(request, PL_KEY_EP, stage_ranks);
    if (stage_ranks / replicas % ep == 0) return PL_OK;
    pl_text text = {0};
    begin_refusal(&text, request, PL_KEY_EP);
    pl_text_add(&text,
                "ep=%" PRId64 " does not divide the %" PRId64 " ranks of a replica (stage "
                "ranks/replicas = %" PRId64 "/%" PRId64 "); ",
                ep, stage_ranks / replicas, stage_ranks, replicas);
    pl_layout_add_divisors(&text, "ep", stage_ranks / replicas, ep);
    pl_text_add_string(&text, " would fit");
    if (stage_ranks % ep == 0) {
        pl_text_add(&text, "; with ep=%" PRId64 ", ", ep);
        pl_layout_add_divisors(&text, "replicas", stage_ranks / ep, replicas);
        pl_text_add_string(&text, " would fit");
    }
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

pl_status pl_layout_check_rules(const pl_layout_request *request)
{
    for (int key = 0; key < PL_LAYOUT_KEY_COUNT; ++key)
        PL_TRY(check_range(request, (pl_layout_key)key));
    int64_t world = request->number[PL_KEY_WORLD], pp = request->number[PL_KEY_PP];
    PL_TRY(check_divides(request, PL_KEY_PP, world));
    int64_t stage_ranks = world / pp;
    PL_TRY(check_divides(request, PL_KEY_CP, stage_ranks));
    switch (request->kind) {
    case PL_LAYOUT_SINGLE: return check_single(request, stage_ranks);
    case PL_LAYOUT_LEGACY: return check_legacy(request, stage_ranks);
    case PL_LAYOUT_DECOUPLED:
    case PL_LAYOUT_FOLDED: return check_two_level(request, stage_ranks);
    case PL_LAYOUT_KIND_COUNT: break;
    }
    return PL_FAIL(PL_INTERNAL, "layout: kind number %d has no rules", (int)request->kind);
}
