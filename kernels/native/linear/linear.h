/* Products of rows of activations with packed weights; see linear.c. */
#ifndef PW_LINEAR_H
#define PW_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "processor/cpu.h"

enum { PW_FLOAT32, PW_BFLOAT16, PW_INT8, PW_INT4_GROUPS, PW_INT8_GROUPS };

enum {
    PW_STRIP = 16, /* output columns that lie together in memory */
    PW_BLOCK = 64, /* inputs that are rotated together; see rows.template.h */
    PW_GROUP = 32, /* inputs whose weights share a scale and a minimum, where they are grouped */
    PW_LINE = 4 * PW_STRIP, /* bytes of a word of each column of a strip */
};

/* A matrix [out_features, in_features], packed in strips of 16 output columns: a strip is `words`
 * rows of 16 words of 4 bytes, and a word holds the 1 (float32), 2 (bfloat16) or 4 (int8) weights
 * of its column for neighbouring inputs. Vector and tile instructions alike want them so. `words`
 * is a multiple of 16; whatever lies beyond in_features and out_features is 0. Weights in int8 are
 * rotated, block by block.
 *
 * In groups a strip is a row of groups of 32 inputs, and their number is even. A group is lines of 16
 * words of 4 bytes, then a line of 16 scales and 16 minima in half precision; `words` counts all
 * lines. In 8 bits, byte j of a word of line i is the code of input 4 i + j. In 4 bits it holds that
 * code in its low bits, and that of input 16 + 4 i + j in its high ones. A weight is its column's scale
 * times its code plus its column's minimum. */
typedef struct {
    int64_t in_features;
    int64_t out_features;
    int64_t words;
    int64_t type; /* of the weights */
    const uint32_t *weights;
    const float *bias;    /* NULL, or one for each column, those beyond out_features included */
    const float *scales;  /* likewise, for int8: what a weight of 1 stands for; for groups: NULL, or
                           * what their scales and minima are multiplied by */
    const int32_t *zeros; /* likewise, only for int8: 128 times the sum of the weights */
} pw_linear_weights;

static inline bool pw_is_grouped(int64_t type) { return type >= PW_INT4_GROUPS; }

/* Lines of a group of weights. */
static inline int64_t pw_group_lines(int64_t type) { return type == PW_INT4_GROUPS ? 5 : 9; }

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
                           * PW_INT8_GROUPS: groups of inputs */
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

/* For weights in groups, at any level. */
const pw_linear_kernel *pw_linear_grouped(void);

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
