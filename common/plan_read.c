/* Reading plans from their text form: lines, words and the whole. */
#include "common/plan_reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "common/memory.h"

pl_status pl_reader_bad(const pl_plan_reader *r, const char *at, const char *format, ...)
{
    pl_text text = {0};
    va_list arguments;
    int64_t column = at && at >= r->start ? at - r->start + 1 : 1;
    pl_text_add(&text, "%s:%" PRId64 ":%" PRId64 ": ", r->source, r->line, column);
    va_start(arguments, format);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    pl_error_record("%s", pl_text_string(&text));
    pl_text_free(&text);
    return PL_BAD_INPUT;
}

pl_status pl_reader_bad_choice(const pl_plan_reader *r, const char *at, const char *what,
                               const char *given, const char *const *names, int count)
{
    pl_text text = {0};
    pl_text_add_choices(&text, given, names, count);
    pl_status status =
        pl_reader_bad(r, at, "'%.60s' is no %s%s", given, what, pl_text_string(&text));
    pl_text_free(&text);
    return status;
}

/* --- lines and words --- */

static bool next_line(pl_plan_reader *r)
{
    if (*r->next == '\0') return false;
    r->start = r->next;
    char *end = strchr(r->next, '\n');
    r->next = end ? end + 1 : r->next + strlen(r->next);
    if (end) *end = '\0';
    ++r->line;
    return true;
}

static pl_status cut_words(pl_plan_reader *r)
{
    char *c = r->start;
    r->words = 0;
    while (*c) {
        while (*c == ' ') *c++ = '\0';
        if (!*c) break;
        if (r->words == PL_READER_WORDS)
            return pl_reader_bad(r, c, "more than %d words in a line", PL_READER_WORDS);
        r->word[r->words++] = c;
        while (*c && *c != ' ') ++c;
    }
    return PL_OK;
}

char *pl_reader_value(const pl_plan_reader *r, int i, const char *key)
{
    size_t length = strlen(key);
    if (strncmp(r->word[i], key, length) != 0 || r->word[i][length] != '=') return NULL;
    return r->word[i] + length + 1;
}

pl_status pl_reader_number(const pl_plan_reader *r, char *word, int64_t least, int64_t most,
                           int64_t *out)
{
    int64_t number = 0;
    if (!pl_parse_integer(&number, word))
        return pl_reader_bad(r, word, "'%.60s' is no whole number", word);
    if (number < least || number > most)
        return pl_reader_bad(r, word, "%" PRId64 " is outside %" PRId64 " to %" PRId64, number,
                             least, most);
    *out = number;
    return PL_OK;
}

pl_status pl_reader_small(const pl_plan_reader *r, char *word, int32_t *out)
{
    int64_t number = 0;
    PL_TRY(pl_reader_number(r, word, 0, INT32_MAX, &number));
    *out = (int32_t)number;
    return PL_OK;
}

pl_status pl_reader_check_repeats(const pl_plan_reader *r, int first)
{
    for (int i = first; i < r->words; ++i) {
        size_t length = strcspn(r->word[i], "=");
        for (int j = first; j < i; ++j)
            if (strncmp(r->word[i], r->word[j], length) == 0 && r->word[j][length] == '=' &&
                r->word[i][length] == '=')
                return pl_reader_bad(r, r->word[i], "'%.*s' stands here twice", (int)length,
                                     r->word[i]);
    }
    return PL_OK;
}

pl_status pl_reader_dtype(const pl_plan_reader *r, char *word, pl_dtype *out)
{
    if (pl_dtype_parse(out, word)) return PL_OK;
    const char *names[PL_DTYPE_COUNT];
    for (int i = 0; i < PL_DTYPE_COUNT; ++i) names[i] = pl_dtype_name((pl_dtype)i);
    return pl_reader_bad_choice(r, word, "element type", word, names, PL_DTYPE_COUNT);
}

/* --- the whole --- */

static pl_status read_line(pl_plan_reader *r)
{
    bool taken = false;
    PL_TRY(pl_reader_whole_line(r, &taken));
    if (taken) return PL_OK;
    PL_TRY(cut_words(r));
    if (r->words == 0 || r->word[0][0] == '#') return PL_OK;
    if (r->section) return pl_reader_section_line(r);
    if (strcmp(r->word[0], "section") == 0) return pl_reader_begin_section(r);
    if (r->header_done)
        return pl_reader_bad(
            r, NULL, "'%.60s' after the header: a line 'section ...' may follow here", r->word[0]);
    return pl_reader_header_line(r);
}

static pl_status check_complete(const pl_plan_reader *r)
{
    if (r->section) return pl_reader_bad(r, NULL, "the text ends inside a section: no line 'end'");
    if (!r->header_done) return pl_reader_bad(r, NULL, "no section");
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        bool any = false;
        for (size_t i = 0; i < r->plan.section_count; ++i)
            any |= r->plan.sections[i].program == (pl_program)program;
        for (int64_t rank = 0; any && rank < r->plan.layout.world; ++rank)
            if (!r->has_section[program][rank])
                return pl_reader_bad(r, NULL, "rank %" PRId64 " has no %s section", rank,
                                     pl_program_name((pl_program)program));
    }
    return PL_OK;
}

static pl_status read_all(pl_plan_reader *r)
{
    if (!next_line(r) || strcmp(r->start, "pleat-plan 1") != 0)
        return pl_reader_bad(r, NULL, "expected 'pleat-plan 1' in the first line");
    while (next_line(r)) PL_TRY(read_line(r));
    return check_complete(r);
}

pl_status pl_plan_read(pl_plan *out, const char *text, const char *source)
{
    pl_plan_reader r = {.source = source, .plan = {.settings = pl_settings_default()}};
    PL_TRY(pl_duplicate(&r.bytes, text, "plan text"));
    r.next = r.start = r.bytes;
    pl_status status = read_all(&r);
    if (status != PL_OK)
        pl_plan_free(&r.plan);
    else
        *out = r.plan;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) pl_free(r.has_section[i]);
    for (int i = 0; i < 2; ++i) pl_free(r.patterns[i]);
    pl_free(r.buffer_table);
    pl_free(r.bytes);
    pl_text_free(&r.model);
    return status;
}
