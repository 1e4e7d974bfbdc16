/* What one rank holds of a model: the tensors by class, their rows, elements, bytes. */
#ifndef PL_SIM_HOLDINGS_H
#define PL_SIM_HOLDINGS_H

#include "common/json_text.h"
#include "common/layout.h"
#include "common/model.h"
#include "common/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_holding {
    const pl_model *model;
    const pl_layout *layout;
    const pl_precision *precision;
    int64_t rank;
} pl_holding;

/* Add tables of classes and of tensors, those of equal shape in all layers on one line, and the
 * experts that the rank hosts. Sizes are of parameters in the types in which they are kept for
 * gathering. */
void pl_holdings_print(pl_text *text, const pl_holding *holding);
json_t *pl_holdings_json(pl_json_builder *json, const pl_holding *holding);

#ifdef __cplusplus
}
#endif
#endif
