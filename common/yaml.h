/* YAML documents as flat lists of settings, over libyaml.
 *
 * A document is one mapping whose values are words, lists of words, or mappings again. It becomes
 * a list of items with dotted keys in file order:
 *
 *     policy: {reshard: never}         policy              mapping
 *     keep_fp32: [q_norm, k_norm]      policy.reshard      word   "never"
 *                                      keep_fp32           list   "q_norm", "k_norm"
 *
 * A key may be written dotted, too: "policy.reshard: never". Refused in words: anchors, aliases,
 * tags, merge keys, several documents, keys that are no words, a key given twice (however it is
 * spelled), lists that hold anything but words, control characters, tabs as indentation, bytes
 * that are not UTF-8. What the words mean is for others to say (common/schema.h).
 */
#ifndef PL_COMMON_YAML_H
#define PL_COMMON_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PL_YAML_MAX_BYTES = 1 << 20,
    PL_YAML_MAX_DEPTH = 8,   /* mappings inside mappings */
    PL_YAML_MAX_KEYS = 1000, /* of all mappings together */
};

/* Where something was written. SOURCE is borrowed: a file's name, or an option's such as "--set".
 */
typedef struct pl_place {
    const char *source; /* NULL: nowhere */
    int line, column;   /* from 1; 0 when the source has no lines */
} pl_place;

typedef struct pl_yaml_word {
    char *text;  /* owned by the document; UTF-8 without control characters */
    bool quoted; /* written in quotes or as a block: a word even where it looks like a number */
    pl_place place;
} pl_yaml_word;

typedef enum pl_yaml_kind { PL_YAML_WORD, PL_YAML_LIST, PL_YAML_MAPPING } pl_yaml_kind;

typedef struct pl_yaml_item {
    char *key; /* dotted; owned by the document */
    pl_yaml_kind kind;
    pl_place key_place, place; /* of the key and of its value */
    pl_yaml_word *words;       /* one for a word, any number for a list, none for a mapping */
    size_t count, capacity;
} pl_yaml_item;

/* All zeroes is the empty document. */
typedef struct pl_yaml {
    pl_yaml_item *items;
    size_t count, capacity;
} pl_yaml;

/* Read the document in LENGTH bytes of TEXT. SOURCE stands for the file in messages and is
 * borrowed by the places of OUT. The caller frees with pl_yaml_free. Errors: PL_BAD_INPUT with
 * "source:line:column: words"; PL_NO_MEMORY. */
pl_status pl_yaml_parse(pl_yaml *out, const char *text, size_t length, const char *source);

void pl_yaml_free(pl_yaml *document);

/* Put one more item or word behind the others, copying KEY or TEXT. For documents that are to be
 * written. Errors: PL_NO_MEMORY, leaving DOCUMENT or ITEM as it was. */
pl_status pl_yaml_add_item(pl_yaml *document, const char *key, pl_yaml_kind kind);
pl_status pl_yaml_add_word(pl_yaml_item *item, const char *text, size_t length, bool quoted);

/* Add DOCUMENT as YAML that pl_yaml_parse reads back to the same words, lists and keys. Items of
 * kind mapping are left out: mappings follow from dotted keys. Items of one mapping must stand
 * together. Errors: PL_NO_MEMORY. */
pl_status pl_yaml_write(pl_text *text, const pl_yaml *document);

/* Whether LENGTH bytes can stand as a word. Errors: PL_BAD_INPUT, beginning with PLACE and KEY,
 * when they are not UTF-8 or have control characters. */
pl_status pl_yaml_check_word(const char *bytes, size_t length, pl_place place, const char *key);

/* Add "run.yaml:7:11: ", or "--set: ", or nothing. */
void pl_place_print(pl_text *text, pl_place place);

#ifdef __cplusplus
}
#endif
#endif
