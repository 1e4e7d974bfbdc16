#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

typedef struct shape {
    int64_t m, n, k;
} shape;

enum { NO_ADDEND, OTHER_ADDEND, ADDEND_IN_PLACE };

static double element(const pl_product_arguments *p, int64_t row, int64_t col)
{
    const float *a = p->a, *b = p->b;
    double sum = 0;
    for (int64_t i = 0; i < p->k; ++i)
        sum += (double)a[p->transpose_a ? i * p->m + row : row * p->k + i] *
               (double)b[p->transpose_b ? col * p->k + i : i * p->n + col];
    return sum;
}

static void check_log(const kernel_test *t, const pl_product_arguments *p)
{
    enum { FLOAT = sizeof(float) };
    bool in_place = p->addend && p->addend == p->c;
    bool some = p->m > 0 && p->n > 0;
    int touches =
        (p->m > 0 && p->k > 0) + (p->k > 0 && p->n > 0) + some + (some && p->addend && !in_place);
    kernel_recorded(t, "product", 2 * p->m * p->n * p->k, touches);
    if (p->m > 0 && p->k > 0) kernel_touched(t, p->a, p->m * p->k * FLOAT, "r");
    if (p->k > 0 && p->n > 0) kernel_touched(t, p->b, p->k * p->n * FLOAT, "r");
    if (some) kernel_touched(t, p->c, p->m * p->n * FLOAT, in_place ? "rw" : "w");
    if (some && p->addend && !in_place) kernel_touched(t, p->addend, p->m * p->n * FLOAT, "r");
}

static void try_product(kernel_test *t, const shape *s, int variant)
{
    int addend = variant / 4;
    float *c =
        addend == ADDEND_IN_PLACE ? kernel_floats(t, s->m * s->n) : kernel_room(t, s->m * s->n);
    const float *before = NULL;
    if (addend == OTHER_ADDEND) before = kernel_floats(t, s->m * s->n);
    if (addend == ADDEND_IN_PLACE) before = kernel_copy(t, c, s->m * s->n);
    pl_product_arguments p = {.a = kernel_floats(t, s->m * s->k),
                              .b = kernel_floats(t, s->k * s->n),
                              .c = c,
                              .addend = addend == ADDEND_IN_PLACE ? c : before,
                              .dtype = PL_FP32,
                              .c_dtype = PL_FP32,
                              .m = s->m,
                              .n = s->n,
                              .k = s->k,
                              .transpose_a = variant & 1,
                              .transpose_b = variant & 2};
    double *expected = kernel_doubles(s->m * s->n);
    for (int64_t i = 0; i < s->m * s->n; ++i)
        expected[i] = element(&p, i / s->n, i % s->n) + (before ? (double)before[i] : 0);
    assert_ok(t->operations->product(t->device, PL_STREAM_COMPUTE, &p));
    check_log(t, &p);
    kernel_near(c, expected, s->m * s->n, 2e-6, "c");
    kernel_result(t, c, (size_t)(s->m * s->n) * sizeof *c);
    pl_free(expected);
}

static void odd_shapes(kernel_test *t, const void *context)
{
    (void)context;
    static const shape shapes[] = {{1, 1, 1},   {15, 16, 17}, {33, 1, 5},  {1, 33, 5},
                                   {17, 31, 1}, {64, 8, 33},  {3, 5, 257}, {0, 4, 3},
                                   {4, 0, 3},   {5, 3, 0},    {0, 0, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        for (int variant = 0; variant < 12; ++variant) try_product(t, &shapes[i], variant);
}

static void products_of_odd_shapes_equal_plain_loops(void **state)
{
    (void)state;
    kernel_everywhere(odd_shapes, NULL);
}

/* More than one tile: cut by rows, by columns, by both, and shapes that a tile does not divide. */
static void large_shapes(kernel_test *t, const void *context)
{
    (void)context;
    static const shape shapes[] = {{515, 3, 7}, {3, 1030, 5}, {513, 514, 2}, {300, 290, 300}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        try_product(t, &shapes[i], (int)i + 4 * (int)(i % 3));
}

static void products_of_several_tiles_equal_plain_loops(void **state)
{
    (void)state;
    kernel_everywhere(large_shapes, NULL);
}

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    float *x = kernel_floats(t, 16);
    const pl_product_arguments right = {.a = x,
                                        .b = x,
                                        .c = kernel_room(t, 4),
                                        .dtype = PL_FP32,
                                        .c_dtype = PL_FP32,
                                        .m = 2,
                                        .n = 2,
                                        .k = 2};
    pl_product_arguments p = right;
    p.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, t->operations->product(t->device, PL_STREAM_COMPUTE, &p),
                 "product", "loss head", "fp32", "bf16");
    p = right;
    p.c_dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, t->operations->product(t->device, PL_STREAM_COMPUTE, &p), "bf16");
    p = right;
    p.m = -1;
    assert_fails(PL_INTERNAL, t->operations->product(t->device, PL_STREAM_COMPUTE, &p), "product",
                 "at least 0");
    p = right;
    p.b = NULL;
    assert_fails(PL_INTERNAL, t->operations->product(t->device, PL_STREAM_COMPUTE, &p),
                 "a, b and c are given");
    p = right;
    p.m = p.n = p.k = INT64_C(1) << 31;
    assert_fails(PL_INTERNAL, t->operations->product(t->device, PL_STREAM_COMPUTE, &p), "63 bits");
    p.n = p.k = 1;
    assert_fails(PL_UNSUPPORTED, t->operations->product(t->device, PL_STREAM_COMPUTE, &p),
                 "32 bits", "m=2147483648");
    assert_int_equal(t->records, 0);
}

static void what_cannot_be_multiplied_is_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_odd_shapes_equal_plain_loops),
        cmocka_unit_test(products_of_several_tiles_equal_plain_loops),
        cmocka_unit_test(what_cannot_be_multiplied_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
