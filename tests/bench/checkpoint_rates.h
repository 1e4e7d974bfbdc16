/* The parts of checkpoint_rates. Each measures for some rounds, a yardstick and pleat in turns, and
 * says what it found. Functions return false when something failed, which they have told. */
#ifndef PL_TESTS_BENCH_CHECKPOINT_RATES_H
#define PL_TESTS_BENCH_CHECKPOINT_RATES_H

#include "common/layout.h"
#include "tests/bench/raw_rates.h"

enum { RATES_ROUNDS_MOST = 25, RATES_RANKS = 8 };

typedef struct rates {
    const char *folder, *build;
    int rounds, processors;
    bool exceeded; /* a limit */
} rates;

/* Seconds of a yardstick and of pleat, and the bytes that each moved, round by round. */
typedef struct rates_series {
    double yardstick[RATES_ROUNDS_MOST], seconds[RATES_ROUNDS_MOST];
    double yardstick_bytes, bytes;
    int count;
} rates_series;

/* Print the medians and the median of the rounds' ratios of rates, against its LIMIT. */
void rates_say(rates *r, const rates_series *series, const char *what, double limit);
double rates_median(const double *values, int count);

bool rates_write_file(const char *folder, const char *name, const char *text);

/* Run a program of the build with WORDS, NULL at the end, its output to a file in the folder;
 * seconds, and the most memory that it had. */
bool rates_command(const rates *r, double *seconds, double *mib, const char *program,
                   const char *const *words);

/* Run a part that has the values of a checkpoint in memory in a process of its own: a program
 * begun later counts what the process that forks it has as its own most memory. */
typedef bool (*rates_part)(rates *r, const char *checkpoint);
bool rates_in_child(rates *r, rates_part part, const char *checkpoint);

/* A run of 190 million parameters on RATES_RANKS ranks saves as the trainer does, a checkpoint a
 * round after a first one. The last stays, CHECKPOINT. */
bool rates_save(rates *r, const char *checkpoint);

/* The ranks of other layouts load the checkpoint in CHECKPOINT. */
bool rates_load(rates *r, const char *checkpoint);

/* Steps of a run that saves each beside the next, against those of one that does not save. */
bool rates_beside(rates *r);

#endif
