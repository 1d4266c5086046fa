/* Products with weights of 4 or 8 bits in groups of 32 inputs, of inputs in int8.
 *
 * A step of a few rows takes as long as reading its weights, and these are 5 or 9 bits each, scales
 * and minima included. With many rows it takes 12 instructions where int8 takes 8. */
#include "kernel.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define FLOAT_STEPS _mm_loadu_si128((const __m128i *)pw_float_steps)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")))
#define NAME(name) grouped_vnni_##name
#define LANES 16
#define TILE_ROWS 8
#define TILE_STRIPS 1
#define INTEGERS __m512i
#define FLOATS __m512
#define LOAD _mm512_loadu_si512
#define LOW_BITS(v) _mm512_and_si512(v, _mm512_set1_epi8(15))
#define SHIFT_BITS(v) _mm512_srli_epi16(v, 4)
#define LOOK_UP(v) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(FLOAT_STEPS), v)
#define ZERO _mm512_setzero_si512
#define REPEAT _mm512_set1_epi32
#define DOT _mm512_dpbusd_epi32
#define DOT_BYTES _mm512_dpbusd_epi32
#define WHOLE(sum) (sum)
#define FLOAT _mm512_cvtepi32_ps
#define HALVES(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#define SPREAD _mm512_set1_ps
#define MULTIPLY _mm512_mul_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#define STORE _mm512_storeu_ps
#include "grouped.template.h"

/* The products of four bytes without a sign with four that have one: first and third, then second
 * and fourth, since sums of 16 bits would not hold two of them. */
__attribute__((target("avx2"))) static inline __m256i dot_bytes(__m256i sum, __m256i codes,
                                                                __m256i four) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
    const __m256i odd = _mm256_srai_epi16(four, 8);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd));
    const __m256i low = _mm256_and_si256(codes, _mm256_set1_epi16(255));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(low, even));
}

/* Sums of 16 bits hold a group: 8 times 2 products of at most 15 * 127. */
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define NAME(name) grouped_avx2_##name
#define LANES 8
#define TILE_ROWS 4
#define TILE_STRIPS 1
#define INTEGERS __m256i
#define FLOATS __m256
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define LOW_BITS(v) _mm256_and_si256(v, _mm256_set1_epi8(15))
#define SHIFT_BITS(v) _mm256_srli_epi16(v, 4)
#define LOOK_UP(v) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(FLOAT_STEPS), v)
#define ZERO _mm256_setzero_si256
#define REPEAT _mm256_set1_epi32
#define DOT(sum, codes, four) _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, four))
#define DOT_BYTES dot_bytes
#define WHOLE(sum) _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
#define FLOAT _mm256_cvtepi32_ps
#define HALVES(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#define SPREAD _mm256_set1_ps
#define MULTIPLY _mm256_mul_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#define STORE(to, v) _mm256_storeu_ps((float *)(to), v)
#include "grouped.template.h"
#endif

#define TARGET
#define NAME(name) grouped_plain_##name
#define TILE_ROWS 4
#define TILE_STRIPS 1

/* The value of a half-precision number that is not infinite. */
static float widen_half(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)(half & 0x7fff) << 13};
    wide.value *= 0x1p112f; /* moves the exponent, whether the number is normal or not */
    return half & 0x8000 ? -wide.value : wide.value;
}

/* The product of 32 codes of a column with as many inputs. */
static int32_t dot_group(const uint8_t *codes, int64_t type, const int8_t *inputs) {
    int32_t sum = 0;
    for (int64_t i = 0; i < PW_GROUP / 2; i++) {
        const int64_t at = i / 4 * PW_LINE + i % 4;
        uint8_t first = codes[at], second = codes[at];
        if (type == PW_INT8_GROUPS) {
            second = codes[at + 4 * PW_LINE];
        } else {
            first &= 15, second >>= 4;
        }
        if (type == PW_FP4_GROUPS) {
            first = pw_float_steps[first], second = pw_float_steps[second];
        }
        sum += first * inputs[i] + second * inputs[i + PW_GROUP / 2];
    }
    return sum;
}

static void grouped_plain_sum(const pw_linear_job *job, int64_t row, int64_t rows,
                              const uint32_t *w, int64_t strips, const char *ahead, int64_t lines,
                              uint32_t *sums) {
    (void)strips, (void)ahead, (void)lines;
    const int64_t type = job->weights->type, group_lines = pw_group_lines(type);
    const int64_t num_groups = job->weights->words / group_lines;
    float *out = (float *)sums;
    memset(out, 0, (size_t)(rows * PW_STRIP) * sizeof(float));
    for (int64_t g = 0; g < num_groups; g++) {
        const uint8_t *codes = (const uint8_t *)w + g * group_lines * PW_LINE;
        uint16_t halves[2 * PW_STRIP];
        memcpy(halves, codes + (group_lines - 1) * PW_LINE, sizeof halves);
        for (int64_t r = 0; r < rows; r++) {
            const char *x = job->operand + (row + r) * job->operand_stride;
            const pw_input_group *inputs = (const pw_input_group *)x + g;
            for (int64_t c = 0; c < PW_STRIP; c++) {
                const float sum = (float)dot_group(codes + 4 * c, type, inputs->values);
                out[r * PW_STRIP + c] += sum * (widen_half(halves[c]) * inputs->scale);
                out[r * PW_STRIP + c] += widen_half(halves[PW_STRIP + c]) * inputs->sum;
            }
        }
    }
}

#include "grouped_rows.template.h"

const pw_linear_kernel *pw_linear_groups(int64_t weights_type) {
    if (weights_type < PW_INT4_GROUPS) {
        return NULL;
    }
#if defined(__x86_64__)
    if (pw_cpu_level() >= PW_AVX512 && __builtin_cpu_supports("avx512vnni")) {
        return &grouped_vnni_kernel;
    }
    if (pw_cpu_level() >= PW_AVX2) {
        return &grouped_avx2_kernel;
    }
#endif
    return &grouped_plain_kernel;
}
