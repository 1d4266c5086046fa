/* Products in float32, at any level. */
#include "kernel.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define NAME(name) name##_avx512
#define LANES 16
#define TILE_ROWS 8
#define TILE_STRIPS 3
#include "floats.template.h"

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define LANES 8
#define TILE_ROWS 6
#define TILE_STRIPS 1
#include "floats.template.h"
#endif

#define TARGET
#define NAME(name) name##_plain
#define LANES 4
#define TILE_ROWS 2
#define TILE_STRIPS 1
#include "floats.template.h"

const pw_linear_kernel *pw_linear_floats(void) { return PW_CODE(kernel); }
