/* The code for AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define ISA avx2
#define FEW 2
#define MANY 8
#define STRIP 2
#define BLOCK 6
#define PANEL 2
#include "processor/vector_avx2.h"

#include "attention/body.template.h"
#include "layers/body.template.h"
#include "sampling/body.template.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
