/* Finds out, once, which instructions may be used. */
#define _GNU_SOURCE
#include "cpu.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* The system saves tile registers only for processes that asked; threads inherit the permission. */
static int may_use_tiles(void) {
#if defined(__linux__)
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

static pw_level detect(void) {
    const uint64_t ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
    uint32_t a, b, c, d, b7, d7, a71, b71, c71, d71;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return PW_PLAIN;
    }
    const int osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !fma || !f16c || !__get_cpuid_count(7, 0, &a71, &b7, &c, &d7)) {
        return PW_PLAIN;
    }
    const uint64_t state = enabled_state();
    if ((state & ymm) != ymm || !(b7 >> 5 & 1)) {
        return PW_PLAIN;
    }
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((state & zmm) != zmm || (b7 & avx512) != avx512) {
        return PW_AVX2;
    }
    const int vnni = c >> 11 & 1; /* whatever has bfloat16 has it, and its code uses both */
    if (!vnni || !__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) || !(a71 >> 5 & 1)) {
        return PW_AVX512;
    }
    const uint32_t amx = 1u << 22 | 1u << 24 | 1u << 25; /* bfloat16, tiles, int8 */
    if ((d7 & amx) == amx && (state & tiles) == tiles && may_use_tiles()) {
        return PW_AMX;
    }
    return PW_AVX512_BF16;
}
#else
static pw_level detect(void) { return PW_PLAIN; }
#endif

static _Atomic int found = -1;
static _Atomic int limit = PW_AMX;

pw_level pw_cpu_level(void) {
    int level = atomic_load_explicit(&found, memory_order_relaxed);
    if (level < 0) {
        level = (int)detect();
        atomic_store(&found, level);
    }
    const int most = atomic_load_explicit(&limit, memory_order_relaxed);
    return (pw_level)(level < most ? level : most);
}

void pw_limit_level(pw_level level) { atomic_store(&limit, (int)level); }
