#include "sim/verdict_text.h"

#include <string.h>

void pl_verdict_add(pl_output *output, pl_outcome outcome)
{
    static const char *const words[] = {
        [PL_PROVED] = "proved", [PL_FAILED] = "FAILED", [PL_UNDECIDED] = "undecided"};
    static const char *const colours[] = {
        [PL_PROVED] = "\033[32m", [PL_FAILED] = "\033[1;31m", [PL_UNDECIDED] = "\033[33m"};
    if (output->colours) pl_text_add_string(&output->text, colours[outcome]);
    pl_text_add(&output->text, "%-9s", words[outcome]);
    if (output->colours) pl_text_add_string(&output->text, "\033[0m");
}

const char *pl_verdict_name(pl_outcome outcome)
{
    static const char *const words[] = {
        [PL_PROVED] = "proved", [PL_FAILED] = "failed", [PL_UNDECIDED] = "undecided"};
    return words[outcome];
}

void pl_verdict_add_words(pl_text *text, const char *words)
{
    while (*words) {
        size_t length = strcspn(words, "\n");
        pl_text_add(text, "          %.*s\n", (int)length, words);
        words += length + (words[length] == '\n');
    }
}
