#include "common/json_text.h"

#include <math.h>

#include "common/memory.h"

void pl_json_put(pl_json_builder *builder, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) builder->failed = true;
}

void pl_json_put_number(pl_json_builder *builder, json_t *object, const char *key, int64_t number)
{
    pl_json_put(builder, object, key, json_integer(number));
}

void pl_json_put_string(pl_json_builder *builder, json_t *object, const char *key,
                        const char *string)
{
    pl_json_put(builder, object, key, pl_json_words(string));
}

void pl_json_put_real(pl_json_builder *builder, json_t *object, const char *key, double number)
{
    pl_json_put(builder, object, key, isfinite(number) ? json_real(number) : json_null());
}

void pl_json_append(pl_json_builder *builder, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) builder->failed = true;
}

json_t *pl_json_words(const char *string)
{
    json_t *value = json_string(string);
    if (value) return value;
    pl_text plain = {0};
    for (const char *c = string; *c; ++c)
        pl_text_add_bytes(&plain, (unsigned char)*c < 0x80 ? c : "?", 1);
    if (!plain.out_of_memory) value = json_string(pl_text_string(&plain));
    pl_text_free(&plain);
    return value;
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

pl_status pl_json_finish(pl_json_builder *builder, pl_text *text, json_t *value)
{
    size_t digits = builder->digits > 0 ? (size_t)builder->digits : 6;
    size_t flags = JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits);
    if (!value || json_dump_callback(value, add_piece, text, flags) != 0) builder->failed = true;
    if (pl_library_failed()) builder->failed = true;
    pl_library_forget_failure();
    json_decref(value);
    pl_text_add_string(text, "\n");
    if (builder->failed) return PL_FAIL(PL_NO_MEMORY, "out of memory while writing JSON");
    return pl_text_status(text);
}
