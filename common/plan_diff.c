/* What differs between two plans: header lines, then entries by name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/plan_builder.h"

typedef struct diff {
    pl_text *text;
    int64_t count, limit;
    pl_text left, right; /* lines being compared */
} diff;

static void report(diff *d, char side, const char *where, const char *line)
{
    if (d->limit == 0 || d->count < d->limit) {
        pl_text_add(d->text, "%c ", side);
        if (*where) pl_text_add(d->text, "%s: ", where);
        pl_text_add_string(d->text, line);
        pl_text_add_string(d->text, "\n");
    }
}

/* --- headers --- */

static bool has_line(const char *text, const char *line, size_t length)
{
    for (const char *at = text; *at;) {
        size_t found = strcspn(at, "\n");
        if (found == length && strncmp(at, line, length) == 0) return true;
        at += found + (at[found] == '\n');
    }
    return false;
}

static void report_missing(diff *d, char side, const char *text, const char *other, bool counts)
{
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, "\n");
        if (!has_line(other, at, length)) {
            pl_text_clear(&d->left);
            pl_text_add_bytes(&d->left, at, length);
            report(d, side, "", pl_text_string(&d->left));
            d->count += counts;
        }
        at += length + (at[length] == '\n');
    }
}

/* --- entries --- */

typedef struct named {
    const pl_section *section;
    int32_t place;
} named;

static int compare_names(const void *a, const void *b)
{
    const named *x = a, *y = b;
    return memcmp(&x->section->entries[x->place].name, &y->section->entries[y->place].name,
                  sizeof(pl_entry_name));
}

/* Names are plain numbers without gaps, so that bytes can be compared. */
_Static_assert(sizeof(pl_entry_name) == 3 + 1 + 5 * 4, "pl_entry_name has unexpected padding");

static pl_status sort_by_name(named **out, const pl_section *section)
{
    named *list = NULL;
    PL_TRY(pl_allocate(&list, section->entry_count, sizeof *list, "entries to compare"));
    for (size_t i = 0; i < section->entry_count; ++i) list[i] = (named){section, (int32_t)i};
    qsort(list, section->entry_count, sizeof *list, compare_names);
    *out = list;
    return PL_OK;
}

static void write_line(pl_text *text, const pl_section *section, int32_t place)
{
    pl_text_clear(text);
    pl_entry_write_unplaced(text, section, &section->entries[place]);
}

static void compare_lists(diff *d, const char *where, const named *a, size_t a_count,
                          const named *b, size_t b_count)
{
    size_t i = 0, j = 0;
    while (i < a_count || j < b_count) {
        int order = i == a_count ? 1 : j == b_count ? -1 : compare_names(&a[i], &b[j]);
        if (order <= 0) write_line(&d->left, a[i].section, a[i].place);
        if (order >= 0) write_line(&d->right, b[j].section, b[j].place);
        bool equal = order == 0 && strcmp(pl_text_string(&d->left), pl_text_string(&d->right)) == 0;
        if (!equal) {
            if (order <= 0) report(d, '-', where, pl_text_string(&d->left));
            if (order >= 0) report(d, '+', where, pl_text_string(&d->right));
            ++d->count;
        }
        i += order <= 0;
        j += order >= 0;
    }
}

/* Buffers by name: which of A's B lacks or has otherwise, and the other way round. */
static void compare_buffers(diff *d, const char *where, char side, const pl_section *a,
                            const pl_section *b)
{
    for (size_t i = 0; i < a->buffer_count; ++i) {
        bool found = false;
        pl_text_clear(&d->left);
        pl_buffer_write(&d->left, &a->buffers[i]);
        for (size_t j = 0; j < b->buffer_count && !found; ++j) {
            size_t place = (i + j) % b->buffer_count; /* mostly at the same place */
            if (b->buffers[place].kind != a->buffers[i].kind) continue;
            pl_text_clear(&d->right);
            pl_buffer_write(&d->right, &b->buffers[place]);
            found = strcmp(pl_text_string(&d->left), pl_text_string(&d->right)) == 0;
        }
        if (found) continue;
        report(d, side, where, pl_text_string(&d->left));
        ++d->count;
    }
}

