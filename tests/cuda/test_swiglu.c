/* SwiGLU and its backward pass, against plain loops in double and the CPU backend. */
#include <math.h>

#include "common/memory.h"
#include "kernels/cpu/cpu.h"
#include "tests/cuda/cuda_test.h"

static const int64_t counts[] = {0, 1, 2, 31, 255, 256, 257, 1000};

enum { COUNTS = sizeof counts / sizeof *counts };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void forward(cuda_test *t, pl_dtype dtype, int64_t count)
{
    cuda_array *gate = cuda_random(t, dtype, count), *up = cuda_random(t, dtype, count);
    cuda_array *act = cuda_room(t, dtype, count);
    double *expected = cuda_doubles(count);
    if (count > 2) gate->values[0] = 60, gate->values[1] = -60, gate->values[2] = -120;
    cuda_put(t, gate);
    for (int64_t i = 0; i < count; ++i)
        expected[i] = gate->values[i] * sigmoid(gate->values[i]) * up->values[i];
    pl_swiglu_arguments a = {gate->device, up->device, act->device, dtype, count};
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    cuda_near(t, act, expected, 1e-6, "act");
    cuda_result(t, act);
    pl_free(expected);
}

static void forward_cases(cuda_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < COUNTS; ++i) {
        forward(t, PL_FP32, counts[i]);
        forward(t, PL_BF16, counts[i]);
    }
}

static void activations_are_those_of_plain_loops(void **state)
{
    (void)state;
    cuda_everywhere(forward_cases, NULL);
}

/* dgate and dup by central differences of act = g s(g) u, times dact. */
static void backward(cuda_test *t, pl_dtype dtype, int64_t count)
{
    cuda_array *gate = cuda_random(t, dtype, count), *up = cuda_random(t, dtype, count);
    cuda_array *dact = cuda_random(t, dtype, count);
    cuda_array *dgate = cuda_room(t, dtype, count), *dup = cuda_room(t, dtype, count);
    double *expected_gate = cuda_doubles(count), *expected_up = cuda_doubles(count);
    for (int64_t i = 0; i < count; ++i) {
        double g = gate->values[i], step = 1e-5;
        double slope = ((g + step) * sigmoid(g + step) - (g - step) * sigmoid(g - step)) / 2 / step;
        expected_gate[i] = dact->values[i] * up->values[i] * slope;
        expected_up[i] = dact->values[i] * g * sigmoid(g);
    }
    pl_swiglu_backward_arguments a = {gate->device, up->device, dact->device, dgate->device,
                                      dup->device,  dtype,      count};
    assert_ok(t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &a));
    cuda_near(t, dgate, expected_gate, 1e-6, "dgate");
    cuda_near(t, dup, expected_up, 1e-6, "dup");
    cuda_result(t, dgate);
    cuda_result(t, dup);
    /* Results in place of arguments. */
    a.dgate = dact->device;
    a.dup = up->device;
    assert_ok(t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &a));
    cuda_same(t, dact, dgate, "dgate in place of dact");
    cuda_same(t, up, dup, "dup in place of up");
    pl_free(expected_gate);
    pl_free(expected_up);
}

static void backward_case(cuda_test *t, const void *context)
{
    const int64_t *count = context;
    backward(t, PL_FP32, *count);
    backward(t, PL_BF16, *count);
}

static void gradients_are_differences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; ++i) cuda_everywhere(backward_case, &counts[i]);
}

/* More elements than a grid has threads. */
static void long_array(cuda_test *t, const void *context)
{
    (void)context;
    enum { COUNT = 2048 * 256 + 300 };
    forward(t, PL_BF16, COUNT);
    backward(t, PL_FP32, COUNT);
}

static void threads_go_on_where_there_are_more_elements(void **state)
{
    (void)state;
    cuda_once(long_array, NULL);
}

/* --- the CPU backend --- */

static void keep_record(void *context, const pl_call_record *record)
{
    *(pl_call_record *)context = *record;
}

