/* One call of one rank with known values in its buffers, for the bodies of conformance.c. */
#ifndef PL_TESTS_GROUPS_EXCHANGE_H
#define PL_TESTS_GROUPS_EXCHANGE_H

#include "tests/groups/conformance.h"

enum { EXCHANGE_TRANSFERS = 6 + CONFORMANCE_RANKS };

/* Where a rank keeps what is wrong: the first thing counts. */
typedef struct rank_report {
    int64_t rank;
    bool wrong;
    char words[CONFORMANCE_WORDS];
} rank_report;

void report_wrong(rank_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Note a failed status with its words. True when it is PL_OK. */
bool report_status(rank_report *report, const char *what, pl_status status);

typedef struct exchange {
    pl_process_group *group;
    conformance_case test;
    uint64_t salt; /* makes the values of two exchanges differ */
    pl_entry_name name;
    pl_call call;
    int64_t send_elements, recv_elements;
    unsigned char *send, *recv, *sent; /* `sent` keeps what `send` held */
    int64_t send_counts[CONFORMANCE_RANKS], recv_counts[CONFORMANCE_RANKS];
    pl_transfer transfers[EXCHANGE_TRANSFERS];
    pl_request request;
    bool started;
} exchange;

/* Fill buffers and the call of TEST in GROUP. False when something is wrong. */
bool exchange_prepare(exchange *own, rank_report *report, pl_process_group *group,
                      const conformance_case *test, uint64_t salt);

/* Prepare TEST and start it. */
void exchange_start(exchange *own, rank_report *report, pl_process_group *group,
                    const conformance_case *test, uint64_t salt);

/* Compare every element received, and that nothing else was written. */
void exchange_compare(const exchange *own, rank_report *report);
void exchange_free(exchange *own);

/* Wait, compare, and free the buffers. */
void exchange_finish(exchange *own, rank_report *report);

/* Elements of an uneven all-to-all from FROM to TO with pieces of at most LARGEST. */
int64_t uneven_count(int64_t from, int64_t to, int64_t largest);

/* The bits of VALUE in DTYPE, rounded to nearest even. */
uint64_t encode_value(pl_dtype dtype, double value);
double decode_value(pl_dtype dtype, uint64_t bits);

bool dtype_is_integer(pl_dtype dtype);

/* Values whose sum shows the order of the additions: every fourth position cancels: B, -B, then
 * values that vanish when added to B. */
double order_value(int64_t rank, int64_t position);

/* 64 bits that are different for different arguments, for all that tests will see. */
uint64_t scramble(uint64_t a, uint64_t b, uint64_t c);

#endif
