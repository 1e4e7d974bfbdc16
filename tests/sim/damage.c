#include "tests/sim/damage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/harmless.h"

enum { DAMAGE_PLANS = 40 }; /* looked at for a place */

/* --- what the words name --- */

static const char *word(const char *line, int n)
{
    for (; n > 0 && *line; --n) {
        line += strcspn(line, " ");
        if (*line) ++line;
    }
    return line;
}

static bool copy_word(char *out, size_t size, const char *line, int n)
{
    const char *from = word(line, n);
    size_t length = strcspn(from, " ");
    if (length == 0 || length >= size) return false;
    memcpy(out, from, length);
    out[length] = '\0';
    return true;
}

static const char *value(const char *line, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' '))
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '=') return at + 2 + length;
    return NULL;
}

static int32_t number_of(const char *line, const char *key, int32_t otherwise)
{
    const char *at = value(line, key);
    return at ? (int32_t)strtol(at, NULL, 10) : otherwise;
}

/* The name of the entry in LINE as words spell it: "route layer.1 round 0 mb 2 backward". */
static bool spoken_name(pl_text *out, const char *line)
{
    char operation[32], subject[32], pass[8] = "-";
    pl_operation op = PL_OP_CONTROL;
    pl_subject what = PL_SUBJECT_FLAGS;
    pl_pass when = PL_PASS_NONE;
    int32_t layer = -1;
    if (strncmp(line, "entry ", 6) != 0 || !copy_word(operation, sizeof operation, line, 2) ||
        !copy_word(subject, sizeof subject, line, 3) || !pl_operation_parse(&op, operation) ||
        !pl_subject_parse(&what, &layer, subject))
        return false;
    const char *at = value(line, "pass");
    if (at && !copy_word(pass, sizeof pass, at, 0)) return false;
    if (!pl_pass_parse(&when, pass)) return false;
    pl_entry_name name = pl_entry_name_make(op, what);
    name.layer = layer;
    name.chunk = number_of(line, "chunk", -1);
    name.round = number_of(line, "round", -1);
    name.micro_batch = number_of(line, "mb", -1);
    name.ordinal = number_of(line, "ordinal", 0);
    name.pass = (uint8_t)when;
    pl_text_clear(out);
    pl_entry_name_print(out, &name);
    return true;
}

/* TEXT stands in WORDS and is not the beginning of something longer. */
static bool contains(const char *words, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = strstr(words, text); at && length > 0; at = strstr(at + 1, text)) {
        char before = ' ', after = at[length];
        if (at > words) before = at[-1];
        if (strchr(" ,:;'\"(", before) && strchr(" ,:;'\")\n.", after)) {
            /* "layer.1 round 0" must not stand for "layer.1 round 0 mb 1" in a longer name: names
             * end with ':' or ',' or a word that belongs to no name. */
            static const char *const more[] = {" round ",    " mb ", " forward", " backward",
                                               " recompute", " #",   " chunk "};
            bool longer = false;
            for (size_t i = 0; i < sizeof more / sizeof *more; ++i)
                longer |= strncmp(at + length, more[i], strlen(more[i])) == 0;
            if (!longer) return true;
        }
    }
    return false;
}

static bool names_entry_in(const char *words, const char *line)
{
    pl_text name = {0};
    bool named = spoken_name(&name, line) && contains(words, pl_text_string(&name));
    pl_text_free(&name);
    return named;
}

/* A buffer name of LENGTH bytes stands in WORDS. */
static bool names_item(const char *words, const char *item, size_t length)
{
    char name[64];
    if (length == 0 || length >= sizeof name) return false;
    memcpy(name, item, length);
    name[length] = '\0';
    return contains(words, name);
}

static bool listed(const char *list, const char *item, size_t length)
{
    while (list && *list && *list != ' ') {
        size_t own = strcspn(list, ", ");
        if (own == length && memcmp(list, item, length) == 0) return true;
        list += own + (list[own] == ',');
    }
    return false;
}

/* A buffer in one of A's lists that B's does not have. */
static bool names_changed_use(const char *words, const char *a, const char *b)
{
    static const char *const keys[] = {"reads", "writes", "begins", "ends"};
    for (int i = 0; i < 4; ++i) {
        const char *list = value(a, keys[i]), *others = value(b, keys[i]);
        while (list && *list && *list != ' ') {
            size_t length = strcspn(list, ", ");
            if (!listed(others, list, length) && names_item(words, list, length)) return true;
            list += length + (list[length] == ',');
        }
    }
    return false;
}

