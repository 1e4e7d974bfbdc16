#include "tests/tools/mutation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation_kinds.h"

enum { WORDS = 4096 };

typedef struct kind {
    const char *name;
    const char *line; /* what a line it can damage begins with */
    mutation_function *function;
    const char *argument, *meaning;
} kind;

static const kind kinds[] = {
    {"entry-dropped", "entry ", mutation_drop, "", "an entry is gone"},
    {"entry-doubled", "entry ", mutation_double, "", "an entry stands twice, under two labels"},
    {"entries-swapped", "entry ", mutation_swap, "next", "an entry and the next change places"},
    {"entries-swapped-far", "entry ", mutation_swap, "later",
     "an entry and a later one change places"},
    {"entry-earlier", "entry ", mutation_shift, "earlier", "an entry stands earlier"},
    {"entry-later", "entry ", mutation_shift, "later", "an entry stands later"},
    {"label-changed", "entry ", mutation_relabel, "", "an entry has another label"},
    {"ranks-swapped", "section ", mutation_swap_ranks, "",
     "two sections of a program have each other's ranks"},
    {"group-changed", "entry ", mutation_change_choice, "group", "the group has another role"},
    {"group-removed", "entry ", mutation_remove_choice, "group", "no group"},
    {"group-added", "entry ", mutation_add_choice, "group", "a group where none was"},
    {"scale-changed", "entry ", mutation_change_choice, "scale", "another scale"},
    {"scale-removed", "entry ", mutation_remove_choice, "scale", "no scale, which means 1"},
    {"scale-added", "entry ", mutation_add_choice, "scale", "a scale where none was"},
    {"reduction-changed", "entry ", mutation_change_choice, "reduction", "another reduction"},
    {"reduction-removed", "entry ", mutation_remove_choice, "reduction", "no reduction"},
    {"reduction-added", "entry ", mutation_add_choice, "reduction", "a reduction where none was"},
    {"bytes-changed", "entry ", mutation_change_number, "bytes", "other bytes communicated"},
    {"bytes-rows", "entry ", mutation_change_suffix, "bytes", "*C dropped or added"},
    {"wire-changed", "entry ", mutation_change_choice, "wire", "another type on the wire"},
    {"stream-changed", "entry ", mutation_change_choice, "stream", "another stream"},
    {"round-changed", "entry ", mutation_change_name, "round", "another round"},
    {"micro-batch-changed", "entry ", mutation_change_name, "mb", "another micro-batch"},
    {"ordinal-changed", "entry ", mutation_change_name, "ordinal", "another ordinal"},
    {"chunk-changed", "entry ", mutation_change_name, "chunk", "another pipeline chunk"},
    {"pass-changed", "entry ", mutation_change_choice, "pass", "another pass"},
    {"layer-changed", "entry ", mutation_change_layer, "", "another layer"},
    {"exchange-renamed", "entry ", mutation_change_exchange, "",
     "an exchange of another micro-batch, round or layer: another peer's counts"},
    {"subject-changed", "entry ", mutation_change_subject, "", "another subject"},
    {"operation-changed", "entry ", mutation_change_operation, "", "another operation"},
    {"wait-removed", "entry ", mutation_list_drop, "waits", "a wait is gone"},
    {"wait-moved", "entry ", mutation_redirect_wait, "", "a wait for another entry"},
    {"wait-added", "entry ", mutation_add_wait, "", "one more wait, perhaps for a later entry"},
    {"read-removed", "entry ", mutation_list_drop, "reads", "a read is gone"},
    {"read-moved", "entry ", mutation_redirect, "reads", "a read of another buffer of the kind"},
    {"read-added", "entry ", mutation_add_read, "reads", "one more read"},
    {"write-removed", "entry ", mutation_list_drop, "writes", "a write is gone"},
    {"write-moved", "entry ", mutation_redirect_write, "",
     "a write or begin of another buffer of the kind"},
    {"write-added", "entry ", mutation_add_read, "writes", "one more write"},
    {"begin-dropped", "entry ", mutation_list_drop, "begins", "a begin is gone"},
    {"begin-weakened", "entry ", mutation_weaken_begin, "", "a begin is only a write"},
    {"begin-moved", "entry ", mutation_move_begin, "", "another entry begins the buffer"},
    {"end-dropped", "entry ", mutation_list_drop, "ends", "an end is gone: a leak"},
    {"end-earlier", "entry ", mutation_end_earlier, "", "an earlier entry ends the buffer"},
    {"end-later", "entry ", mutation_end_later, "", "a later entry ends the buffer"},
    {"end-doubled", "entry ", mutation_end_twice, "", "two entries end the buffer"},
    {"condition-dropped", "entry ", mutation_remove_choice, "if", "no condition"},
    {"condition-added", "entry ", mutation_add_choice, "if", "a condition where none was"},
    {"elements-changed", "entry ", mutation_change_number, "elements", "other elements"},
    {"flops-changed", "entry ", mutation_change_number, "flops", "other FLOPs"},
    {"flops-rows", "entry ", mutation_change_suffix, "flops", "*R dropped or added"},
    {"buffer-bytes", "buffer ", mutation_buffer_bytes, "", "a buffer of other bytes"},
    {"buffer-type", "buffer ", mutation_buffer_word, "type", "a buffer of another type"},
    {"buffer-class", "buffer ", mutation_buffer_word, "class", "a buffer of another class"},
    {"buffer-rows", "buffer ", mutation_buffer_rows, "", "a buffer's *R dropped or added"},
    {"buffer-resident", "buffer ", mutation_buffer_resident, "", "'resident' dropped or added"},
    {"buffer-dropped", "buffer ", mutation_buffer_drop, "", "a buffer's line is gone"},
    {"buffer-doubled", "buffer ", mutation_buffer_double, "", "a buffer's line stands twice"},
    {"buffer-added", "buffer ", mutation_buffer_add, "", "a buffer that nothing uses"},
};

