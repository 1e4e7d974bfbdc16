/* Memory, streams and events of the stand-in. */
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "tests/cuda/stand_in/control.h"
#include "tests/cuda/stand_in/fibers.h"
#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* Positions count the pieces of work that a stream was ever given. */
struct cuda_on_cpu_stream {
    int device = 0;
    uint64_t queued = 0, done = 0;
    std::deque<std::function<cudaError_t()>> work;
};

struct cuda_on_cpu_event {
    cudaStream_t stream = nullptr; /* nullptr: never recorded, or its stream is gone and done */
    uint64_t position = 0;
};

namespace
{
enum { ALIGNMENT = 256, GUARD = 256, GUARD_BYTE = 0xa5, FREED_BYTE = 0xdd, KEPT_MOST = 64 };
enum { THREADS_MOST = 1024, GRID_MOST = 65535 };
constexpr int runtime_version = 13000, on_host = -1;

struct block {
    size_t bytes;
    int device; /* on_host: pinned host memory */
};

struct machine_state {
    std::recursive_mutex lock;
    cuda_on_cpu_machine machine = {2, 9, runtime_version, int64_t{1} << 30};
    uint64_t schedule = 0;
    bool at_once = false;
    int64_t fail_after = -1;
    int fail_with = 0;
    bool failed = false;
    cudaError_t last = cudaSuccess, sticky = cudaSuccess;
    std::string report;
    std::map<char *, block> memory;
    std::deque<std::pair<char *, size_t>> freed; /* kept for a while: nobody may write there */
    std::map<cudaStream_t, std::unique_ptr<cuda_on_cpu_stream>> streams;
    std::map<cudaEvent_t, std::unique_ptr<cuda_on_cpu_event>> events;
    ~machine_state();
};

machine_state s;
thread_local int current_device = 0;

using guard = std::lock_guard<std::recursive_mutex>;

void add_report(const std::string &words)
{
    if (!s.report.empty()) s.report += "; ";
    s.report += words;
}

cudaError_t fail(cudaError_t error)
{
    if (error != cudaSuccess) s.last = error;
    return error;
}

/* What comes first in every call: a failure that a test wants, or one that the device never
 * recovers from. */
cudaError_t begin()
{
    if (s.fail_after >= 0 && s.fail_after-- == 0) {
        s.failed = true;
        return fail(static_cast<cudaError_t>(s.fail_with));
    }
    if (s.machine.driver == 0) return fail(cudaErrorInsufficientDriver);
    return fail(s.sticky);
}

#define BEGIN()                                                                                    \
    guard held(s.lock);                                                                            \
    if (cudaError_t begun = begin()) return begun

/* --- memory --- */

/* Device memory is open to the host's hand only while the stand-in moves bytes or runs kernels. */
void open_memory(bool open)
{
#ifdef CUDA_ON_CPU_ASAN
    for (auto &[start, found] : s.memory) {
        if (found.device == on_host) continue;
        if (open)
            ASAN_UNPOISON_MEMORY_REGION(start, found.bytes);
        else
            ASAN_POISON_MEMORY_REGION(start, found.bytes);
    }
#else
    (void)open;
#endif
}

void guard_block(char *start, size_t bytes)
{
#ifdef CUDA_ON_CPU_ASAN
    ASAN_POISON_MEMORY_REGION(start - GUARD, GUARD);
    ASAN_POISON_MEMORY_REGION(start + bytes, GUARD);
#else
    memset(start - GUARD, GUARD_BYTE, GUARD);
    memset(start + bytes, GUARD_BYTE, GUARD);
#endif
}

void really_free(char *start, size_t bytes)
{
#ifdef CUDA_ON_CPU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(start - GUARD, bytes + 2 * GUARD);
#else
    (void)bytes;
#endif
    free(start - GUARD);
}

/* What was let go and kept; what was not let go is a leak. */
machine_state::~machine_state()
{
    for (auto &[start, bytes] : freed) really_free(start, bytes);
}

#ifndef CUDA_ON_CPU_ASAN
bool all_are(const char *start, size_t bytes, int byte)
{
    for (size_t i = 0; i < bytes; ++i)
        if (static_cast<unsigned char>(start[i]) != byte) return false;
    return true;
}
#endif

/* With the address sanitizer a wrong access has ended the program by now. */
void check_memory()
{
#ifndef CUDA_ON_CPU_ASAN
    for (auto &[start, found] : s.memory) {
        bool before = all_are(start - GUARD, GUARD, GUARD_BYTE);
        bool behind = all_are(start + found.bytes, GUARD, GUARD_BYTE);
        if (before && behind) continue;
        add_report(std::string("memory was written ") + (before ? "behind" : "before") +
                   " a block of " + std::to_string(found.bytes) + " bytes");
        guard_block(start, found.bytes);
        s.sticky = cudaErrorIllegalAddress;
    }
    for (auto &[start, bytes] : s.freed) {
        if (all_are(start, bytes, FREED_BYTE)) continue;
        add_report("memory was written after it was freed");
        memset(start, FREED_BYTE, bytes);
        s.sticky = cudaErrorIllegalAddress;
    }
#endif
}

/* The block that ADDRESS is in; nullptr: in none. */
const block *find(const void *address, const char **start)
{
    char *at = static_cast<char *>(const_cast<void *>(address));
    auto next = s.memory.upper_bound(at);
    if (next == s.memory.begin()) return nullptr;
    auto found = std::prev(next);
    if (at >= found->first + found->second.bytes) return nullptr;
    *start = found->first;
    return &found->second;
}

bool within_device(const void *address, size_t bytes)
{
    const char *start = nullptr;
    const block *found = find(address, &start);
    if (!found || found->device == on_host) return false;
    size_t offset = static_cast<size_t>(static_cast<const char *>(address) - start);
    return bytes <= found->bytes - offset;
}

bool touches_device(const void *address)
{
    const char *start = nullptr;
    const block *found = find(address, &start);
    return found && found->device != on_host;
}

int64_t used_of(int device)
{
    int64_t used = 0;
    for (auto &[start, found] : s.memory)
        if (found.device == device) used += static_cast<int64_t>(found.bytes);
    return used;
}

cudaError_t make_block(void **out, size_t bytes, int device)
{
    void *memory = nullptr;
    if (posix_memalign(&memory, ALIGNMENT, bytes + 2 * GUARD) != 0)
        return fail(cudaErrorMemoryAllocation);
    char *start = static_cast<char *>(memory) + GUARD;
    memset(start, 0xff, bytes); /* NaN */
    guard_block(start, bytes);
    s.memory[start] = {bytes, device};
    open_memory(false);
    *out = start;
    return cudaSuccess;
}

/* --- work --- */

cudaError_t run_until(cudaStream_t stream, uint64_t position)
{
    while (stream->done < position) {
        std::function<cudaError_t()> work = std::move(stream->work.front());
        stream->work.pop_front();
        ++stream->done;
        if (s.sticky != cudaSuccess) continue; /* the device does no more */
        if (cudaError_t error = work()) {
            s.sticky = error;
            (void)fail(error);
        }
    }
    return s.sticky;
}

void run_all()
{
    for (auto &[handle, stream] : s.streams) (void)run_until(handle, stream->queued);
}

bool is_stream(cudaStream_t stream) { return s.streams.count(stream) > 0; }

cudaError_t queue(cudaStream_t stream, std::function<cudaError_t()> work)
{
    if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
    stream->work.push_back(std::move(work));
    ++stream->queued;
    /* What fails does so later, as on a device. */
    if (s.at_once) (void)run_until(stream, stream->queued);
    return cudaSuccess;
}

cudaError_t free_block(void *memory, bool host)
{
    if (!memory) return cudaSuccess;
    auto found = s.memory.find(static_cast<char *>(memory));
    if (found == s.memory.end() || (found->second.device == on_host) != host) {
        add_report("what was freed is no memory of that kind");
        return fail(cudaErrorInvalidValue);
    }
    run_all(); /* as the runtime waits */
    open_memory(true);
    memset(found->first, FREED_BYTE, found->second.bytes);
    open_memory(false);
#ifdef CUDA_ON_CPU_ASAN
    ASAN_POISON_MEMORY_REGION(found->first, found->second.bytes);
#endif
    s.freed.emplace_back(found->first, found->second.bytes);
    s.memory.erase(found);
    if (s.freed.size() > KEPT_MOST) {
        really_free(s.freed.front().first, s.freed.front().second);
        s.freed.pop_front();
    }
    return s.sticky;
}
} // namespace

