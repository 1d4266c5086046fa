/* What one way to multiply brings, for `linear.c` to choose among. */
#ifndef PW_LINEAR_KERNEL_H
#define PW_LINEAR_KERNEL_H

#include <stddef.h>

#include "processor/cpu.h"
#include "weights.h"

enum { PW_BLOCK = 64 }; /* inputs that are rotated together; see rows.template.h */

/* One product: outputs [rows, out_features] = inputs [rows, in_features] times the weights. */
typedef struct {
    const pw_linear_weights *weights;
    int64_t rows;
    int64_t type, output_type; /* of inputs and of outputs: float32 or bfloat16 */
    const void *inputs;
    void *outputs;
    const char *operand;    /* the inputs as the kernel reads them: its type, padded to `words` */
    int64_t operand_stride; /* bytes from row to row */
    float *row_scales;      /* if it is int8: what a 1 in that row stands for */
} pw_linear_job;

/* 32 inputs in int8. */
typedef struct {
    float scale; /* what a value of 1 stands for */
    float sum;   /* of the values, scaled */
    int8_t values[PW_GROUP];
} pw_input_group;

typedef struct {
    int64_t operand_type;  /* float32, bfloat16, int8 moved up by 128 to have no sign, or
                            * PW_INT8_GROUPS: groups of inputs */
    int64_t operand_bytes; /* of 16 inputs */
    int64_t strips;        /* that are computed together */
    /* Writes rows [first, last) of the operand; a row in float32 fits into `spare`. */
    void (*prepare)(const pw_linear_job *job, char *operand, float *spare, int64_t first,
                    int64_t last);
    /* Computes strips [first, last) of all rows; `after` are the weights of what is probably this
     * thread's next one. */
    void (*compute)(const pw_linear_job *job, int64_t first, int64_t last, const uint32_t *after);
} pw_linear_kernel;

/* A strip of the weights, in memory. */
static inline const uint32_t *pw_strip(const pw_linear_weights *weights, int64_t strip) {
    return weights->weights + strip * weights->words * PW_STRIP;
}

/* call(n) with n as a constant, which is `rows`, so that the compiler makes one tile of each number of
 * rows and keeps all of its sums in registers. */
#define PW_FOR_ROWS(rows, call) \
    switch (rows) {             \
        PW_CASE(1, call)        \
        PW_CASE(2, call)        \
        PW_CASE(3, call)        \
        PW_CASE(4, call)        \
        PW_CASE(5, call)        \
        PW_CASE(6, call)        \
        PW_CASE(7, call)        \
        PW_CASE(8, call)        \
    }
#define PW_CASE(n, call)      \
    case n:                   \
        if (n <= TILE_ROWS) { \
            call(n);          \
        }                     \
        break;

/* NULL for weights of a type that this machine has no such instruction for; there is always one for
 * groups, and the one for floats is for all that are not grouped. */
const pw_linear_kernel *pw_linear_floats(void);
const pw_linear_kernel *pw_linear_words(int64_t weights_type);
const pw_linear_kernel *pw_linear_tiles(int64_t weights_type);
const pw_linear_kernel *pw_linear_groups(int64_t weights_type);

#endif