int mutation_kinds(void) { return (int)(sizeof kinds / sizeof *kinds); }

const char *mutation_name(int number) { return kinds[number].name; }

const char *mutation_meaning(int number) { return kinds[number].meaning; }

int mutation_find(const char *name)
{
    for (int i = 0; i < mutation_kinds(); ++i)
        if (strcmp(kinds[i].name, name) == 0) return i;
    return -1;
}

/* --- chance --- */

/* SplitMix64: the whole of a seed counts from the first number on. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

long mutation_random(mutation_site *site, long below)
{
    return (long)(next_random(site->random) % (uint64_t)below);
}

/* --- places --- */

typedef struct places {
    long *at; /* lines that the kind may damage, in random order */
    long count;
} places;

/* Whether the line "section PROGRAM ranks LIST" is about RANK alone. */
static bool about(const char *line, long rank)
{
    char number[32];
    if (rank < 0) return true;
    snprintf(number, sizeof number, "%ld", rank);
    return mutation_piece_is(mutation_word(line, 3), number);
}

/* Half of the time an operation is chosen first, so that rare ones come to their turn. */
static void order_places(const mutation_lines *lines, places *found, uint64_t *random)
{
    mutation_piece word = {NULL, 0};
    for (long i = found->count - 1; i > 0; --i) {
        long j = (long)(next_random(random) % (uint64_t)(i + 1)), at = found->at[i];
        found->at[i] = found->at[j];
        found->at[j] = at;
    }
    if (next_random(random) % 2) return;
    long kinds_seen = 0;
    for (long i = 0; i < found->count; ++i) {
        mutation_piece own = mutation_word(lines->line[found->at[i]], 2);
        bool seen = false;
        for (long j = 0; j < i && !seen; ++j) {
            mutation_piece other = mutation_word(lines->line[found->at[j]], 2);
            seen = other.length == own.length && memcmp(other.start, own.start, own.length) == 0;
        }
        if (!seen && next_random(random) % (uint64_t)++kinds_seen == 0) word = own;
    }
    for (long i = 0, front = 0; i < found->count; ++i) {
        mutation_piece own = mutation_word(lines->line[found->at[i]], 2);
        if (own.length != word.length || memcmp(own.start, word.start, own.length) != 0) continue;
        long at = found->at[i];
        found->at[i] = found->at[front];
        found->at[front++] = at;
    }
}

