#include "train/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "common/philox.h"

/* --- choosing --- */

static double logit_of(const float *logits, int64_t token)
{
    float logit = logits[token];
    return isnan(logit) ? -INFINITY : (double)logit;
}

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i)
        if (logit_of(logits, i) > logit_of(logits, best)) best = i;
    return best;
}

static double uniform(const pl_sampler *sampler)
{
    uint32_t counter[4] = {(uint32_t)sampler->drawn, (uint32_t)((uint64_t)sampler->drawn >> 32)};
    uint32_t key[2] = {(uint32_t)sampler->seed, (uint32_t)(sampler->seed >> 32)};
    pl_philox_block block = pl_philox(counter, key);
    uint64_t bits = (uint64_t)block.word[0] << 21 | block.word[1] >> 11;
    return (double)bits * 0x1p-53;
}

typedef struct candidate {
    double logit;
    int64_t token;
} candidate;

static int by_falling_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int by_token(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* One of the first COUNT candidates, MOST being their largest logit. */
static int64_t draw(const candidate *list, int64_t count, double most, const pl_sampler *sampler)
{
    double whole = 0, passed = 0;
    for (int64_t i = 0; i < count; ++i) whole += exp((list[i].logit - most) / sampler->temperature);
    double wanted = uniform(sampler) * whole;
    int64_t last = list[0].token;
    for (int64_t i = 0; i < count; ++i) {
        double weight = exp((list[i].logit - most) / sampler->temperature);
        passed += weight;
        if (weight > 0) last = list[i].token;
        if (passed > wanted) return list[i].token;
    }
    return last; /* rounding only */
}

pl_status pl_sampler_choose(pl_sampler *sampler, const float *logits, int64_t count, int64_t *token)
{
    candidate *list = NULL;
    int64_t kept = sampler->top_k > 0 && sampler->top_k < count ? sampler->top_k : count;
    int64_t best = largest(logits, count);
    double most = logit_of(logits, best);
    if (sampler->temperature <= 0 || kept == 1 || !isfinite(most)) {
        *token = best;
        ++sampler->drawn;
        return PL_OK;
    }
    PL_TRY(pl_allocate(&list, (size_t)count, sizeof *list, "candidates of a sample"));
    for (int64_t i = 0; i < count; ++i) list[i] = (candidate){logit_of(logits, i), i};
    if (kept < count) {
        qsort(list, (size_t)count, sizeof *list, by_falling_logit);
        qsort(list, (size_t)kept, sizeof *list, by_token);
    }
    *token = draw(list, kept, most, sampler);
    ++sampler->drawn;
    pl_free(list);
    return PL_OK;
}

/* --- showing --- */

/* Length of the UTF-8 character at BYTES, 0 when there is none whole and shortest; its number. */
static size_t character(const unsigned char *bytes, size_t length, uint32_t *number)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t count = 0;
    if (bytes[0] < 0x80)
        count = 1;
    else if (bytes[0] >= 0xc2 && bytes[0] < 0xf5)
        count = bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
    if (count == 0 || count > length) return 0;
    *number = count == 1 ? bytes[0] : bytes[0] & (0x7fu >> count);
    for (size_t i = 1; i < count; ++i) {
        if ((bytes[i] & 0xc0) != 0x80) return 0;
        *number = *number << 6 | (bytes[i] & 0x3fu);
    }
    bool surrogate = *number >= 0xd800 && *number < 0xe000;
    return *number < least[count] || *number > 0x10ffff || surrogate ? 0 : count;
}

/* Controls, and characters that move or turn what stands around them. */
static bool is_shown(uint32_t c)
{
    if (c == '\n' || c == '\t') return true;
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
    bool moves = (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
                 (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || c == 0x061c;
    bool unassigned = (c >= 0xe000 && c < 0xf900) || c >= 0xe0000 || (c & 0xfffe) == 0xfffe;
    return !moves && !unassigned;
}

void pl_text_add_shown(pl_text *text, const char *bytes, size_t length)
{
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    while (at < end) {
        uint32_t number = 0;
        size_t count = character(at, (size_t)(end - at), &number);
        if (count > 0 && is_shown(number)) {
            pl_text_add_bytes(text, (const char *)at, count);
            at += count;
        } else {
            pl_text_add(text, "\\x%02x", *at++);
        }
    }
}
