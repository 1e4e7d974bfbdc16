/* Damage to the order and number of entries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation_kinds.h"

static char *line_at(const mutation_site *site, long at) { return site->lines->line[at]; }

static void note_other(mutation_site *site, long at)
{
    mutation_piece whole = {line_at(site, at), strlen(line_at(site, at))};
    site->other = mutation_piece_copy(whole);
    site->lines->failed |= !site->other;
}

/* A label that no entry of the section has. */
static long free_label(const mutation_site *site)
{
    long most = -1;
    for (long i = site->first; i < site->end; ++i) {
        long label = strtol(line_at(site, i) + strlen("entry "), NULL, 10);
        if (label > most) most = label;
    }
    return most + 1;
}

static char *with_label(mutation_site *site, const char *line, long label)
{
    char number[32];
    (void)site;
    snprintf(number, sizeof number, "%ld", label);
    return mutation_with_piece(line, mutation_word(line, 1), number);
}

bool mutation_drop(mutation_site *site, const char *argument)
{
    (void)argument;
    mutation_remove(site->lines, site->at);
    site->at = -1;
    return true;
}

/* The second one stands right behind the first, or anywhere later. */
bool mutation_double(mutation_site *site, const char *argument)
{
    (void)argument;
    long later = site->end - site->at;
    long at = site->at + 1 + (mutation_random(site, 2) ? mutation_random(site, later) : 0);
    mutation_insert(site->lines, at, with_label(site, line_at(site, site->at), free_label(site)));
    site->at = at;
    return true;
}

bool mutation_swap(mutation_site *site, const char *argument)
{
    long later = site->end - site->at - 1;
    if (later < 1) return false;
    long with = site->at + 1;
    if (strcmp(argument, "later") == 0) {
        if (later < 2) return false;
        with = site->at + 2 + mutation_random(site, later - 1);
    }
    note_other(site, with);
    char *line = line_at(site, site->at);
    site->lines->line[site->at] = line_at(site, with);
    site->lines->line[with] = line;
    site->at = with;
    return true;
}

/* By a few places half of the time, else by any number. */
bool mutation_shift(mutation_site *site, const char *argument)
{
    bool later = strcmp(argument, "later") == 0;
    long room = later ? site->end - 1 - site->at : site->at - site->first;
    if (room < 1) return false;
    long near = room < 6 ? room : 6;
    long by = 1 + mutation_random(site, mutation_random(site, 2) ? near : room);
    long to = later ? site->at + by : site->at - by;
    note_other(site, to);
    mutation_move(site->lines, site->at, to);
    site->at = to;
    return true;
}

/* To a label that is free, or to that of another entry. */
bool mutation_relabel(mutation_site *site, const char *argument)
{
    (void)argument;
    long label = free_label(site), count = site->end - site->first;
    if (count > 1 && mutation_random(site, 2)) {
        long with = site->first + mutation_random(site, count);
        if (with == site->at) return false;
        note_other(site, with);
        label = strtol(line_at(site, with) + strlen("entry "), NULL, 10);
    }
    mutation_replace(site->lines, site->at, with_label(site, line_at(site, site->at), label));
    return true;
}

/* Exchange the rank lists of two sections of one program. */
bool mutation_swap_ranks(mutation_site *site, const char *argument)
{
    (void)argument;
    char *line = line_at(site, site->section);
    mutation_piece program = mutation_word(line, 1), ranks = mutation_word(line, 3);
    long found = -1, seen = 0;
    for (long i = 0; i < site->lines->count; ++i) {
        char *other = line_at(site, i);
        if (i == site->section || !mutation_starts(other, "section ")) continue;
        mutation_piece its = mutation_word(other, 1);
        if (its.length != program.length || memcmp(its.start, program.start, its.length) != 0)
            continue;
        if (mutation_random(site, ++seen) == 0) found = i;
    }
    if (found < 0) return false;
    note_other(site, found);
    char *theirs = line_at(site, found), *mine = mutation_piece_copy(ranks);
    char *his = mutation_piece_copy(mutation_word(theirs, 3));
    if (mine && his) {
        mutation_replace(site->lines, site->section, mutation_with_piece(line, ranks, his));
        mutation_replace(site->lines, found,
                         mutation_with_piece(theirs, mutation_word(theirs, 3), mine));
    }
    site->lines->failed |= !mine || !his;
    free(mine);
    free(his);
    return true;
}
