/* pleat-sim layout: meshes, groups, and what a rank holds. Needs no plan, so any layout will do,
 * and every answer is in closed form: worlds of 10^5 ranks cost what small ones do. */
#include <inttypes.h>
#include <string.h>

#include "common/placement.h"
#include "sim/holdings.h"
#include "sim/layout_drawing.h"
#include "sim/options.h"

static const pl_usage layout_usage = {
    .command = "layout",
    .forms = "[LAYOUT | RUN.yaml] [OPTION...]",
    .about = "Draws a layout: the meshes with their axes, the groups by what they are for, and in\n"
             "small worlds every rank. With --rank: where that rank stands and who is in its\n"
             "groups; with a model as well (--model, RUN.yaml): the rows of each tensor that it\n"
             "holds, and its experts.",
    .examples = "pleat-sim layout folded:world=64,cp=4,ep=8\n"
                "pleat-sim layout legacy:world=8,ep=4 --rank 5 --model qwen3-30b-a3b\n"
                "pleat-sim layout folded:world=100000,cp=4,ep=8 --rank 99999 --json",
    .takes = PL_TAKES_MODEL | PL_TAKES_LAYOUT | PL_TAKES_SETTINGS | PL_TAKES_RANK | PL_TAKES_JSON};

static pl_status refuse(const char *words, const char *given)
{
    pl_text text = {0};
    pl_text_add_string(&text, words);
    if (given) pl_text_add_quoted(&text, given);
    return pl_usage_refuse(&layout_usage, &text);
}

/* --- JSON --- */

static json_t *meshes_json(pl_json_builder *json, const pl_layout *layout)
{
    json_t *meshes = json_array();
    for (int m = 0; m < layout->meshes; ++m) {
        const pl_mesh *mesh = &layout->mesh[m];
        json_t *object = json_object(), *axes = json_array();
        for (int a = 0; a < mesh->axes; ++a) {
            json_t *axis = json_object();
            pl_json_put_string(json, axis, "name", mesh->axis[a].name);
            pl_json_put_number(json, axis, "size", mesh->axis[a].size);
            pl_json_put_number(json, axis, "stride", mesh->axis[a].stride);
            pl_json_append(json, axes, axis);
        }
        pl_json_put_string(json, object, "name", mesh->name);
        pl_json_put(json, object, "axes", axes);
        pl_json_append(json, meshes, object);
    }
    return meshes;
}

/* Members in closed form: base + i * stride + ..., axes outermost first. */
static json_t *members_json(pl_json_builder *json, const pl_rank_set *set)
{
    json_t *object = json_object(), *axes = json_array();
    for (int a = 0; a < set->axes; ++a) {
        json_t *axis = json_object();
        pl_json_put_number(json, axis, "count", set->axis[a].count);
        pl_json_put_number(json, axis, "stride", set->axis[a].stride);
        pl_json_append(json, axes, axis);
    }
    pl_json_put_number(json, object, "base", set->base);
    pl_json_put(json, object, "axes", axes);
    return object;
}

static json_t *groups_json(pl_json_builder *json, const pl_layout *layout, int64_t rank)
{
    json_t *groups = json_object();
    for (int i = PL_GROUP_WORLD; i < PL_GROUP_ROLE_COUNT; ++i) {
        pl_group_role role = (pl_group_role)i;
        int64_t size = pl_layout_group_size(layout, role);
        pl_rank_set set = pl_layout_group(layout, role, rank);
        json_t *group = json_object();
        pl_json_put_number(json, group, "size", size);
        pl_json_put_number(json, group, "groups", layout->world / size);
        pl_json_put_number(json, group, "index", pl_layout_group_index(layout, role, rank));
        pl_json_put(json, group, "members", members_json(json, &set));
        pl_json_put(json, groups, pl_group_role_name(role), group);
    }
    return groups;
}

static json_t *coordinates_json(pl_json_builder *json, const pl_layout *layout, int64_t rank)
{
    json_t *meshes = json_object();
    for (int m = 0; m < layout->meshes; ++m) {
        json_t *axes = json_object();
        for (int a = 0; a < layout->mesh[m].axes; ++a)
            pl_json_put_number(json, axes, layout->mesh[m].axis[a].name,
                               pl_layout_coordinate(layout, m, a, rank));
        pl_json_put(json, meshes, layout->mesh[m].name, axes);
    }
    return meshes;
}

