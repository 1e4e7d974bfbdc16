/* Damage to the lists of an entry: what it waits for, reads, writes, begins and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation_kinds.h"

static char *line_at(const mutation_site *site, long at) { return site->lines->line[at]; }

static void replace(mutation_site *site, long at, char *line)
{
    mutation_replace(site->lines, at, line);
}

static void note_other(mutation_site *site, long at)
{
    mutation_piece whole = {line_at(site, at), strlen(line_at(site, at))};
    site->other = mutation_piece_copy(whole);
    site->lines->failed |= !site->other;
}

/* The number of a random item of KEY's list, or -1. */
static long choose_item(mutation_site *site, const char *key)
{
    long count = mutation_list_count(line_at(site, site->at), key);
    return count > 0 ? mutation_random(site, count) : -1;
}

static char *copy_item(mutation_site *site, const char *key, long n)
{
    char *item = mutation_piece_copy(mutation_list_item(line_at(site, site->at), key, n));
    site->lines->failed |= !item;
    return item;
}

bool mutation_list_drop(mutation_site *site, const char *argument)
{
    long n = choose_item(site, argument);
    if (n < 0) return false;
    replace(site, site->at, mutation_list_without(line_at(site, site->at), argument, n));
    return true;
}

/* Whether two buffer names have the same stem. */
static bool same_stem(mutation_piece a, mutation_piece b)
{
    size_t i = 0;
    for (; i < a.length && i < b.length; ++i) {
        if (a.start[i] != b.start[i]) return false;
        if (a.start[i] == '.') return true;
    }
    return false;
}

/* A buffer of the section other than ITEM: with its stem, or any when STEM is false. */
static mutation_piece other_buffer(mutation_site *site, mutation_piece item, bool stem)
{
    mutation_piece found = {NULL, 0};
    long seen = 0;
    for (long i = site->section + 1; i < site->first; ++i) {
        mutation_piece name = mutation_word(line_at(site, i), 1);
        bool equal = name.length == item.length && memcmp(name.start, item.start, name.length) == 0;
        if (equal || (stem && !same_stem(name, item))) continue;
        if (mutation_random(site, ++seen) == 0) found = name;
    }
    return found;
}

bool mutation_redirect(mutation_site *site, const char *argument)
{
    long n = choose_item(site, argument);
    if (n < 0) return false;
    char *line = line_at(site, site->at);
    mutation_piece item = mutation_list_item(line, argument, n);
    mutation_piece buffer = other_buffer(site, item, true);
    if (!buffer.start) return false;
    char *name = mutation_piece_copy(buffer);
    if (name) replace(site, site->at, mutation_with_piece(line, item, name));
    site->lines->failed |= !name;
    free(name);
    return true;
}

bool mutation_redirect_write(mutation_site *site, const char *argument)
{
    (void)argument;
    const char *first = mutation_random(site, 2) ? "writes" : "begins";
    const char *second = strcmp(first, "writes") == 0 ? "begins" : "writes";
    return mutation_redirect(site, first) || mutation_redirect(site, second);
}

/* The label of a random entry, near half of the time; rarely one that no entry has. */
static void choose_label(mutation_site *site, char *label, size_t size)
{
    long low = site->first, high = site->end;
    if (mutation_random(site, 2)) {
        if (site->at - 5 > low) low = site->at - 5;
        if (site->at + 6 < high) high = site->at + 6;
    }
    long at = low + mutation_random(site, high - low);
    mutation_piece word = mutation_word(line_at(site, at), 1);
    snprintf(label, size, "%.*s", (int)word.length, word.start);
    if (mutation_random(site, 12) == 0) snprintf(label, size, "%ld", 100000 + at);
}

bool mutation_redirect_wait(mutation_site *site, const char *argument)
{
    (void)argument;
    char label[32];
    long n = choose_item(site, "waits");
    if (n < 0) return false;
    choose_label(site, label, sizeof label);
    char *line = line_at(site, site->at);
    mutation_piece given = {label, strlen(label)};
    if (mutation_list_has(line, "waits", given)) return false;
    replace(site, site->at, mutation_with_piece(line, mutation_list_item(line, "waits", n), label));
    return true;
}

bool mutation_add_wait(mutation_site *site, const char *argument)
{
    (void)argument;
    char label[32];
    choose_label(site, label, sizeof label);
    char *line = line_at(site, site->at);
    mutation_piece given = {label, strlen(label)};
    if (mutation_list_has(line, "waits", given)) return false;
    replace(site, site->at, mutation_list_with(line, "waits", label));
    return true;
}

bool mutation_add_read(mutation_site *site, const char *argument)
{
    char *line = line_at(site, site->at);
    mutation_piece none = {"", 0}, buffer = other_buffer(site, none, false);
    if (!buffer.start || mutation_list_has(line, argument, buffer)) return false;
    char *name = mutation_piece_copy(buffer);
    if (name) replace(site, site->at, mutation_list_with(line, argument, name));
    site->lines->failed |= !name;
    free(name);
    return true;
}

/* From LINE's begins to its writes: the entry writes a buffer that nobody brought to life. */
bool mutation_weaken_begin(mutation_site *site, const char *argument)
{
    (void)argument;
    long n = choose_item(site, "begins");
    if (n < 0) return false;
    char *item = copy_item(site, "begins", n);
    if (!item) return true;
    replace(site, site->at, mutation_list_without(line_at(site, site->at), "begins", n));
    if (!site->lines->failed)
        replace(site, site->at, mutation_list_with(line_at(site, site->at), "writes", item));
    free(item);
    return true;
}

/* Take an item of KEY away (unless KEEP) and give it to the entry in line TO. */
static bool give(mutation_site *site, const char *key, long to, bool keep)
{
    long n = choose_item(site, key);
    if (n < 0 || to == site->at) return false;
    char *item = copy_item(site, key, n);
    if (!item) return true;
    note_other(site, to);
    if (!keep) replace(site, site->at, mutation_list_without(line_at(site, site->at), key, n));
    if (!site->lines->failed) replace(site, to, mutation_list_with(line_at(site, to), key, item));
    free(item);
    return true;
}

/* A random entry in lines [low, high), at most 8 away half of the time; the own line if none. */
static long choose_entry(mutation_site *site, long low, long high)
{
    if (mutation_random(site, 2)) {
        if (low < site->at - 8) low = site->at - 8;
        if (high > site->at + 9) high = site->at + 9;
    }
    return low < high ? low + mutation_random(site, high - low) : site->at;
}

bool mutation_move_begin(mutation_site *site, const char *argument)
{
    (void)argument;
    return give(site, "begins", choose_entry(site, site->first, site->end), false);
}

bool mutation_end_earlier(mutation_site *site, const char *argument)
{
    (void)argument;
    return give(site, "ends", choose_entry(site, site->first, site->at), false);
}

bool mutation_end_later(mutation_site *site, const char *argument)
{
    (void)argument;
    return give(site, "ends", choose_entry(site, site->at + 1, site->end), false);
}

bool mutation_end_twice(mutation_site *site, const char *argument)
{
    (void)argument;
    return give(site, "ends", choose_entry(site, site->first, site->end), true);
}
