#include "kernels/cpu/isa/expert_rows.h"

#include "kernels/cpu/isa/sum_rows.h"
#include "kernels/cpu/isa/token_blocks.h"

pl_status PL_ISA(pl_cpu_check_experts)(const pl_device *device, const char *what,
                                       const pl_expert_shape *shape)
{
    const pl_expert_rows *rows = shape->rows;
    int64_t numbers = 0;
    PL_TRY(pl_cpu_require_fp32(device, what, shape->dtype));
    PL_TRY(pl_cpu_require(device, what,
                          shape->hidden >= 1 && shape->hidden <= INT32_MAX && shape->width >= 1 &&
                              shape->width <= INT32_MAX,
                          "hidden and width are at least 1 and fit 31 bits"));
    PL_TRY(pl_cpu_elements(device, what, &numbers, rows->experts, shape->hidden, shape->width));
    PL_TRY(pl_cpu_elements(device, what, &numbers, rows->room, shape->width, 2));
    PL_TRY(pl_cpu_elements(device, what, &numbers, rows->rows, shape->hidden, 1));
    PL_TRY(pl_cpu_require(device, what, rows->rows <= INT32_MAX, "rows fit 31 bits"));
    if (rows->order == PL_EXPERTS_COUNTED)
        return pl_cpu_elements(device, what, &numbers, rows->sources, rows->experts, 1);
    PL_TRY(pl_cpu_elements(device, what, &numbers, rows->tokens, rows->chosen, 1));
    return pl_cpu_require(device, what, numbers <= INT32_MAX, "choices fit 31 bits");
}

void PL_ISA(pl_cpu_touch_expert_rows)(const pl_expert_rows *rows, bool weights, pl_touch *touches)
{
    bool counted = rows->order == PL_EXPERTS_COUNTED;
    int64_t choices = rows->tokens * rows->chosen * 4;
    memset(touches, 0, PL_EXPERT_TOUCHES * sizeof *touches);
    if (counted)
        touches[0] = (pl_touch){rows->counts, rows->sources * rows->experts * 8, true, false};
    else
        touches[1] = (pl_touch){rows->choices, choices, true, false};
    if (rows->order == PL_EXPERTS_CHOSEN && weights)
        touches[2] = (pl_touch){rows->weights, choices, true, false};
}

/* Number of the expert among those hosted here; -1: it is not. */
static int64_t hosted(const pl_expert_rows *given, int32_t choice)
{
    int64_t expert = choice - given->first;
    return expert >= 0 && expert < given->experts ? expert : -1;
}

/* How many positions there are; -1 when counts are not those of the rows. */
static int64_t count_positions(const pl_expert_rows *given)
{
    int64_t total = 0;
    if (given->order != PL_EXPERTS_COUNTED) {
        for (int64_t i = 0; i < given->tokens * given->chosen; ++i)
            total += hosted(given, given->choices[i]) >= 0;
        return total;
    }
    for (int64_t i = 0; i < given->sources * given->experts; ++i) {
        if (given->counts[i] < 0 || given->counts[i] > given->rows - total) return -1;
        total += given->counts[i];
    }
    return total;
}

/* begin[experts + 1] from the numbers of rows of each expert. */
static void find_begins(const pl_expert_rows *given, int64_t *begin)
{
    memset(begin, 0, (size_t)(given->experts + 1) * sizeof *begin);
    if (given->order == PL_EXPERTS_COUNTED) {
        for (int64_t i = 0; i < given->sources * given->experts; ++i)
            begin[i % given->experts + 1] += given->counts[i];
    } else {
        for (int64_t i = 0; i < given->tokens * given->chosen; ++i) {
            int64_t expert = hosted(given, given->choices[i]);
            if (expert >= 0) ++begin[expert + 1];
        }
    }
    for (int64_t e = 0; e < given->experts; ++e) begin[e + 1] += begin[e];
}

/* Each begin was used as a cursor and stands at the begin of the next one. */
static void rewind_begins(int64_t *begin, int64_t experts)
{
    for (int64_t e = experts; e > 0; --e) begin[e] = begin[e - 1];
    begin[0] = 0;
}

static void place_counted(const pl_expert_rows *given, int64_t *begin, int32_t *row)
{
    int32_t next = 0;
    for (int64_t i = 0; i < given->sources * given->experts; ++i)
        for (int64_t n = 0; n < given->counts[i]; ++n) row[begin[i % given->experts]++] = next++;
    rewind_begins(begin, given->experts);
}

static void place_chosen(const pl_expert_rows *given, int64_t *begin, int32_t *row, int32_t *choice,
                         int32_t *of_choice)
{
    for (int64_t i = 0; i < given->tokens * given->chosen; ++i) {
        int64_t expert = hosted(given, given->choices[i]);
        of_choice[i] = -1;
        if (expert < 0) continue;
        int64_t position = begin[expert]++;
        row[position] = (int32_t)(i / given->chosen);
        choice[position] = (int32_t)i;
        of_choice[i] = (int32_t)position;
    }
    rewind_begins(begin, given->experts);
}

/* --- tiles --- */

static int64_t tiles_of(const int64_t *begin, int64_t expert)
{
    return pl_divide_up(begin[expert + 1] - begin[expert], PL_EXPERT_TILE_ROWS);
}

static pl_expert_tile tile_of(const int64_t *begin, int64_t expert, int64_t index, int64_t tiles)
{
    int64_t rows = begin[expert + 1] - begin[expert];
    return (pl_expert_tile){expert, begin[expert] + rows * index / tiles,
                            begin[expert] + rows * (index + 1) / tiles};
}

