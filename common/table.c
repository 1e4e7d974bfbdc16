#include "common/table.h"

#include <string.h>

void pl_table_add(pl_table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(&table->cells, format, arguments);
    va_end(arguments);
    pl_text_add_bytes(&table->cells, "", 1);
}

void pl_table_add_number(pl_table *table, int64_t number)
{
    char buffer[32];
    pl_table_add(table, "%s", pl_format_thousands(buffer, number));
}

void pl_table_add_bytes(pl_table *table, int64_t bytes)
{
    char buffer[32];
    pl_table_add(table, "%s", pl_format_bytes(buffer, bytes));
}

/* Letters of a UTF-8 string: all bytes but those that continue one. */
static int width_of(const char *cell)
{
    int width = 0;
    for (; *cell; ++cell) width += ((unsigned char)*cell & 0xC0) != 0x80;
    return width;
}

static void add_blanks(pl_text *text, int count)
{
    for (int i = 0; i < count; ++i) pl_text_add_string(text, " ");
}

static void cut_blanks(pl_text *text)
{
    if (text->out_of_memory) return;
    while (text->length > 0 && text->bytes[text->length - 1] == ' ') --text->length;
    if (text->bytes) text->bytes[text->length] = '\0';
}

static void print_row(pl_text *text, const pl_table *table, const char **cell, const int *width)
{
    for (int c = 0; c < table->columns; ++c, *cell += strlen(*cell) + 1) {
        int blanks = width[c] - width_of(*cell);
        int left = (int)(table->left >> c & 1U);
        if (c > 0) add_blanks(text, 2);
        if (!left) add_blanks(text, blanks);
        pl_text_add_string(text, *cell);
        if (left && c + 1 < table->columns) add_blanks(text, blanks);
    }
}

void pl_table_print(pl_text *text, const pl_table *table, int indent)
{
    int width[PL_TABLE_COLUMNS] = {0};
    if (table->cells.out_of_memory) text->out_of_memory = true;
    if (table->cells.out_of_memory || table->cells.length == 0) return;
    const char *end = table->cells.bytes + table->cells.length;
    int column = 0;
    for (const char *cell = table->cells.bytes; cell < end; cell += strlen(cell) + 1) {
        int found = width_of(cell);
        if (found > width[column]) width[column] = found;
        column = (column + 1) % table->columns;
    }
    for (const char *cell = table->cells.bytes; cell < end;) {
        add_blanks(text, indent);
        print_row(text, table, &cell, width);
        cut_blanks(text);
        pl_text_add_string(text, "\n");
    }
}

void pl_table_free(pl_table *table) { pl_text_free(&table->cells); }
