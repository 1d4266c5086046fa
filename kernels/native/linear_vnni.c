/* Products of int8 weights with rows quantized to int8, by vpdpbusd: exact in 32 bits. */
#include "linear.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define NAME(name) vnni_##name
enum { TILE_ROWS = 8, TILE_STRIPS = 3 };

static inline __attribute__((always_inline)) TARGET void tile(
    const char *x, int64_t stride, const uint32_t *w, int64_t words, const int rows,
    const int strips, const char *ahead, int64_t lines, uint32_t *sums) {
    __m512i sum[TILE_ROWS][TILE_STRIPS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int s = 0; s < strips; s++) {
            sum[r][s] = _mm512_setzero_si512();
        }
    }
    for (int64_t begin = 0; begin < words; begin += 4) {
        for (int64_t line = 0; line < lines; line++, ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
#pragma GCC unroll 8
        for (int64_t word = begin; word < begin + 4; word++) {
            __m512i weight[TILE_STRIPS];
#pragma GCC unroll 8
            for (int s = 0; s < strips; s++) {
                weight[s] = _mm512_loadu_si512(w + (s * words + word) * PW_STRIP);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m512i four = _mm512_set1_epi32(*(const int *)(x + r * stride + word * 4));
#pragma GCC unroll 8
                for (int s = 0; s < strips; s++) {
                    sum[r][s] = _mm512_dpbusd_epi32(sum[r][s], four, weight[s]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int s = 0; s < strips; s++) {
            _mm512_storeu_si512(sums + (r * TILE_STRIPS + s) * PW_STRIP, sum[r][s]);
        }
    }
}

#define PW_CASE(count)                                                                            \
    case count:                                                                                   \
        if (strips == TILE_STRIPS) {                                                              \
            tile(x, stride, w, words, count, TILE_STRIPS, ahead, lines, sums);                    \
        } else {                                                                                  \
            tile(x, stride, w, words, count, 1, ahead, lines, sums);                              \
        }                                                                                         \
        break;

/* The compiler makes one tile of each number of rows, so that all of its sums are in registers. */
TARGET static void vnni_sum(const pw_linear_job *job, int64_t row, int64_t rows, const uint32_t *w,
                            int64_t strips, const char *ahead, int64_t lines, uint32_t *sums) {
    const int64_t stride = job->operand_stride, words = job->weights->words;
    const char *x = job->operand + row * stride;
    switch (rows) {
        PW_CASE(1)
        PW_CASE(2)
        PW_CASE(3)
        PW_CASE(4)
        PW_CASE(5)
        PW_CASE(6)
        PW_CASE(7)
        PW_CASE(8)
    }
}

#include "linear_walk.h"

TARGET static void compute(const pw_linear_job *job, int64_t first, int64_t last, int64_t after) {
    vnni_walk(job, first, last, after, true);
}

const pw_linear_kernel *pw_linear_vnni(int64_t weights_type) {
    static const pw_linear_kernel kernel = {PW_INT8, TILE_STRIPS, vnni_prepare_bytes, compute};
    return weights_type == PW_INT8 && __builtin_cpu_supports("avx512vnni") ? &kernel : NULL;
}

#endif
