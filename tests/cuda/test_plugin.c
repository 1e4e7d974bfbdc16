/* Opening plugins: what is found, and the words for everything that is not right. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/plugin.h"
#include "tests/test.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 64 };

/* plugins/plugin.c of KIND, beside this program. */
static const char *path_of(char *path, const char *name)
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 2 * NAME_BYTES);
    assert_true(length > 0);
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    (void)snprintf(slash, (size_t)2 * NAME_BYTES, "/%s", name);
    return path;
}

static const char *plugin_of(char *path, int kind)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "plugins/plugin_%d.so", kind);
    return path_of(path, name);
}

static void a_plugin_is_opened(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    pl_backend *backend = NULL;
    for (int i = 0; i < 2; ++i) { /* again too */
        assert_ok(pl_plugin_open(&backend, plugin_of(path, 6)));
        assert_string_equal(backend->functions->describe(backend), "a small plugin");
        backend->functions->close(backend);
        backend = NULL;
    }
}

static void the_variable_names_a_plugin(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    pl_backend *backend = NULL;
    setenv(PL_PLUGIN_VARIABLE, plugin_of(path, 6), 1);
    assert_ok(pl_plugin_open(&backend, NULL));
    assert_string_equal(backend->functions->name, "small");
    backend->functions->close(backend);
    setenv(PL_PLUGIN_VARIABLE, "there/is none.so", 1);
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, NULL), "'there/is none.so'",
                 "named by PLEAT_CUDA_PLUGIN", "No such file");
    unsetenv(PL_PLUGIN_VARIABLE);
}

/* Nothing there; then a link beside the program. */
static void a_plugin_is_looked_for_beside_the_program(void **state)
{
    (void)state;
    char path[PATH_BYTES], beside[PATH_BYTES];
    pl_backend *backend = NULL;
    path_of(beside, PL_PLUGIN_FILE);
    (void)unlink(beside);
    setenv(PL_PLUGIN_VARIABLE, "", 1); /* empty counts as unset */
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, NULL), "no CUDA plugin", PL_PLUGIN_FILE,
                 "/tests/", "../lib/pleat/", "nvcc", "PLEAT_CUDA_PLUGIN");
    assert_null(backend);
    unsetenv(PL_PLUGIN_VARIABLE);
    assert_int_equal(symlink(plugin_of(path, 6), beside), 0);
    pl_status status = pl_plugin_open(&backend, NULL);
    (void)unlink(beside);
    assert_int_equal(status, PL_OK);
    assert_string_equal(backend->functions->name, "small");
    backend->functions->close(backend);
}

static void what_is_not_right_is_worded(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    pl_backend *backend = NULL;
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, "no such.so"), "'no such.so'",
                 "cannot be read", "No such file");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, "README.md"), "'./README.md'",
                 "cannot be loaded");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 0)), "plugin_0.so",
                 "no plugin of pleat", PL_PLUGIN_ENTRY);
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 1)), "plugin_1.so",
                 "cannot be used", "interface 99 and the program interface 1");
    assert_fails(PL_NO_MEMORY, pl_plugin_open(&backend, plugin_of(path, 2)), "plugin_2.so",
                 "no memory left");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 3)), "plugin_3.so",
                 "does not say why");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 4)), "plugin_4.so",
                 "without a backend");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 5)), "plugin_5.so",
                 "cannot be loaded", "undefined symbol", "pl_nobody_has_this");
    assert_fails(PL_UNSUPPORTED, pl_plugin_open(&backend, plugin_of(path, 7)), "plugin_7.so",
                 "cannot be loaded", "cannot open shared object file");
    assert_null(backend);
}

static void opening_without_memory_says_so(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    pl_allocation_fail_after(0);
    pl_status named = pl_plugin_open(&backend, "README.md");
    pl_allocation_fail_after(0);
    pl_status found = pl_plugin_open(&backend, NULL);
    pl_allocation_fail_after(-1);
    assert_int_equal(named, PL_NO_MEMORY);
    assert_int_equal(found, PL_NO_MEMORY);
}

#ifdef CUDA_TEST_PLUGIN
/* What was built with nvcc loads into a program that exports its symbols, and says what this
 * machine lacks; the CPU backend can take its place. */
static void the_cuda_plugin_loads_and_refuses_in_words(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    pl_status status = pl_plugin_open(&backend, CUDA_TEST_PLUGIN);
    if (status == PL_OK) {
        assert_string_equal(backend->functions->name, "cuda");
    } else {
        assert_int_equal(status, PL_UNSUPPORTED);
        assert_non_null(strstr(pl_error_text(), "cannot be used"));
        assert_non_null(strstr(pl_error_text(), "CUDA"));
        assert_ok(pl_backend_cpu_open(&backend, 1));
    }
    backend->functions->close(backend);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plugin_is_opened),
        cmocka_unit_test(the_variable_names_a_plugin),
        cmocka_unit_test(a_plugin_is_looked_for_beside_the_program),
        cmocka_unit_test(what_is_not_right_is_worded),
        cmocka_unit_test(opening_without_memory_says_so),
#ifdef CUDA_TEST_PLUGIN
        cmocka_unit_test(the_cuda_plugin_loads_and_refuses_in_words),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
