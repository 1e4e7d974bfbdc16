#include "ckpt/command.h"

pl_status pl_command_help(pl_output *output, const pl_command_usage *usage)
{
    pl_arguments_help(&output->text, usage);
    return pl_text_status(&output->text);
}

pl_status pl_command_take_word(const char **word, const pl_command_usage *usage, const char *value)
{
    if (*word)
        return pl_arguments_refuse_word(usage, "one folder is meant, so this is too much: ", value);
    *word = value;
    return PL_OK;
}

pl_status pl_command_dtype(pl_dtype *out, const pl_command_usage *usage, const char *value)
{
    static const char *const names[] = {"as-stored", "fp32", "bf16", "fp16"};
    static const pl_dtype dtypes[] = {PL_DTYPE_COUNT, PL_FP32, PL_BF16, PL_FP16};
    pl_text words = {0};
    for (int i = 0; i < 4; ++i) {
        if (!pl_same_word(value, names[i])) continue;
        *out = dtypes[i];
        return PL_OK;
    }
    pl_text_add_string(&words, "--dtype: unknown type ");
    pl_text_add_quoted(&words, value);
    pl_text_add_choices(&words, value, names, 4);
    return pl_arguments_refuse(usage, &words);
}

void pl_command_colour(pl_output *output, pl_colour colour, const char *text)
{
    static const char *const signs[] = {"\033[1m", "\033[32m", "\033[31m"};
    if (output->colours) pl_text_add_string(&output->text, signs[colour]);
    pl_text_add_string(&output->text, text);
    if (output->colours) pl_text_add_string(&output->text, "\033[0m");
}
