#include "train/command.h"

#include "train/console.h"

pl_status pl_command_print(pl_text *text)
{
    pl_console console = pl_console_make(false, false);
    pl_status status = pl_text_status(text);
    if (status == PL_OK) {
        pl_console_show(&console, pl_text_string(text));
        status = pl_console_finish(&console);
    }
    pl_console_free(&console);
    pl_text_free(text);
    return status;
}

pl_status pl_command_help(const pl_command_usage *usage)
{
    pl_text text = {0};
    pl_arguments_help(&text, usage);
    return pl_command_print(&text);
}

pl_status pl_command_refuse(const pl_command_usage *usage, const char *lead, const char *word)
{
    return pl_arguments_refuse_word(usage, lead, word);
}

pl_status pl_command_integer(int64_t *out, const pl_command_usage *usage, const char *option,
                             const char *value, int64_t least, int64_t most)
{
    return pl_arguments_integer(out, usage, option, value, least, most);
}

pl_status pl_command_number(double *out, const pl_command_usage *usage, const char *option,
                            const char *value, double least, double most)
{
    double number = 0;
    if (pl_parse_number(&number, value) && number >= least && number <= most) {
        *out = number;
        return PL_OK;
    }
    pl_text text = {0};
    pl_text_add(&text, "%s: ", option);
    pl_text_add_quoted(&text, value);
    pl_text_add(&text, " is not a number from %g to %g", least, most);
    return pl_arguments_refuse(usage, &text);
}