static bool names_buffer_in(const char *words, const char *line)
{
    return strncmp(line, "buffer ", 7) == 0 && names_item(words, line + 7, strcspn(line + 7, " "));
}

/* Whether RANK is in a list such as "0-6/2,7". */
static bool in_ranks(const char *list, long rank)
{
    while (*list >= '0' && *list <= '9') {
        char *end = NULL;
        long first = strtol(list, &end, 10), last = first, stride = 1;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (*end == '/') stride = strtol(end + 1, &end, 10);
        if (rank >= first && rank <= last && (rank - first) % stride == 0) return true;
        list = end + (*end == ',');
    }
    return false;
}

static bool names_rank_of(const char *words, const char *section)
{
    const char *ranks = word(section, 2);
    for (const char *at = strstr(words, "rank "); at; at = strstr(at + 1, "rank ")) {
        const char *digits = at + strlen("rank ");
        if (*digits >= '0' && *digits <= '9' && in_ranks(ranks, strtol(digits, NULL, 10)))
            return true;
    }
    return false;
}

/* An entry of the section that waited for the label that the damaged entry had. */
static bool names_waiter(const char *words, const mutation *done, const char *sound)
{
    char label[16], line[8192], header[256];
    snprintf(header, sizeof header, "section %.200s\n", done->section);
    const char *at = strstr(sound, header);
    if (!copy_word(label, sizeof label, done->before, 1)) return false;
    for (; at && strncmp(at, "end\n", 4) != 0; at = strchr(at, '\n'), at += at != NULL) {
        size_t length = strcspn(at, "\n");
        if (length >= sizeof line) continue;
        memcpy(line, at, length);
        line[length] = '\0';
        if (listed(value(line, "waits"), label, strlen(label)) && names_entry_in(words, line))
            return true;
    }
    return false;
}

static bool same_label(const char *a, const char *b)
{
    size_t length = strcspn(word(a, 1), " ");
    return length == strcspn(word(b, 1), " ") && memcmp(word(a, 1), word(b, 1), length) == 0;
}

/* Some use of A is none of B. */
static bool uses_differ(const char *a, const char *b)
{
    static const char *const keys[] = {"reads", "writes", "begins", "ends"};
    for (int i = 0; i < 4; ++i) {
        const char *list = value(a, keys[i]), *others = value(b, keys[i]);
        while (list && *list && *list != ' ') {
            size_t length = strcspn(list, ", ");
            if (!listed(others, list, length)) return true;
            list += length + (list[length] == ',');
        }
    }
    return false;
}

/* Where uses changed, their buffers are concerned; where the entry moved, vanished, came twice or
 * is another one, all its buffers. */
static bool names_buffer_of(const char *words, const mutation *done)
{
    static const char none[] = "entry 0";
    if (names_buffer_in(words, done->before) || names_buffer_in(words, done->after)) return true;
    if (done->after[0] != '\0' &&
        (uses_differ(done->before, done->after) || uses_differ(done->after, done->before)))
        return names_changed_use(words, done->before, done->after) ||
               names_changed_use(words, done->after, done->before);
    return names_changed_use(words, done->before, none) ||
           names_changed_use(words, done->other, none);
}

/* "entry 12", in words about the damaged section's program. */
static bool names_label(const char *words, const mutation *done)
{
    char label[16], program[16], text[32];
    if (strncmp(done->before, "entry ", 6) != 0 ||
        !copy_word(label, sizeof label, done->before, 1) ||
        !copy_word(program, sizeof program, done->section, 0))
        return false;
    snprintf(text, sizeof text, "entry %s", label);
    return contains(words, text) && strstr(words, program);
}

