#include "common/initial_values.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/philox.h"
#include "common/text.h"

/* Wider intermediates would round twice and make other bits. */
_Static_assert(FLT_EVAL_METHOD == 0, "double arithmetic is done in double");

/* sqrt(1.5) rounded to double, written out because libm's roots need not be the same everywhere;
 * 0x1.3988e1409212ep+0 = 1.2247448713915889... */
static const double root_of_three_halves = 0x1.3988e1409212ep+0;

/* The value of one block in units of initializer_range * sqrt(1.5). The halves are added as whole
 * numbers: sum (h + 1/2) / 2^16 - 4 = (sum h + 4 - 4 * 2^16) / 2^16, which double holds exactly. */
static double centred_sum(const pl_philox_block *block)
{
    int32_t sum = 4 - 4 * 65536;
    for (int i = 0; i < 4; ++i)
        sum += (int32_t)(block->word[i] & 0xFFFF) + (int32_t)(block->word[i] >> 16);
    return (double)sum / 65536.0;
}

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), wanted = strlen(ending);
    return length >= wanted && strcmp(name + length - wanted, ending) == 0;
}

static void fill(float *out, int64_t count, float value)
{
    for (int64_t i = 0; i < count; ++i) out[i] = value;
}

static void draw(float *out, uint64_t hash, uint64_t first, int64_t count, double scale)
{
    const uint32_t key[2] = {(uint32_t)hash, (uint32_t)(hash >> 32)};
    for (int64_t i = 0; i < count; ++i) {
        uint64_t index = first + (uint64_t)i;
        const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
        pl_philox_block block = pl_philox(counter, key);
        out[i] = (float)(scale * centred_sum(&block));
    }
}

pl_status pl_initial_values(float *out, int64_t seed, const pl_tensor *tensor,
                            double initializer_range, int64_t row_begin, int64_t row_end)
{
    int64_t rows = pl_tensor_total_rows(tensor);
    if (row_begin < 0 || row_end < row_begin || row_end > rows)
        return PL_FAIL(PL_INTERNAL, "rows [%" PRId64 ", %" PRId64 ") of a tensor of %" PRId64,
                       row_begin, row_end, rows);
    int64_t count = (row_end - row_begin) * tensor->cols;
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK) {
        const char *words = pl_text_string(&name);
        /* Norms inside attention (q_norm, k_norm) have that part's role. */
        bool norm = tensor->role == PL_TENSOR_NORM ||
                    (tensor->dimensions == 1 && ends_with(words, "norm.weight"));
        uint64_t hash = XXH3_64bits_withSeed(words, name.length, (uint64_t)seed);
        if (norm || ends_with(words, "bias"))
            fill(out, count, norm ? 1.0F : 0.0F);
        else
            draw(out, hash, (uint64_t)(row_begin * tensor->cols), count,
                 initializer_range * root_of_three_halves);
    }
    pl_text_free(&name);
    return status;
}
