/* Products in float32 by multiply-add, of weights of any type. A template: besides TARGET and NAME,
 * LANES is the width of a vector, and TILE_ROWS x TILE_STRIPS the sums that its registers hold.
 *
 * There are processors on which bfloat16 is multiplied fastest like this, too: where the instruction
 * for pairs of it (vdpbf16ps) does half the multiplications a cycle. With int8 weights it serves
 * machines that cannot multiply int8; activations then stay as they are. Each output is one chain
 * of additions in the order of the inputs, whatever rows are computed beside it. */
#include "kernel.h"

typedef float NAME(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(integers) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* The weights of input `index` of each word. */
PW_INLINE TARGET NAME(floats) NAME(unpack)(NAME(bits) bits, const int type, const int index) {
    if (type == PW_INT8) {
        const NAME(integers) signs_up = (NAME(integers))(bits << (24 - 8 * index));
        return __builtin_convertvector(signs_up >> 24, NAME(floats));
    }
    if (type == PW_BFLOAT16) {
        if (index) {
            bits &= 0xffff0000u;
        } else {
            bits <<= 16;
        }
    }
    return (NAME(floats))bits;
}

enum { NAME(per_strip) = PW_STRIP / LANES, NAME(most) = TILE_STRIPS * PW_STRIP / LANES };

PW_INLINE TARGET void NAME(tile)(const float *x, int64_t x_stride, const uint32_t *w, int64_t words,
                                 const int type, const int rows, const int strips,
                                 const char *ahead, int64_t lines, uint32_t *sums) {
    const int vectors = strips * NAME(per_strip);
    const int per_word = type == PW_INT8 ? 4 : type == PW_BFLOAT16 ? 2 : 1;
    NAME(floats) sum[TILE_ROWS][NAME(most)] = {0};
    for (int64_t begin = 0; begin < words; begin += 4) {
        for (int64_t line = 0; line < lines; line++, ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
#pragma GCC unroll 16
        for (int step = 0; step < 4 * per_word; step++) {
            const int64_t word = begin + step / per_word, input = begin * per_word + step;
            NAME(floats) weight[NAME(most)];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                const int64_t strip = v / NAME(per_strip), part = v % NAME(per_strip);
                const uint32_t *from = w + (strip * words + word) * PW_STRIP + part * LANES;
                weight[v] = NAME(unpack)(*(const NAME(bits) *)from, type, step % per_word);
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

PW_INLINE TARGET void NAME(tiles)(const float *x, int64_t stride, const uint32_t *w, int64_t words,
                                  const int type, int64_t rows, const int strips, const char *ahead,
                                  int64_t lines, uint32_t *sums) {
#define PW_TILE(n) NAME(tile)(x, stride, w, words, type, n, strips, ahead, lines, sums)
    PW_FOR_ROWS(rows, PW_TILE)
#undef PW_TILE
}

TARGET static void NAME(sum)(const pw_linear_job *job, int64_t row, int64_t rows, const uint32_t *w,
                             int64_t strips, const char *ahead, int64_t lines, uint32_t *sums) {
    const float *x = (const float *)(job->operand + row * job->operand_stride);
    const int64_t stride = job->operand_stride / (int64_t)sizeof(float);
    const int64_t words = job->weights->words;
#define PW_TYPE(type)                                                                             \
    case type:                                                                                    \
        if (strips == TILE_STRIPS) {                                                              \
            NAME(tiles)(x, stride, w, words, type, rows, TILE_STRIPS, ahead, lines, sums);        \
        } else {                                                                                  \
            NAME(tiles)(x, stride, w, words, type, rows, 1, ahead, lines, sums);                  \
        }                                                                                         \
        break;
    switch (job->weights->type) {
        PW_TYPE(PW_FLOAT32)
        PW_TYPE(PW_BFLOAT16)
        PW_TYPE(PW_INT8)
    }
#undef PW_TYPE
}

#include "walk.template.h"

TARGET static void NAME(compute)(const pw_linear_job *job, int64_t first, int64_t last,
                                 const uint32_t *after) {
    NAME(walk)(job, first, last, after, false);
}

static const pw_linear_kernel NAME(kernel) = {PW_FLOAT32, 64, TILE_STRIPS, NAME(prepare_floats),
                                              NAME(compute)};

#undef TARGET
#undef NAME
#undef LANES
#undef TILE_ROWS
#undef TILE_STRIPS
