/* The code for AVX-512 (F, DQ, BW, VL). */
#if defined(__x86_64__)
#include <immintrin.h>

#include "processor/target.h"

BEGIN_TARGET("avx512f,avx512dq,avx512bw,avx512vl,fma")
#define ISA avx512
#include "processor/vector_avx512.h"

#include "adapters/body.template.h"
#include "attention/body.template.h"
#include "layers/body.template.h"
#include "recurrent/body.template.h"
#include "sampling/body.template.h"
END_TARGET
#endif
