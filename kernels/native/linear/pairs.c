/* Products of bfloat16 by vdpbf16ps, which adds the products of pairs to float32. */
#include "linear.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define NAME(name) pairs_##name
#define VECTOR __m512
#define ZERO _mm512_setzero_ps
#define DOT(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
#define STORE(place, sum) _mm512_storeu_ps((float *)(place), sum)
#include "words.template.h"

TARGET static void compute(const pw_linear_job *job, int64_t first, int64_t last, int64_t after) {
    pairs_walk(job, first, last, after, false);
}

const pw_linear_kernel *pw_linear_pairs(int64_t weights_type) {
    static const pw_linear_kernel kernel = {PW_BFLOAT16, TILE_STRIPS, pairs_prepare_halves, compute};
    return weights_type == PW_BFLOAT16 ? &kernel : NULL;
}

#endif
