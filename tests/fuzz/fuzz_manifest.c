/* Manifests of checkpoints. The hash at the end is made right, so that what stands before it is
 * read; text without one gets one. */
#include <string.h>

#include "ckpt/manifest.h"
#include "common/json.h"
#include "tests/fuzz/fuzz.h"

static const char lead[] = "\"hash\": \"", end[] = "\"\n}\n", zeroes[] = "0000000000000000";

enum { LEAD = sizeof lead - 1, END = sizeof end - 1, TAIL = LEAD + PL_HASH_DIGITS + END };

/* The bytes as a text that ends in its hash. */
static void complete(pl_text *text, const uint8_t *bytes, size_t count)
{
    char digits[PL_HASH_TEXT];
    const char *tail = (const char *)bytes + count - TAIL;
    bool whole = count >= TAIL && memcmp(tail, lead, LEAD) == 0 &&
                 memcmp((const char *)bytes + count - END, end, END) == 0;
    pl_text_add_bytes(text, (const char *)bytes, whole ? count - TAIL : count);
    if (!whole) pl_text_add_string(text, ",");
    pl_text_add(text, "%s%s%s", lead, zeroes, end);
    FUZZ_HOLDS(pl_text_status(text) == PL_OK);
    pl_hash_print(pl_hash(text->bytes, text->length), digits);
    memcpy(text->bytes + text->length - END - PL_HASH_DIGITS, digits, PL_HASH_DIGITS);
}

/* What was read is written so that it reads the same. */
static void write_again(const pl_manifest *manifest)
{
    pl_manifest again;
    pl_text first = {0}, second = {0};
    FUZZ_HOLDS(pl_manifest_write(&first, manifest) == PL_OK);
    FUZZ_HOLDS(pl_manifest_parse(&again, first.bytes, first.length, "again") == PL_OK);
    FUZZ_HOLDS(pl_manifest_write(&second, &again) == PL_OK);
    FUZZ_HOLDS(strcmp(pl_text_string(&first), pl_text_string(&second)) == 0);
    pl_manifest_free(&again);
    pl_text_free(&first);
    pl_text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static const char wrong_hash[] = "manifest.json: damaged: its hash";
    pl_manifest manifest;
    pl_text text = {0};
    pl_json_check_memory();
    complete(&text, bytes, count);
    pl_error_clear();
    pl_status status = pl_manifest_parse(&manifest, text.bytes, text.length, "manifest.json");
    if (status == PL_OK) {
        write_again(&manifest);
        pl_manifest_free(&manifest);
    } else {
        FUZZ_HOLDS(*pl_error_text());
        FUZZ_HOLDS(strncmp(pl_error_text(), wrong_hash, sizeof wrong_hash - 1) != 0);
    }
    pl_text_free(&text);
    return 0;
}
