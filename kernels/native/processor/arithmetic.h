/* Whole numbers, as cutting work into parts needs them. */
#ifndef PW_ARITHMETIC_H
#define PW_ARITHMETIC_H

#include <stdint.h>

static inline int64_t pw_ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t pw_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t pw_most(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
