/* CUDA threads as fibers of one OS thread.
 *
 * In a build with the thread sanitizer this file is compiled without it, with CUDA_ON_CPU_TSAN
 * defined: the scheduler's own accesses are not under test, and tells the sanitizer which fiber
 * runs and what barriers order. */
#include "tests/cuda/stand_in/fibers.h"

#include <algorithm>
#include <cstdio>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDA_ON_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

extern "C" {
extern char __start_cuda_on_cpu_shared[] __attribute__((weak));
extern char __stop_cuda_on_cpu_shared[] __attribute__((weak));
}

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_cpu
{
namespace
{
constexpr size_t stack_bytes = 128 * 1024, guard_bytes = 4096, words_most = 500;
constexpr uint64_t absent = 0xdeaddeaddeaddeadu;

enum class state { ready, at_barrier, at_exchange, stuck, ended };

struct context {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t registers;
#endif
};

struct fiber {
    context saved = {};
    char *stack = nullptr;
    uint3 thread = {};
    unsigned lane = 0;
    state doing = state::ended;
    unsigned mask = 0;     /* lanes of the exchange that it waits for */
    const char *what = ""; /* what it waits for, in words */
    uint64_t given = 0, seen[LANES] = {};
    void *asan_stack = nullptr, *tsan = nullptr;
    unsigned barriers = 0;
};

/* The grid that runs: one at a time, the caller holds the lock of the runtime. */
struct running {
    std::vector<fiber> fibers;
    fiber *current = nullptr;
    context main = {};
    void *main_asan = nullptr, *main_tsan = nullptr;
    const void *main_bottom = nullptr;
    size_t main_bytes = 0;
    const std::function<void()> *body = nullptr;
    uint64_t random = 0, schedule = 0;
    std::string error;
    char began = 0, ended = 0, barrier[2] = {}; /* addresses: what the sanitizer knows orders by */
};

running now;
std::vector<char *> stacks; /* kept for the next grid */

#ifdef CUDA_ON_CPU_TSAN
void acquire(void *tag) { __tsan_acquire(tag); }
void release(void *tag) { __tsan_release(tag); }
#else
void acquire(void *) {}
void release(void *) {}
#endif

/* --- changing over --- */

#ifdef __x86_64__
extern "C" void cuda_on_cpu_switch(void **saved, void *next);
__asm__(".text\n.type cuda_on_cpu_switch,@function\ncuda_on_cpu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cuda_on_cpu_switch,.-cuda_on_cpu_switch\n");
constexpr int saved_registers = 6;

void change(context &from, context &to)
{
    cuda_on_cpu_switch(&from.stack_pointer, to.stack_pointer);
}

void prepare(fiber &f, void (*entry)())
{
    void **top = reinterpret_cast<void **>(f.stack + stack_bytes);
    *--top = nullptr; /* keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < saved_registers; ++i) *--top = nullptr;
    f.saved.stack_pointer = top;
}
#else
void change(context &from, context &to) { swapcontext(&from.registers, &to.registers); }

void prepare(fiber &f, void (*entry)())
{
    getcontext(&f.saved.registers);
    f.saved.registers.uc_stack.ss_sp = f.stack;
    f.saved.registers.uc_stack.ss_size = stack_bytes;
    f.saved.registers.uc_link = nullptr;
    makecontext(&f.saved.registers, entry, 0);
}
#endif

void to_fiber(fiber &f)
{
    now.current = &f;
    threadIdx = f.thread;
#ifdef CUDA_ON_CPU_TSAN
    __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CUDA_ON_CPU_ASAN
    __sanitizer_start_switch_fiber(&now.main_asan, f.stack, stack_bytes);
#endif
    change(now.main, f.saved);
#ifdef CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(now.main_asan, nullptr, nullptr);
#endif
}

void to_main(fiber &f)
{
#ifdef CUDA_ON_CPU_TSAN
    __tsan_switch_to_fiber(now.main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CUDA_ON_CPU_ASAN
    __sanitizer_start_switch_fiber(f.doing == state::ended ? nullptr : &f.asan_stack,
                                   now.main_bottom, now.main_bytes);
#endif
    change(f.saved, now.main);
#ifdef CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(f.asan_stack, &now.main_bottom, &now.main_bytes);
#endif
}

void fiber_main()
{
    fiber &f = *now.current;
#ifdef CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &now.main_bottom, &now.main_bytes);
#endif
    acquire(&now.began); /* what the host did before is seen */
    (*now.body)();
    release(&now.ended);
    f.doing = state::ended;
    to_main(f);
}

/* --- the threads of a block --- */

bool waits(const fiber &f, const fiber &with)
{
    return f.doing == state::at_exchange && f.mask == with.mask;
}

/* The exchange that fiber AT waits for, in the warp of COUNT fibers from FIRST: done, if all are
 * there. */
bool finish_exchange(size_t first, size_t count, const fiber &at)
{
    fiber *warp = &now.fibers[first];
    unsigned there = 0, needed = 0, mask = at.mask;
    for (size_t i = 0; i < count; ++i) {
        unsigned bit = 1u << i;
        if ((mask & bit) && warp[i].doing != state::ended) needed |= bit;
        if ((mask & bit) && waits(warp[i], at)) there |= bit;
    }
    if (there != needed) return false;
    for (size_t i = 0; i < count; ++i) {
        if (!(needed >> i & 1)) continue;
        for (size_t j = 0; j < LANES; ++j)
            warp[i].seen[j] = j < count && (needed >> j & 1) ? warp[j].given : absent;
    }
    for (size_t i = 0; i < count; ++i)
        if (needed >> i & 1) warp[i].doing = state::ready;
    return true;
}

/* Let go on those of the warp from fiber FIRST on who waited for lanes that have come. False:
 * nobody. */
bool release_lanes(size_t first)
{
    bool moved = false;
    size_t count = std::min<size_t>(LANES, now.fibers.size() - first);
    for (size_t i = first; i < first + count; ++i)
        if (now.fibers[i].doing == state::at_exchange)
            moved |= finish_exchange(first, count, now.fibers[i]);
    return moved;
}

/* Let go on whoever waited for others that have come. False: nobody. */
bool release_waiters()
{
    bool moved = false;
    size_t living = 0, at_barrier = 0;
    for (size_t first = 0; first < now.fibers.size(); first += LANES) moved |= release_lanes(first);
    for (const fiber &f : now.fibers) {
        living += f.doing != state::ended;
        at_barrier += f.doing == state::at_barrier;
    }
    if (living == 0 || at_barrier < living) return moved;
    for (fiber &f : now.fibers)
        if (f.doing == state::at_barrier) f.doing = state::ready;
    return true;
}

void report_stuck()
{
    char words[96];
    bool stuck = false;
    for (const fiber &f : now.fibers) stuck |= f.doing != state::ended;
    if (!stuck || !now.error.empty()) return;
    (void)snprintf(words, sizeof words, "block (%u, %u, %u) is stuck; threads wait:", blockIdx.x,
                   blockIdx.y, blockIdx.z);
    now.error = words;
    for (const fiber &f : now.fibers) {
        if (f.doing == state::ended || now.error.size() > words_most) continue;
        (void)snprintf(words, sizeof words, " (%u, %u, %u) in %s", f.thread.x, f.thread.y,
                       f.thread.z, f.what);
        now.error += words;
        if (f.doing == state::at_exchange) {
            (void)snprintf(words, sizeof words, " mask %08x", f.mask);
            now.error += words;
        }
    }
}

uint64_t next_random()
{
    now.random ^= now.random << 13;
    now.random ^= now.random >> 7;
    now.random ^= now.random << 17;
    return now.random;
}

void reorder(std::vector<size_t> &order)
{
    if (now.schedule <= 1) return;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
}

std::vector<size_t> make_order(size_t count)
{
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = now.schedule == 1 ? count - 1 - i : i;
    reorder(order);
    return order;
}

void begin_block()
{
    acquire(&now.ended); /* blocks have shared memory and stacks in common */
#ifndef CUDA_ON_CPU_TSAN
    if (__start_cuda_on_cpu_shared)
        memset(__start_cuda_on_cpu_shared, 0xff,
               static_cast<size_t>(__stop_cuda_on_cpu_shared - __start_cuda_on_cpu_shared));
#endif
    release(&now.began);
    for (fiber &f : now.fibers) {
#ifdef CUDA_ON_CPU_ASAN
        __asan_unpoison_memory_region(f.stack, stack_bytes); /* of those that were left stuck */
#endif
        prepare(f, fiber_main);
        f.doing = state::ready;
        f.asan_stack = nullptr;
        f.barriers = 0;
#ifdef CUDA_ON_CPU_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
    }
}

void run_warp(size_t first)
{
    size_t end = std::min<size_t>(first + LANES, now.fibers.size());
    do {
        for (size_t i = first; i < end; ++i)
            if (now.fibers[i].doing == state::ready) to_fiber(now.fibers[i]);
    } while (release_lanes(first));
}

void run_block(uint3 block)
{
    blockIdx = block;
    begin_block();
    std::vector<size_t> order = make_order(now.fibers.size());
    bool ahead = now.schedule % 2 == 0; /* a warp runs until it must wait for other warps */
    do {
        for (size_t i : order) {
            size_t first = i / LANES * LANES;
            if (now.fibers[i].doing != state::ready) continue;
            to_fiber(now.fibers[i]);
            if (ahead) run_warp(first);
        }
        reorder(order);
    } while (release_waiters());
    report_stuck();
#ifdef CUDA_ON_CPU_TSAN
    for (fiber &f : now.fibers) __tsan_destroy_fiber(f.tsan);
#endif
}

char *make_stack()
{
    void *memory = mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) return nullptr;
    return static_cast<char *>(memory) + guard_bytes;
}

bool make_fibers(dim3 block)
{
    size_t count = static_cast<size_t>(block.x) * block.y * block.z;
    while (stacks.size() < count) {
        char *stack = make_stack();
        if (!stack) return false;
        stacks.push_back(stack);
    }
    now.fibers.assign(count, fiber());
    for (size_t i = 0; i < count; ++i) {
        unsigned flat = static_cast<unsigned>(i);
        fiber &f = now.fibers[i];
        f.stack = stacks[i];
        f.lane = flat % LANES;
        f.thread = {flat % block.x, flat / block.x % block.y, flat / block.x / block.y};
    }
    return true;
}
} // namespace

