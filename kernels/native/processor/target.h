/* Compiles what stands between BEGIN_TARGET("avx2,fma") and END_TARGET for these instructions, too. */
#ifndef PW_TARGET_H
#define PW_TARGET_H

#define PW_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define BEGIN_TARGET(features) \
    PW_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(features) PW_PRAGMA(GCC target(features))
#define END_TARGET
#endif

#endif
