/* Damage made by hand in the text of plans, and which proofs must see it: for the suites of proofs.
 * Includes tests/test.h, whose rules of order hold. */
#ifndef PL_TESTS_SIM_DAMAGE_CASES_H
#define PL_TESTS_SIM_DAMAGE_CASES_H

#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "sim/proof.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

typedef enum edit_kind {
    NO_EDIT,
    REPLACE, /* FROM by TO in the line */
    DROP,    /* the line */
    ADD,     /* the line TO after it */
    MOVE,    /* the line before the first with TO */
    WAIT     /* let the line wait for the first with TO */
} edit_kind;

/* An edit of the first line with LINE in it. */
typedef struct edit {
    edit_kind kind;
    const char *line, *from, *to;
} edit;

enum { EDITS = 4, ALL_RANKS = -1 };

#define BIT(proof) (1u << PL_PROOF_##proof)

/* What is carried through a walk, and so not decided when the walk does not end. */
#define CARRIED (BIT(PARAMETERS) | BIT(GRADIENTS) | BIT(COUNTS) | BIT(NORM) | BIT(UPDATE))

typedef struct damage_case {
    const char *name;
    const plan_case *base;
    int rank; /* whose section, split off, is edited; ALL_RANKS: every section */
    pl_program program;
    edit edits[EDITS];
    unsigned failed; /* the proofs that fail, and no others */
    unsigned undecided;
    pl_proof_id shown; /* whose words are looked at */
    const char *words[4];
} damage_case;

/* TEXT, freed, with LENGTH bytes at AT replaced by TO. */
static inline char *splice(char *text, size_t at, size_t length, const char *to)
{
    pl_text new = {0};
    pl_text_add_bytes(&new, text, at);
    pl_text_add_string(&new, to);
    pl_text_add_string(&new, text + at + length);
    assert_ok(pl_text_status(&new));
    free(text);
    return new.bytes;
}

/* Where the first line with WORDS begins, after START and before the section's end. */
static inline size_t find_line(const char *text, size_t start, const char *words)
{
    const char *found = strstr(text + start, words), *end = strstr(text + start, "\nend\n");
    if (!found || !end || found > end) fail_msg("no line with '%s' in the section", words);
    size_t at = (size_t)(found - text);
    while (text[at - 1] != '\n') --at;
    return at;
}

static inline size_t line_length(const char *text, size_t at)
{
    return strcspn(text + at, "\n") + 1;
}

static inline char *add_wait(char *text, size_t at, size_t other)
{
    char label[24];
    snprintf(label, sizeof label, "%ld,", strtol(text + other + strlen("entry "), NULL, 10));
    size_t end = at + line_length(text, at), stream = 0;
    const char *waits = strstr(text + at, " waits=");
    if (waits && (size_t)(waits - text) < end)
        return splice(text, (size_t)(waits - text) + strlen(" waits="), 0, label);
    stream = (size_t)(strstr(text + at, " stream=") - text) + 1;
    stream += strcspn(text + stream, " \n");
    label[strlen(label) - 1] = '\0';
    text = splice(text, stream, 0, label);
    return splice(text, stream, 0, " waits=");
}

static inline char *apply(char *text, size_t start, const edit *e)
{
    size_t at = find_line(text, start, e->line), length = line_length(text, at);
    const char *from = NULL;
    pl_text line = {0};
    switch (e->kind) {
    case REPLACE:
        from = strstr(text + at, e->from);
        if (!from || from >= text + at + length) fail_msg("no '%s' in '%s'", e->from, e->line);
        return splice(text, (size_t)(from - text), strlen(e->from), e->to);
    case DROP: return splice(text, at, length, "");
    case ADD: return splice(text, at + length, 0, e->to);
    case MOVE:
        pl_text_add_bytes(&line, text + at, length);
        text = splice(text, at, length, "");
        text = splice(text, find_line(text, start, e->to), 0, pl_text_string(&line));
        pl_text_free(&line);
        return text;
    case WAIT: return add_wait(text, at, find_line(text, start, e->to));
    case NO_EDIT: break;
    }
    return text;
}

/* The edits in every section of the program, or in that of one rank. */
static inline char *damage_text(char *text, const damage_case *d)
{
    char head[64];
    size_t sections = 0;
    snprintf(head, sizeof head, "section %s ranks ", pl_program_name(d->program));
    if (d->rank != ALL_RANKS) snprintf(head + strlen(head), 24, "%d\n", d->rank);
    for (size_t start = 0;; ++sections) {
        const char *found = strstr(text + start, head);
        if (!found) break;
        start = (size_t)(found - text) + strlen(head);
        for (int i = 0; i < EDITS; ++i)
            if (d->edits[i].kind != NO_EDIT) text = apply(text, start, &d->edits[i]);
    }
    assert_true(sections > 0);
    return text;
}

static inline char *base_text(const plan_case *c, int64_t rank)
{
    pl_plan plan;
    pl_text text = {0};
    assert_ok(plan_case_build(&plan, c, false));
    if (rank != ALL_RANKS) assert_ok(pl_plan_split_rank(&plan, rank));
    pl_plan_write(&text, &plan, -1);
    assert_ok(pl_text_status(&text));
    pl_plan_free(&plan);
    return text.bytes;
}

static inline pl_check check_text(const char *text)
{
    pl_plan plan;
    pl_check check;
    assert_ok(pl_plan_read(&plan, text, "damaged.plan"));
    assert_ok(pl_check_plan(&check, &plan));
    pl_plan_free(&plan);
    return check;
}

static inline unsigned outcomes(const pl_check *check, pl_outcome outcome)
{
    unsigned bits = 0;
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        if (check->verdict[i].outcome == outcome) bits |= 1u << i;
    return bits;
}

static inline void print_outcomes(const pl_check *check)
{
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        if (check->verdict[i].outcome != PL_PROVED)
            print_error("  %s %s: %s\n", pl_proof_name((pl_proof_id)i),
                        check->verdict[i].outcome == PL_FAILED ? "fails" : "undecided",
                        pl_text_string(&check->verdict[i].words));
}

/* Whether the damage is found as it should be; prints what differs. */
static inline bool is_found(const damage_case *d)
{
    char *whole = base_text(d->base, d->rank);
    pl_check check = check_text(whole);
    bool found = pl_check_proved(&check);
    pl_check_free(&check);
    char *text = damage_text(whole, d);
    check = check_text(text);
    const char *words = pl_text_string(&check.verdict[d->shown].words);
    found = found && outcomes(&check, PL_FAILED) == d->failed &&
            outcomes(&check, PL_UNDECIDED) == d->undecided && !pl_check_proved(&check);
    for (int i = 0; i < 4 && d->words[i]; ++i) found = found && strstr(words, d->words[i]);
    if (!found) {
        print_error("%s\n", d->name);
        print_outcomes(&check);
    }
    pl_check_free(&check);
    free(text);
    return found;
}

static inline void expect_found(const damage_case *list, size_t count)
{
    size_t missed = 0;
    for (size_t i = 0; i < count; ++i) missed += !is_found(&list[i]);
    assert_int_equal(missed, 0);
}

/* --- plans to damage --- */

static const plan_case two_by_two = {.name = "two rounds of two micro-batches",
                                     .model = "moe",
                                     .layout = "decoupled:world=4,ep=2",
                                     .bf16 = true,
                                     .micro_batches = 2,
                                     .rounds = 2};

#endif
