#include "common/settings.h"

#define NAMES(function, ...)                                                                       \
    const char *const *function(int *count)                                                        \
    {                                                                                              \
        static const char *const names[] = {__VA_ARGS__};                                          \
        *count = (int)(sizeof names / sizeof *names);                                              \
        return names;                                                                              \
    }

NAMES(pl_reshard_names, "after-forward", "never", "per-call")
NAMES(pl_prefetch_names, "none", "next-unit")
NAMES(pl_recompute_names, "none", "full")
NAMES(pl_accumulate_names, "sharded", "unsharded")
NAMES(pl_dispatch_names, "all-to-all", "all-gather")
NAMES(pl_routing_names, "router", "balanced")
NAMES(pl_balance_names, "none", "micro-step", "sequence", "global-batch")
NAMES(pl_optimizer_names, "adamw", "sgd")

pl_settings pl_settings_default(void)
{
    pl_settings settings = {
        .precision = {PL_BF16, PL_BF16, PL_FP32, PL_FP32},
        .shape = {4096, 1, 1, 1},
        .balance = PL_BALANCE_MICRO_STEP,
        .clip = 1.0,
    };
    return settings;
}

pl_shape pl_generate_shape(pl_shape shape) { return (pl_shape){shape.sequence, 1, 1, 1}; }
