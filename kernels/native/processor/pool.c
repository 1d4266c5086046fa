/* A thread pool for work of some microseconds to milliseconds.
 *
 * A step of a small model is hundreds of such pieces with little between them. A thread that has
 * nothing to do therefore looks for more work for a moment (SPIN_NS) before it sleeps: longer than
 * what lies between two pieces of a step, short enough to leave the core to others while the engine
 * is idle. Meanwhile it yields the core to whoever else wants it, which may be the very thread that
 * it waits for. The parts of a task are claimed one by one, so that a thread which the system has not
 * scheduled, as happens next to a busy event loop, holds nobody up: the others do its share. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SPIN_NS 300000
#define MAX_THREADS 256

/* The one task that runs. Its fields are written only while no part is left to claim, and read
 * only by threads that hold a claim. */
static pw_task task_function;
static void *task_context;

/* Number of parts in the high half, next part to claim in the low half: one exchange claims. */
static _Atomic uint64_t ticket;
static _Atomic int unfinished; /* parts that have not returned yet */

static _Atomic int wanted = 1;    /* threads that compute, the caller included */
static int started;               /* threads beside the caller; under `turn` */
static _Atomic int sleeping;      /* threads that wait for `work` */
static _Atomic bool caller_waits; /* somebody waits for `done` */
static _Thread_local bool inside; /* this thread runs a part */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* held by the caller of a task */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards both conditions */
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline bool is_open(uint64_t state) { return (uint32_t)state < (uint32_t)(state >> 32); }

/* The next part of the running task, or -1; a claim is valid whatever happened since it was seen. */
static int claim(int *num_parts) {
    uint64_t seen = atomic_load_explicit(&ticket, memory_order_acquire);
    while (is_open(seen)) {
        if (atomic_compare_exchange_weak(&ticket, &seen, seen + 1)) {
            *num_parts = (int)(seen >> 32);
            return (int)(uint32_t)seen;
        }
    }
    return -1;
}

static void finish_part(void) {
    if (atomic_fetch_sub(&unfinished, 1) == 1 && atomic_load(&caller_waits)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&done);
        pthread_mutex_unlock(&lock);
    }
}

static bool run_parts(void) {
    int num_parts, part;
    bool any = false;
    while ((part = claim(&num_parts)) >= 0) {
        task_function(task_context, part, num_parts);
        finish_part();
        any = true;
    }
    return any;
}

static void sleep_until_work(int index) {
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&sleeping, 1);
    while (index >= atomic_load(&wanted) || !is_open(atomic_load(&ticket))) {
        pthread_cond_wait(&work, &lock);
    }
    atomic_fetch_sub(&sleeping, 1);
    pthread_mutex_unlock(&lock);
}

static void *work_forever(void *argument) {
    int index = (int)(intptr_t)argument; /* 1 is the first beside the caller */
    inside = true;
    for (;;) {
        bool rested = false;
        int64_t until = now_ns() + SPIN_NS;
        while (!rested) {
            if (index < atomic_load_explicit(&wanted, memory_order_relaxed) && run_parts()) {
                until = now_ns() + SPIN_NS;
            }
            for (int i = 0; i < 16; i++) {
                pause_briefly();
            }
            sched_yield();
            rested = now_ns() > until;
        }
        sleep_until_work(index);
    }
    return NULL;
}

/* After a fork only the calling thread lives on: its pool starts anew. */
static void forget_threads(void) {
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    turn = lock = mutex;
    work = done = condition;
    started = 0;
    atomic_store(&sleeping, 0);
    atomic_store(&ticket, 0);
    atomic_store(&unfinished, 0);
    atomic_store(&caller_waits, false);
}

static void start_threads(int count) {
    static bool registered;
    if (!registered) {
        registered = pthread_atfork(NULL, NULL, forget_threads) == 0;
    }
    /* Signals are for the threads that know about them: Python's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work_forever, (void *)(intptr_t)(started + 1)) != 0) {
            break; /* fewer threads do the same work */
        }
        pthread_detach(thread);
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void wait_for_others(void) {
    int64_t until = now_ns() + SPIN_NS;
    while (atomic_load_explicit(&unfinished, memory_order_acquire) != 0) {
        for (int i = 0; i < 8; i++) {
            pause_briefly();
        }
        sched_yield();
        if (now_ns() > until) {
            pthread_mutex_lock(&lock);
            atomic_store(&caller_waits, true);
            while (atomic_load(&unfinished) != 0) {
                pthread_cond_wait(&done, &lock);
            }
            atomic_store(&caller_waits, false);
            pthread_mutex_unlock(&lock);
        }
    }
}

void pw_parallel(pw_task task, void *context, int num_parts) {
    if (inside || num_parts <= 1 || atomic_load(&wanted) == 1) {
        for (int part = 0; part < num_parts; part++) {
            task(context, part, num_parts);
        }
        return;
    }
    pthread_mutex_lock(&turn);
    inside = true;
    if (started < atomic_load(&wanted) - 1) {
        start_threads(atomic_load(&wanted) - 1);
    }
    task_function = task;
    task_context = context;
    atomic_store(&unfinished, num_parts);
    atomic_store(&ticket, (uint64_t)num_parts << 32 | 1); /* part 0 is the caller's */
    if (atomic_load(&sleeping) > 0) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&work);
        pthread_mutex_unlock(&lock);
    }
    task(context, 0, num_parts);
    finish_part();
    run_parts();
    wait_for_others();
    inside = false;
    pthread_mutex_unlock(&turn);
}

int pw_threads(void) { return atomic_load(&wanted); }

void pw_set_threads(int count) {
    atomic_store(&wanted, count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count);
}
