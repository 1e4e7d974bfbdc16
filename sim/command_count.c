/* pleat-sim count: the collectives of one rank in one step. */
#include <inttypes.h>
#include <string.h>

#include "common/json_text.h"
#include "common/table.h"
#include "sim/options.h"
#include "sim/proof.h"

static const pl_usage count_usage = {
    .command = "count",
    .forms = "[RUN.yaml] [OPTION...]",
    .about = "Counts the collectives of one rank (0, or --rank) in one step by walking its plan:\n"
             "gathers by unit and pass, reductions, exchanges, casts, and the bytes they move.\n"
             "An unused gather is one that nothing reads.",
    .examples = "pleat-sim count --model qwen3-30b-a3b --layout decoupled:world=64,ep=8\n"
                "pleat-sim count run.yaml --set policy.reshard=per-call --json",
    .takes = PL_TAKES_MODEL | PL_TAKES_LAYOUT | PL_TAKES_SETTINGS | PL_TAKES_PLAN | PL_TAKES_RANK |
             PL_TAKES_JSON};

/* Units by their first part, in the order of printing. */
enum { UNITS = 5 };
static const struct {
    const char *name;
    int part; /* index in pl_counts.by_part */
} units[UNITS] = {{"experts", 2}, {"layer", 1}, {"embed", 0}, {"norm", 3}, {"head", 4}};

static void put_total(pl_json_builder *json, json_t *top, const char *key, int64_t total)
{
    json_t *object = json_object();
    pl_json_put_number(json, object, "total", total);
    pl_json_put(json, top, key, object);
}

static json_t *gathers_of(pl_json_builder *json, const pl_counts *counts)
{
    json_t *gathers = json_object(), *by_unit = json_object();
    pl_json_put_number(json, gathers, "total", counts->gathers);
    pl_json_put_number(json, gathers, "unused", counts->unused_gathers);
    for (int i = 0; i < UNITS; ++i) {
        const pl_unit_count *unit = &counts->by_part[units[i].part];
        json_t *object = json_object();
        pl_json_put_number(json, object, "forward", unit->forward);
        pl_json_put_number(json, object, "backward", unit->backward);
        pl_json_put(json, by_unit, units[i].name, object);
    }
    pl_json_put(json, gathers, "by_unit", by_unit);
    return gathers;
}

static pl_status print_json(pl_text *text, const pl_counts *counts)
{
    pl_json_builder json = {false};
    json_t *top = json_object(), *bytes = json_object();
    pl_json_put(&json, top, "all_gather", gathers_of(&json, counts));
    put_total(&json, top, "reduce_scatter", counts->reduces);
    put_total(&json, top, "all_reduce", counts->all_reduces);
    put_total(&json, top, "all_to_all", counts->exchanges);
    put_total(&json, top, "copies", counts->casts);
    pl_json_put_number(&json, bytes, "all_gather", counts->gather_bytes);
    pl_json_put_number(&json, bytes, "reduce_scatter", counts->reduce_bytes);
    pl_json_put_number(&json, bytes, "all_reduce", counts->all_reduce_bytes);
    pl_json_put_number(&json, bytes, "all_to_all", counts->exchange_bytes);
    pl_json_put(&json, top, "bytes", bytes);
    return pl_json_finish(&json, text, top);
}

static void add_row(pl_table *table, const char *what, int64_t count, int64_t bytes,
                    const char *which)
{
    pl_table_add(table, "%s", what);
    pl_table_add_number(table, count);
    if (bytes < 0)
        pl_table_add(table, "-");
    else
        pl_table_add_bytes(table, bytes);
    pl_table_add(table, "%s", which);
}

static void add_units(pl_text *text, const pl_counts *counts)
{
    pl_table table = {.columns = 4, .left = 1};
    const char *const heads[] = {"gathers of", "forward", "backward", "unused"};
    for (int i = 0; i < 4; ++i) pl_table_add(&table, "%s", heads[i]);
    for (int i = 0; i < UNITS; ++i) {
        const pl_unit_count *unit = &counts->by_part[units[i].part];
        pl_table_add(&table, "%s", units[i].name);
        pl_table_add_number(&table, unit->forward);
        pl_table_add_number(&table, unit->backward);
        pl_table_add_number(&table, unit->unused);
    }
    pl_text_add_string(text, "\n");
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
}

static void print_text(pl_text *text, const pl_plan *plan, const pl_counts *counts, int64_t rank)
{
    pl_table table = {.columns = 4, .left = 1 | 8};
    pl_plan_describe(text, plan);
    pl_text_add(text, "\nrank %" PRId64 ", one step\n", rank);
    pl_table_add(&table, "collective");
    pl_table_add(&table, "times");
    pl_table_add(&table, "bytes");
    pl_table_add(&table, "%s", "");
    add_row(&table, "all-gather", counts->gathers, counts->gather_bytes, "of all members");
    add_row(&table, "reduce-scatter", counts->reduces, counts->reduce_bytes, "of all members");
    add_row(&table, "all-reduce", counts->all_reduces, counts->all_reduce_bytes, "the reduced");
    add_row(&table, "exchange", counts->exchanges, counts->exchange_bytes,
            "sent to others, if routing is even");
    add_row(&table, "other", counts->others, -1, "");
    add_row(&table, "cast", counts->casts, -1, "no communication");
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
    add_units(text, counts);
}

static pl_status count_rank(pl_output *output, const pl_options *options, const pl_plan *plan)
{
    int64_t rank = options->rank < 0 ? 0 : options->rank;
    pl_counts counts;
    PL_TRY(pl_check_rank(rank, &plan->layout, "--rank"));
    const pl_section *section = pl_plan_section(plan, PL_PROGRAM_STEP, rank);
    if (!section)
        return PL_FAIL(PL_BAD_INPUT, "the plan has no step program for rank %" PRId64, rank);
    memset(&counts, 0, sizeof counts);
    pl_count_section(&counts, plan, section);
    if (options->json) return print_json(&output->text, &counts);
    print_text(&output->text, plan, &counts, rank);
    return PL_OK;
}

static pl_status run(pl_output *output, const pl_options *options)
{
    pl_plan plan;
    const char *layout = NULL;
    if (options->help) {
        pl_usage_print(&output->text, &count_usage);
        return PL_OK;
    }
    PL_TRY(pl_options_layout(&layout, options, &count_usage));
    PL_TRY(pl_options_plan(&plan, options, &count_usage, layout, PL_PROGRAMS_STEP));
    pl_status status = count_rank(output, options, &plan);
    pl_plan_free(&plan);
    return status;
}

pl_status pl_command_count(pl_output *output, int count, char **arguments)
{
    pl_options options;
    PL_TRY(pl_options_parse(&options, &count_usage, count, arguments));
    pl_status status = run(output, &options);
    pl_options_free(&options);
    return pl_output_status(output, status);
}