/* Each expert's rows in equal tiles; sorted by falling size (a counting sort). */
static void make_tiles(const pl_expert_rows *given, const int64_t *begin, pl_expert_tile *tile,
                       pl_expert_positions *out)
{
    int64_t smaller[PL_EXPERT_TILE_ROWS + 2] = {0}; /* tiles that are larger than so many rows */
    for (int64_t e = 0; e < given->experts; ++e)
        for (int64_t i = 0, tiles = tiles_of(begin, e); i < tiles; ++i) {
            pl_expert_tile t = tile_of(begin, e, i, tiles);
            int64_t rows = t.end - t.begin;
            ++smaller[rows - 1];
            ++out->tile_count;
            if (rows > out->tile_rows) out->tile_rows = rows;
        }
    for (int64_t rows = PL_EXPERT_TILE_ROWS; rows > 0; --rows) smaller[rows - 1] += smaller[rows];
    for (int64_t e = 0; e < given->experts; ++e)
        for (int64_t i = 0, tiles = tiles_of(begin, e); i < tiles; ++i) {
            pl_expert_tile t = tile_of(begin, e, i, tiles);
            tile[smaller[t.end - t.begin]++] = t;
        }
    out->tile = tile;
}

/* --- the whole --- */

static pl_status check_rows(const pl_device *device, const char *what, const pl_expert_rows *given,
                            int64_t count)
{
    int64_t choices = given->tokens * given->chosen;
    if (given->order == PL_EXPERTS_CHOSEN)
        PL_TRY(pl_cpu_require(device, what, given->rows == given->tokens, "each token is a row"));
    else
        PL_TRY(pl_cpu_require(device, what, given->rows == count,
                              "the experts' rows are all of the rows"));
    if (given->order == PL_EXPERTS_SORTED)
        PL_TRY(pl_cpu_require(device, what, given->rows == choices, "each choice is a row"));
    return pl_cpu_require(device, what, count <= given->room, "there is room for all rows");
}

/* The next BYTES of *AT, on 64 bytes. */
static void *take(char **at, int64_t bytes)
{
    void *taken = *at;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

pl_status PL_ISA(pl_cpu_expert_positions)(pl_device *device, const char *what,
                                          const pl_expert_rows *given, int64_t result_cols,
                                          pl_expert_positions *out)
{
    bool chosen = given->order == PL_EXPERTS_CHOSEN;
    bool moved =
        chosen || (given->order == PL_EXPERTS_COUNTED && given->sources > 1 && given->experts > 1);
    int64_t count = count_positions(given), results = 0;
    PL_TRY(check_rows(device, what, given, count));
    PL_TRY(pl_cpu_elements(device, what, &results, chosen ? count : 0, result_cols, 1));
    int64_t begins = (given->experts + 1) * (int64_t)sizeof(int64_t);
    int64_t tiles =
        (given->experts + count / PL_EXPERT_TILE_ROWS) * (int64_t)sizeof(pl_expert_tile);
    int64_t rows = moved ? count * 4 : 0, choices = chosen ? count * 4 : 0;
    int64_t of_choice = chosen ? given->tokens * given->chosen * 4 : 0;
    void *workspace = NULL;
    PL_TRY(pl_cpu_workspace(
        device, begins + tiles + rows + choices + of_choice + results * 4 + INT64_C(6) * 64,
        &workspace));
    char *at = workspace;
    int64_t *begin = take(&at, begins);
    pl_expert_tile *tile = take(&at, tiles);
    int32_t *row = take(&at, rows), *choice = take(&at, choices), *inverse = take(&at, of_choice);
    *out = (pl_expert_positions){.given = given, .count = count, .begin = begin};
    find_begins(given, begin);
    make_tiles(given, begin, tile, out);
    if (chosen)
        place_chosen(given, begin, row, choice, inverse);
    else if (moved)
        place_counted(given, begin, row);
    if (moved) out->row = row;
    if (chosen) {
        out->choice = choice;
        out->of_choice = inverse;
        out->results = result_cols > 0 ? take(&at, results * 4) : NULL;
    }
    return PL_OK;
}

/* --- results by token --- */

typedef struct combine {
    const pl_expert_positions *p;
    const float *weights; /* NULL: 1 each */
    float *out;
    int64_t cols;
} combine;

static void combine_block(void *context, int64_t index, void *scratch)
{
    const combine *c = context;
    const pl_expert_rows *given = c->p->given;
    pl_token_blocks blocks = pl_token_blocks_make(given->tokens, 1);
    pl_token_range range = pl_token_block(&blocks, index);
    (void)scratch;
    for (int64_t t = range.begin; t < range.end; ++t) {
        int64_t first = t * given->chosen;
        pl_row_sum sum = {.from = c->p->results, .rows = c->p->of_choice + first};
        if (c->weights) sum.weights = c->weights + first;
        sum.count = given->chosen;
        sum.cols = c->cols;
        pl_sum_rows(&sum, c->out + t * c->cols);
    }
}

pl_status PL_ISA(pl_cpu_combine_results)(pl_device *device, const pl_expert_positions *p,
                                         bool weighted, float *out, int64_t cols)
{
    combine c = {.p = p, .weights = weighted ? p->given->weights : NULL, .cols = cols};
    c.out = out;
    pl_token_blocks blocks = pl_token_blocks_make(p->given->tokens, 1);
    return pl_pool_run(pl_cpu_pool(device), blocks.count, 0, combine_block, &c);
}