static bool find_places(places *found, const mutation_lines *lines, const char *prefix, long rank,
                        uint64_t *random)
{
    bool inside = false;
    found->count = 0;
    found->at = malloc((size_t)(lines->count + 1) * sizeof *found->at);
    if (!found->at) return false;
    for (long i = 0; i < lines->count; ++i) {
        const char *line = lines->line[i];
        if (mutation_starts(line, "section ")) inside = about(line, rank);
        if (inside && mutation_starts(line, prefix)) found->at[found->count++] = i;
        if (strcmp(line, "end") == 0) inside = false;
    }
    order_places(lines, found, random);
    return true;
}

static mutation_site site_of(mutation_lines *lines, long at, uint64_t *random)
{
    mutation_site site = {.lines = lines, .at = at, .section = at};
    site.random = random;
    while (!mutation_starts(lines->line[site.section], "section ")) --site.section;
    site.end = site.section;
    while (site.end + 1 < lines->count && strcmp(lines->line[site.end], "end") != 0) ++site.end;
    site.first = site.section;
    while (site.first < site.end && !mutation_starts(lines->line[site.first], "entry "))
        ++site.first;
    return site;
}

/* --- what was done --- */

static char *copy(const char *text)
{
    mutation_piece whole = {text, strlen(text)};
    return mutation_piece_copy(whole);
}

static char *describe(const kind *chosen, const mutation *done)
{
    char *words = malloc(WORDS);
    if (!words) return NULL;
    int length = snprintf(words, WORDS, "%s: section %s, line %ld: '%.1200s'", chosen->name,
                          done->section, done->line, done->before);
    if (done->after[0] == '\0')
        length += snprintf(words + length, (size_t)(WORDS - length), " is gone");
    else if (strcmp(done->before, done->after) != 0)
        length += snprintf(words + length, (size_t)(WORDS - length), " -> '%.1200s'", done->after);
    if (done->other[0] != '\0')
        snprintf(words + length, (size_t)(WORDS - length), ", with '%.1200s'", done->other);
    return words;
}

static bool report(mutation *done, const kind *chosen, mutation_site *site, long line)
{
    done->section = copy(site->lines->line[site->section] + strlen("section "));
    done->after = copy(site->at >= 0 ? site->lines->line[site->at] : "");
    done->other = site->other ? site->other : copy("");
    site->other = NULL;
    done->line = line + 1;
    done->text = mutation_join(site->lines);
    if (!done->section || !done->before || !done->after || !done->other || !done->text)
        return false;
    done->words = describe(chosen, done);
    return done->words != NULL;
}

static mutation_result apply(mutation *done, const kind *chosen, mutation_lines *lines,
                             const places *found, uint64_t *random)
{
    for (long i = 0; i < found->count; ++i) {
        mutation_site site = site_of(lines, found->at[i], random);
        done->before = copy(lines->line[found->at[i]]);
        bool applied = done->before && chosen->function(&site, chosen->argument);
        if (applied && !lines->failed && report(done, chosen, &site, found->at[i]))
            return MUTATION_DONE;
        free(site.other);
        if (!done->before || applied || lines->failed) return MUTATION_NO_MEMORY;
        free(done->before);
        done->before = NULL;
    }
    return MUTATION_NO_PLACE;
}

mutation_result mutation_make(mutation *out, int number, uint64_t seed, long rank, const char *text)
{
    const kind *chosen = &kinds[number];
    mutation_lines lines = {0};
    mutation done = {0};
    places found = {0};
    uint64_t random = seed;
    mutation_result result = MUTATION_NO_MEMORY;
    mutation_cut(&lines, text);
    if (!lines.failed && find_places(&found, &lines, chosen->line, rank, &random))
        result = apply(&done, chosen, &lines, &found, &random);
    free(found.at);
    mutation_lines_free(&lines);
    if (result == MUTATION_DONE)
        *out = done;
    else
        mutation_free(&done);
    return result;
}

void mutation_free(mutation *done)
{
    free(done->text);
    free(done->section);
    free(done->before);
    free(done->after);
    free(done->other);
    free(done->words);
    *done = (mutation){0};
}
