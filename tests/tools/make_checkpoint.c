/* Writes a checkpoint of made-up numbers, as the ranks of a layout would:
 * make_checkpoint FOLDER MODEL LAYOUT STEP TYPE [SEED]
 *
 * FOLDER gets step-STEP; MODEL is a config.json or a built-in name; TYPE is that of parameters
 * (bf16, fp16, fp32). Numbers follow from SEED, kind, tensor and place, not from the layout.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/weights_folder_values.h"
#include "common/json.h"
#include "tests/ckpt/checkpoint_trial.h"

static uint64_t seed = 1;

/* In [-1, 1), the same for the parameter and its master. */
static double draw(const pl_checkpoint_box *box, int64_t place)
{
    int master = box->kind == PL_VALUE_MASTER ? PL_VALUE_PARAMETER : box->kind;
    uint64_t x =
        (uint64_t)place * 0x9E3779B97F4A7C15U + (uint64_t)box->tensor * 0xD1B54A32D192ED03U;
    x += ((uint64_t)master << 56) + seed * 0xA24BAED4963EE407U;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9U;
    x ^= x >> 29;
    return (double)(int64_t)x * 0x1p-63;
}

static void make_numbers(unsigned char *values, const pl_checkpoint_box *box)
{
    int size = pl_dtype_bytes((pl_dtype)box->dtype);
    int64_t count = box->bytes / size,
            first = box->row_begin * (count / (box->row_end - box->row_begin));
    for (int64_t i = 0; i < count; ++i) {
        double drawn = draw(box, first + i);
        float number = (float)(box->kind == PL_VALUE_ADAM_V ? 1e-6 * drawn * drawn : 0.05 * drawn);
        pl_weights_convert(values + i * size, (pl_dtype)box->dtype, &number, PL_FP32, 1);
    }
}

static pl_status make(char **arguments)
{
    checkpoint_trial t = {.optimizer = PL_OPTIMIZER_ADAMW, .fill = make_numbers};
    pl_dtype dtype = PL_FP32;
    int64_t step = 0;
    if (!pl_parse_integer(&step, arguments[4]) || step < 0 || !pl_dtype_parse(&dtype, arguments[5]))
        return PL_FAIL(PL_BAD_INPUT, "STEP is a number, TYPE one of bf16, fp16, fp32");
    if (arguments[6]) seed = strtoull(arguments[6], NULL, 10);
    t.precision = (pl_precision){dtype, dtype, PL_FP32, PL_FP32};
    PL_TRY(pl_model_open(&t.model, arguments[2]));
    (void)mkdir(arguments[1], 0777);
    pl_status status = trial_write(&t, arguments[1], step, arguments[3]);
    pl_model_free(&t.model);
    return status;
}

int main(int count, char **arguments)
{
    pl_json_check_memory();
    if (count != 6 && count != 7) {
        fprintf(stderr, "usage: make_checkpoint FOLDER MODEL LAYOUT STEP TYPE [SEED]\n");
        return 2;
    }
    pl_status status = make(arguments);
    if (status != PL_OK) fprintf(stderr, "make_checkpoint: %s\n", pl_error_text());
    return pl_status_exit_code(status);
}
