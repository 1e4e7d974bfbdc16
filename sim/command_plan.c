/* pleat-sim plan: what each rank does, and what two plans differ in. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/operations.h"
#include "sim/options.h"

static const pl_usage plan_usage = {
    .command = "plan",
    .forms = "[RUN.yaml] [OPTION...]\n"
             "diff PLAN-FILE PLAN-FILE [--limit=NUMBER]\n"
             "--operations",
    .about =
        "Prints a plan as text: a header, then for each class of ranks the buffers and\n"
        "entries of a program, one a line. Programs are start and step unless --program names\n"
        "others; generate by itself is planned for one sequence at a time. With diff: what two\n"
        "such files differ in; '-' only the first has, '+' only the second, '~' both in another\n"
        "order.",
    .examples = "pleat-sim plan --model qwen3-30b-a3b --layout legacy:world=8,ep=4 --rank 5\n"
                "pleat-sim plan run.yaml --program step --set policy.reshard=never >plan.txt\n"
                "pleat-sim plan diff plan.txt other.txt",
    .takes = PL_TAKES_MODEL | PL_TAKES_LAYOUT | PL_TAKES_SETTINGS | PL_TAKES_PLAN | PL_TAKES_RANK |
             PL_TAKES_PROGRAM | PL_TAKES_SPLIT | PL_TAKES_LIMIT | PL_TAKES_OPERATIONS};

enum { DIFFERENCES_SHOWN = 100 };

static pl_status refuse(const char *words)
{
    pl_text text = {0};
    pl_text_add_string(&text, words);
    return pl_usage_refuse(&plan_usage, &text);
}

static void count_differences(pl_text *text, int64_t count, int64_t limit)
{
    if (count == 0)
        pl_text_add_string(text, "no differences\n");
    else if (limit > 0 && count > limit)
        pl_text_add(text, "%" PRId64 " differences, the first %" PRId64 " shown\n", count, limit);
    else
        pl_text_add(text, "%" PRId64 " difference%s\n", count, count == 1 ? "" : "s");
}

static pl_status compare(pl_output *output, const char *first, const char *second, int64_t limit)
{
    pl_plan a, b;
    int64_t differences = 0;
    PL_TRY(pl_read_plan_file(&a, first));
    pl_status status = pl_read_plan_file(&b, second);
    if (status == PL_OK) {
        status = pl_plan_diff(&output->text, &a, &b, limit, &differences);
        pl_plan_free(&b);
    }
    pl_plan_free(&a);
    PL_TRY(status);
    count_differences(&output->text, differences, limit);
    return differences ? PL_CHECK_FAILED : PL_OK;
}

static bool makes_plan(const pl_options *o)
{
    return o->model || o->plan || o->layout_count || o->setting_count || o->programs ||
           o->rank >= 0 || o->split >= 0;
}

static pl_status run_diff(pl_output *output, const pl_options *options)
{
    if (options->word_count != 3) return refuse("diff compares two plan files");
    if (makes_plan(options) || options->operations)
        return refuse("diff takes two plan files and --limit only");
    return compare(output, options->words[1], options->words[2],
                   options->limit < 0 ? DIFFERENCES_SHOWN : options->limit);
}

static bool has_program(const pl_plan *plan, pl_program program)
{
    for (size_t i = 0; i < plan->section_count; ++i)
        if (plan->sections[i].program == program) return true;
    return false;
}

/* Write the sections of PROGRAMS (0: all) of PLAN: a plan that borrows them is written. */
static pl_status write_programs(pl_text *text, const pl_plan *plan, uint32_t programs, int64_t rank)
{
    pl_plan view = *plan;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i)
        if ((programs >> i & 1U) && !has_program(plan, (pl_program)i))
            return PL_FAIL(PL_BAD_INPUT, "--program: the plan has no program %s",
                           pl_program_name((pl_program)i));
    PL_TRY(pl_allocate(&view.sections, plan->section_count, sizeof *view.sections, "sections"));
    view.section_count = 0;
    for (size_t i = 0; i < plan->section_count; ++i)
        if (programs == 0 || (programs >> plan->sections[i].program & 1U))
            view.sections[view.section_count++] = plan->sections[i];
    pl_plan_write(text, &view, rank);
    pl_free(view.sections);
    return pl_text_status(text);
}

static pl_status print(pl_output *output, const pl_options *options)
{
    pl_plan plan;
    const char *layout = NULL;
    PL_TRY(pl_options_layout(&layout, options, &plan_usage));
    PL_TRY(pl_options_plan(&plan, options, &plan_usage, layout, options->programs));
    pl_status status = PL_OK;
    if (options->rank >= 0) status = pl_check_rank(options->rank, &plan.layout, "--rank");
    if (status == PL_OK && options->split >= 0) {
        status = pl_check_rank(options->split, &plan.layout, "--split");
        if (status == PL_OK) status = pl_plan_split_rank(&plan, options->split);
    }
    if (status == PL_OK)
        status = write_programs(&output->text, &plan, options->programs, options->rank);
    pl_plan_free(&plan);
    return status;
}

static pl_status run(pl_output *output, const pl_options *options)
{
    if (options->help) {
        pl_usage_print(&output->text, &plan_usage);
        return PL_OK;
    }
    if (options->word_count > 0 && strcmp(options->words[0], "diff") == 0)
        return run_diff(output, options);
    if (options->limit >= 0) return refuse("--limit belongs to 'plan diff'");
    if (!options->operations) return print(output, options);
    if (makes_plan(options) || options->word_count)
        return refuse("--operations prints one table for all plans; leave the others out");
    pl_operations_print(&output->text);
    return PL_OK;
}

pl_status pl_command_plan(pl_output *output, int count, char **arguments)
{
    pl_options options;
    PL_TRY(pl_options_parse(&options, &plan_usage, count, arguments));
    pl_status status = run(output, &options);
    pl_options_free(&options);
    return pl_output_status(output, status);
}
