/* The decoder layers of a step, one after the other: see kernels/native/decoder.py. */
#ifndef PW_DECODER_H
#define PW_DECODER_H

#include "adapters/adapters.h"
#include "attention/attention.h"
#include "experts/experts.h"
#include "linear/linear.h"

typedef struct {
    const void *weight; /* NULL: there is no such norm */
    const void *bias;
    int64_t is_f32, centres;
    double eps;
} pw_norm_weight;

/* Experts, and the router that gives each token a few of them. */
typedef struct {
    pw_routing routing;
    const pw_experts *experts;
    const pw_linear_weights *router;      /* of float32 */
    const pw_linear_weights *shared_gate; /* of float32: one number a token; NULL: there is none */
} pw_mixture;

/* A layer without a mixture has a network, `gate_up` and `down`, and one with a mixture may have one
 * beside it. */
typedef struct {
    const pw_linear_weights *qkv, *out, *gate_up, *down;
    const pw_mixture *mixture;
    const float *sinks; /* as in pw_attention */
    pw_norm_weight before_attention, after_attention, before_mlp, after_mlp, query, key;
    pw_norm_weight all_queries, all_keys;
    const float *cos, *sin; /* [num_positions, half] */
    int64_t half, window, activation, is_parallel, is_plain;
    double scale, softcap;
} pw_layer;

/* Where a layer keeps its keys and values: the strides within a page are those of all layers. */
typedef struct {
    void *kv;       /* in page 0 */
    int64_t column; /* which tables and slots name its pages */
} pw_cache;

/* The pages of all sequences, for some layers. */
typedef struct {
    const int32_t *tables; /* as in pw_attention */
    const int64_t *slots;  /* [num_tokens] */
} pw_column;

typedef struct {
    const int64_t *positions; /* [num_tokens] */
    void *residual; /* [num_tokens, dim]: the embeddings, then the sum of all updates but the last */
    void *update;   /* [num_tokens, dim]: the last layer's update */
    int64_t num_tokens;
    const pw_adapted_rows *adapters; /* [num_adapters] */
    int64_t num_adapters;
} pw_step;

/* `attention` is the first layer's, but for query, output, kv, tables, window, scale, softcap and sinks.
 * Returns 0, or -1 where there is no memory for what lies between two operations. */
PW_EXPORT int pw_decode(const pw_layer *layers, const pw_cache *caches, int64_t num_layers,
                        const pw_column *columns, const pw_step *step,
                        const pw_attention *attention);

#endif
