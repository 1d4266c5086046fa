/* Products in float32 by multiply-add, of float32 and of bfloat16 weights. A template: besides
 * TARGET and NAME, LANES is the width of a vector, and TILE_ROWS x TILE_STRIPS the sums that its
 * registers hold.
 *
 * Where there are no tiles this is how bfloat16 is multiplied fastest, too: the instruction for
 * pairs of it (vdpbf16ps) does half the multiplications per cycle. Each output is one chain of
 * additions in the order of the inputs, whatever rows are computed beside it. */
#include "linear.h"

typedef float NAME(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum { NAME(per_strip) = PW_STRIP / LANES, NAME(most) = TILE_STRIPS * PW_STRIP / LANES };

static inline __attribute__((always_inline)) TARGET void NAME(tile)(
    const float *x, int64_t x_stride, const uint32_t *w, int64_t words, const bool halves,
    const int rows, const int strips, const char *ahead, int64_t lines, uint32_t *sums) {
    const int vectors = strips * NAME(per_strip), per_word = halves ? 2 : 1;
    NAME(floats) sum[TILE_ROWS][NAME(most)] = {0};
    for (int64_t begin = 0; begin < words; begin += 4) {
        for (int64_t line = 0; line < lines; line++, ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
#pragma GCC unroll 8
        for (int step = 0; step < 4 * per_word; step++) {
            const int64_t word = begin + step / per_word, input = begin * per_word + step;
            NAME(floats) weight[NAME(most)];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                const int64_t strip = v / NAME(per_strip), part = v % NAME(per_strip);
                NAME(bits) bits = *(const NAME(bits) *)(w + (strip * words + word) * PW_STRIP +
                                                        part * LANES);
                if (halves && step % 2) {
                    bits &= 0xffff0000u;
                } else if (halves) {
                    bits <<= 16;
                }
                weight[v] = (NAME(floats))bits;
            }
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                const float factor = x[r * x_stride + input];
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) {
                    sum[r][v] += factor * weight[v];
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            *(NAME(floats) *)(sums + r * TILE_STRIPS * PW_STRIP + v * LANES) = sum[r][v];
        }
    }
}

#define PW_CASE(count)                                                                           \
    case count:                                                                                  \
        NAME(tile)(x, stride, w, words, halves, count, strips, ahead, lines, sums);              \
        break;

/* The compiler makes one tile of each number of rows, so that all of its sums are in registers. */
static inline __attribute__((always_inline)) TARGET void NAME(tiles)(
    const float *x, int64_t stride, const uint32_t *w, int64_t words, const bool halves,
    int64_t rows, const int strips, const char *ahead, int64_t lines, uint32_t *sums) {
    switch (rows) {
        PW_CASE(1)
        PW_CASE(2)
#if TILE_ROWS > 2
        PW_CASE(3)
        PW_CASE(4)
        PW_CASE(5)
        PW_CASE(6)
#endif
#if TILE_ROWS > 6
        PW_CASE(7)
        PW_CASE(8)
#endif
    }
}

#undef PW_CASE

TARGET static void NAME(sum)(const pw_linear_job *job, int64_t row, int64_t rows,
                             const uint32_t *w, int64_t strips, const char *ahead, int64_t lines,
                             uint32_t *sums) {
    const float *x = (const float *)(job->operand + row * job->operand_stride);
    const int64_t stride = job->operand_stride / (int64_t)sizeof(float);
    const int64_t words = job->weights->words;
    const bool halves = job->weights->type == PW_BFLOAT16;
    if (strips == TILE_STRIPS && halves) {
        NAME(tiles)(x, stride, w, words, true, rows, TILE_STRIPS, ahead, lines, sums);
    } else if (strips == TILE_STRIPS) {
        NAME(tiles)(x, stride, w, words, false, rows, TILE_STRIPS, ahead, lines, sums);
    } else if (halves) {
        NAME(tiles)(x, stride, w, words, true, rows, 1, ahead, lines, sums);
    } else {
        NAME(tiles)(x, stride, w, words, false, rows, 1, ahead, lines, sums);
    }
}

#include "linear_walk.h"

TARGET static void NAME(compute)(const pw_linear_job *job, int64_t first, int64_t last,
                                 int64_t after) {
    NAME(walk)(job, first, last, after, false);
}

static const pw_linear_kernel NAME(kernel) = {PW_FLOAT32, TILE_STRIPS, NAME(prepare_floats),
                                              NAME(compute)};

#undef TARGET
#undef NAME
#undef LANES
#undef TILE_ROWS
#undef TILE_STRIPS
