#include "tests/groups/exchange.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/groups/small_floats.h"

enum { GUARD_BYTES = 16, GUARD = 0xa5 };

void report_wrong(rank_report *report, const char *format, ...)
{
    if (report->wrong) return;
    report->wrong = true;
    int used = snprintf(report->words, sizeof report->words, "rank %" PRId64 ": ", report->rank);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->words + used, sizeof report->words - (size_t)used, format, arguments);
    va_end(arguments);
}

bool report_status(rank_report *report, const char *what, pl_status status)
{
    if (status == PL_OK) return true;
    report_wrong(report, "%s: %s: %s", what, pl_status_name(status), pl_error_text());
    return false;
}

uint64_t scramble(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xd1b54a32d192ed03u + c + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t encode_value(pl_dtype dtype, double value)
{
    uint64_t bits = 0;
    float single = (float)value;
    switch (dtype) {
    case PL_BF16: return encode_small_float(value, BF16_FRACTION, BF16_EXPONENT);
    case PL_FP16: return encode_small_float(value, FP16_FRACTION, FP16_EXPONENT);
    case PL_FP32: memcpy(&bits, &single, sizeof single); return bits;
    case PL_FP64: memcpy(&bits, &value, sizeof value); return bits;
    default: return (uint64_t)(int64_t)value;
    }
}

double decode_value(pl_dtype dtype, uint64_t bits)
{
    float single = 0;
    double value = 0;
    switch (dtype) {
    case PL_BF16: return decode_small_float((uint16_t)bits, BF16_FRACTION, BF16_EXPONENT);
    case PL_FP16: return decode_small_float((uint16_t)bits, FP16_FRACTION, FP16_EXPONENT);
    case PL_FP32: memcpy(&single, &bits, sizeof single); return (double)single;
    case PL_FP64: memcpy(&value, &bits, sizeof value); return value;
    default: return (double)(int64_t)bits;
    }
}

double order_value(int64_t rank, int64_t position)
{
    uint64_t bits = scramble(77, (uint64_t)rank, (uint64_t)position);
    if (position % 4 == 0 && rank < 2) return rank == 0 ? 8192.0 : -8192.0;
    if (position % 4 == 0) return ldexp(1.0 + (double)(bits % 1000) / 1000.0, -12);
    double size = ldexp(1.0 + (double)(bits % 1000) / 1000.0, (int)(bits / 1000 % 14) - 7);
    return bits >> 63 ? -size : size;
}

bool dtype_is_integer(pl_dtype dtype)
{
    return dtype == PL_U8 || dtype == PL_I32 || dtype == PL_I64;
}

int64_t uneven_count(int64_t from, int64_t to, int64_t largest)
{
    if (from % 3 == 1 || to % 4 == 2) return 0; /* empty ranks */
    return (from * 7 + to * 3 + 1) % (largest + 1);
}

static int64_t rank_of(const exchange *own, int64_t index)
{
    return pl_rank_set_member(&own->group->members, index);
}

static bool reduces(const exchange *own) { return own->test.reduction != PL_REDUCTION_NONE; }

static bool is_signed(pl_dtype dtype) { return dtype != PL_U8; }

/* What RANK contributes to a sum at POSITION: sums over 16 ranks are exact in every type. */
static double small_value(const exchange *own, int64_t rank, int64_t position)
{
    int64_t value = (rank * 5 + position * 3 + (int64_t)own->salt) % 8;
    bool shift = own->test.reduction == PL_REDUCTION_MAX && is_signed(own->test.dtype);
    return (double)(shift ? value - 4 : value);
}

/* Element POSITION of what RANK sends. */
static uint64_t sent_bits(const exchange *own, int64_t rank, int64_t position)
{
    if (reduces(own)) return encode_value(own->test.dtype, small_value(own, rank, position));
    return scramble(own->salt, (uint64_t)rank, (uint64_t)position);
}

static uint64_t reduced_bits(const exchange *own, int64_t position)
{
    int64_t size = own->group->size;
    double sum = 0, largest = -100;
    for (int64_t i = 0; i < size; ++i) {
        double value = small_value(own, rank_of(own, i), position);
        sum += value;
        if (value > largest) largest = value;
    }
    if (own->test.reduction == PL_REDUCTION_MAX) return encode_value(own->test.dtype, largest);
    if (own->test.reduction == PL_REDUCTION_SUM) return encode_value(own->test.dtype, sum);
    float average = (float)sum / (float)size;
    return encode_value(own->test.dtype,
                        own->test.dtype == PL_FP64 ? sum / (double)size : (double)average);
}

static void put_element(const exchange *own, unsigned char *buffer, int64_t at, uint64_t bits)
{
    size_t bytes = (size_t)pl_dtype_bytes(own->test.dtype);
    memcpy(buffer + (size_t)at * bytes, &bits, bytes); /* little-endian, as all hosts here */
}

static void expect(const exchange *own, rank_report *report, int64_t at, uint64_t bits)
{
    size_t bytes = (size_t)pl_dtype_bytes(own->test.dtype);
    if (memcmp(own->recv + (size_t)at * bytes, &bits, bytes) == 0) return;
    uint64_t found = 0;
    memcpy(&found, own->recv + (size_t)at * bytes, bytes);
    report_wrong(report,
                 "%s %s %s count %" PRId64 " of %" PRId64 " ranks: element %" PRId64 " is %" PRIx64
                 ", expected %" PRIx64,
                 pl_collective_name(own->test.collective), pl_dtype_name(own->test.dtype),
                 pl_reduction_name(own->test.reduction), own->test.count, own->group->size, at,
                 found, bits);
}

/* Transfers of a ring (two pieces), to oneself, and from all to member 0. Tags tell pieces apart:
 * element p of tag t is position t * 1000003 + p of the sender. */
static const struct {
    int step; /* peer = own index + step */
    int is_send, extra, tag;
} ring[] = {{1, 1, 0, 0}, {-1, 0, 0, 0}, {-1, 0, 1, 1}, {1, 1, 1, 1}, {0, 1, 2, 2}, {0, 0, 2, 2}};

enum { RING = 6, TAG_STRIDE = 1000003, LAST_TAG = 3 };

static int transfer_tag(const exchange *own, int i)
{
    (void)own;
    return i < RING ? ring[i].tag : LAST_TAG;
}

static void add_transfer(exchange *own, int64_t peer, int is_send, int64_t count)
{
    pl_transfer *transfer = &own->transfers[own->call.transfer_count++];
    transfer->peer = (int)peer;
    transfer->is_send = is_send;
    transfer->count = count;
    *(is_send ? &own->send_elements : &own->recv_elements) += count;
}

static void list_transfers(exchange *own)
{
    int64_t size = own->group->size, index = own->group->index, count = own->test.count;
    for (int i = 0; i < RING; ++i)
        add_transfer(own, (index + ring[i].step + size) % size, ring[i].is_send,
                     count + ring[i].extra);
    if (index > 0) add_transfer(own, 0, 1, count);
    for (int64_t peer = 1; index == 0 && peer < size; ++peer) add_transfer(own, peer, 0, count);
}

static void count_uneven(exchange *own)
{
    int64_t index = own->group->index;
    for (int64_t i = 0; i < own->group->size; ++i) {
        own->send_counts[i] = uneven_count(index, i, own->test.count);
        own->recv_counts[i] = uneven_count(i, index, own->test.count);
        own->send_elements += own->send_counts[i];
        own->recv_elements += own->recv_counts[i];
    }
}

static void count_elements(exchange *own)
{
    int64_t size = own->group->size, count = own->test.count;
    own->send_elements = own->recv_elements = count;
    switch (own->test.collective) {
    case PL_ALL_GATHER: own->recv_elements = size * count; break;
    case PL_REDUCE_SCATTER: own->send_elements = size * count; break;
    case PL_ALL_TO_ALL: own->send_elements = own->recv_elements = size * count; break;
    case PL_ALL_TO_ALL_UNEVEN:
        own->send_elements = own->recv_elements = 0;
        count_uneven(own);
        break;
    case PL_SEND_RECEIVE:
        own->send_elements = own->recv_elements = 0;
        list_transfers(own);
        break;
    case PL_BROADCAST: own->send_elements = 0; break;
    case PL_BARRIER: own->send_elements = own->recv_elements = 0; break;
    default: break;
    }
}

static void fill_transfers(exchange *own)
{
    int64_t sent = 0, received = 0, bytes = pl_dtype_bytes(own->test.dtype);
    for (int i = 0; i < own->call.transfer_count; ++i) {
        pl_transfer *transfer = &own->transfers[i];
        int64_t *at = transfer->is_send ? &sent : &received;
        transfer->buffer = (transfer->is_send ? own->send : own->recv) + *at * bytes;
        for (int64_t p = 0; transfer->is_send && p < transfer->count; ++p)
            put_element(
                own, own->send, sent + p,
                sent_bits(own, own->group->rank, (int64_t)transfer_tag(own, i) * TAG_STRIDE + p));
        *at += transfer->count;
    }
}

static void fill(exchange *own)
{
    int64_t rank = own->group->rank;
    if (own->test.collective == PL_SEND_RECEIVE) {
        fill_transfers(own);
        return;
    }
    for (int64_t p = 0; p < own->send_elements; ++p)
        put_element(own, own->send, p, sent_bits(own, rank, p));
    if (own->test.collective == PL_BROADCAST && own->group->index == own->call.root)
        for (int64_t p = 0; p < own->recv_elements; ++p)
            put_element(own, own->recv, p, sent_bits(own, rank, p));
    if (own->test.in_place && own->test.collective == PL_ALL_REDUCE)
        for (int64_t p = 0; p < own->recv_elements; ++p)
            put_element(own, own->recv, p, sent_bits(own, rank, p));
}

static bool allocate(exchange *own, rank_report *report)
{
    size_t bytes = (size_t)pl_dtype_bytes(own->test.dtype);
    own->send = malloc((size_t)own->send_elements * bytes + GUARD_BYTES);
    own->sent = malloc((size_t)own->send_elements * bytes + GUARD_BYTES);
    own->recv = malloc((size_t)own->recv_elements * bytes + GUARD_BYTES);
    if (!own->send || !own->sent || !own->recv) {
        report_wrong(report, "no memory for the test's buffers");
        return false;
    }
    memset(own->send, GUARD, (size_t)own->send_elements * bytes + GUARD_BYTES);
    memset(own->recv, GUARD, (size_t)own->recv_elements * bytes + GUARD_BYTES);
    return true;
}

bool exchange_prepare(exchange *own, rank_report *report, pl_process_group *group,
                      const conformance_case *test, uint64_t salt)
{
    memset(own, 0, sizeof *own);
    own->group = group;
    own->test = *test;
    own->salt = salt;
    own->name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_LAYER);
    own->name.layer = (int32_t)(salt % 100);
    count_elements(own);
    if (!allocate(own, report)) return false;
    own->call.collective = test->collective;
    own->call.dtype = test->dtype;
    own->call.reduction = test->reduction;
    own->call.stream = PL_STREAM_COMMUNICATION;
    own->call.name = &own->name;
    own->call.count = test->count;
    own->call.send_counts = own->send_counts;
    own->call.recv_counts = own->recv_counts;
    own->call.root = (int)((group->size - 1) / 2);
    own->call.transfers = own->transfers;
    own->call.recv = own->recv;
    own->call.send = own->send;
    if (test->collective == PL_BROADCAST) own->call.send = test->in_place ? own->recv : NULL;
    if (test->collective == PL_ALL_REDUCE && test->in_place) own->call.send = own->recv;
    fill(own);
    memcpy(own->sent, own->send,
           (size_t)(own->send_elements * pl_dtype_bytes(test->dtype)) + GUARD_BYTES);
    return true;
}

