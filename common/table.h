/* Tables of text: columns as wide as their widest cell. */
#ifndef PL_COMMON_TABLE_H
#define PL_COMMON_TABLE_H

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_TABLE_COLUMNS = 20 };

/* Make one as {.columns = N, .left = ...}; the first row is usually the heads. */
typedef struct pl_table {
    int columns;
    unsigned left; /* bit c: column c is aligned to the left, otherwise to the right */
    pl_text cells; /* row by row, a NUL behind each */
} pl_table;

/* Add the next cell. It has no NUL and no newline in it. */
void pl_table_add(pl_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Add NUMBER with its thousands separated, and BYTES in a unit that fits. */
void pl_table_add_number(pl_table *table, int64_t number);
void pl_table_add_bytes(pl_table *table, int64_t bytes);

/* Add TABLE to TEXT, each line behind INDENT blanks. A failed allocation of the table's becomes
 * TEXT's. */
void pl_table_print(pl_text *text, const pl_table *table, int indent);

void pl_table_free(pl_table *table);

#ifdef __cplusplus
}
#endif
#endif
