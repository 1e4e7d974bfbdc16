/* Pictures of a layout: its meshes, its groups, and for small worlds who is with whom. */
#ifndef PL_SIM_LAYOUT_DRAWING_H
#define PL_SIM_LAYOUT_DRAWING_H

#include "common/layout.h"
#include "sim/command.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Add the meshes with the sizes and strides of their axes. */
void pl_draw_meshes(pl_text *text, const pl_layout *layout);

/* Add the roles with the size and number of their groups, and the members of RANK's. */
void pl_draw_groups(pl_text *text, const pl_layout *layout, int64_t rank);

/* Add each mesh as a grid of ranks, and for each role a letter for the group of every rank; in
 * words only, when the world has more than PL_DRAWN_RANKS ranks. Nothing here is ever O(world)
 * beyond that. */
enum { PL_DRAWN_RANKS = 64 };
void pl_draw_grids(pl_output *output, const pl_layout *layout);

/* Add where RANK stands: coordinates, batch index, sequence slice. */
void pl_draw_rank(pl_text *text, const pl_layout *layout, int64_t rank);

#ifdef __cplusplus
}
#endif
#endif
