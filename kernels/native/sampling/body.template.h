/* What sampling does with whole vectors, of an instruction set which has been included before. */
#include <math.h>
#include <string.h>

#include "sampling.h"
#include "processor/vector_math.template.h"

/* As many numbers of 64 bits as there are in a vector of floats, and as many floats. */
#define WIDE_LANES (LANES / 2)
typedef double wide_f64 __attribute__((vector_size(4 * LANES)));
typedef int64_t wide_i64 __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide_u64 __attribute__((vector_size(4 * LANES)));
typedef float half_vf __attribute__((vector_size(2 * LANES)));
typedef int32_t whole_vi __attribute__((vector_size(4 * LANES)));

#define DEFINE_COPY(T)                                                                 \
    static void copy_##T(const void *scores, int64_t size, float *row) {               \
        const CAT(pw_, T) *source = scores;                                            \
        int64_t i = 0;                                                                 \
        for (; i + LANES <= size; i += LANES) {                                        \
            v_store_f32(row + i, CAT(v_load_, T)(source + i));                         \
        }                                                                              \
        const int left = (int)(size - i);                                              \
        v_store_end_f32(row + i, CAT(v_load_end_, T)(source + i, left), left);         \
    }
DEFINE_COPY(f32)
DEFINE_COPY(bf16)
DEFINE_COPY(f16)
#undef DEFINE_COPY

static void forbid(float *row, int64_t size, const uint32_t *words) {
    const whole_vi out = (whole_vi)v_set(-INFINITY);
    whole_vi bits;
    for (int lane = 0; lane < LANES; lane++) {
        bits[lane] = 1 << lane;
    }
    for (int64_t i = 0; i < size; i += 32) {
        const uint32_t word = words[i / 32];
        if (word == UINT32_MAX) {
            continue;
        }
        for (int j = 0; j < 32; j += LANES) {
            const whole_vi is_out = (bits & (int32_t)(word >> j)) == 0;
            whole_vi some;
            memcpy(&some, row + i + j, sizeof some);
            some = (some & ~is_out) | (out & is_out);
            memcpy(row + i + j, &some, sizeof some);
        }
    }
}

static float find_tops(float *row, int64_t num_blocks, float *tops) {
    const vf lowest = v_set(-INFINITY);
    vf highest = lowest;
    for (int64_t block = 0; block < num_blocks; block++) {
        vf top = lowest;
        for (int i = 0; i < PW_SAMPLE_BLOCK; i += LANES, row += LANES) {
            const vf x = v_load_f32(row), number = v_where_ge(x, lowest, x, lowest);
            v_store_f32(row, number);
            top = v_max(top, number);
        }
        tops[block] = v_highest(top);
        highest = v_max(highest, top);
    }
    return v_highest(highest);
}

/* A multiple of 2^-25. */
static inline wide_f64 rounded(wide_f64 x) {
    const wide_f64 magic = (wide_f64){0} + 0x1.8p27;
    return (x + magic) - magic;
}

/* 2^34 e^-gap, rounded to whole numbers. Bit for bit what `kernels.reference.sampling` computes:
 * every product is exact, so that it does not matter whether a sum is fused with it. */
static double weigh_gaps(const float *gaps, double *weights) {
    const wide_f64 magic = (wide_f64){0} + 0x1.8p52; /* adding it rounds to a whole number */
    const wide_f64 most = (wide_f64){0} + 64.0;
    wide_f64 total = {0};
    for (int i = 0; i < PW_SAMPLE_BLOCK; i += WIDE_LANES) {
        half_vf some;
        memcpy(&some, gaps + i, sizeof some);
        wide_f64 power = __builtin_convertvector(some, wide_f64) * 0x1.7154765p0; /* of 1/2 */
        const wide_i64 is_less = power < most;
        power = (wide_f64)(((wide_i64)power & is_less) | ((wide_i64)most & ~is_less));
        const wide_f64 shifted = power + magic;
        const wide_f64 rest = rounded(power - (shifted - magic));
        wide_f64 series = rounded(rest * 0x1.444p-13 - 0x1.5f08p-10);
        series = rounded(series * rest + 0x1.3b2a1cp-7);
        series = rounded(series * rest - 0x1.c6af6cp-5);
        series = rounded(series * rest + 0x1.ebfbe0p-3);
        series = rounded(series * rest - 0x1.62e430p-1);
        series = rounded(series * rest + 1.0);
        /* The whole number lies in the low bits, and moves into the exponent's place. */
        const wide_f64 scale = (wide_f64)((1023 + 34 - (wide_u64)shifted) << 52);
        const wide_f64 weight = (series * scale + 0x1p52) - 0x1p52;
        memcpy(weights + i, &weight, sizeof weight);
        total += weight; /* whole numbers below 2^53: in any order the same */
    }
    double sum = 0;
    for (int lane = 0; lane < WIDE_LANES; lane++) {
        sum += total[lane];
    }
    return sum;
}

/* SplitMix64, as in kernels/noise.py. */
static bool may_win(uint64_t counter, uint64_t cells) {
    const uint64_t golden = 0x9E3779B97F4A7C15;
    wide_u64 counters, any = {0};
    for (int lane = 0; lane < WIDE_LANES; lane++) {
        counters[lane] = counter + (uint64_t)lane * golden;
    }
    for (int i = 0; i < PW_SAMPLE_BLOCK; i += WIDE_LANES) {
        wide_u64 bits = (counters ^ (counters >> 30)) * 0xBF58476D1CE4E5B9;
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
        bits = ~(bits ^ (bits >> 31)) >> 12;
        any |= (wide_u64)((wide_i64)bits <= (wide_i64)((wide_u64){0} + cells)); /* below 2^53 */
        counters += WIDE_LANES * golden;
    }
    uint64_t found = 0;
    for (int lane = 0; lane < WIDE_LANES; lane++) {
        found |= any[lane];
    }
    return found != 0;
}

const pw_sampling_code CAT(pw_sampling_, ISA) = {
    .copy = {copy_f32, copy_bf16, copy_f16},
    .forbid = forbid,
    .find_tops = find_tops,
    .weigh = weigh_gaps,
    .may_win = may_win,
};
