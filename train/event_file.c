#include "train/event_file.h"

#include <string.h>

/* --- CRC-32C, four bits at a time --- */

uint32_t pl_crc32c(const void *bytes, size_t length)
{
    /* Remainders of the sixteen half-bytes by the reflected polynomial 0x82F63B78. */
    static const uint32_t remainder[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                           0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                           0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                           0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const unsigned char *byte = bytes;
    uint32_t crc = ~(uint32_t)0;
    for (size_t i = 0; i < length; ++i) {
        crc ^= byte[i];
        crc = crc >> 4 ^ remainder[crc & 15];
        crc = crc >> 4 ^ remainder[crc & 15];
    }
    return ~crc;
}

static uint32_t masked(const void *bytes, size_t length)
{
    uint32_t crc = pl_crc32c(bytes, length);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* --- encoding --- */

/* The COUNT low bytes of VALUE, the lowest first. */
static void add_fixed(pl_text *text, uint64_t value, int count)
{
    char bytes[8];
    for (int i = 0; i < count; ++i) bytes[i] = (char)(unsigned char)(value >> (8 * i));
    pl_text_add_bytes(text, bytes, (size_t)count);
}

static void add_varint(pl_text *text, uint64_t value)
{
    char bytes[10];
    size_t count = 0;
    do {
        unsigned low = (unsigned)(value & 127);
        value >>= 7;
        bytes[count++] = (char)(unsigned char)(low | (value ? 128u : 0u));
    } while (value);
    pl_text_add_bytes(text, bytes, count);
}

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static void add_key(pl_text *text, unsigned field, unsigned wire)
{
    add_varint(text, field << 3 | wire);
}

static void add_bytes(pl_text *text, unsigned field, const void *bytes, size_t length)
{
    add_key(text, field, WIRE_BYTES);
    add_varint(text, length);
    pl_text_add_bytes(text, bytes, length);
}

static void add_message(pl_text *text, unsigned field, pl_text *message)
{
    if (message->out_of_memory) text->out_of_memory = true;
    add_bytes(text, field, pl_text_string(message), message->length);
    pl_text_free(message);
}

static void add_wall_time(pl_text *text, double wall_time)
{
    uint64_t bits = 0;
    memcpy(&bits, &wall_time, sizeof bits);
    add_key(text, 1, WIRE_FIXED64);
    add_fixed(text, bits, 8);
}

static void add_value(pl_text *summary, const pl_scalar *scalar)
{
    pl_text value = {0};
    float rounded = (float)scalar->value;
    uint32_t bits = 0;
    memcpy(&bits, &rounded, sizeof bits);
    add_bytes(&value, 1, scalar->tag, strlen(scalar->tag));
    add_key(&value, 2, WIRE_FIXED32);
    add_fixed(&value, bits, 4);
    add_message(summary, 1, &value);
}

/* Add EVENT, which is freed, as a record. */
static void add_record(pl_text *text, pl_text *event)
{
    unsigned char length[8];
    for (int i = 0; i < 8; ++i) length[i] = (unsigned char)((uint64_t)event->length >> (8 * i));
    if (event->out_of_memory) text->out_of_memory = true;
    pl_text_add_bytes(text, (const char *)length, sizeof length);
    add_fixed(text, masked(length, sizeof length), 4);
    pl_text_add_bytes(text, pl_text_string(event), event->length);
    add_fixed(text, masked(pl_text_string(event), event->length), 4);
    pl_text_free(event);
}

void pl_event_add_version(pl_text *text, double wall_time)
{
    static const char version[] = "brain.Event:2";
    pl_text event = {0};
    add_wall_time(&event, wall_time);
    add_bytes(&event, 3, version, strlen(version));
    add_record(text, &event);
}

void pl_event_add_scalars(pl_text *text, double wall_time, int64_t step, const pl_scalar *scalars,
                          int count)
{
    pl_text event = {0}, summary = {0};
    add_wall_time(&event, wall_time);
    add_key(&event, 2, WIRE_VARINT);
    add_varint(&event, (uint64_t)step);
    for (int i = 0; i < count; ++i) add_value(&summary, &scalars[i]);
    add_message(&event, 5, &summary);
    add_record(text, &event);
}

/* --- the file --- */

static pl_status add_scratch(pl_event_file *file)
{
    PL_TRY(pl_text_status(&file->record));
    return pl_append_file_add(&file->file, pl_text_string(&file->record), file->record.length);
}

pl_status pl_event_file_open(pl_event_file *out, const char *file, double wall_time)
{
    pl_event_file opened = {0};
    PL_TRY(pl_append_file_open(&opened.file, file));
    pl_event_add_version(&opened.record, wall_time);
    pl_status status = add_scratch(&opened);
    if (status == PL_OK) {
        *out = opened;
        return PL_OK;
    }
    pl_text_free(&opened.record);
    pl_status ignored = pl_append_file_close(&opened.file); /* the first failure counts */
    (void)ignored;
    return status;
}

pl_status pl_event_file_scalars(pl_event_file *file, double wall_time, int64_t step,
                                const pl_scalar *scalars, int count)
{
    pl_text_clear(&file->record);
    pl_event_add_scalars(&file->record, wall_time, step, scalars, count);
    return add_scratch(file);
}

pl_status pl_event_file_close(pl_event_file *file)
{
    pl_text_free(&file->record);
    return pl_append_file_close(&file->file);
}
