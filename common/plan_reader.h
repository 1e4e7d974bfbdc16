/* Reading the text form of plans: what plan_read.c (the whole), plan_read_header.c and
 * plan_read_section.c share. Private to them.
 */
#ifndef PL_COMMON_PLAN_READER_H
#define PL_COMMON_PLAN_READER_H

#include "common/plan_builder.h"

enum { PL_READER_WORDS = 64, PL_READER_ONCE = 5 };

typedef struct pl_plan_reader {
    const char *source;
    char *bytes, *next; /* own copy of the text, words cut by NULs; the line to come */
    int64_t line;
    char *start; /* of the line in work */
    char *word[PL_READER_WORDS];
    int words;
    pl_plan plan;
    pl_section *section;   /* NULL between sections */
    int32_t *buffer_table; /* hash table of buffer numbers, -1 free */
    size_t buffer_table_size;
    int64_t *has_section[PL_PROGRAM_COUNT]; /* line of a rank's section + 1, or 0 */
    bool seen_model, header_done;
    bool seen[PL_READER_ONCE]; /* header lines that must stand once */
    pl_text model;
    char name[PL_MODEL_NAME];
    char **patterns[2]; /* borrowed from bytes: keep_fp32, frozen */
    size_t pattern_count[2], pattern_capacity[2];
} pl_plan_reader;

/* --- words (plan_read.c) --- */

/* Refuse with "plan.txt:12:7: words". AT points into the line; NULL for its start. Callers show at
 * most 60 letters of what was given, so that the reason is not pushed out. PL_BAD_INPUT. */
pl_status pl_reader_bad(const pl_plan_reader *r, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refuse GIVEN, which is no WHAT, with the nearest of NAMES. PL_BAD_INPUT. */
pl_status pl_reader_bad_choice(const pl_plan_reader *r, const char *at, const char *what,
                               const char *given, const char *const *names, int count);

/* The value of word number I when it starts with KEY and '=', else NULL. */
char *pl_reader_value(const pl_plan_reader *r, int i, const char *key);

/* A whole number of LEAST to MOST, one of 0 to INT32_MAX, an element type. PL_BAD_INPUT. */
pl_status pl_reader_number(const pl_plan_reader *r, char *word, int64_t least, int64_t most,
                           int64_t *out);
pl_status pl_reader_small(const pl_plan_reader *r, char *word, int32_t *out);
pl_status pl_reader_dtype(const pl_plan_reader *r, char *word, pl_dtype *out);

/* Refuse a second KEY=... among the words of a line, from word FIRST on. PL_BAD_INPUT. */
pl_status pl_reader_check_repeats(const pl_plan_reader *r, int first);

/* --- the header (plan_read_header.c) --- */

/* The two lines that are read as they stand, blanks and all; *TAKEN: it was one of them. */
pl_status pl_reader_whole_line(pl_plan_reader *r, bool *taken);

/* A line of the header, cut into words. */
pl_status pl_reader_header_line(pl_plan_reader *r);

/* The header is whole: make the model, and room to note which ranks have sections. */
pl_status pl_reader_finish_header(pl_plan_reader *r);

/* --- sections (plan_read_section.c) --- */

/* A line "section ...", and one inside a section. */
pl_status pl_reader_begin_section(pl_plan_reader *r);
pl_status pl_reader_section_line(pl_plan_reader *r);

#endif
