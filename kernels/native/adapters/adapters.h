/* What low-rank adapters add to products: see kernels/adapters.py. */
#ifndef PW_ADAPTERS_H
#define PW_ADAPTERS_H

#include <stdbool.h>

#include "processor/cpu.h"

/* Ranks that one part has, at most. */
#define PW_MOST_RANKS 256

/* The products of a layer that may have adapters. */
enum {
    PW_OF_QKV, PW_OF_OUT, PW_OF_GATE_UP, PW_OF_DOWN, PW_OF_EXPERTS_GATE_UP, PW_OF_EXPERTS_DOWN,
    PW_NUM_ADAPTED
};

/* Some ranks of a change to a product, in the rows' type. */
typedef struct {
    const void *down; /* [rank, in_features] */
    const void *up;   /* [rank, width]: to the outputs from `column` on */
    int64_t rank, in_features, width, column;
    int64_t first_expert, num_experts; /* whose ranks these are, as many of each; 0: for all rows */
    double scale;
} pw_low_rank;

/* All of an adapter's change to one product. */
typedef struct {
    const pw_low_rank *parts;
    int64_t num_parts;
} pw_change;

/* The rows of a step that have an adapter. */
typedef struct {
    const pw_change *changes; /* [num_layers, PW_NUM_ADAPTED], or that of the one product */
    const int64_t *rows;      /* [num_rows] */
    int64_t num_rows;
} pw_adapted_rows;

typedef struct {
    const pw_adapted_rows *adapters; /* [num_adapters] */
    const void *inputs;              /* rows input_row apart */
    void *outputs;                   /* rows output_row apart; added to */
    const int32_t *sources;          /* which input each row has; NULL: that of its own number */
    int64_t num_adapters, change;    /* which of each adapter's changes */
    int64_t input_row, output_row;
    int64_t type, output_type; /* the inputs' and weights'; that or float32 */
} pw_adaptation;

/* A row's result depends on no other row. */
PW_EXPORT void pw_adapt(const pw_adaptation *call);

/* What some adapters change in one product of all experts. */
typedef struct {
    const pw_adapted_rows *adapters; /* by tokens */
    int64_t num_adapters, change;
    int64_t first_token, num_tokens; /* those that are computed */
    const int64_t *ends;             /* [num_experts]: of the rows of each, which stand together */
    const int32_t *tokens;           /* [rows]: the token of each row, counted from the first one */
    int64_t num_experts;
} pw_expert_rows;

/* The same, where `call` says neither adapters nor a change. */
void pw_adapt_experts(const pw_expert_rows *rows, const pw_adaptation *call);

/* The code for one instruction set: of rows that have one adapter. */
typedef struct {
    void (*adapt[PW_NUM_TYPES])(const pw_adaptation *call, const pw_change *change,
                                const int64_t *rows, int64_t num_rows);
} pw_adapters_code;

extern const pw_adapters_code pw_adapters_plain, pw_adapters_avx2, pw_adapters_avx512;

#endif