void exchange_start(exchange *own, rank_report *report, pl_process_group *group,
                    const conformance_case *test, uint64_t salt)
{
    if (!exchange_prepare(own, report, group, test, salt)) return;
    own->started =
        report_status(report, "start", pl_process_group_start(group, &own->call, &own->request));
}

static void compare_uneven(const exchange *own, rank_report *report)
{
    int64_t at = 0, index = own->group->index;
    for (int64_t from = 0; from < own->group->size; ++from) {
        int64_t offset = 0;
        for (int64_t to = 0; to < index; ++to) offset += uneven_count(from, to, own->test.count);
        for (int64_t p = 0; p < own->recv_counts[from]; ++p)
            expect(own, report, at++, sent_bits(own, rank_of(own, from), offset + p));
    }
}

static void compare_transfers(const exchange *own, rank_report *report)
{
    int64_t at = 0;
    for (int i = 0; i < own->call.transfer_count; ++i) {
        const pl_transfer *transfer = &own->transfers[i];
        int64_t tag = transfer_tag(own, i);
        for (int64_t p = 0; !transfer->is_send && p < transfer->count; ++p)
            expect(own, report, at++,
                   sent_bits(own, rank_of(own, transfer->peer), tag * TAG_STRIDE + p));
    }
}

static void compare_even(const exchange *own, rank_report *report)
{
    int64_t count = own->test.count, index = own->group->index;
    for (int64_t at = 0; at < own->recv_elements; ++at) {
        switch (own->test.collective) {
        case PL_ALL_GATHER:
            expect(own, report, at, sent_bits(own, rank_of(own, at / count), at % count));
            break;
        case PL_ALL_TO_ALL:
            expect(own, report, at,
                   sent_bits(own, rank_of(own, at / count), index * count + at % count));
            break;
        case PL_REDUCE_SCATTER:
            expect(own, report, at, reduced_bits(own, index * count + at));
            break;
        case PL_ALL_REDUCE: expect(own, report, at, reduced_bits(own, at)); break;
        default: expect(own, report, at, sent_bits(own, rank_of(own, own->call.root), at)); break;
        }
    }
}

