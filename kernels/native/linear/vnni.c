/* Products of int8 weights with rows quantized to int8, by vpdpbusd: exact in 32 bits. */
#include "linear.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define NAME(name) vnni_##name
#define VECTOR __m512i
#define ZERO _mm512_setzero_si512
#define DOT _mm512_dpbusd_epi32
#define STORE _mm512_storeu_si512
#include "words.template.h"

TARGET static void compute(const pw_linear_job *job, int64_t first, int64_t last, int64_t after) {
    vnni_walk(job, first, last, after, true);
}

const pw_linear_kernel *pw_linear_vnni(int64_t weights_type) {
    static const pw_linear_kernel kernel = {PW_INT8, TILE_STRIPS, vnni_prepare_bytes, compute};
    return weights_type == PW_INT8 && __builtin_cpu_supports("avx512vnni") ? &kernel : NULL;
}

#endif
