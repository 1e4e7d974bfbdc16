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
