/* Products of bfloat16 and of int8 weights by matrix tiles (AMX).
 *
 * A tile is 16 rows of 64 bytes. Of the eight, 0 to 3 hold the sums of two times two, 4 and 5 the
 * rows of activations, 6 and 7 two strips of weights. Each output is summed in the order of the
 * inputs, whatever rows are computed beside it. */
#include "kernel.h"

#if defined(__x86_64__)

#include "processor/tiles.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define NAME(name) amx_##name
enum { TILE_ROWS = 32, TILE_STRIPS = 2, WORDS_IN_TILE = 16 };

static _Thread_local int64_t configured; /* rows for which this thread's tiles are set up */

static void configure(int64_t rows) {
    const uint8_t first = (uint8_t)(rows < 16 ? rows : 16), second = (uint8_t)(rows - first);
    configure_tiles((const uint8_t[8]){first, first, second, second, first, second, 16, 16});
    configured = rows;
}

/* Up to 32 rows times one or two strips. */
PW_INLINE TARGET void tiles(const char *x, int64_t stride, const uint32_t *w, int64_t words,
                            const bool halves, const bool two_rows, const bool two_strips,
                            const char *ahead, int64_t lines) {
    TILE_ZERO(0);
    if (two_strips) {
        TILE_ZERO(1);
    }
    if (two_rows) {
        TILE_ZERO(2);
    }
    if (two_rows && two_strips) {
        TILE_ZERO(3);
    }
#define PW_MULTIPLY(sum, rows, strip)                                                              \
    if (halves) {                                                                                  \
        TILE_DOT_BF16(sum, rows, strip);                                                           \
    } else {                                                                                       \
        TILE_DOT_U8S8(sum, rows, strip);                                                           \
    }
    for (int64_t word = 0; word < words; word += WORDS_IN_TILE) {
        for (int64_t line = 0; line < lines * (WORDS_IN_TILE / 4); line++, ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
        TILE_LOAD(4, x + word * 4, stride);
        TILE_LOAD(6, w + word * PW_STRIP, 64);
        PW_MULTIPLY(0, 4, 6)
        if (two_strips) {
            TILE_LOAD(7, w + (words + word) * PW_STRIP, 64);
            PW_MULTIPLY(1, 4, 7)
        }
        if (two_rows) {
            TILE_LOAD(5, x + 16 * stride + word * 4, stride);
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
    TILE_STORE(0, sums, sums_stride);
    if (two_strips) {
        TILE_STORE(1, sums + PW_STRIP, sums_stride);
    }
    if (two_rows) {
        TILE_STORE(2, sums + 16 * TILE_STRIPS * PW_STRIP, sums_stride);
    }
    if (two_rows && two_strips) {
        TILE_STORE(3, sums + 16 * TILE_STRIPS * PW_STRIP + PW_STRIP, sums_stride);
    }
}

#include "walk.template.h"

TARGET static void compute_halves(const pw_linear_job *job, int64_t first, int64_t last,
                                  const uint32_t *after) {
    configured = 0;
    amx_walk(job, first, last, after, false);
    TILE_RELEASE();
}

TARGET static void compute_bytes(const pw_linear_job *job, int64_t first, int64_t last,
                                 const uint32_t *after) {
    configured = 0;
    amx_walk(job, first, last, after, true);
    TILE_RELEASE();
}

const pw_linear_kernel *pw_linear_tiles(int64_t weights_type) {
    static const pw_linear_kernel halves = {PW_BFLOAT16, 32, TILE_STRIPS, amx_prepare_halves,
                                            compute_halves};
    static const pw_linear_kernel bytes = {PW_INT8, 16, TILE_STRIPS, amx_prepare_bytes,
                                           compute_bytes};
    if (pw_cpu_level() < PW_AMX) {
        return NULL;
    }
    return weights_type == PW_BFLOAT16 ? &halves : weights_type == PW_INT8 ? &bytes : NULL;
}

#else

const pw_linear_kernel *pw_linear_tiles(int64_t weights_type) {
    (void)weights_type;
    return NULL;
}

#endif
