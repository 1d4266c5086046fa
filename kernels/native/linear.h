/* Products of rows of activations with packed weights; see linear.c. */
#ifndef PW_LINEAR_H
#define PW_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu.h"

enum { PW_FLOAT32, PW_BFLOAT16, PW_INT8, PW_INT4 };

enum {
    PW_STRIP = 16, /* output columns that lie together in memory */
    PW_BLOCK = 64, /* inputs that are rotated together; see linear_rows.h */
    PW_GROUP = 32, /* inputs whose weights of 4 bits share a scale and a minimum */
    PW_CODES = PW_GROUP * PW_STRIP / 2, /* bytes of a group's weights, of a whole strip */
    PW_GROUP_BYTES = PW_CODES + 2 * 2 * PW_STRIP,
    PW_GROUP_WORDS = PW_GROUP_BYTES / 4 / PW_STRIP,
};

/* A matrix [out_features, in_features], packed in strips of 16 output columns: a strip is `words`
 * rows of 16 words of 4 bytes, and a word holds the 1 (float32), 2 (bfloat16) or 4 (int8) weights
 * of its column for neighbouring inputs. Vector and tile instructions alike want them so. `words`
 * is a multiple of 16; whatever lies beyond in_features and out_features is 0. Weights in int8 are
 * rotated, block by block.
 *
 * In 4 bits a strip is a row of groups of 32 inputs, `words` counts 5 for each, and their number is
 * even. A group is 4 x 16 words of 4 bytes, then 16 scales and 16 minima in half precision. A byte of
 * line i and its byte j hold the code of input 4 i + j in their low bits, and that of 16 + 4 i + j in
 * their high ones; a weight is its column's scale times its code plus its column's minimum. */
typedef struct {
    int64_t in_features;
    int64_t out_features;
    int64_t words;
    int64_t type; /* of the weights */
    const uint32_t *weights;
    const float *bias;    /* NULL, or one for each column, those beyond out_features included */
    const float *scales;  /* likewise, only for int8: what a weight of 1 stands for */
    const int32_t *zeros; /* likewise, only for int8: 128 times the sum of the weights */
} pw_linear_weights;

/* 32 inputs in int8. */
typedef struct {
    float scale; /* what a value of 1 stands for */
    float sum;   /* of the values, scaled */
    int8_t values[PW_GROUP];
} pw_input_group;

/* One product: outputs [rows, out_features] = inputs [rows, in_features] times the weights. */
typedef struct {
    const pw_linear_weights *weights;
    int64_t rows;
    int64_t type; /* of inputs and outputs: float32 or bfloat16 */
    const void *inputs;
    void *outputs;
    const char *operand;    /* the inputs as the kernel reads them: its type, padded to `words` */
    int64_t operand_stride; /* bytes from row to row */
    float *row_scales;      /* if it is int8: what a 1 in that row stands for */
} pw_linear_job;

/* What one instruction set brings. */
typedef struct {
    int64_t operand_type; /* float32, bfloat16, int8 moved up by 128 to have no sign, or
                             * PW_INT4: groups of inputs */
    int64_t strips;       /* that are computed together */
    /* Writes rows [first, last) of the operand; a row in float32 fits into `spare`. */
    void (*prepare)(const pw_linear_job *job, char *operand, float *spare, int64_t first,
                    int64_t last);
    /* Computes strips [first, last) of all rows; strip `after` is probably this thread's next. */
    void (*compute)(const pw_linear_job *job, int64_t first, int64_t last, int64_t after);
} pw_linear_kernel;

/* Only on x86-64, at levels from PW_AMX, PW_AVX512_BF16 and PW_AVX512 on. Each NULL for weights of a
 * type that it has no instruction for, and the last where the machine has none for int8. */
const pw_linear_kernel *pw_linear_amx(int64_t weights_type);
const pw_linear_kernel *pw_linear_pairs(int64_t weights_type);
const pw_linear_kernel *pw_linear_vnni(int64_t weights_type);

/* For weights of 4 bits, at any level. */
const pw_linear_kernel *pw_linear_int4(void);

/* outputs [rows, out_features] = inputs [rows, in_features] times the weights; `type` is theirs. */
PW_EXPORT void pw_linear(const pw_linear_weights *weights, int64_t rows, int64_t type,
                         const void *inputs, void *outputs);

/* Whether this machine has that path for weights of that type. */
PW_EXPORT int64_t pw_linear_has_path(int64_t type, int64_t path);

/* Multiply weights of that type by that path from now on, or by the next one below that there is.
 * Results of different paths differ in their roundings, so it is chosen before anything is computed;
 * it never depends on the number of rows. */
PW_EXPORT void pw_linear_use_path(int64_t type, int64_t path);

#endif
