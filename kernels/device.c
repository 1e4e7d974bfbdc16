#include "kernels/device.h"

void pl_device_note(pl_device *device, pl_stream stream, const char *what, int64_t flops,
                    const pl_touch *touches, int count)
{
    if (!device->log) return;
    pl_call_record record = {
        .what = what, .entry = device->entry, .stream = stream, .flops = flops};
    for (int i = 0; i < count; ++i) {
        if (!touches[i].start || touches[i].bytes == 0) continue;
        if (record.touch_count < PL_CALL_TOUCHES) record.touch[record.touch_count] = touches[i];
        ++record.touch_count;
    }
    device->log->record(device->log->context, &record);
}

static void add_missing(pl_text *names, int *missing, bool there, const char *name)
{
    if (there) return;
    pl_text_add(names, "%s%s", *missing > 0 ? ", " : "", name);
    ++*missing;
}

int pl_backend_lacks(const pl_backend *backend, pl_text *names)
{
    int missing = 0;
#define ADD_MISSING(name, arguments)                                                               \
    add_missing(names, &missing, backend->operations->name != NULL, #name);
    PL_DEVICE_OPERATIONS(ADD_MISSING)
#undef ADD_MISSING
    return missing;
}