static void compare_guards(const exchange *own, rank_report *report)
{
    size_t bytes = (size_t)pl_dtype_bytes(own->test.dtype);
    const unsigned char *end = own->recv + (size_t)own->recv_elements * bytes;
    for (int i = 0; i < GUARD_BYTES; ++i)
        if (end[i] != GUARD) report_wrong(report, "byte %d behind recv was written", i);
    if (memcmp(own->send, own->sent, (size_t)own->send_elements * bytes + GUARD_BYTES) != 0)
        report_wrong(report, "%s wrote to send", pl_collective_name(own->test.collective));
}

void exchange_compare(const exchange *own, rank_report *report)
{
    if (own->test.collective == PL_ALL_TO_ALL_UNEVEN)
        compare_uneven(own, report);
    else if (own->test.collective == PL_SEND_RECEIVE)
        compare_transfers(own, report);
    else
        compare_even(own, report);
    compare_guards(own, report);
}

void exchange_free(exchange *own)
{
    free(own->send);
    free(own->sent);
    free(own->recv);
    memset(own, 0, sizeof *own);
}

void exchange_finish(exchange *own, rank_report *report)
{
    if (own->started &&
        report_status(report, "wait", pl_process_group_wait(own->group, own->request)))
        exchange_compare(own, report);
    exchange_free(own);
}
