/* Damage to the lines "buffer NAME CLASS TYPE BYTES[*R] [resident]". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation_kinds.h"

static char *own_line(const mutation_site *site) { return site->lines->line[site->at]; }

static void replace(mutation_site *site, char *line)
{
    mutation_replace(site->lines, site->at, line);
}

static bool per_row(mutation_piece bytes)
{
    return bytes.length > 2 && memcmp(bytes.start + bytes.length - 2, "*R", 2) == 0;
}

bool mutation_buffer_bytes(mutation_site *site, const char *argument)
{
    (void)argument;
    mutation_piece bytes = mutation_word(own_line(site), 4);
    if (per_row(bytes)) bytes.length -= 2;
    replace(site, mutation_other_number(site, own_line(site), bytes));
    return true;
}

/* ARGUMENT: "class" or "type". */
bool mutation_buffer_word(mutation_site *site, const char *argument)
{
    static const char *const classes[] = {"shard",    "gathered", "gradient", "sum", "activation",
                                          "exchange", "work",     "host",     NULL};
    static const char *const types[] = {"bf16", "fp16", "fp32", "fp64", "i32", "i64", "u8", NULL};
    bool class_ = strcmp(argument, "class") == 0;
    mutation_piece word = mutation_word(own_line(site), class_ ? 2 : 3);
    replace(site, mutation_with_piece(own_line(site), word,
                                      mutation_other_choice(site, class_ ? classes : types, word)));
    return true;
}

bool mutation_buffer_rows(mutation_site *site, const char *argument)
{
    (void)argument;
    char text[48];
    mutation_piece bytes = mutation_word(own_line(site), 4);
    int digits = (int)bytes.length - (per_row(bytes) ? 2 : 0);
    snprintf(text, sizeof text, "%.*s%s", digits, bytes.start, per_row(bytes) ? "" : "*R");
    replace(site, mutation_with_piece(own_line(site), bytes, text));
    return true;
}

bool mutation_buffer_resident(mutation_site *site, const char *argument)
{
    (void)argument;
    char text[64];
    mutation_piece word = mutation_word(own_line(site), 5),
                   bytes = mutation_word(own_line(site), 4);
    if (word.start) {
        --word.start; /* with the space before it */
        ++word.length;
        replace(site, mutation_with_piece(own_line(site), word, ""));
        return true;
    }
    snprintf(text, sizeof text, "%.*s resident", (int)bytes.length, bytes.start);
    replace(site, mutation_with_piece(own_line(site), bytes, text));
    return true;
}

bool mutation_buffer_drop(mutation_site *site, const char *argument)
{
    (void)argument;
    mutation_remove(site->lines, site->at);
    site->at = -1;
    return true;
}

static char *copy_line(const mutation_site *site)
{
    mutation_piece whole = {own_line(site), strlen(own_line(site))};
    return mutation_piece_copy(whole);
}

bool mutation_buffer_double(mutation_site *site, const char *argument)
{
    (void)argument;
    mutation_insert(site->lines, site->at + 1, copy_line(site));
    ++site->at;
    return true;
}

/* A buffer of the same kind that nothing uses: of a layer or micro-batch that is not there. */
bool mutation_buffer_add(mutation_site *site, const char *argument)
{
    (void)argument;
    char text[96];
    mutation_piece name = mutation_word(own_line(site), 1);
    size_t stem = name.length;
    while (stem > 0 && name.start[stem - 1] >= '0' && name.start[stem - 1] <= '9') --stem;
    if (stem == name.length || stem == 0 || stem > 80) return false;
    snprintf(text, sizeof text, "%.*s%ld", (int)stem, name.start, 50 + mutation_random(site, 50));
    mutation_insert(site->lines, site->at + 1, mutation_with_piece(own_line(site), name, text));
    ++site->at;
    return true;
}
