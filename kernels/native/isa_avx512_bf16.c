/* The code for AVX-512 with products of bfloat16: attention by those, the rest as without. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "processor/target.h"

BEGIN_TARGET("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,fma")
#define ISA avx512_bf16
#define BF16_PAIRS
#include "processor/vector_avx512.h"

#include "attention/body.template.h"
END_TARGET
#endif
