/* The code for AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "processor/target.h"

BEGIN_TARGET("avx2,fma,f16c")
#define ISA avx2
#include "processor/vector_avx2.h"

#include "adapters/body.template.h"
#include "attention/body.template.h"
#include "layers/body.template.h"
#include "recurrent/body.template.h"
#include "sampling/body.template.h"
END_TARGET
#endif
