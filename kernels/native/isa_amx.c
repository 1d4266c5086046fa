/* The code for AVX-512 with AMX: attention in bfloat16 by tiles, the rest as without. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(                                                                   \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,fma")
#endif

#define ISA amx
#define FEW 4
#define MANY 9
#define STRIP 4
#define BLOCK 6
#define PANEL 4
#define BF16_PAIRS
#define BF16_TILES
#include "processor/vector_avx512.h"

#include "attention/body.template.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
