/* Products of a few rows with keys, and sums of values by their weights, for one element type of the
 * KV memory and instruction set.
 *
 * Included with T as the type's name. Each key is read from its block once and multiplied with every
 * row; the lanes run along the head. Codes are taken as they are, without their scales. */

#include "processor/typed.template.h"

/* scores[row][key] = query[row] . key, for num_rows rows (a constant where this is inlined). */
PW_INLINE void TYPED(score_few)(const float *query, int num_rows, int64_t dim, const ELEMENT *base,
                                const int64_t *offsets, int64_t num_keys, float *scores) {
    for (int64_t key = 0; key < num_keys; key += AT_ONCE) {
        const ELEMENT *keys[AT_ONCE];
        vf sums[FEW][AT_ONCE] = {{{0}}};
        for (int k = 0; k < AT_ONCE; k++) {
            keys[k] = base + offsets[key + k];
            prefetch(base + offsets[key + k + AHEAD], dim * (int64_t)sizeof(ELEMENT));
        }
        for (int64_t i = 0; i < dim; i += LANES) {
            vf loaded[AT_ONCE];
            for (int k = 0; k < AT_ONCE; k++) {
                loaded[k] = LOAD(keys[k] + i);
            }
            for (int row = 0; row < num_rows; row++) {
                const vf part = v_load_f32(query + row * dim + i);
                for (int k = 0; k < AT_ONCE; k++) {
                    sums[row][k] = v_fma(part, loaded[k], sums[row][k]);
                }
            }
        }
        for (int row = 0; row < num_rows; row++) {
            v_sum_four(sums[row], scores + row * PW_SPLIT + key);
        }
    }
}

/* output[row] = the sum of weights[row][key] * value, for `width` vectors of the head. */
PW_INLINE void TYPED(add_strip)(const float *weights, int num_rows, int width, int64_t dim,
                                const ELEMENT *base, const int64_t *offsets, int64_t num_keys,
                                float *output) {
    vf sums[FEW][STRIP] = {{{0}}};
    for (int64_t key = 0; key < num_keys; key++) {
        vf loaded[STRIP];
        prefetch(base + offsets[key + AHEAD], width * LANES * (int64_t)sizeof(ELEMENT));
        for (int s = 0; s < width; s++) {
            loaded[s] = LOAD(base + offsets[key] + s * LANES);
        }
        for (int row = 0; row < num_rows; row++) {
            const vf weight = v_set(weights[row * PW_SPLIT + key]);
            for (int s = 0; s < width; s++) {
                sums[row][s] = v_fma(weight, loaded[s], sums[row][s]);
            }
        }
    }
    for (int row = 0; row < num_rows; row++) {
        for (int s = 0; s < width; s++) {
            v_store_f32(output + row * dim + s * LANES, sums[row][s]);
        }
    }
}

PW_INLINE void TYPED(add_few)(const float *weights, int num_rows, int64_t dim, const ELEMENT *base,
                              const int64_t *offsets, int64_t num_keys, float *output) {
    int64_t i = 0;
    for (; i + STRIP * LANES <= dim; i += STRIP * LANES) {
        TYPED(add_strip)(weights, num_rows, STRIP, dim, base + i, offsets, num_keys, output + i);
    }
    for (; i < dim; i += LANES) {
        TYPED(add_strip)(weights, num_rows, 1, dim, base + i, offsets, num_keys, output + i);
    }
}

#include "processor/typed_end.template.h"
