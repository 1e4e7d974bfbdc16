/* mutation_campaign [TRIES [SEED [PAIRS]]]: proves PAIRS sound plans (600), then damages random
 * ones in TRIES places for each kind of mutation (20) and tabulates what the proofs say. Status 1
 * when a sound plan is not proved, or damage goes undetected without an explanation.
 *
 *     mutation_campaign KIND SEED whole|rank [SEED-OF-PAIRS [PAIRS]]
 *
 * repeats one mutation, with the number that a table printed, and shows all words about it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/sim/campaign.h"

enum { DEFAULT_TRIES = 20, DEFAULT_SEED = 1, DEFAULT_PAIRS = 600 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int complain(void)
{
    fprintf(stderr, "mutation_campaign: %s\n", pl_error_text());
    return 3;
}

static int64_t argument(int count, char **word, int i, int64_t otherwise)
{
    int64_t number = 0;
    return i < count && pl_parse_integer(&number, word[i]) && number >= 0 ? number : otherwise;
}

static int repeat(const pair_list *list, int kind, uint64_t seed, bool one_rank)
{
    damage tried = {0};
    if (damage_try(&tried, list, kind, seed, one_rank) != PL_OK) return complain();
    static const char *const outcomes[DAMAGE_OUTCOMES] = {"caught",      "refused",   "harmless",
                                                          "UNEXPLAINED", "same text", "no place"};
    printf("%s\n%s: %s\n%s", tried.done.words ? tried.done.words : "", outcomes[tried.outcome],
           tried.reason ? tried.reason : "", pl_text_string(&tried.words));
    int status = tried.outcome == DAMAGE_UNEXPLAINED;
    damage_free(&tried);
    return status;
}

static int prove_all(const pair_list *list)
{
    pl_text failures = {0};
    int64_t proved = 0;
    double begin = seconds();
    pl_status status = campaign_prove(list, &proved, &failures);
    printf("%zu pairs of distinct headers, %zu distinct plans; %" PRId64
           " proved and read back (%.1f s)\n%s",
           list->count, list->plan_count, proved, seconds() - begin, pl_text_string(&failures));
    pl_text_free(&failures);
    if (status != PL_OK) return complain();
    return proved != (int64_t)list->count;
}

static int damage_all(const pair_list *list, uint64_t seed, int64_t tries)
{
    campaign c = {.list = list};
    pl_text text = {0};
    double begin = seconds();
    pl_status status = campaign_run(&c, seed, tries);
    campaign_report(&text, &c);
    printf("\n%s\n%.1f s\n", pl_text_string(&text), seconds() - begin);
    int result = status != PL_OK ? complain() : c.unexplained_count > 0;
    pl_text_free(&text);
    campaign_free(&c);
    return result;
}

int main(int count, char **word)
{
    pair_list list = {0};
    int kind = count > 3 ? mutation_find(word[1]) : -1, after = kind < 0 ? 2 : 4, result = 0;
    uint64_t seed = (uint64_t)argument(count, word, after, DEFAULT_SEED);
    size_t wanted = (size_t)argument(count, word, after + 1, DEFAULT_PAIRS);
    if (pairs_make(&list, seed, wanted) != PL_OK) return complain();
    if (kind >= 0) {
        result = repeat(&list, kind, (uint64_t)argument(count, word, 2, 0),
                        strcmp(word[3], "rank") == 0);
    } else {
        result = prove_all(&list);
        fflush(stdout);
        int damaged = damage_all(&list, seed, argument(count, word, 1, DEFAULT_TRIES));
        if (damaged > result) result = damaged;
    }
    pairs_free(&list);
    return fflush(stdout) == 0 ? result : 3;
}