static float *floats_of(const cuda_array *a)
{
    float *floats = NULL;
    assert_ok(pl_allocate(&floats, (size_t)a->count, sizeof *floats, "floats"));
    for (int64_t i = 0; i < a->count; ++i) floats[i] = (float)a->values[i];
    return floats;
}

static void widen(double *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) to[i] = (double)from[i];
}

static void like_the_cpu(cuda_test *t, const void *context)
{
    enum { COUNT = 333 };
    pl_device *cpu = ((pl_device *const *)context)[0];
    pl_call_record record;
    pl_call_log log = {keep_record, &record};
    cpu->log = &log;
    cuda_array *in[3], *out[3];
    float *cpu_in[3], *cpu_out[3];
    double *expected = cuda_doubles(COUNT);
    for (int i = 0; i < 3; ++i) {
        in[i] = cuda_random(t, PL_FP32, COUNT);
        out[i] = cuda_room(t, PL_FP32, COUNT);
        cpu_in[i] = floats_of(in[i]);
        cpu_out[i] = floats_of(in[i]);
    }
    pl_swiglu_arguments a = {in[0]->device, in[1]->device, out[0]->device, PL_FP32, COUNT};
    pl_swiglu_arguments b = {cpu_in[0], cpu_in[1], cpu_out[0], PL_FP32, COUNT};
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(cpu->operations->swiglu(cpu, PL_STREAM_COMPUTE, &b));
    cuda_same_record(t, &record);
    pl_swiglu_backward_arguments c = {in[0]->device,  in[1]->device, in[2]->device, out[1]->device,
                                      out[2]->device, PL_FP32,       COUNT};
    pl_swiglu_backward_arguments d = {cpu_in[0],  cpu_in[1], cpu_in[2], cpu_out[1],
                                      cpu_out[2], PL_FP32,   COUNT};
    assert_ok(t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &c));
    assert_ok(cpu->operations->swiglu_backward(cpu, PL_STREAM_COMPUTE, &d));
    cuda_same_record(t, &record);
    for (int i = 0; i < 3; ++i) {
        widen(expected, cpu_out[i], COUNT);
        cuda_near(t, out[i], expected, 1e-6, "a result of the CPU");
        pl_free(cpu_in[i]);
        pl_free(cpu_out[i]);
    }
    cpu->log = NULL;
    pl_free(expected);
}

static void the_cpu_backend_computes_and_notes_the_same(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    pl_device *cpu = NULL;
    assert_ok(pl_backend_cpu_open(&backend, 1));
    assert_ok(backend->functions->open_device(backend, &cpu, 0, 0));
    cuda_once(like_the_cpu, &cpu);
    cpu->functions->close(cpu);
    backend->functions->close(backend);
}

/* --- refusals --- */

static void wrong_arguments(cuda_test *t, const void *context)
{
    (void)context;
    cuda_array *x = cuda_random(t, PL_FP32, 4);
    pl_swiglu_arguments a = {x->device, x->device, x->device, PL_FP16, 4};
    pl_swiglu_backward_arguments b = {x->device, x->device, x->device, x->device,
                                      x->device, PL_FP16,   4};
    assert_fails(PL_UNSUPPORTED, t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a), "swiglu",
                 "loss head", "fp16");
    assert_fails(PL_UNSUPPORTED, t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "swiglu_backward", "loss head", "fp16");
    a.dtype = b.dtype = PL_BF16;
    a.count = b.count = -1;
    assert_fails(PL_INTERNAL, t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a),
                 "at least 0");
    assert_fails(PL_INTERNAL, t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "at least 0");
    a.count = b.count = 2;
    a.up = b.up = NULL;
    assert_fails(PL_INTERNAL, t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a),
                 "up and act");
    assert_fails(PL_INTERNAL, t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "dgate and dup");
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    cuda_once(wrong_arguments, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_those_of_plain_loops),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(threads_go_on_where_there_are_more_elements),
        cmocka_unit_test(the_cpu_backend_computes_and_notes_the_same),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
