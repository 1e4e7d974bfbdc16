/* Plugins that are wrong, or small: PLUGIN says which. */
#include "kernels/device.h"

#define EXPORTED __attribute__((visibility("default")))

#if PLUGIN_KIND == 0 /* no entry */
EXPORTED int pl_something_else(void);
int pl_something_else(void) { return 1; }

#else
EXPORTED pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface);

#if PLUGIN_KIND == 1 /* of another interface */
pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    (void)out;
    return PL_FAIL(PL_UNSUPPORTED, "the plugin has interface 99 and the program interface %d",
                   (int)interface);
}

#elif PLUGIN_KIND == 2 /* fails with a code of its own */
pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    (void)out;
    (void)interface;
    return PL_FAIL(PL_NO_MEMORY, "the device has no memory left");
}

#elif PLUGIN_KIND == 3 /* fails without words */
pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    (void)out;
    (void)interface;
    return PL_UNSUPPORTED;
}

#elif PLUGIN_KIND == 4 /* succeeds without a backend */
pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    (void)out;
    (void)interface;
    return PL_OK;
}

#elif PLUGIN_KIND == 5 /* needs a symbol that no program has */
int pl_nobody_has_this(void);
pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    (void)out;
    return pl_nobody_has_this() == (int)interface ? PL_OK : PL_INTERNAL;
}

#else /* right, with no device to open */
static const char *describe(const pl_backend *backend)
{
    (void)backend;
    return "a small plugin";
}

static void close_backend(pl_backend *backend) { (void)backend; }

static const pl_backend_functions functions = {
    .name = "small", .describe = describe, .close = close_backend};
static const pl_operations operations = {0};
static pl_backend small = {&functions, &operations};

pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    if (interface != PL_DEVICE_INTERFACE) return PL_FAIL(PL_UNSUPPORTED, "another interface");
    *out = &small;
    return PL_OK;
}
#endif
#endif
