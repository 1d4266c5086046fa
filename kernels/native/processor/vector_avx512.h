/* Vectors of floats: AVX-512. */
#include <immintrin.h>

#include "cpu.h"

#define LANES 16
typedef __m512 vf;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load_f32(const pw_f32 *p) { return _mm512_loadu_ps(p); }
static inline void v_store_f32(pw_f32 *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline float v_sum(vf x) { return _mm512_reduce_add_ps(x); }
static inline float v_highest(vf x) { return _mm512_reduce_max_ps(x); }

/* yes where a >= b, else no; a NaN is not. */
static inline vf v_where_ge(vf a, vf b, vf yes, vf no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), no, yes);
}

/* x * 2^n for whole n that keep the result normal. */
static inline vf v_scale(vf x, vf n) { return _mm512_scalef_ps(x, n); }

static inline vf v_load_bf16(const pw_bf16 *p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

/* Rounds to nearest even; a NaN stays one. */
static inline void v_store_bf16(pw_bf16 *p, vf x) {
#ifdef BF16_PAIRS
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
    return;
#endif
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}

static inline vf v_load_f16(const pw_f16 *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void v_store_f16(pw_f16 *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf v_load_i8(const pw_i8 *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Rounds to nearest even, of magnitudes up to 127. */
static inline void v_store_i8(pw_i8 *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}

/* 2^x of a score x <= 0, which becomes the weight of a key: within 2e-7 of the weight of the highest
 * score, and 0 for -inf. A polynomial of the rest of a power of 2, which rounds down. */
#define HAS_WEIGHTS
static inline vf v_weight(vf x) {
    const vf rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    vf series = v_set(1.87757665e-3f);
    series = v_fma(series, rest, v_set(8.98934016e-3f));
    series = v_fma(series, rest, v_set(5.5826318e-2f));
    series = v_fma(series, rest, v_set(0.240153617f));
    series = v_fma(series, rest, v_set(0.693153073f));
    series = v_fma(series, rest, v_set(0.999999925f));
    return _mm512_scalef_ps(series, x);
}

/* The same for a weight that is rounded to bfloat16: within 8e-5 of itself. */
static inline vf v_rough_weight(vf x) {
    const vf rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    vf series = v_set(7.80247003e-2f);
    series = v_fma(series, rest, v_set(0.226067424f));
    series = v_fma(series, rest, v_set(0.695833147f));
    series = v_fma(series, rest, v_set(0.999925315f));
    return _mm512_scalef_ps(series, x);
}

/* target[column][row] = rows[row][column] */
#define HAS_TRANSPOSE
static inline void v_transpose(const vf *rows, float *target, int64_t target_row) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        const __m512i even = _mm512_castps_si512(rows[i]), odd = _mm512_castps_si512(rows[i + 1]);
        b[i] = _mm512_unpacklo_epi32(even, odd);
        b[i + 1] = _mm512_unpackhi_epi32(even, odd);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3, one a quarter. */
    for (int c = 0; c < 4; c++) {
        const __m512i low = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88);
        const __m512i low_odd = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd);
        const __m512i high_odd = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        b[c] = _mm512_shuffle_i32x4(low, high, 0x88);
        b[c + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        b[c + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        b[c + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
    for (int i = 0; i < 16; i++) {
        v_store_f32(target + i * target_row, _mm512_castsi512_ps(b[i]));
    }
}

#ifdef BF16_PAIRS
/* Words of pairs of bfloat16. */
static inline vf v_load_pairs(const pw_bf16 *first, const pw_bf16 *second) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
#endif

/* out[i] = the sum over x[i], for four vectors. */
static inline void v_sum_four(const vf x[4], float *out) {
    const vf ab = v_add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const vf cd = v_add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const vf all = v_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    const __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(out, sum);
}
