/* A decoder layer's small operations, fused: see kernels/layers.py for what each computes. */
#ifndef PW_LAYERS_H
#define PW_LAYERS_H

#include <stdbool.h>

#include "processor/cpu.h"

#define PW_LONGEST_HEAD 1024

typedef struct {
    void *residual; /* [num_tokens, dim], rows residual_row apart; updated in place */
    const void *update; /* rows update_row apart, or NULL */
    const void *weight; /* [dim], or NULL: there is no output, but the sum */
    const void *bias;   /* [dim], or NULL; where it centres */
    void *output;       /* rows output_row apart; may be where `residual` is */
    int64_t residual_row, update_row, output_row, num_tokens, dim;
    int64_t type;
    int64_t weight_is_f32; /* and bias */
    int64_t centres;       /* each row's mean is taken from it first */
    double eps;
} pw_norm;

typedef struct {
    const void *qkv; /* [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], rows qkv_row apart */
    const float *cos, *sin;   /* [num_positions, half] */
    const int64_t *positions; /* [num_tokens] */
    const int64_t *slots;
    void *kv;
    void *query; /* [num_tokens, num_heads, head_dim] */
    const void *query_weight, *key_weight; /* [head_dim], or NULL */
    int64_t qkv_row, kv_block, kv_value, kv_head, kv_token, block_size;
    int64_t num_tokens, num_heads, num_kv_heads, head_dim, half;
    int64_t type;
    int64_t is_quantized; /* kv: see kernels/kv_format.py */
    int64_t query_weight_is_f32, key_weight_is_f32;
    double eps;
} pw_rotation;

typedef enum { PW_SILU, PW_GELU_TANH, PW_RELU2, PW_CLAMPED_SWIGLU } pw_activation;

typedef struct {
    const void *gate_up; /* [num_tokens, 2 * inter, or inter], rows gate_up_row apart */
    void *output;        /* [num_tokens, inter] */
    int64_t gate_up_row, num_tokens, inter;
    int64_t type;
    int64_t activation;
    int64_t is_plain; /* nothing is gated */
} pw_gating;

/* The code for one instruction set; each but `store` does the tokens from `begin` up to `end`. */
typedef struct {
    void (*norm[PW_NUM_TYPES])(const pw_norm *call, int64_t begin, int64_t end);
    void (*rotate[PW_NUM_TYPES])(const pw_rotation *call, int64_t begin, int64_t end);
    void (*gate[PW_NUM_TYPES])(const pw_gating *call, int64_t begin, int64_t end);
    /* A head of `dim` elements becomes a row of the KV memory: as it is, or, of a multiple of 16, codes
     * and their scale, as kernels/kv_format.py has it. */
    void (*store[PW_NUM_TYPES])(const void *head, int64_t dim, bool is_quantized, char *row);
} pw_layers_code;

extern const pw_layers_code pw_layers_plain, pw_layers_avx2, pw_layers_avx512;

PW_EXPORT void pw_add_rms_norm(const pw_norm *call);
PW_EXPORT void pw_rotate_and_write(const pw_rotation *call);
PW_EXPORT void pw_gate(const pw_gating *call);

#endif