/* --- the runtime's functions --- */

static const struct {
    cudaError_t error;
    const char *name, *words;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (auto &row : errors)
        if (row.error == error) return row.name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (auto &row : errors)
        if (row.error == error) return row.words;
    return "unknown error";
}

cudaError_t cudaGetLastError()
{
    guard held(s.lock);
    cudaError_t last = s.last;
    s.last = s.sticky;
    return last;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    guard held(s.lock);
    *version = s.machine.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = runtime_version;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    BEGIN();
    *count = s.machine.devices;
    return fail(s.machine.devices > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    BEGIN();
    if (device < 0 || device >= s.machine.devices) return fail(cudaErrorInvalidDevice);
    *properties = {};
    (void)snprintf(properties->name, sizeof properties->name, "stand-in on the CPU");
    properties->major = s.machine.major;
    properties->totalGlobalMem = static_cast<size_t>(s.machine.memory);
    properties->multiProcessorCount = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    BEGIN();
    if (device < 0 || device >= s.machine.devices) return fail(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    BEGIN();
    *total = static_cast<size_t>(s.machine.memory);
    *left = static_cast<size_t>(s.machine.memory - used_of(current_device));
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    BEGIN();
    int64_t left = s.machine.memory - used_of(current_device);
    if (left < 0 || bytes > static_cast<size_t>(left)) return fail(cudaErrorMemoryAllocation);
    return make_block(memory, bytes, current_device);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    BEGIN();
    return make_block(memory, bytes, on_host);
}

cudaError_t cudaFree(void *memory)
{
    BEGIN();
    return free_block(memory, false);
}

cudaError_t cudaFreeHost(void *memory)
{
    BEGIN();
    return free_block(memory, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    BEGIN();
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if ((!from_device && touches_device(from)) || (!to_device && touches_device(to)))
        return fail(cudaErrorInvalidMemcpyDirection);
    if ((from_device && !within_device(from, bytes)) || (to_device && !within_device(to, bytes)))
        return fail(cudaErrorInvalidValue);
    return queue(stream, [=] {
        open_memory(true);
        memmove(to, from, bytes);
        open_memory(false);
        return cudaSuccess;
    });
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    BEGIN();
    if (!within_device(to, bytes)) return fail(cudaErrorInvalidValue);
    return queue(stream, [=] {
        open_memory(true);
        memset(to, byte, bytes);
        open_memory(false);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    BEGIN();
    if (flags > cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
    auto made = std::make_unique<cuda_on_cpu_stream>();
    made->device = current_device;
    *stream = made.get();
    s.streams[*stream] = std::move(made);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    BEGIN();
    if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
    (void)run_until(stream, stream->queued);
    for (auto &[handle, event] : s.events)
        if (event->stream == stream) event->stream = nullptr;
    s.streams.erase(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    BEGIN();
    if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
    return fail(run_until(stream, stream->queued));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    BEGIN();
    if (!s.events.count(event)) return fail(cudaErrorInvalidResourceHandle);
    if (flags != 0) return fail(cudaErrorInvalidValue);
    cudaStream_t other = event->stream; /* as recorded last: later records are not waited for */
    uint64_t position = event->position;
    return queue(stream, [=] {
        if (!other || !is_stream(other) || other == stream) return cudaSuccess;
        return run_until(other, position);
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    BEGIN();
    if (flags > cudaEventDisableTiming) return fail(cudaErrorInvalidValue);
    auto made = std::make_unique<cuda_on_cpu_event>();
    *event = made.get();
    s.events[*event] = std::move(made);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    BEGIN();
    if (!s.events.erase(event)) return fail(cudaErrorInvalidResourceHandle);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    BEGIN();
    if (!s.events.count(event) || !is_stream(stream) || stream->device != current_device)
        return fail(cudaErrorInvalidResourceHandle);
    event->stream = stream;
    event->position = stream->queued;
    return cudaSuccess;
}

cudaError_t cuda_on_cpu::launch(const cudaLaunchConfig_t &config, std::function<void()> body)
{
    BEGIN();
    dim3 grid = config.gridDim, size = config.blockDim;
    uint64_t threads = uint64_t{size.x} * size.y * size.z;
    if (!is_stream(config.stream) || config.stream->device != current_device)
        return fail(cudaErrorInvalidResourceHandle);
    if (threads == 0 || threads > THREADS_MOST || grid.x == 0 || grid.x > INT32_MAX ||
        grid.y == 0 || grid.y > GRID_MOST || grid.z == 0 || grid.z > GRID_MOST ||
        config.dynamicSmemBytes != 0)
        return fail(cudaErrorInvalidConfiguration);
    return queue(config.stream, [=] {
        open_memory(true);
        std::string words = run_grid(grid, size, s.schedule, body);
        open_memory(false);
        check_memory();
        if (words.empty()) return s.sticky;
        add_report(words);
        return cudaErrorLaunchFailure;
    });
}

/* --- for tests --- */

bool cuda_on_cpu_reset(void)
{
    guard held(s.lock);
    bool clean = cuda_on_cpu_live() == 0;
    for (auto &[start, found] : s.memory) really_free(start, found.bytes);
    for (auto &[start, bytes] : s.freed) really_free(start, bytes);
    s.memory.clear();
    s.freed.clear();
    s.events.clear();
    s.streams.clear();
    s.machine = {2, 9, runtime_version, int64_t{1} << 30};
    s.schedule = 0;
    s.at_once = s.failed = false;
    s.fail_after = -1;
    s.last = s.sticky = cudaSuccess;
    s.report.clear();
    current_device = 0;
    return clean;
}

void cuda_on_cpu_schedule(uint64_t seed) { s.schedule = seed; }
void cuda_on_cpu_at_once(bool at_once) { s.at_once = at_once; }
void cuda_on_cpu_set_machine(const cuda_on_cpu_machine *machine) { s.machine = *machine; }
bool cuda_on_cpu_failed(void) { return s.failed; }
const char *cuda_on_cpu_report(void) { return s.report.c_str(); }

void cuda_on_cpu_fail_after(int64_t after, int error)
{
    s.fail_after = after;
    s.fail_with = error;
    s.failed = false;
}

int cuda_on_cpu_live(void)
{
    return static_cast<int>(s.memory.size() + s.streams.size() + s.events.size());
}

int cuda_on_cpu_queued(void)
{
    size_t queued = 0;
    for (auto &[handle, stream] : s.streams) queued += stream->work.size();
    return static_cast<int>(queued);
}

int cuda_on_cpu_device_of(const void *address)
{
    const char *start = nullptr;
    const block *found = find(address, &start);
    return found ? found->device : on_host;
}
