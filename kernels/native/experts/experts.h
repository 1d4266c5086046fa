/* Networks of which each token goes through a few: see kernels/experts.py. */
#ifndef PW_EXPERTS_H
#define PW_EXPERTS_H

#include "adapters/adapters.h"
#include "linear/weights.h"
#include "processor/cpu.h"

#define PW_MOST_EXPERTS 1024

typedef enum { PW_SOFTMAX, PW_SIGMOID, PW_SOFTMAX_NEAR_BEST } pw_scores;

/* As kernels.types.Routing has it. */
typedef struct {
    const float *correction; /* [num_experts], or NULL */
    int64_t num_experts;     /* at most PW_MOST_EXPERTS */
    int64_t per_token, scores, num_groups, kept_groups, is_normalised;
    double least_sum, scale, margin;
} pw_routing;

/* The matrices of a layer's experts, one after the other: of one shape and type each. */
typedef struct {
    const pw_linear_weights *const *gate_up, *const *down;
    int64_t num_experts, activation;
    int64_t *uses; /* [num_experts + 2]: see kernels.types.Experts */
} pw_experts;

typedef struct {
    const pw_experts *experts;
    const void *inputs;    /* [num_tokens, hidden_size] */
    const int32_t *chosen; /* [num_tokens, per_token] */
    const float *shares;   /* likewise */
    void *outputs;         /* as the inputs; may not be where they are */
    int64_t num_tokens, per_token;
    int64_t type; /* float32 or bfloat16 */
    const pw_adapted_rows *adapters; /* by tokens */
    int64_t num_adapters, gate_up, down; /* which of each adapter's changes are of these products */
} pw_mixing;

typedef struct {
    void *update;
    const void *shared;
    const float *gates; /* [num_tokens] */
    int64_t num_tokens, dim, type;
} pw_addition;

/* Each token's experts and their shares, [num_tokens, per_token], from [num_tokens, num_experts]. */
PW_EXPORT void pw_route(const pw_routing *routing, const float *logits, int64_t num_tokens,
                        int32_t *chosen, float *shares);

PW_EXPORT void pw_mix_experts(const pw_mixing *call);

/* Adds to `update` what the network beside the experts gives, `shared`, each token's times the sigmoid
 * of its gate; no gates: NULL. Both are [num_tokens, dim] of `type`. */
PW_EXPORT void pw_add_shared(const pw_addition *call);

#endif
