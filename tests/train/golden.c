#include "tests/train/golden.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/test.h"

void golden_open(golden *g, const char *folder)
{
    char path[256];
    *g = (golden){.folder = folder};
    assert_ok(pl_model_open(&g->model, folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pl_safetensors_open(&g->weights, path));
    snprintf(path, sizeof path, "%s/io.safetensors", folder);
    assert_ok(pl_safetensors_open(&g->io, path));
}

void golden_close(golden *g)
{
    pl_safetensors_close(&g->io);
    pl_safetensors_close(&g->weights);
    pl_model_free(&g->model);
}

/* Rows of one array of FILE. */
static pl_status array_rows(const pl_safetensors *file, const pl_text *name, int64_t row_begin,
                            int64_t row_end, float *out)
{
    const pl_safetensors_tensor *tensor = pl_safetensors_find(file, pl_text_string(name));
    if (!tensor || tensor->type != PL_SAFETENSORS_F32)
        return PL_FAIL(PL_BAD_INPUT, "no fp32 array '%s' in %s", pl_text_string(name), file->file);
    return pl_safetensors_read_rows(file, tensor, row_begin, row_end, out);
}

pl_status golden_rows(const pl_safetensors *file, const char *prefix, const pl_tensor *tensor,
                      int64_t row_begin, int64_t row_end, float *out)
{
    while (row_begin < row_end) {
        pl_text name = {0};
        int64_t expert = tensor->experts > 0 ? row_begin / tensor->rows : 0;
        int64_t base = expert * tensor->rows, end = base + tensor->rows;
        if (end > row_end) end = row_end;
        pl_text_add_string(&name, prefix);
        if (tensor->experts > 0)
            pl_tensor_expert_name(&name, tensor, expert);
        else
            pl_tensor_name(&name, tensor);
        pl_status status = array_rows(file, &name, row_begin - base, end - base, out);
        pl_text_free(&name);
        if (status != PL_OK) return status;
        out += (end - row_begin) * tensor->cols;
        row_begin = end;
    }
    return PL_OK;
}

pl_status golden_values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out)
{
    const golden *g = context;
    return golden_rows(&g->weights, "", tensor, row_begin, row_end, out);
}

void *golden_array(const pl_safetensors *file, const char *name, int64_t *count)
{
    const pl_safetensors_tensor *tensor = pl_safetensors_find(file, name);
    if (!tensor) fail_msg("no array '%s' in %s", name, file->file);
    void *out = malloc((size_t)tensor->bytes + 1);
    assert_non_null(out);
    assert_ok(pl_safetensors_read(file, tensor, 0, tensor->bytes, out));
    *count = tensor->elements;
    return out;
}
