/* JSON with words for the person whose file it is: a thin layer over Jansson.
 *
 * A pl_json_node is a value together with the way to it (file, object, key, array, index), so that
 * each refusal can say where the value stands, what was given and what is allowed:
 * "config.json: key 'rope_scaling.factor': given \"8\"; allowed: a number of at least 1". Nodes are
 * plain values that borrow the tree, the source's name and the node above; they own nothing.
 * The tree itself is Jansson's (json_t): callers that need more include <jansson.h>.
 */
#ifndef PL_COMMON_JSON_H
#define PL_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

typedef struct pl_json_node {
    struct json_t *value;              /* never NULL */
    const char *source;                /* stands for the file in messages */
    const struct pl_json_node *parent; /* object or array around it; NULL at the top */
    const char *key;                   /* in an object; NULL in an array and at the top */
    int64_t index;                     /* in an array */
} pl_json_node;

/* Let Jansson allocate by common/memory.h. By itself it drops letters, or calls the text wrong,
 * when an allocation fails while reading; after this, pl_json_parse says PL_NO_MEMORY. Once, first
 * thing in main: it holds for the whole process. */
void pl_json_check_memory(void);

/* Read LENGTH bytes of TEXT. The caller frees *OUT with pl_json_free. Keys that stand twice in
 * one object, NUL characters, bytes after the value, invalid UTF-8 and numbers that do not fit
 * are refused. Errors: PL_BAD_INPUT "SOURCE:LINE:COLUMN: words"; PL_NO_MEMORY. */
pl_status pl_json_parse(struct json_t **out, const char *text, size_t length, const char *source);

/* The same from FILE, of at most MAX_BYTES; further errors as pl_read_file. */
pl_status pl_json_read(struct json_t **out, const char *file, size_t max_bytes);

/* Let a tree go. NULL is allowed. */
void pl_json_free(struct json_t *value);

/* The node of a whole tree, and whether that is an object. Errors: PL_BAD_INPUT. */
pl_status pl_json_top_object(pl_json_node *out, struct json_t *value, const char *source);

/* Whether OBJECT has KEY with a value other than null. */
bool pl_json_has(const pl_json_node *object, const char *key);

/* The value of KEY, which must be there (null counts). ALLOWED says in the message what it should
 * hold. KEY and OBJECT are borrowed by *OUT. Errors: PL_BAD_INPUT. */
pl_status pl_json_member(pl_json_node *out, const pl_json_node *object, const char *key,
                         const char *allowed);

/* The same, and the value must be an object or an array. Errors: PL_BAD_INPUT. */
pl_status pl_json_object(pl_json_node *out, const pl_json_node *object, const char *key);
pl_status pl_json_array(pl_json_node *out, const pl_json_node *object, const char *key);

/* Length of an array; its element INDEX, 0 <= INDEX < length. */
int64_t pl_json_length(const pl_json_node *array);
pl_json_node pl_json_element(const pl_json_node *array, int64_t index);

/* The value of a node, if it has that type and lies in [MINIMUM, MAXIMUM]; INT64_MAX and
 * DBL_MAX stand for no upper bound. A number may be written whole ("rope_theta": 10000), an integer
 * may not have a fraction. Strings are borrowed from the tree. Errors: PL_BAD_INPUT. */
pl_status pl_json_as_integer(int64_t *out, const pl_json_node *node, int64_t minimum,
                             int64_t maximum);
pl_status pl_json_as_number(double *out, const pl_json_node *node, double minimum, double maximum);
pl_status pl_json_as_boolean(bool *out, const pl_json_node *node);
pl_status pl_json_as_string(const char **out, const pl_json_node *node);

/* The same of the value of KEY, which must be there. */
pl_status pl_json_integer(int64_t *out, const pl_json_node *object, const char *key,
                          int64_t minimum, int64_t maximum);
pl_status pl_json_number(double *out, const pl_json_node *object, const char *key, double minimum,
                         double maximum);
pl_status pl_json_boolean(bool *out, const pl_json_node *object, const char *key);
pl_status pl_json_string(const char **out, const pl_json_node *object, const char *key);

/* Refuse the value of NODE: records where it stands, what was given and ALLOWED, and evaluates to
 * PL_BAD_INPUT. For ranges and types that the functions above do not know. */
pl_status pl_json_refuse(const pl_json_node *node, const char *allowed);

/* The string of NODE is none of CHOICES: as pl_json_refuse, with the nearest of them. */
pl_status pl_json_refuse_choice(const pl_json_node *node, const char *given,
                                const char *const *choices, int count);

/* Every key of OBJECT is one of KNOWN (COUNT strings); else PL_BAD_INPUT names the first that is
 * not, with the nearest known one. */
pl_status pl_json_check_keys(const pl_json_node *object, const char *const *known, int count);

/* Refuse KEY of OBJECT as unknown, with the nearest of KNOWN: PL_BAD_INPUT. */
pl_status pl_json_refuse_key(const pl_json_node *object, const char *key, const char *const *known,
                             int count);

enum { PL_JSON_WORDS = 240 };

/* Where NODE stands as "SOURCE: key 'a.b[3]'", and its value cut to a readable length, in BUFFER
 * of PL_JSON_WORDS bytes. Both return BUFFER. */
const char *pl_json_where(const pl_json_node *node, char *buffer);
const char *pl_json_given(const pl_json_node *node, char *buffer);

#ifdef __cplusplus
}
#endif
#endif
