/* Matrices as products read them: packed by `pw_linear_pack`, or by Python where they are grouped. */
#ifndef PW_LINEAR_WEIGHTS_H
#define PW_LINEAR_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

enum { PW_FLOAT32, PW_BFLOAT16, PW_INT8, PW_INT4_GROUPS, PW_INT8_GROUPS, PW_FP4_GROUPS };

enum {
    PW_STRIP = 16, /* output columns that lie together in memory */
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
 * times its code plus its column's minimum. Codes of floats of 4 bits lie as those of 4 bits do, and
 * stand for what `pw_float_steps` has in their place. */
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

/* Lines of a group of weights. */
static inline int64_t pw_group_lines(int64_t type) { return type == PW_INT8_GROUPS ? 9 : 5; }

/* E2M1, in halves above the least of its numbers: kernels/weight_format.py. */
static const uint8_t pw_float_steps[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};

/* Inputs of a row, padding included. */
static inline int64_t pw_padded_inputs(const pw_linear_weights *weights) {
    switch (weights->type) {
    case PW_FLOAT32: return weights->words;
    case PW_BFLOAT16: return weights->words * 2;
    case PW_INT8: return weights->words * 4;
    default: return weights->words / pw_group_lines(weights->type) * PW_GROUP;
    }
}

#endif
