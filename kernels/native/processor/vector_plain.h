/* Vectors of floats: whatever the compiler makes of four at a time on any processor. */
#include <math.h>
#include <string.h>

#include "cpu.h"

#define LANES 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf v_set(float x) { return (vf){x, x, x, x}; }
static inline vf v_load_f32(const pw_f32 *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void v_store_f32(pw_f32 *p, vf x) { memcpy(p, &x, sizeof x); }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline float v_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }

static inline vf v_choose(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

static inline vf v_max(vf a, vf b) { return v_choose(a > b, a, b); }
static inline float v_highest(vf x) { return fmaxf(fmaxf(x[0], x[2]), fmaxf(x[1], x[3])); }

/* yes where a >= b, else no; a NaN is not. */
static inline vf v_where_ge(vf a, vf b, vf yes, vf no) { return v_choose(a >= b, yes, no); }

/* x * 2^n for whole n that keep the result normal. */
static inline vf v_scale(vf x, vf n) {
    const vf shifted = n + v_set(12582912.0f + 127.0f); /* 1.5 * 2^23: n lies in the low bits */
    return x * (vf)((vi)shifted << 23);
}

static inline vf v_load_bf16(const pw_bf16 *p) {
    const vi bits = {p[0], p[1], p[2], p[3]};
    return (vf)(bits << 16);
}

/* Rounds to nearest even; a NaN stays one. */
static inline void v_store_bf16(pw_bf16 *p, vf x) {
    const vi bits = (vi)x;
    const vi rounded = bits + ((bits >> 16) & 1) + 0x7fff;
    for (int i = 0; i < LANES; i++) {
        p[i] = x[i] != x[i] ? 0x7fc0 : (pw_bf16)((uint32_t)rounded[i] >> 16);
    }
}

static inline vf v_load_i8(const pw_i8 *p) {
    return (vf){(float)p[0], (float)p[1], (float)p[2], (float)p[3]};
}

/* Rounds to nearest even, of magnitudes up to 127: they lie in the low bits behind 1.5 * 2^23. */
static inline void v_store_i8(pw_i8 *p, vf x) {
    const vi rounded = (vi)(x + v_set(12582912.0f));
    for (int i = 0; i < LANES; i++) {
        p[i] = (pw_i8)rounded[i];
    }
}

static inline float half_to_float(pw_f16 half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits;
    if (rest < 0x400) { /* subnormal: a multiple of 2^-24 */
        const float value = (float)rest * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    } else {
        bits = (rest << 13) + (rest < 0x7c00 ? 0x38000000 : 0x70000000);
    }
    bits |= sign;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline pw_f16 float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) {
        return (pw_f16)(sign | 0x7e00);
    }
    if (rest >= 0x477ff000) { /* rounds beyond the largest */
        return (pw_f16)(sign | 0x7c00);
    }
    if (rest < 0x38800000) { /* subnormal: in units of 2^-24 */
        return (pw_f16)(sign | (uint32_t)lrintf(fabsf(value) * 0x1p24f));
    }
    return (pw_f16)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13));
}

static inline vf v_load_f16(const pw_f16 *p) {
    return (vf){half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}

static inline void v_store_f16(pw_f16 *p, vf x) {
    for (int i = 0; i < LANES; i++) {
        p[i] = float_to_half(x[i]);
    }
}

/* out[i] = the sum over x[i], for four vectors. */
static inline void v_sum_four(const vf x[4], float *out) {
    for (int i = 0; i < 4; i++) {
        out[i] = v_sum(x[i]);
    }
}
