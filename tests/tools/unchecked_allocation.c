/* What pleat must never do, for the test of the test: with "crash" it uses memory without a look
 * whether there was any, with "silent" it fails without words, with "wrong" it succeeds with
 * another result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    if (count != 2) return 2;
    char *volatile memory = malloc(16);
    if (strcmp(arguments[1], "crash") == 0) {
        volatile char *byte = memory;
        *byte = 'x';
    }
    if (strcmp(arguments[1], "silent") == 0 && !memory) return 3;
    if (strcmp(arguments[1], "wrong") == 0 && !memory) {
        if (puts("half") < 0) return 3;
        return 0;
    }
    free(memory);
    return puts("whole") < 0 ? 3 : 0;
}
