/* TensorBoard event files: scalars over the steps of a run.
 *
 * The file is a list of records (TFRecord): length, u64; masked CRC of these eight bytes, u32; the
 * bytes; masked CRC of them, u32; all little-endian. The CRC is CRC-32C (RFC 3720, appendix B.4);
 * masked means ((crc >> 15 | crc << 17) + 0xa282ead8) mod 2^32. Each record is a message "Event" in
 * protocol-buffer encoding (tensorflow's event.proto and summary.proto), of which these fields are
 * written:
 *
 *   Event    1 wall_time   fixed64 double, seconds since 1970
 *            2 step        varint
 *            3 file_version  string "brain.Event:2": the first record alone
 *            5 summary     message Summary
 *   Summary  1 value       message Value, repeated
 *   Value    1 tag         string
 *            2 simple_value  fixed32 float
 */
#ifndef PL_TRAIN_EVENT_FILE_H
#define PL_TRAIN_EVENT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/text.h"
#include "train/append_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_scalar {
    const char *tag; /* "loss/train" */
    double value;
} pl_scalar;

typedef struct pl_event_file {
    pl_append_file file;
    pl_text record; /* scratch */
} pl_event_file;

/* CRC-32C of LENGTH bytes: polynomial 0x1EDC6F41, reflected, all ones before and after. */
uint32_t pl_crc32c(const void *bytes, size_t length);

/* Add the first record of a file, and the record of COUNT scalars of STEP, as they stand in it. */
void pl_event_add_version(pl_text *text, double wall_time);
void pl_event_add_scalars(pl_text *text, double wall_time, int64_t step, const pl_scalar *scalars,
                          int count);

/* Make FILE anew with its first record. TensorBoard reads files whose names hold "tfevents".
 * Errors: PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_event_file_open(pl_event_file *out, const char *file, double wall_time);

/* Add the record of COUNT scalars. Errors: as above; the file ends with a whole record. */
pl_status pl_event_file_scalars(pl_event_file *file, double wall_time, int64_t step,
                                const pl_scalar *scalars, int count);

/* All zeroes are allowed. Errors: PL_IO_FAILED. */
pl_status pl_event_file_close(pl_event_file *file);

#ifdef __cplusplus
}
#endif
#endif
