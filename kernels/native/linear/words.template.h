/* Products by an instruction that multiplies whole words: pairs of bfloat16, or four bytes. A
 * template: besides TARGET and NAME, VECTOR is what sums are kept in, of INTEGERS or not, ZERO() one of them,
 * DOT(sum, x, w) adds the products of two vectors of words, and STORE(place, sum) writes one. Each
 * output is one chain of additions in the order of the inputs, whatever rows are computed beside it. */
#include "kernel.h"

#define TILE_ROWS 8
#define TILE_STRIPS 3

PW_INLINE TARGET void NAME(tile)(const char *x, int64_t stride, const uint32_t *w, int64_t words,
                                 const int rows, const int strips, const char *ahead, int64_t lines,
                                 uint32_t *sums) {
    VECTOR sum[TILE_ROWS][TILE_STRIPS] = {{{0}}};
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
                const __m512i all = _mm512_set1_epi32(*(const int *)(x + r * stride + word * 4));
#pragma GCC unroll 8
                for (int s = 0; s < strips; s++) {
                    sum[r][s] = DOT(sum[r][s], all, weight[s]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int s = 0; s < strips; s++) {
            STORE(sums + (r * TILE_STRIPS + s) * PW_STRIP, sum[r][s]);
        }
    }
}

TARGET static void NAME(sum)(const pw_linear_job *job, int64_t row, int64_t rows, const uint32_t *w,
                             int64_t strips, const char *ahead, int64_t lines, uint32_t *sums) {
    const int64_t stride = job->operand_stride, words = job->weights->words;
    const char *x = job->operand + row * stride;
#define PW_TILE(n) NAME(tile)(x, stride, w, words, n, TILE_STRIPS, ahead, lines, sums)
#define PW_NARROW(n) NAME(tile)(x, stride, w, words, n, 1, ahead, lines, sums)
    if (strips == TILE_STRIPS) {
        PW_FOR_ROWS(rows, PW_TILE)
    } else {
        PW_FOR_ROWS(rows, PW_NARROW)
    }
#undef PW_TILE
#undef PW_NARROW
}

#include "walk.template.h"

TARGET static void NAME(compute)(const pw_linear_job *job, int64_t first, int64_t last,
                                 const uint32_t *after) {
    NAME(walk)(job, first, last, after, INTEGERS);
}

#undef TARGET
#undef NAME
#undef TILE_ROWS
#undef TILE_STRIPS
#undef VECTOR
#undef INTEGERS
#undef ZERO
#undef DOT
#undef STORE
