#include "train/schedule.h"

#include <math.h>

/* The default rounding mode takes halves to even. */
static int64_t part_of(double part, int64_t steps, int64_t most)
{
    int64_t count = (int64_t)nearbyint(part * (double)steps);
    return count < most ? count : most;
}

void pl_learning_rate_describe(pl_text *text)
{
    pl_text_add_string(text, "Steps of the pieces, w + s + d = steps:\n\n"
                             "    w = round(warmup * steps), halves to even\n"
                             "    d = round(decay * steps) but at most steps - w    wsd\n"
                             "        steps - w                                     cosine\n"
                             "        0                                             constant\n\n"
                             "The rate of step k, from 0:\n\n"
                             "    k < w        lr * (start + (1 - start) * k / w)\n"
                             "    k < w + s    lr\n"
                             "    later        lr * (final + (1 - final) * (1 + cos(pi * t)) / 2), "
                             "t = (k - w - s) / d\n");
}

pl_learning_rate pl_learning_rate_make(const pl_schedule_request *request)
{
    pl_learning_rate rate = {.shape = PL_DECAY_COSINE,
                             .lr = request->lr,
                             .start = request->start,
                             .final = request->final};
    rate.warmup = part_of(request->warmup, request->steps, request->steps);
    int64_t left = request->steps - rate.warmup;
    if (request->kind == PL_SCHEDULE_WSD) {
        rate.shape = request->shape;
        rate.decay = part_of(request->decay, request->steps, left);
    } else if (request->kind == PL_SCHEDULE_COSINE) {
        rate.decay = left;
    }
    rate.stable = left - rate.decay;
    return rate;
}

double pl_learning_rate_at(const pl_learning_rate *rate, int64_t step)
{
    static const double pi = 3.14159265358979323846;
    if (step < rate->warmup) {
        double done = (double)step / (double)rate->warmup;
        return rate->lr * (rate->start + (1 - rate->start) * done);
    }
    int64_t into = step - rate->warmup - rate->stable;
    if (into <= 0 || rate->decay == 0) return rate->lr;
    double t = into < rate->decay ? (double)into / (double)rate->decay : 1;
    double factor = rate->shape == PL_DECAY_LINEAR
                        ? 1 + (rate->final - 1) * t
                        : rate->final + (1 - rate->final) * (1 + cos(pi * t)) / 2;
    return rate->lr * factor;
}
