/* The decoder layers of a step, one after the other: see kernels/native/decoder.py. */
#ifndef PW_DECODER_H
#define PW_DECODER_H

#include "attention/attention.h"
#include "linear/linear.h"

typedef struct {
    const void *weight; /* NULL: there is no such norm */
    const void *bias;
    int64_t is_f32, centres;
    double eps;
} pw_norm_weight;

typedef struct {
    const pw_linear_weights *qkv, *out, *gate_up, *down;
    pw_norm_weight before_attention, after_attention, before_mlp, after_mlp, query, key;
    pw_norm_weight all_queries, all_keys;
    const float *cos, *sin; /* [num_positions, half] */
    int64_t half, window, activation, is_parallel, is_plain;
    double scale, softcap;
} pw_layer;

typedef struct {
    const int64_t *positions, *slots; /* [num_tokens] */
    void *residual; /* [num_tokens, dim]: the embeddings, then the sum of all updates but the last */
    void *update;   /* [num_tokens, dim]: the last layer's update */
    int64_t num_tokens;
    int64_t kv_layer; /* elements from one layer's KV to the next one's */
} pw_step;

/* `attention` is the first layer's, but for query, output, window, scale and softcap.
 * Returns 0, or -1 where there is no memory for what lies between two operations. */
PW_EXPORT int pw_decode(const pw_layer *layers, int64_t num_layers, const pw_step *step,
                        const pw_attention *attention);

#endif
