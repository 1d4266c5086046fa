/* The code for AVX-512 (F, DQ, BW, VL). */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma")
#endif

#define ISA avx512
#define FEW 4
#define MANY 9
#define STRIP 4
#define BLOCK 6
#define PANEL 4
#include "processor/vector_avx512.h"

#include "attention/body.template.h"
#include "layers/body.template.h"
#include "sampling/body.template.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