/* --- what kernels call --- */

unsigned lane() { return now.current->lane; }

void block_barrier(const char *what)
{
    fiber &f = *now.current;
    /* Two in turn: who is early at the next barrier has no part in this one. */
    char *tag = &now.barrier[f.barriers++ & 1];
    f.doing = state::at_barrier;
    f.what = what;
    release(tag);
    to_main(f);
    acquire(tag);
}

const uint64_t *exchange(unsigned mask, uint64_t value, const char *what)
{
    fiber &f = *now.current;
    f.mask = mask;
    f.what = what;
    f.given = value;
    f.doing = state::at_exchange;
    if (!(mask >> f.lane & 1)) {
        char words[96];
        (void)snprintf(words, sizeof words, "%s: lane %u is not in its own mask %08x", what, f.lane,
                       mask);
        if (now.error.empty()) now.error = words;
        f.doing = state::stuck;
    }
    to_main(f);
    return f.seen;
}

std::string run_grid(dim3 grid, dim3 block, uint64_t schedule, const std::function<void()> &body)
{
    size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
    gridDim = grid;
    blockDim = block;
    now.body = &body;
    now.schedule = schedule;
    now.random = schedule * 0x9e3779b97f4a7c15u | 1;
    now.error.clear();
    if (!make_fibers(block)) return "no memory for the stacks of a block";
#ifdef CUDA_ON_CPU_TSAN
    now.main_tsan = __tsan_get_current_fiber();
#endif
    for (size_t i : make_order(blocks)) {
        unsigned flat = static_cast<unsigned>(i);
        run_block({flat % grid.x, flat / grid.x % grid.y, flat / grid.x / grid.y});
        if (!now.error.empty()) break;
    }
    acquire(&now.ended);
    return now.error;
}
} // namespace cuda_on_cpu