static pl_status print_json(pl_text *text, const pl_layout *layout, int64_t rank,
                            const pl_holding *holding)
{
    pl_json_builder json = {false};
    char notation[PL_LAYOUT_TEXT];
    json_t *top = json_object();
    pl_json_put_string(&json, top, "layout", pl_layout_format(layout, notation));
    pl_json_put_number(&json, top, "ranks", layout->world);
    pl_json_put(&json, top, "meshes", meshes_json(&json, layout));
    pl_json_put_number(&json, top, "rank", rank);
    pl_json_put(&json, top, "coordinates", coordinates_json(&json, layout, rank));
    pl_json_put_number(&json, top, "batch_index",
                       pl_layout_group_index(layout, PL_GROUP_DATA, rank));
    pl_json_put_number(&json, top, "sequence_slice",
                       pl_layout_group_index(layout, PL_GROUP_CONTEXT, rank));
    pl_json_put(&json, top, "groups", groups_json(&json, layout, rank));
    if (holding) pl_json_put(&json, top, "holds", pl_holdings_json(&json, holding));
    return pl_json_finish(&json, text, top);
}

/* --- text --- */

static void print_text(pl_output *output, const pl_layout *layout, const pl_options *options,
                       const pl_holding *holding)
{
    pl_text *text = &output->text;
    char notation[PL_LAYOUT_TEXT];
    int64_t rank = options->rank < 0 ? 0 : options->rank;
    pl_text_add(text, "%s\n", pl_layout_format(layout, notation));
    pl_text_add(text,
                "%" PRId64 " ranks: %" PRId64 " stage%s of %" PRId64 ", %" PRId64
                " data ranks a stage, sequences in %" PRId64 " slice%s\n\n",
                layout->world, layout->pp, layout->pp == 1 ? "" : "s", layout->stage_ranks,
                layout->data_ranks, layout->cp, layout->cp == 1 ? "" : "s");
    pl_draw_meshes(text, layout);
    if (options->rank >= 0) pl_draw_rank(text, layout, rank);
    pl_text_add_string(text, "\n");
    pl_draw_groups(text, layout, rank);
    if (holding) pl_holdings_print(text, holding);
    if (options->rank < 0) pl_draw_grids(output, layout);
}

/* --- the command --- */

/* The layout, and with a model what the rank holds of it. */
static pl_status show(pl_output *output, const pl_options *options, const pl_run *run)
{
    pl_layout layout;
    pl_model model;
    pl_holding holding = {&model, &layout, &run->precision, options->rank < 0 ? 0 : options->rank};
    pl_status status = PL_OK;
    if (run->model) {
        status = pl_run_open(run, &model, &layout);
    } else {
        status = pl_layout_parse(&layout, run->layout);
        if (status != PL_OK) status = pl_run_blame(run, "layout", status);
    }
    PL_TRY(status);
    status = pl_check_rank(holding.rank, &layout, "--rank");
    if (status == PL_OK && options->json)
        status = print_json(&output->text, &layout, holding.rank, run->model ? &holding : NULL);
    else if (status == PL_OK)
        print_text(output, &layout, options, run->model ? &holding : NULL);
    if (run->model) pl_model_free(&model);
    return status;
}

static bool is_run_file(const char *word)
{
    size_t length = strlen(word);
    return (length > 5 && strcmp(word + length - 5, ".yaml") == 0) ||
           (length > 4 && strcmp(word + length - 4, ".yml") == 0);
}

static pl_status run(pl_output *output, const pl_options *options)
{
    pl_run run_file;
    const char *notation = NULL;
    const char *word = options->word_count ? options->words[0] : NULL;
    if (options->help) {
        pl_usage_print(&output->text, &layout_usage);
        return PL_OK;
    }
    PL_TRY(pl_options_layout(&notation, options, &layout_usage));
    if (options->word_count > 1)
        return refuse("one layout or run file is meant, so this is too much: ", options->words[1]);
    bool file = word && is_run_file(word);
    if (word && !file && notation) return refuse("two layouts: --layout and ", word);
    if (word && !file) { /* its own words need no option in front */
        pl_layout layout;
        PL_TRY(pl_layout_parse(&layout, word));
        notation = word;
    }
    PL_TRY(pl_options_run(&run_file, options, file ? word : NULL, notation));
    pl_status status = run_file.layout ? show(output, options, &run_file)
                                       : refuse("no layout; for example 'pleat-sim layout "
                                                "folded:world=64,cp=4,ep=8'",
                                                NULL);
    pl_run_free(&run_file);
    return status;
}

pl_status pl_command_layout(pl_output *output, int count, char **arguments)
{
    pl_options options;
    PL_TRY(pl_options_parse(&options, &layout_usage, count, arguments));
    pl_status status = run(output, &options);
    pl_options_free(&options);
    return pl_output_status(output, status);
}
