// Threads that work through the phases of one call together, on the OpenMP runtime that torch has loaded: a pool of our
// own would fight torch's for the cores. Its functions come as pointers, so any compiler will do and nothing is linked.
#pragma once
#include <atomic>
#include <sched.h>

struct Team {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel; null: one thread
    int (*num_threads)();                                          // omp_get_num_threads
    int (*thread_num)();                                           // omp_get_thread_num
    int size;
};

struct Shared {
    std::atomic<int> next{0}, arrived{0}, generation{0};
};

// One thread's view of a phase. Phases end with wait(); within one, tasks are taken by number until there are none left,
// so a thread that the system holds up does not hold up the others for more than a task.
struct Worker {
    Shared* shared;
    int id, count;

    bool take(int num_tasks, int* task) {
        *task = shared->next.fetch_add(1, std::memory_order_relaxed);
        return *task < num_tasks;
    }

    void wait() {
        if (count == 1) {
            shared->next.store(0, std::memory_order_relaxed);
            return;
        }
        int generation = shared->generation.load(std::memory_order_acquire);
        if (shared->arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
            shared->arrived.store(0, std::memory_order_relaxed);
            shared->next.store(0, std::memory_order_relaxed);
            shared->generation.store(generation + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; shared->generation.load(std::memory_order_acquire) == generation; spins++) {
            if (spins < 4096) pause();
            else sched_yield();  // another process has the core of a thread that we wait for
        }
    }

private:
    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
};

// Calls body(worker) on every thread of the team and returns when all have.
template <class Body>
void run(const Team& team, Body&& body) {
    struct Call {
        const Team* team;
        Body* body;
        Shared shared;
    } call{&team, &body, {}};
    if (team.parallel == nullptr || team.size == 1) {
        Worker alone{&call.shared, 0, 1};
        body(alone);
        return;
    }
    auto enter = [](void* data) {
        Call* call = static_cast<Call*>(data);
        Worker worker{&call->shared, call->team->thread_num(), call->team->num_threads()};
        (*call->body)(worker);
    };
    team.parallel(enter, &call, team.size, 0);
}
