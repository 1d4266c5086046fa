/* Products of bfloat16 and of int8 weights by matrix tiles (AMX).
 *
 * A tile is 16 rows of 64 bytes. Of the eight, 0 to 3 hold the sums of two times two, 4 and 5 the
 * rows of activations, 6 and 7 two strips of weights. Each output is summed in the order of the
 * inputs, whatever rows are computed beside it. */
#include "linear.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET                                                                                     \
    __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512vl,avx512dq")))
#define NAME(name) amx_##name
enum { TILE_ROWS = 32, TILE_STRIPS = 2, WORDS_IN_TILE = 16 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static _Thread_local int64_t configured; /* rows for which this thread's tiles are set up */

TARGET static void configure(int64_t rows) {
    static const uint8_t half_of_tile[8] = {0, 0, 1, 1, 0, 1, 2, 2}; /* 2: weights */
    const uint8_t lengths[3] = {(uint8_t)(rows < 16 ? rows : 16),
                                (uint8_t)(rows < 16 ? 0 : rows - 16), 16};
    tile_config config __attribute__((aligned(64))) = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = lengths[half_of_tile[tile]];
        config.row_bytes[tile] = config.rows[tile] ? 64 : 0;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* GCC 12 would drop the stores */
    _tile_loadconfig(&config);
    configured = rows;
}

/* Up to 32 rows times one or two strips. */
static inline __attribute__((always_inline)) TARGET void tiles(
    const char *x, int64_t stride, const uint32_t *w, int64_t words, const bool halves,
    const bool two_rows, const bool two_strips, const char *ahead, int64_t lines) {
    _tile_zero(0);
    if (two_strips) {
        _tile_zero(1);
    }
    if (two_rows) {
        _tile_zero(2);
    }
    if (two_rows && two_strips) {
        _tile_zero(3);
    }
#define PW_MULTIPLY(sum, rows, strip)                                                              \
    if (halves) {                                                                                  \
        _tile_dpbf16ps(sum, rows, strip);                                                          \
    } else {                                                                                       \
        _tile_dpbusd(sum, rows, strip);                                                            \
    }
    for (int64_t word = 0; word < words; word += WORDS_IN_TILE) {
        for (int64_t line = 0; line < lines * (WORDS_IN_TILE / 4); line++, ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
        _tile_loadd(4, x + word * 4, stride);
        _tile_loadd(6, w + word * PW_STRIP, 64);
        PW_MULTIPLY(0, 4, 6)
        if (two_strips) {
            _tile_loadd(7, w + (words + word) * PW_STRIP, 64);
            PW_MULTIPLY(1, 4, 7)
        }
        if (two_rows) {
            _tile_loadd(5, x + 16 * stride + word * 4, stride);
            PW_MULTIPLY(2, 5, 6)
        }
        if (two_rows && two_strips) {
            PW_MULTIPLY(3, 5, 7)
        }
    }
#undef PW_MULTIPLY
}

TARGET static void amx_sum(const pw_linear_job *job, int64_t row, int64_t rows, const uint32_t *w,
                           int64_t strips, const char *ahead, int64_t lines, uint32_t *sums) {
    const int64_t stride = job->operand_stride, words = job->weights->words;
    const int64_t sums_stride = TILE_STRIPS * PW_STRIP * 4;
    const char *x = job->operand + row * stride;
    const bool halves = job->weights->type == PW_BFLOAT16;
    const bool two_rows = rows > 16, two_strips = strips > 1;
    if (configured != rows) {
        configure(rows);
    }
    if (halves) {
        tiles(x, stride, w, words, true, two_rows, two_strips, ahead, lines);
    } else {
        tiles(x, stride, w, words, false, two_rows, two_strips, ahead, lines);
    }
    _tile_stored(0, sums, sums_stride);
    if (two_strips) {
        _tile_stored(1, sums + PW_STRIP, sums_stride);
    }
    if (two_rows) {
        _tile_stored(2, sums + 16 * TILE_STRIPS * PW_STRIP, sums_stride);
    }
    if (two_rows && two_strips) {
        _tile_stored(3, sums + 16 * TILE_STRIPS * PW_STRIP + PW_STRIP, sums_stride);
    }
}

#include "linear_walk.h"

TARGET static void compute_halves(const pw_linear_job *job, int64_t first, int64_t last,
                                  int64_t after) {
    configured = 0;
    amx_walk(job, first, last, after, false);
    _tile_release();
}

TARGET static void compute_bytes(const pw_linear_job *job, int64_t first, int64_t last,
                                 int64_t after) {
    configured = 0;
    amx_walk(job, first, last, after, true);
    _tile_release();
}

static bool permitted;

/* The kernel of the system saves tiles only for processes that ask for it. */
static void ask_permission(void) {
    enum { TILES = 1 << 24, BFLOAT16 = 1 << 22, BYTES = 1 << 25 }; /* cpuid 7, edx */
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };          /* arch_prctl */
    const unsigned int needed = TILES | BFLOAT16 | BYTES;
    unsigned int eax, ebx, ecx, edx;
    permitted = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & needed) == needed &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") &&
                syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

const pw_linear_kernel *pw_linear_amx(int64_t weights_type) {
    static const pw_linear_kernel halves = {PW_BFLOAT16, TILE_STRIPS, amx_prepare_halves,
                                            compute_halves};
    static const pw_linear_kernel bytes = {PW_INT8, TILE_STRIPS, amx_prepare_bytes, compute_bytes};
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_permission);
    if (!permitted || weights_type == PW_FLOAT32) {
        return NULL;
    }
    return weights_type == PW_BFLOAT16 ? &halves : &bytes;
}

#else

const pw_linear_kernel *pw_linear_amx(int64_t weights_type) {
    (void)weights_type;
    return NULL;
}

#endif
