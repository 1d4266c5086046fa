/* Products of rows of activations with packed weights; see linear.c. */
#ifndef PW_LINEAR_H
#define PW_LINEAR_H

#include "processor/cpu.h"
#include "weights.h"

/* outputs [rows, out_features] = inputs [rows, in_features] times the weights; `type` is theirs. */
PW_EXPORT void pw_linear(const pw_linear_weights *weights, int64_t rows, int64_t type,
                         const void *inputs, void *outputs);

/* Neighbouring rows, and the matrix that multiplies them. */
typedef struct {
    const pw_linear_weights *weights;
    int64_t rows; /* at least 1 */
} pw_linear_run;

/* Products by several matrices of one shape and type, computed together. */
typedef struct {
    const pw_linear_run *runs; /* one after the other */
    int64_t num_runs, rows;    /* of all runs */
    int64_t num_inputs;
    const void *inputs;     /* [num_inputs, in_features] */
    const int32_t *sources; /* [rows]: which input a row is; NULL: each that of its own number */
    void *outputs;          /* [rows, out_features] */
    int64_t type, output_type;
} pw_linear_product;

/* Each row has the bits that it has in a product of its own. */
void pw_linear_runs(const pw_linear_product *product);

/* Whether this machine has that path for weights of that type. */
PW_EXPORT int64_t pw_linear_has_path(int64_t type, int64_t path);

/* Multiply weights of that type by that path from now on, or by the next one below that there is.
 * Results of different paths differ in their roundings, so it is chosen before anything is computed;
 * it never depends on the number of rows. */
PW_EXPORT void pw_linear_use_path(int64_t type, int64_t path);

/* Reorders a matrix of `rows` output columns, each `words` long (a multiple of 16), to strips. */
PW_EXPORT void pw_linear_pack(const uint32_t *from, int64_t rows, int64_t words, uint32_t *to);

#endif
