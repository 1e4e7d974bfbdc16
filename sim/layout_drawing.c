#include "sim/layout_drawing.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/table.h"

void pl_draw_meshes(pl_text *text, const pl_layout *layout)
{
    pl_table table = {.columns = 4, .left = 1 | 2};
    pl_table_add(&table, "mesh");
    pl_table_add(&table, "axis");
    pl_table_add(&table, "size");
    pl_table_add(&table, "stride");
    for (int m = 0; m < layout->meshes; ++m) {
        const pl_mesh *mesh = &layout->mesh[m];
        for (int a = 0; a < mesh->axes; ++a) {
            pl_table_add(&table, "%s", a == 0 ? mesh->name : "");
            pl_table_add(&table, "%s", mesh->axis[a].name);
            pl_table_add_number(&table, mesh->axis[a].size);
            pl_table_add_number(&table, mesh->axis[a].stride);
        }
    }
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
}

void pl_draw_groups(pl_text *text, const pl_layout *layout, int64_t rank)
{
    pl_table table = {.columns = 4, .left = 1 | 8};
    pl_text members = {0};
    pl_table_add(&table, "group");
    pl_table_add(&table, "size");
    pl_table_add(&table, "groups");
    pl_table_add(&table, "of rank %" PRId64, rank);
    for (int i = PL_GROUP_WORLD; i < PL_GROUP_ROLE_COUNT; ++i) {
        pl_group_role role = (pl_group_role)i;
        int64_t size = pl_layout_group_size(layout, role);
        pl_rank_set set = pl_layout_group(layout, role, rank);
        pl_text_clear(&members);
        pl_rank_set_print(&members, &set);
        pl_table_add(&table, "%s", pl_group_role_name(role));
        pl_table_add_number(&table, size);
        pl_table_add_number(&table, layout->world / size);
        pl_table_add(&table, "%s", pl_text_string(&members));
    }
    if (members.out_of_memory) text->out_of_memory = true;
    pl_text_free(&members);
    pl_table_print(text, &table, 2);
    pl_table_free(&table);
}

/* --- small worlds --- */

static const char *const group_colours[] = {"\033[31m", "\033[32m", "\033[33m",
                                            "\033[34m", "\033[35m", "\033[36m"};
enum { COLOURS = sizeof group_colours / sizeof *group_colours };

static void add_coloured(pl_output *output, int64_t group, const char *shown)
{
    if (output->colours) pl_text_add_string(&output->text, group_colours[group % COLOURS]);
    pl_text_add_string(&output->text, shown);
    if (output->colours) pl_text_add_string(&output->text, "\033[0m");
}

enum { ACROSS = 32 }; /* ranks in a line */

/* The innermost axis longer than 1 runs along a line, which goes on in the next when it is long. */
static void add_mesh_grid(pl_output *output, const pl_layout *layout, int number)
{
    const pl_mesh *mesh = &layout->mesh[number];
    int inner = mesh->axes - 1;
    while (inner > 0 && mesh->axis[inner].size == 1) --inner;
    int64_t across = mesh->axis[inner].size;
    pl_text_add(&output->text, "\n  %s: ", mesh->name);
    for (int a = 0; a < inner; ++a)
        if (mesh->axis[a].size > 1) pl_text_add(&output->text, "%s, ", mesh->axis[a].name);
    pl_text_add(&output->text, "%s along a line\n", mesh->axis[inner].name);
    for (int64_t rank = 0; rank < layout->world; ++rank) {
        if (rank % across % ACROSS == 0) pl_text_add_string(&output->text, "   ");
        char shown[24];
        snprintf(shown, sizeof shown, " %2" PRId64, rank);
        add_coloured(output, rank % across, shown);
        if (rank % across % ACROSS == ACROSS - 1 || rank % across == across - 1)
            pl_text_add_string(&output->text, "\n");
    }
}

/* Number the groups of ROLE in the order of their first ranks. */
static void number_groups(int *group, const pl_layout *layout, pl_group_role role)
{
    int groups = 0;
    for (int rank = 0; rank < layout->world; ++rank) {
        pl_rank_set set = pl_layout_group(layout, role, rank);
        int64_t first = pl_rank_set_member(&set, 0);
        group[rank] = first == rank ? groups++ : group[first];
    }
}

static void add_letters(pl_output *output, const pl_layout *layout, pl_group_role role, int first,
                        int end)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    int group[PL_DRAWN_RANKS] = {0};
    number_groups(group, layout, role);
    pl_text_add(&output->text, "  %-14s", pl_group_role_name(role));
    for (int rank = first; rank < end; ++rank) {
        char shown[] = {' ', ' ', letters[group[rank] % 52], '\0'};
        add_coloured(output, group[rank], shown);
    }
    pl_text_add_string(&output->text, "\n");
}

/* Roles whose groups are neither single ranks nor the world, in lines of at most ACROSS ranks. */
static void add_group_map(pl_output *output, const pl_layout *layout)
{
    int world = (int)layout->world;
    for (int first = 0; first < world; first += ACROSS) {
        int end = world < first + ACROSS ? world : first + ACROSS;
        pl_text_add(&output->text, "\n  %-14s", "rank");
        for (int rank = first; rank < end; ++rank) pl_text_add(&output->text, " %2d", rank);
        pl_text_add_string(&output->text, "\n");
        for (int i = PL_GROUP_WORLD; i < PL_GROUP_ROLE_COUNT; ++i) {
            int64_t size = pl_layout_group_size(layout, (pl_group_role)i);
            if (size > 1 && size < layout->world)
                add_letters(output, layout, (pl_group_role)i, first, end);
        }
    }
}

void pl_draw_grids(pl_output *output, const pl_layout *layout)
{
    if (layout->world > PL_DRAWN_RANKS) {
        pl_text_add(&output->text,
                    "\nRanks are drawn in worlds of at most %d ranks; --rank shows "
                    "one of these.\n",
                    PL_DRAWN_RANKS);
        return;
    }
    pl_text_add_string(&output->text, "\nranks in their meshes, axes from the outermost\n");
    for (int m = 0; m < layout->meshes; ++m) add_mesh_grid(output, layout, m);
    pl_text_add_string(&output->text, "\nwho is with whom: equal letters, one group\n");
    add_group_map(output, layout);
}

/* --- one rank --- */

static void add_coordinates(pl_text *text, const pl_layout *layout, int number, int64_t rank)
{
    const pl_mesh *mesh = &layout->mesh[number];
    pl_text_add(text, "  %-10s", mesh->name);
    for (int a = 0; a < mesh->axes; ++a)
        pl_text_add(text, " %s %" PRId64, mesh->axis[a].name,
                    pl_layout_coordinate(layout, number, a, rank));
    pl_text_add_string(text, "\n");
}

void pl_draw_rank(pl_text *text, const pl_layout *layout, int64_t rank)
{
    int64_t slice = pl_layout_group_index(layout, PL_GROUP_CONTEXT, rank), cp = layout->cp;
    pl_text_add(text, "\nrank %" PRId64 " stands at\n", rank);
    for (int m = 0; m < layout->meshes; ++m) add_coordinates(text, layout, m, rank);
    pl_text_add(text,
                "  batch index %" PRId64 " of %" PRId64 ", sequence slice %" PRId64 " of %" PRId64,
                pl_layout_group_index(layout, PL_GROUP_DATA, rank), layout->data_ranks, slice, cp);
    if (cp > 1)
        pl_text_add(text, ": blocks %" PRId64 " and %" PRId64 " of %" PRId64, slice,
                    2 * cp - 1 - slice, 2 * cp);
    pl_text_add_string(text, "\n");
}
