/* What the processor can do, and the code built for it. */
#ifndef PW_CPU_H
#define PW_CPU_H

#include <stdint.h>

#include "pool.h"

/* Its constant arguments then decide, where it is called, what of it is compiled. */
#define PW_INLINE static inline __attribute__((always_inline))

typedef enum { PW_PLAIN, PW_AVX2, PW_AVX512, PW_AVX512_BF16, PW_AMX } pw_level;

/* The best level that this processor and system offer, found once. */
PW_EXPORT pw_level pw_cpu_level(void);

/* Pretend to have less; asking for more than there is gives what there is. For tests. */
PW_EXPORT void pw_limit_level(pw_level level);

/* Of what is compiled for three levels, under a name for each, the best that may be used. */
#if defined(__x86_64__)
#define PW_CODE(name)                                \
    (pw_cpu_level() >= PW_AVX512 ? &name##_avx512    \
     : pw_cpu_level() >= PW_AVX2 ? &name##_avx2      \
                                 : &name##_plain)
#else
#define PW_CODE(name) (&name##_plain)
#endif

/* Ways to multiply, by the numbers that the callers use: in float32, whatever that takes of widening;
 * by instructions for words of several elements (pairs of bfloat16, four bytes); by matrix tiles. */
typedef enum { PW_BY_FLOATS, PW_BY_WORDS, PW_BY_TILES } pw_path;

/* Element types, by the numbers that the callers use. */
typedef enum { PW_F32, PW_BF16, PW_F16, PW_NUM_TYPES } pw_type;

/* Bytes of an element. */
static inline int64_t pw_size(int64_t type) { return type == PW_F32 ? 4 : 2; }

typedef uint16_t pw_bf16;
typedef uint16_t pw_f16;
typedef float pw_f32;
typedef int8_t pw_i8; /* codes in the KV memory: see kernels/kv_format.py */

#endif
