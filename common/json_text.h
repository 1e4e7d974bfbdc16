/* Building JSON with Jansson and adding it to a text.
 *
 * Failed allocations need no test on the way: a value that could not be made is NULL, putting NULL
 * anywhere marks the builder, and pl_json_finish says so once.
 */
#ifndef PL_COMMON_JSON_TEXT_H
#define PL_COMMON_JSON_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_json_builder {
    bool failed;
    int digits; /* of numbers that are not whole; 0: six */
} pl_json_builder;

/* Put VALUE, whose reference is taken, under KEY of OBJECT or behind the others of ARRAY. */
void pl_json_put(pl_json_builder *builder, json_t *object, const char *key, json_t *value);
void pl_json_put_number(pl_json_builder *builder, json_t *object, const char *key, int64_t number);
void pl_json_put_string(pl_json_builder *builder, json_t *object, const char *key,
                        const char *string);
/* A number; one that is not finite is null. */
void pl_json_put_real(pl_json_builder *builder, json_t *object, const char *key, double number);
void pl_json_append(pl_json_builder *builder, json_t *array, json_t *value);

/* STRING as a value; bytes outside ASCII become '?' when they are not UTF-8. */
json_t *pl_json_words(const char *string);

/* Add VALUE, whose reference is taken, to TEXT with its keys in the order of putting. Errors:
 * PL_NO_MEMORY. */
pl_status pl_json_finish(pl_json_builder *builder, pl_text *text, json_t *value);

#ifdef __cplusplus
}
#endif
#endif
