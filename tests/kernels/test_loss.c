#include <float.h>
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

typedef struct shape {
    int64_t rows, hidden, vocabulary;
    enum { SOME_VALID, ALL_VALID, NONE_VALID, FIRST_HALF_MASKED } labels;
} shape;

/* Expected values in double. */
typedef struct reference {
    double *losses, *logits, *dz, *dweight;
    double sum;
} reference;

typedef struct trial {
    const shape *s;
    float *z, *weight, *dz, *dweight, *row_losses;
    int32_t *labels;
    double *loss_sums;
} trial;

/* --- the reference --- */

static void refer_row(const trial *r, reference *e, int64_t row)
{
    const shape *s = r->s;
    const float *z = r->z + row * s->hidden;
    double largest = -INFINITY, sum = 0;
    if (r->labels[row] < 0) return;
    for (int64_t v = 0; v < s->vocabulary; ++v) {
        e->logits[v] = 0;
        for (int64_t h = 0; h < s->hidden; ++h)
            e->logits[v] += (double)z[h] * (double)r->weight[v * s->hidden + h];
        largest = fmax(largest, e->logits[v]);
    }
    for (int64_t v = 0; v < s->vocabulary; ++v) sum += exp(e->logits[v] - largest);
    e->losses[row] = largest + log(sum) - e->logits[r->labels[row]];
    e->sum += e->losses[row];
    for (int64_t v = 0; v < s->vocabulary; ++v) {
        double dlogit = exp(e->logits[v] - largest) / sum - (v == r->labels[row]);
        for (int64_t h = 0; h < s->hidden; ++h) {
            e->dz[row * s->hidden + h] += dlogit * (double)r->weight[v * s->hidden + h];
            e->dweight[v * s->hidden + h] += dlogit * (double)z[h];
        }
    }
}

static reference refer(const trial *r)
{
    const shape *s = r->s;
    reference e = {.losses = kernel_doubles(s->rows),
                   .logits = kernel_doubles(s->vocabulary),
                   .dz = kernel_doubles(s->rows * s->hidden),
                   .dweight = kernel_doubles(s->vocabulary * s->hidden)};
    for (int64_t row = 0; row < s->rows; ++row) refer_row(r, &e, row);
    return e;
}

static void free_reference(reference *e)
{
    pl_free(e->losses);
    pl_free(e->logits);
    pl_free(e->dz);
    pl_free(e->dweight);
}

/* --- the operation, run with random inputs --- */

static bool is_masked(kernel_test *t, const shape *s, int64_t row)
{
    if (s->labels == ALL_VALID || s->labels == NONE_VALID) return s->labels == NONE_VALID;
    if (s->labels == FIRST_HALF_MASKED) return row < s->rows / 2;
    return kernel_random_below(t, 3) == 0;
}

static trial make_trial(kernel_test *t, const shape *s)
{
    trial r = {.s = s,
               .z = kernel_floats(t, s->rows * s->hidden),
               .weight = kernel_floats(t, s->vocabulary * s->hidden),
               .dz = kernel_room(t, s->rows * s->hidden),
               .dweight = kernel_room(t, s->vocabulary * s->hidden),
               .row_losses = kernel_room(t, s->rows),
               .labels = kernel_bytes(t, s->rows * (int64_t)sizeof(int32_t)),
               .loss_sums = kernel_bytes(t, 2 * (int64_t)sizeof(double))};
    for (int64_t i = 0; i < s->rows; ++i) {
        r.labels[i] = (int32_t)kernel_random_below(t, s->vocabulary);
        if (is_masked(t, s, i)) r.labels[i] = i % 2 ? -100 : -1;
    }
    return r;
}

static pl_loss_arguments arguments_of(const trial *r)
{
    return (pl_loss_arguments){.z = r->z,
                               .weight = r->weight,
                               .labels = r->labels,
                               .dz = r->dz,
                               .dweight = r->dweight,
                               .loss_sums = r->loss_sums,
                               .loss_begins = true,
                               .row_losses = r->row_losses,
                               .dtype = PL_FP32,
                               .rows = r->s->rows,
                               .hidden = r->s->hidden,
                               .vocabulary = r->s->vocabulary};
}

static pl_status run(kernel_test *t, const pl_loss_arguments *a)
{
    return t->operations->loss(t->device, PL_STREAM_COMPUTE, a);
}