static void note_names(damage *tried, unsigned bit, const char *words, const char *sound)
{
    const mutation *done = &tried->done;
    bool sections = strncmp(done->before, "section ", 8) == 0;
    bool gone = !sections && (done->after[0] == '\0' || !same_label(done->before, done->after));
    if (names_entry_in(words, done->before) || names_entry_in(words, done->after) ||
        names_entry_in(words, done->other) || names_label(words, done) ||
        (gone && names_waiter(words, done, sound)))
        tried->names_entry |= bit;
    if (names_buffer_of(words, done)) tried->names_buffer |= bit;
    if (names_rank_of(words, done->section) ||
        (sections && names_rank_of(words, done->before + strlen("section "))))
        tried->names_rank |= bit;
    /* where sections are exchanged, ranks are what is wrong */
    if (sections && (tried->names_rank & bit)) tried->names_entry |= bit;
}

/* --- trying --- */

static pl_status prove(damage *tried, const pl_plan *plan, const char *sound)
{
    pl_check check;
    PL_TRY(pl_check_programs(&check, plan, tried->chosen->programs));
    for (int i = 0; i < PL_PROOF_COUNT; ++i) {
        const pl_verdict *verdict = &check.verdict[i];
        if (verdict->outcome != PL_FAILED) continue;
        const char *words = pl_text_string(&verdict->words);
        tried->failed |= 1u << i;
        note_names(tried, 1u << i, words, sound);
        pl_text_add(&tried->words, "%s: %s\n", pl_proof_name((pl_proof_id)i), words);
    }
    bool proved = pl_check_proved(&check);
    pl_check_free(&check);
    tried->outcome = proved ? DAMAGE_UNEXPLAINED : DAMAGE_CAUGHT;
    return pl_text_status(&tried->words);
}

static pl_status judge(damage *tried, const char *sound)
{
    pl_plan plan = {0};
    if (strcmp(sound, tried->done.text) == 0) {
        tried->outcome = DAMAGE_SAME_TEXT;
        return PL_OK;
    }
    pl_status status = pl_plan_read(&plan, tried->done.text, "damaged");
    if (status == PL_BAD_INPUT) {
        tried->outcome = DAMAGE_REFUSED;
        pl_text_add(&tried->words, "%s\n", pl_error_text());
        return pl_text_status(&tried->words);
    }
    if (status == PL_OK) status = prove(tried, &plan, sound);
    pl_plan_free(&plan);
    if (status != PL_OK) return status;
    PL_TRY(harmless_reason(&tried->reason, sound, tried->done.text));
    if (tried->reason && tried->outcome == DAMAGE_UNEXPLAINED) tried->outcome = DAMAGE_HARMLESS;
    return PL_OK;
}

/* One plan; DAMAGE_NO_PLACE when it has no place for KIND. */
static pl_status try_pair(damage *tried, const pair_list *list, int kind, uint64_t *state,
                          bool one_rank)
{
    pl_text sound = {0};
    tried->chosen = &list->pairs[pairs_random(state, list->count)];
    tried->rank = -1;
    if (one_rank) tried->rank = (int64_t)pairs_random(state, (uint64_t)tried->chosen->layout.world);
    pl_status status = pair_text(&sound, list, tried->chosen, tried->rank);
    if (status == PL_OK) {
        uint64_t seed = pairs_random(state, 1ull << 62);
        mutation_result result =
            mutation_make(&tried->done, kind, seed, (long)tried->rank, pl_text_string(&sound));
        if (result == MUTATION_NO_MEMORY) status = PL_FAIL(PL_NO_MEMORY, "no memory to damage");
        if (result == MUTATION_DONE) status = judge(tried, pl_text_string(&sound));
    }
    pl_text_free(&sound);
    return status;
}

pl_status damage_try(damage *out, const pair_list *list, int kind, uint64_t seed, bool one_rank)
{
    damage tried = {.outcome = DAMAGE_NO_PLACE};
    pl_status status = PL_OK;
    for (int i = 0; i < DAMAGE_PLANS && status == PL_OK && tried.outcome == DAMAGE_NO_PLACE; ++i)
        status = try_pair(&tried, list, kind, &seed, one_rank);
    if (status != PL_OK)
        damage_free(&tried);
    else
        *out = tried;
    return status;
}

void damage_free(damage *tried)
{
    mutation_free(&tried->done);
    pl_text_free(&tried->words);
    memset(tried, 0, sizeof *tried);
}

pl_proof_id damage_first(const damage *tried)
{
    int i = 0;
    while (i < PL_PROOF_COUNT && !(tried->failed >> i & 1)) ++i;
    return (pl_proof_id)i;
}
