/* Edits of plan text. Results are freed with free(). */
#ifndef PL_TESTS_TRAIN_EDITS_H
#define PL_TESTS_TRAIN_EDITS_H

/* TEXT without the lines that contain WORD. */
char *edit_drop(const char *text, const char *word);

/* TEXT with FROM replaced by TO in the lines that contain WORD; once a line. */
char *edit_replace(const char *text, const char *word, const char *from, const char *to);

#endif