/* Gradients are of size 1 or below: what is smaller in all is rounding. */
static void near(const float *actual, const double *expected, int64_t count, double tolerance,
                 const char *what)
{
    double largest = 0.1;
    for (int64_t i = 0; i < count; ++i) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; ++i)
        if (!(fabs((double)actual[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s[%lld] is %.9g, should be %.9g", what, (long long)i, (double)actual[i],
                     expected[i]);
}

static void near_sum(double actual, double expected)
{
    if (!(fabs(actual - expected) <= 1e-6 * fabs(expected) + 1e-12))
        fail_msg("the loss is %.12g, should be %.12g", actual, expected);
}

static void check_log(const kernel_test *t, const pl_loss_arguments *a)
{
    int64_t z = a->rows * a->hidden * FLOAT, weight = a->vocabulary * a->hidden * FLOAT;
    int64_t products = 1 + (a->dz != NULL) + (a->dweight != NULL);
    bool some = a->rows > 0;
    int touches = 2 + 2 * some + (a->dz && some) + (a->dweight != NULL) + (a->row_losses && some);
    kernel_recorded(t, "loss", 2 * products * a->rows * a->hidden * a->vocabulary, touches);
    kernel_touched(t, a->weight, weight, "r");
    kernel_touched(t, a->loss_sums, a->loss_begins ? 16 : 8, a->loss_begins ? "w" : "rw");
    if (a->dweight) kernel_touched(t, a->dweight, weight, a->add ? "rw" : "w");
    if (!some) return;
    kernel_touched(t, a->z, z, "r");
    kernel_touched(t, a->labels, a->rows * (int64_t)sizeof(int32_t), "r");
    if (a->dz) kernel_touched(t, a->dz, z, "w");
    if (a->row_losses) kernel_touched(t, a->row_losses, a->rows * FLOAT, "w");
}

/* --- tests --- */

/* All wanted and written whole; then the same again, added to. */
static void try_shape(kernel_test *t, const void *context)
{
    const shape *s = context;
    trial r = make_trial(t, s);
    int64_t z = s->rows * s->hidden, weight = s->vocabulary * s->hidden;
    double tolerance = 3e-6 * (1 + sqrt((double)s->vocabulary) / 100); /* of sums over it */
    pl_loss_arguments a = arguments_of(&r);
    reference e = refer(&r);
    assert_ok(run(t, &a));
    check_log(t, &a);
    near_sum(r.loss_sums[0], e.sum);
    assert_true(r.loss_sums[1] == 0);
    near(r.row_losses, e.losses, s->rows, 1e-6, "row_losses");
    near(r.dz, e.dz, z, tolerance, "dz");
    near(r.dweight, e.dweight, weight, tolerance, "dweight");
    double once = r.loss_sums[0];
    a.add = true;
    a.loss_begins = false;
    r.loss_sums[1] = 7;
    assert_ok(run(t, &a));
    check_log(t, &a);
    assert_true(r.loss_sums[0] == once + once && r.loss_sums[1] == 7);
    for (int64_t i = 0; i < weight; ++i) e.dweight[i] *= 2;
    near(r.dweight, e.dweight, weight, tolerance, "dweight, added to");
    kernel_result(t, r.loss_sums, sizeof(double));
    kernel_result(t, r.row_losses, (size_t)(s->rows * FLOAT));
    kernel_result(t, r.dz, (size_t)(z * FLOAT));
    kernel_result(t, r.dweight, (size_t)(weight * FLOAT));
    free_reference(&e);
}

/* Sizes around vectors and tiles (256 rows, 512 columns); 2000 rows of 290 make two chunks. */
static void losses_of_odd_shapes_equal_plain_loops(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 1, 1, ALL_VALID},      {5, 3, 7, SOME_VALID},
                                   {33, 16, 127, SOME_VALID}, {70, 24, 257, SOME_VALID},
                                   {300, 5, 520, SOME_VALID}, {9, 530, 33, SOME_VALID},
                                   {20, 4, 64, NONE_VALID},   {2000, 2, 290, FIRST_HALF_MASKED},
                                   {0, 4, 5, ALL_VALID}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        kernel_everywhere(try_shape, &shapes[i]);
}

/* Chunks of 13 rows, and of one. */
static void losses_of_large_vocabularies_equal_plain_loops(void **state)
{
    (void)state;
    static const shape shapes[] = {{15, 2, 151936, SOME_VALID}, {3, 1, 2100001, ALL_VALID}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        kernel_once(try_shape, &shapes[i], 2);
}

/* What is not wanted is not needed for what is: the same bits, whatever else is asked for. */
static void try_parts(kernel_test *t, const void *context)
{
    const shape *s = context;
    trial r = make_trial(t, s);
    pl_loss_arguments a = arguments_of(&r);
    assert_ok(run(t, &a));
    int64_t z = s->rows * s->hidden, weight = s->vocabulary * s->hidden;
    for (int wanted = 0; wanted < 8; ++wanted) {
        double sums[2] = {NAN, NAN};
        pl_loss_arguments part = a;
        part.loss_sums = sums;
        part.dz = wanted & 1 ? kernel_room(t, z) : NULL;
        part.dweight = wanted & 2 ? kernel_room(t, weight) : NULL;
        part.row_losses = wanted & 4 ? kernel_room(t, s->rows) : NULL;
        assert_ok(run(t, &part));
        check_log(t, &part);
        kernel_same(sums, r.loss_sums, sizeof sums, "loss_sums");
        if (part.dz) kernel_same(part.dz, r.dz, (size_t)(z * FLOAT), "dz");
        if (part.dweight) kernel_same(part.dweight, r.dweight, (size_t)(weight * FLOAT), "dweight");
        if (part.row_losses)
            kernel_same(part.row_losses, r.row_losses, (size_t)(s->rows * FLOAT), "row_losses");
    }
}

static void what_is_not_wanted_changes_nothing(void **state)
{
    (void)state;
    kernel_once(try_parts, &(shape){90, 20, 600, SOME_VALID}, 2);
}

/* The reference's gradients against differences of its own loss, and faults that the comparison
 * with it would show. */
static void try_reference(kernel_test *t, const void *context)
{
    const shape *s = context;
    trial r = make_trial(t, s);
    reference e = refer(&r);
    for (int64_t i = 0; i < s->rows * s->hidden; ++i) {
        float kept = r.z[i], above = kept + 0x1p-10f, below = kept - 0x1p-10f;
        r.z[i] = above;
        reference more = refer(&r);
        r.z[i] = below;
        reference less = refer(&r);
        r.z[i] = kept;
        double slope = (more.sum - less.sum) / ((double)above - (double)below);
        assert_true(fabs(slope - e.dz[i]) < 1e-6);
        free_reference(&more);
        free_reference(&less);
    }
    int32_t kept = r.labels[0];
    r.labels[0] = kept < 0 ? 0 : -1; /* one row more, or less, in the sums */
    reference other = refer(&r);
    assert_true(fabs(other.sum - e.sum) > 0.1);
    assert_true(fabs(other.dz[0] - e.dz[0]) > 0.01);
    r.labels[0] = kept;
    free_reference(&other);
    free_reference(&e);
}

static void the_reference_s_gradients_are_those_of_differences(void **state)
{
    (void)state;
    kernel_once(try_reference, &(shape){4, 3, 5, SOME_VALID}, 1);
}

/* A vocabulary of two and the unit matrix as weights: the second gradient of a row (0, x) with
 * label 0 is exp(x) / (1 + exp(x)), to the last places, for all x that do not vanish. */
static void try_exponentials(kernel_test *t, const void *context)
{
    (void)context;
    const int64_t rows = 20011;
    const shape s = {rows, 2, 2, ALL_VALID};
    trial r = make_trial(t, &s);
    const float unit[] = {1, 0, 0, 1};
    memcpy(r.weight, unit, sizeof unit);
    for (int64_t i = 0; i < rows; ++i) {
        r.labels[i] = 0;
        r.z[2 * i] = 0;
        r.z[2 * i + 1] = -87.3f * (float)i / (float)rows;
    }
    pl_loss_arguments a = arguments_of(&r);
    assert_ok(run(t, &a));
    for (int64_t i = 0; i < rows; ++i) {
        double x = exp((double)r.z[2 * i + 1]), right = x / (1 + x);
        if (!(fabs((double)r.dz[2 * i + 1] - right) <= 4 * FLT_EPSILON * right))
            fail_msg("exp(%.9g) / (1 + it) is %.9g, not %.9g", (double)r.z[2 * i + 1],
                     (double)r.dz[2 * i + 1], right);
    }
}

static void small_probabilities_are_right_to_the_last_places(void **state)
{
    (void)state;
    kernel_everywhere(try_exponentials, NULL);
}

/* Logits of thousands: the loss is their distance, no infinity on the way. */
static void try_large(kernel_test *t, const void *context)
{
    (void)context;
    const shape s = {2, 1, 3, ALL_VALID};
    trial r = make_trial(t, &s);
    const float weight[] = {1, 2, 3};
    memcpy(r.weight, weight, sizeof weight);
    r.z[0] = 2000;
    r.z[1] = -2000;
    r.labels[0] = r.labels[1] = 1;
    pl_loss_arguments a = arguments_of(&r);
    assert_ok(run(t, &a));
    assert_true(r.row_losses[0] == 2000 && r.row_losses[1] == 2000);
    assert_true(r.loss_sums[0] == 4000);
    assert_true(r.dz[0] == 3 - 2 && r.dz[1] == 1 - 2);
}

static void large_logits_stay_finite(void **state)
{
    (void)state;
    kernel_everywhere(try_large, NULL);
}

/* Nothing to multiply: all logits are 0. No vocabulary: no label can be valid. */
static void try_empty(kernel_test *t, const void *context)
{
    (void)context;
    const shape s = {6, 0, 9, ALL_VALID};
    trial r = make_trial(t, &s);
    pl_loss_arguments a = arguments_of(&r);
    assert_ok(run(t, &a));
    near_sum(r.loss_sums[0], 6 * log(9));
    a.z = a.weight = a.dz = a.dweight = NULL;
    assert_ok(run(t, &a));
    near_sum(r.loss_sums[0], 6 * log(9));
    float dz[] = {NAN, NAN, NAN, NAN};
    int32_t labels[] = {-1, 0};
    a = (pl_loss_arguments){.z = dz, .labels = labels, .dz = dz, .loss_sums = r.loss_sums};
    a.rows = a.hidden = 2;
    a.dtype = PL_FP32;
    assert_fails(PL_BAD_INPUT, run(t, &a), "row 1 is 0", "0 entries");
    labels[1] = -1;
    a.loss_begins = true;
    assert_ok(run(t, &a));
    assert_true(r.loss_sums[0] == 0);
    for (int i = 0; i < 4; ++i) assert_true(dz[i] == 0);
}

static void empty_sizes_are_allowed(void **state)
{
    (void)state;
    kernel_everywhere(try_empty, NULL);
}

/* What is not a number stays none, but not in rows that do not count. */
static void try_nan(kernel_test *t, const void *context)
{
    (void)context;
    const shape s = {4, 3, 37, ALL_VALID};
    trial r = make_trial(t, &s);
    pl_loss_arguments a = arguments_of(&r);
    a.dweight = NULL;
    r.labels[1] = -1;
    r.z[3] = NAN;
    assert_ok(run(t, &a));
    assert_true(isfinite(r.loss_sums[0]) && r.row_losses[1] == 0);
    for (int i = 0; i < 12; ++i) assert_true(isfinite(r.dz[i]) && (i / 3 != 1 || r.dz[i] == 0));
    r.z[6] = NAN;
    assert_ok(run(t, &a));
    assert_true(isnan(r.loss_sums[0]) && isnan(r.row_losses[2]) && isnan(r.dz[6]));
    assert_true(isfinite(r.row_losses[3]));
}

static void what_is_not_a_number_is_not_hidden(void **state)
{
    (void)state;
    kernel_everywhere(try_nan, NULL);
}

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const shape s = {6, 3, 11, ALL_VALID};
    trial r = make_trial(t, &s);
    const pl_loss_arguments right = arguments_of(&r);
    pl_loss_arguments a = right;
    a.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, run(t, &a), "loss", "bf16");
    a = right;
    a.rows = -1;
    assert_fails(PL_INTERNAL, run(t, &a), "at least 0");
    a = right;
    a.labels = NULL;
    assert_fails(PL_INTERNAL, run(t, &a), "labels and loss_sums are given");
    a = right;
    a.hidden = INT64_C(1) << 31;
    assert_fails(PL_UNSUPPORTED, run(t, &a), "32 bits", "hidden=2147483648");
    a = right;
    a.rows = a.vocabulary = a.hidden = INT64_C(1) << 21;
    assert_fails(PL_INTERNAL, run(t, &a), "63 bits");
    r.labels[4] = 11;
    a = right;
    assert_fails(PL_BAD_INPUT, run(t, &a), "row 4 is 11", "11 entries", "loss head");
    r.labels[4] = INT32_MAX;
    assert_fails(PL_BAD_INPUT, run(t, &a), "row 4 is 2147483647");
    assert_int_equal(t->records, 0);
    assert_true(isnan(r.dz[0]) && isnan(r.dweight[0]) && isnan(r.loss_sums[0]));
    r.labels[4] = INT32_MIN;
    assert_ok(run(t, &a));
}

static void what_cannot_be_done_is_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

static pl_status run_without_memory(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    const shape s = {30, 4, 19, SOME_VALID};
    trial r = make_trial(t, &s);
    pl_loss_arguments a = arguments_of(&r);
    pl_allocation_fail_after(after);
    return run(t, &a);
}

static void loss_without_memory_says_so(void **state)
{
    (void)state;
    kernel_allocation_failures(run_without_memory, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_of_odd_shapes_equal_plain_loops),
        cmocka_unit_test(losses_of_large_vocabularies_equal_plain_loops),
        cmocka_unit_test(what_is_not_wanted_changes_nothing),
        cmocka_unit_test(the_reference_s_gradients_are_those_of_differences),
        cmocka_unit_test(small_probabilities_are_right_to_the_last_places),
        cmocka_unit_test(large_logits_stay_finite),
        cmocka_unit_test(empty_sizes_are_allowed),
        cmocka_unit_test(what_is_not_a_number_is_not_hidden),
        cmocka_unit_test(what_cannot_be_done_is_refused),
        cmocka_unit_test(loss_without_memory_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