/* Entries that both have, in another order: the first such pair is named. */
static void compare_order(diff *d, const char *where, const pl_section *a, const named *sorted_b,
                          const pl_section *b)
{
    int32_t last = -1;
    for (size_t i = 0; i < a->entry_count; ++i) {
        named key = {a, (int32_t)i};
        const named *found =
            bsearch(&key, sorted_b, b->entry_count, sizeof *sorted_b, compare_names);
        if (!found) continue;
        if (found->place < last) {
            write_line(&d->left, a, (int32_t)i);
            pl_text_clear(&d->right);
            pl_entry_name_print(&d->right, &b->entries[last].name);
            pl_text_add(&d->left, " (here before: %s)", pl_text_string(&d->right));
            report(d, '~', where, pl_text_string(&d->left));
            ++d->count;
            return;
        }
        last = found->place;
    }
}

static pl_status compare_sections(diff *d, int64_t rank, const pl_section *a, const pl_section *b)
{
    named *sorted_a = NULL, *sorted_b = NULL;
    char where[64];
    snprintf(where, sizeof where, "%s of rank %" PRId64, pl_program_name(a->program), rank);
    pl_status status = sort_by_name(&sorted_a, a);
    if (status == PL_OK) status = sort_by_name(&sorted_b, b);
    if (status == PL_OK) {
        compare_buffers(d, where, '-', a, b);
        compare_buffers(d, where, '+', b, a);
        compare_lists(d, where, sorted_a, a->entry_count, sorted_b, b->entry_count);
        compare_order(d, where, a, sorted_b, b);
    }
    pl_free(sorted_a);
    pl_free(sorted_b);
    return status;
}

static bool has_program(const pl_plan *plan, pl_program program)
{
    for (size_t i = 0; i < plan->section_count; ++i)
        if (plan->sections[i].program == program) return true;
    return false;
}

/* Two sections are compared once, at the first rank that they have in common. */
static pl_status compare_pair(diff *d, const pl_plan *plan, const pl_section *x,
                              const pl_section *y)
{
    if (x->program != y->program) return PL_OK;
    for (int64_t rank = 0; rank < plan->layout.world; ++rank)
        if (pl_section_has_rank(x, rank) && pl_section_has_rank(y, rank))
            return compare_sections(d, rank, x, y);
    return PL_OK;
}

static pl_status compare_programs(diff *d, const pl_plan *a, const pl_plan *b)
{
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        bool in_a = has_program(a, (pl_program)i), in_b = has_program(b, (pl_program)i);
        if (in_a == in_b) continue;
        report(d, in_a ? '-' : '+', "the whole program", pl_program_name((pl_program)i));
        ++d->count;
    }
    for (size_t i = 0; i < a->section_count; ++i)
        for (size_t j = 0; j < b->section_count; ++j)
            PL_TRY(compare_pair(d, a, &a->sections[i], &b->sections[j]));
    return PL_OK;
}

pl_status pl_plan_diff(pl_text *text, const pl_plan *a, const pl_plan *b, int64_t limit,
                       int64_t *count_out)
{
    diff d = {.text = text, .limit = limit};
    pl_text header[2] = {{0}, {0}};
    pl_plan_write_header(&header[0], a);
    pl_plan_write_header(&header[1], b);
    report_missing(&d, '-', pl_text_string(&header[0]), pl_text_string(&header[1]), true);
    report_missing(&d, '+', pl_text_string(&header[1]), pl_text_string(&header[0]), false);
    pl_status status = compare_programs(&d, a, b);
    if (status == PL_OK) status = pl_text_status(&header[0]);
    if (status == PL_OK) status = pl_text_status(&header[1]);
    if (status == PL_OK) status = pl_text_status(&d.left);
    if (status == PL_OK) status = pl_text_status(&d.right);
    if (status == PL_OK) status = pl_text_status(text);
    pl_text_free(&header[0]);
    pl_text_free(&header[1]);
    pl_text_free(&d.left);
    pl_text_free(&d.right);
    if (status == PL_OK) *count_out = d.count;
    return status;
}
