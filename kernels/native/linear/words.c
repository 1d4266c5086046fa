/* Products by instructions that multiply whole words. */
#include "kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* bfloat16 by vdpbf16ps, which adds the products of pairs to float32. */
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define NAME(name) pairs_##name
#define VECTOR __m512
#define INTEGERS false
#define ZERO _mm512_setzero_ps
#define DOT(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
#define STORE(place, sum) _mm512_storeu_ps((float *)(place), sum)
#include "words.template.h"

/* int8 with rows quantized to int8, by vpdpbusd: exact in 32 bits. */
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define NAME(name) fours_##name
#define VECTOR __m512i
#define INTEGERS true
#define ZERO _mm512_setzero_si512
#define DOT _mm512_dpbusd_epi32
#define STORE _mm512_storeu_si512
#include "words.template.h"

const pw_linear_kernel *pw_linear_words(int64_t weights_type) {
    static const pw_linear_kernel pairs = {PW_BFLOAT16, 32, 3, pairs_prepare_halves, pairs_compute};
    static const pw_linear_kernel fours = {PW_INT8, 16, 3, fours_prepare_bytes, fours_compute};
    const pw_level level = pw_cpu_level();
    if (weights_type == PW_BFLOAT16) {
        return level >= PW_AVX512_BF16 ? &pairs : NULL;
    }
    const bool has_vnni = level >= PW_AVX512 && __builtin_cpu_supports("avx512vnni");
    return weights_type == PW_INT8 && has_vnni ? &fours : NULL;
}

#else

const pw_linear_kernel *pw_linear_words(int64_t weights_type) {
    (void)weights_type;
    return NULL;
}

#endif
