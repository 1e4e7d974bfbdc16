#include "train/rotary.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925286766559;

double pl_rotary_frequency(const pl_model *model, int64_t pair)
{
    const pl_rope_scaling *scaling = &model->rope_scaling;
    double frequency = pow(model->rope_theta, -2.0 * (double)pair / (double)model->head_dim);
    if (!scaling->llama3) return frequency;
    double original = (double)scaling->original_max_position_embeddings;
    double turns = original * frequency / two_pi; /* over the original length */
    if (turns < scaling->low_freq_factor) return frequency / scaling->factor;
    if (turns > scaling->high_freq_factor) return frequency;
    double kept =
        (turns - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
    return (1 - kept) * frequency / scaling->factor + kept * frequency;
}

void pl_rotary_table(float *table, const pl_model *model, int64_t sequence)
{
    int64_t pairs = model->head_dim / 2;
    for (int64_t i = 0; i < pairs; ++i) {
        double frequency = pl_rotary_frequency(model, i);
        for (int64_t position = 0; position < sequence; ++position) {
            double angle = (double)position * frequency;
            table[position * model->head_dim + i] = (float)cos(angle);
            table[position * model->head_dim + pairs + i] = (float)sin(angle);
        }
    }
}
