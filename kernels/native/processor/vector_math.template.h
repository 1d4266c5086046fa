/* What the vectors of every instruction set have in common: functions, and the ends of rows. */
#ifndef PW_VECTOR_MATH_H
#define PW_VECTOR_MATH_H

#include <math.h>

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

/* e^x for x <= 88, within 2 units in the last place; 0 where the result would not be normal. */
static inline vf v_exp(vf x) {
    const vf magic = v_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    const vf power = v_sub(v_fma(x, v_set(1.44269504f), magic), magic);
    vf rest = v_fma(power, v_set(-0.693359375f), x);
    rest = v_fma(power, v_set(2.12194440e-4f), rest);
    vf series = v_set(1.0f / 5040);
    series = v_fma(series, rest, v_set(1.0f / 720));
    series = v_fma(series, rest, v_set(1.0f / 120));
    series = v_fma(series, rest, v_set(1.0f / 24));
    series = v_fma(series, rest, v_set(1.0f / 6));
    series = v_fma(series, rest, v_set(0.5f));
    series = v_fma(v_mul(series, rest), rest, v_add(rest, v_set(1.0f)));
    return v_where_ge(x, v_set(-87.0f), v_scale(series, power), v_set(0.0f));
}

#ifndef HAS_WEIGHTS
static inline vf v_weight(vf x) { return v_exp(v_mul(x, v_set(0.693147181f))); }
static inline vf v_rough_weight(vf x) { return v_weight(x); }
#endif

#ifndef HAS_TRANSPOSE
static inline void v_transpose(const vf *rows, float *target, int64_t target_row) {
    float all[LANES][LANES];
    for (int row = 0; row < LANES; row++) {
        v_store_f32(all[row], rows[row]);
    }
    for (int column = 0; column < LANES; column++) {
        for (int row = 0; row < LANES; row++) {
            target[column * target_row + row] = all[row][column];
        }
    }
}
#endif

/* A NaN stays one. */
static inline vf v_at_most(vf x, float high) {
    return v_where_ge(x, v_set(high), v_set(high), x);
}

static inline vf v_at_least(vf x, float low) {
    return v_where_ge(v_set(low), x, v_set(low), x);
}

static inline vf v_clamp(vf x, float low, float high) {
    x = v_where_ge(x, v_set(low), x, v_set(low));
    return v_where_ge(v_set(high), x, x, v_set(high));
}

/* Within 4e-7 of its size everywhere: a series near 0, where 1 - 2 / (e^2x + 1) would cancel. */
static inline vf v_tanh(vf x) {
    const vf one = v_set(1.0f), square = v_mul(x, x);
    vf series = v_set(-5.70498872745e-3f);
    series = v_fma(series, square, v_set(2.06390887954e-2f));
    series = v_fma(series, square, v_set(-5.37397155531e-2f));
    series = v_fma(series, square, v_set(1.33314422036e-1f));
    series = v_fma(series, square, v_set(-3.33332819422e-1f));
    series = v_fma(v_mul(series, square), x, x);
    const vf twice = v_exp(v_clamp(v_add(x, x), -40.0f, 40.0f));
    const vf far = v_sub(one, v_div(v_set(2.0f), v_add(twice, one)));
    return v_where_ge(square, v_set(0.390625f), far, series);
}

/* The first n lanes of a vector, n < LANES; the others are 0. And vectors of a row of which `left`
 * elements remain. */
#define DEFINE_ENDS(T)                                                              \
    static inline vf CAT(v_load_end_, T)(const CAT(pw_, T) * p, int n) {            \
        CAT(pw_, T) all[LANES] = {0};                                               \
        for (int i = 0; i < n; i++) {                                               \
            all[i] = p[i];                                                          \
        }                                                                           \
        return CAT(v_load_, T)(all);                                                \
    }                                                                               \
    static inline void CAT(v_store_end_, T)(CAT(pw_, T) * p, vf x, int n) {         \
        CAT(pw_, T) all[LANES];                                                     \
        CAT(v_store_, T)(all, x);                                                   \
        for (int i = 0; i < n; i++) {                                               \
            p[i] = all[i];                                                          \
        }                                                                           \
    }                                                                               \
    static inline vf CAT(v_load_some_, T)(const CAT(pw_, T) * p, int64_t left) {    \
        return left >= LANES ? CAT(v_load_, T)(p) : CAT(v_load_end_, T)(p, (int)left); \
    }                                                                               \
    static inline void CAT(v_store_some_, T)(CAT(pw_, T) * p, vf x, int64_t left) { \
        if (left >= LANES) {                                                        \
            CAT(v_store_, T)(p, x);                                                 \
        } else {                                                                    \
            CAT(v_store_end_, T)(p, x, (int)left);                                  \
        }                                                                           \
    }
DEFINE_ENDS(f32)
DEFINE_ENDS(bf16)
DEFINE_ENDS(f16)
#undef DEFINE_ENDS

#endif
