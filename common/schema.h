/* The keys of run files: one table from which reading, writing, --set, messages, help and the
 * documentation all follow.
 */
#ifndef PL_COMMON_SCHEMA_H
#define PL_COMMON_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/run_file.h"
#include "common/status.h"
#include "common/text.h"
#include "common/yaml.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Type of a value, and of the member of pl_run that holds it. */
typedef enum pl_value_type {
    PL_VALUE_WORD,    /* char *, owned; absent: NULL */
    PL_VALUE_LIST,    /* pl_word_list; absent: no words */
    PL_VALUE_CHOICE,  /* an enumeration, by its names */
    PL_VALUE_ELEMENT, /* pl_dtype, one of those that its choices name */
    PL_VALUE_INTEGER, /* int64_t; absent: 0 */
    PL_VALUE_NUMBER   /* double; absent: -1 */
} pl_value_type;

typedef struct pl_schema_key {
    const char *name;    /* dotted */
    const char *meaning; /* one line */
    size_t offset;       /* of its member in pl_run */
    const char *initial; /* the default, as a person would write it; NULL: absent */
    const char *without; /* what holds when the key is left out, where INITIAL does not say it */
    const char *unit;    /* NULL: none */
    const char *const *(*choices)(int *count);
    int64_t least, most; /* of integers */
    double low, high;    /* of numbers */
    pl_value_type type;
    bool low_open, high_open; /* the end itself is not allowed */
} pl_schema_key;

/* The table, in the order of writing; keys of one section stand together. Static. */
const pl_schema_key *pl_schema_keys(int *count);

/* The key of that name, or NULL; its index in the table. */
const pl_schema_key *pl_schema_find(const char *name);
int pl_schema_index(const pl_schema_key *key);

/* Whether NAME is a mapping of keys ("policy", "optimizer.schedule"). Its direct members are
 * added to TEXT by pl_schema_add_members as "reshard, prefetch, ...", those of "" being all keys
 * and sections that stand by themselves. */
bool pl_schema_is_section(const char *name);
void pl_schema_add_members(pl_text *text, const char *section);

/* Add what a person should write for UNKNOWN, which is no key: today's spelling of a key of
 * another program or of an earlier form, or the nearest keys. Begins with "; ". */
void pl_schema_answer(pl_text *text, const char *unknown);

/* Add what values KEY takes: "one of a, b", "a whole number of at least 1", ... Ends of a range
 * that nobody meets by accident are not shown. */
void pl_schema_add_allowed(pl_text *text, const pl_schema_key *key);

/* Store ITEM's value in its member of RUN, freeing what stood there. Errors: PL_BAD_INPUT with
 * place, key, what was given and what is allowed; PL_NO_MEMORY. RUN is unchanged on failure. */
pl_status pl_schema_store(pl_run *run, const pl_schema_key *key, const pl_yaml_item *item);

/* Store KEY's default, which owns no memory; RUN's member must own none. */
void pl_schema_store_default(pl_run *run, const pl_schema_key *key);

/* Add KEY's value in RUN to DOCUMENT unless it is absent. Errors: PL_NO_MEMORY. */
pl_status pl_schema_save(pl_yaml *document, const pl_run *run, const pl_schema_key *key);

/* Whether KEY has the same value in both. */
bool pl_schema_equal(const pl_schema_key *key, const pl_run *a, const pl_run *b);

/* Free what KEY's member owns, leaving it absent. */
void pl_schema_clear(pl_run *run, const pl_schema_key *key);

#ifdef __cplusplus
}
#endif
#endif
