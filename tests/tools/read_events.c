/* Reads a TensorBoard event file: its records have right lengths and checksums, the first one says
 * the version, and the steps of every tag grow. Says how many scalars each tag has, or what is
 * wrong with status 1.
 *
 * A record is u64 length, u32 masked CRC-32C of these 8 bytes, the bytes, u32 masked CRC-32C of
 * them; the bytes are a protocol buffer "Event" (2 step, 3 file_version, 5 summary), a summary has
 * values (1), and a value a tag (1) and a float (2). */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { TAGS = 16, TAG = 64, RECORD = 4096 };

typedef struct tag_state {
    char name[TAG];
    long count;
    int64_t last;
} tag_state;

static tag_state tags[TAGS];

static uint32_t masked_crc(const unsigned char *bytes, size_t length)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < length; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit)
            crc = crc & 1 ? (crc >> 1) ^ UINT32_C(0x82f63b78) : crc >> 1;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* What is left of a message. */
typedef struct span {
    const unsigned char *at, *end;
} span;

static bool take_varint(span *s, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; s->at < s->end && shift < 64; shift += 7) {
        unsigned char byte = *s->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* The next field: its number, and its bytes or its number as VALUE. */
static bool take_field(span *s, int *field, span *bytes, uint64_t *value)
{
    uint64_t key = 0, length = 0;
    if (!take_varint(s, &key)) return false;
    *field = (int)(key >> 3);
    *bytes = (span){s->at, s->at};
    switch (key & 7) {
    case 0: return take_varint(s, value);
    case 1: length = 8; break;
    case 2:
        if (!take_varint(s, &length)) return false;
        break;
    case 5: length = 4; break;
    default: return false;
    }
    if (length > (uint64_t)(s->end - s->at)) return false;
    *bytes = (span){s->at, s->at + length};
    s->at += length;
    return true;
}

static const char *count_tag(span name, int64_t step)
{
    size_t length = (size_t)(name.end - name.at);
    if (length == 0 || length >= TAG) return "a tag without a name";
    for (int i = 0; i < TAGS; ++i) {
        tag_state *tag = &tags[i];
        if (tag->count == 0) memcpy(tag->name, name.at, length);
        if (strlen(tag->name) != length || memcmp(tag->name, name.at, length) != 0) continue;
        if (tag->count > 0 && step <= tag->last) return "the steps of a tag do not grow";
        tag->last = step;
        ++tag->count;
        return NULL;
    }
    return "too many tags";
}

static const char *take_summary(span summary, int64_t step)
{
    int field = 0;
    span value, bytes;
    uint64_t number = 0;
    while (summary.at < summary.end) {
        span tag = {NULL, NULL};
        bool has_float = false;
        if (!take_field(&summary, &field, &value, &number) || field != 1) return "a bad summary";
        while (value.at < value.end) {
            if (!take_field(&value, &field, &bytes, &number)) return "a bad value";
            if (field == 1) tag = bytes;
            if (field == 2) has_float = bytes.end - bytes.at == 4;
        }
        const char *wrong = has_float ? count_tag(tag, step) : "a value without a float";
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *take_event(span event, long record)
{
    int field = 0;
    span bytes, summary = {NULL, NULL};
    uint64_t number = 0;
    int64_t step = 0;
    bool version = false;
    while (event.at < event.end) {
        if (!take_field(&event, &field, &bytes, &number)) return "a bad event";
        if (field == 2) step = (int64_t)number;
        if (field == 3) version = true;
        if (field == 5) summary = bytes;
    }
    if (version != (record == 0)) return "the version stands in the first record, and only there";
    return take_summary(summary, step);
}

/* 1: a record; 0: the end of the file; -1: something that is no record. */
static int read_record(FILE *file, unsigned char *record, uint64_t *length)
{
    unsigned char head[12], tail[4];
    uint32_t crc = 0;
    size_t got = fread(head, 1, sizeof head, file);
    if (got == 0) return 0;
    if (got < sizeof head) return -1;
    memcpy(length, head, sizeof *length);
    memcpy(&crc, head + 8, sizeof crc);
    if (crc != masked_crc(head, 8) || *length > RECORD) return -1;
    if (fread(record, 1, *length, file) < *length) return -1;
    if (fread(tail, 1, sizeof tail, file) < sizeof tail) return -1;
    memcpy(&crc, tail, sizeof crc);
    return crc == masked_crc(record, *length) ? 1 : -1;
}

int main(int count, char **arguments)
{
    unsigned char record[RECORD];
    uint64_t length = 0;
    const char *name = count == 2 ? arguments[1] : "", *wrong = NULL;
    FILE *file = count == 2 ? fopen(name, "rb") : NULL;
    if (!file) {
        fprintf(stderr, "read_events FILE: cannot read '%s'\n", name);
        return 2;
    }
    for (long i = 0, more = 1; !wrong && more; ++i) {
        more = read_record(file, record, &length);
        if (more < 0) wrong = "a record is not whole, or its checksum is wrong";
        if (more > 0) wrong = take_event((span){record, record + length}, i);
        if (wrong) fprintf(stderr, "%s: record %ld: %s\n", name, i, wrong);
    }
    fclose(file);
    for (int i = 0; !wrong && i < TAGS && tags[i].count > 0; ++i)
        printf("%s%s %ld", i ? ", " : "", tags[i].name, tags[i].count);
    if (!wrong) putchar('\n');
    return wrong != NULL;
}
