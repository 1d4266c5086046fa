/* Attention of a few rows of one KV head over some keys, and what happens to the result of any, for
 * one element type and instruction set.
 *
 * Included with T as the type's name. Each key is read from its block once and multiplied with every
 * row; the lanes run along the head. */

#include "typed.h"

/* target[0 .. padded) = source[0 .. dim) and zeros. */
static inline void TYPED(widen)(const ELEMENT *source, float *target, int64_t dim, int64_t padded) {
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        v_store_f32(target + i, LOAD(source + i));
    }
    if (i < dim) {
        v_store_f32(target + i, LOAD_END(source + i, (int)(dim - i)));
        i += LANES;
    }
    for (; i < padded; i += LANES) {
        v_store_f32(target + i, v_set(0.0f));
    }
}

static inline void TYPED(narrow)(const float *source, float factor, ELEMENT *target, int64_t dim) {
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        STORE(target + i, v_mul(v_load_f32(source + i), v_set(factor)));
    }
    if (i < dim) {
        const vf last = v_load_end_f32(source + i, (int)(dim - i));
        STORE_END(target + i, v_mul(last, v_set(factor)), (int)(dim - i));
    }
}

static inline const ELEMENT *TYPED(query_row)(const pw_item *item, int64_t row) {
    const pw_attention *call = item->call;
    const int64_t group = call->num_heads / call->num_kv_heads;
    const int64_t token = pw_token(call, item->run, (item->row + row) / group);
    const int64_t head = item->head * group + (item->row + row) % group;
    return (const ELEMENT *)call->query + token * call->query_token + head * call->query_head;
}

/* Hand a row's sums on: as they are, or divided by their weights as the final result. */
static inline void TYPED(finish)(const pw_item *item, int64_t row, const float *sums, float highest,
                                 float total) {
    const pw_attention *call = item->call;
    if (item->sums) {
        memcpy(item->sums + row * call->head_dim, sums, (size_t)call->head_dim * sizeof *sums);
        item->statistics[2 * row] = highest;
        item->statistics[2 * row + 1] = total;
        return;
    }
    const int64_t group = call->num_heads / call->num_kv_heads;
    const int64_t token = pw_token(call, item->run, (item->row + row) / group);
    const int64_t head = item->head * group + (item->row + row) % group;
    ELEMENT *output = (ELEMENT *)call->output + (token * call->num_heads + head) * call->head_dim;
    TYPED(narrow)(sums, 1.0f / total, output, call->head_dim);
}

/* scores[row][key] = query[row] . key, for num_rows rows (a constant where this is inlined). */
static inline __attribute__((always_inline)) void TYPED(score_few)(
    const float *query, int num_rows, int64_t dim, const ELEMENT *base, const int64_t *offsets,
    int64_t num_keys, float *scores) {
    for (int64_t key = 0; key < num_keys; key += AT_ONCE) {
        const ELEMENT *keys[AT_ONCE];
        vf sums[FEW][AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) {
            keys[k] = base + offsets[key + k];
            for (int row = 0; row < num_rows; row++) {
                sums[row][k] = v_set(0.0f);
            }
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
static inline __attribute__((always_inline)) void TYPED(add_strip)(
    const float *weights, int num_rows, int width, int64_t dim, const ELEMENT *base,
    const int64_t *offsets, int64_t num_keys, float *output) {
    vf sums[FEW][STRIP];
    for (int row = 0; row < num_rows; row++) {
        for (int s = 0; s < width; s++) {
            sums[row][s] = v_set(0.0f);
        }
    }
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

static inline __attribute__((always_inline)) void TYPED(add_few)(
    const float *weights, int num_rows, int64_t dim, const ELEMENT *base, const int64_t *offsets,
    int64_t num_keys, float *output) {
    int64_t i = 0;
    for (; i + STRIP * LANES <= dim; i += STRIP * LANES) {
        TYPED(add_strip)(weights, num_rows, STRIP, dim, base + i, offsets, num_keys, output + i);
    }
    for (; i < dim; i += LANES) {
        TYPED(add_strip)(weights, num_rows, 1, dim, base + i, offsets, num_keys, output + i);
    }
}

static void TYPED(attend_few)(const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, group = call->num_heads / call->num_kv_heads;
    const int64_t num_keys = item->end - item->begin;
    float *query = scratch, *sums = query + FEW * dim, *scores = sums + FEW * dim;
    int64_t *offsets = (int64_t *)(scores + FEW * PW_SPLIT);
    const ELEMENT *base = (const ELEMENT *)call->kv;
    key_offsets(item, item->begin, item->end, offsets);
    for (int64_t first = 0; first < item->num_rows; first += FEW) {
        const int rows = item->num_rows - first < FEW ? (int)(item->num_rows - first) : FEW;
        for (int row = 0; row < rows; row++) {
            TYPED(widen)(TYPED(query_row)(item, first + row), query + row * dim, dim, dim);
        }
        const ELEMENT *values = base + call->kv_value;
#define SCORE(n) TYPED(score_few)(query, n, dim, base, offsets, num_keys, scores)
#define ADD(n) TYPED(add_few)(scores, n, dim, values, offsets, num_keys, sums)
        look_ahead(offsets, num_keys, call->kv_value);
        FOR_ROWS(rows, SCORE)
        look_ahead(offsets, num_keys, 0);
        float statistics[FEW][2];
        for (int row = 0; row < rows; row++) {
            statistics[row][0] = -INFINITY, statistics[row][1] = 0.0f;
            const int64_t position = item->run->first_position + (item->row + first + row) / group;
            weigh_row(call, scores + row * PW_SPLIT, item->begin, num_keys, position, statistics[row]);
        }
        FOR_ROWS(rows, ADD)
#undef ADD
#undef SCORE
        for (int row = 0; row < rows; row++) {
            TYPED(finish)(item, first + row, sums + row * dim, statistics[row][0],
                          statistics[row][1]);
        }
    }
}

static void TYPED(merge)(const pw_attention *call, const float *const *sums,
                         float *const *statistics, int64_t count, void *output) {
    const int64_t dim = call->head_dim;
    const float total = merge_weights(statistics, count);
    for (int64_t i = 0; i < dim; i += LANES) {
        const int lanes = dim - i < LANES ? (int)(dim - i) : LANES;
        vf sum = v_set(0.0f);
        for (int64_t part = 0; part < count; part++) {
            const float *source = sums[part] + i;
            const vf loaded = lanes == LANES ? v_load_f32(source) : v_load_end_f32(source, lanes);
            sum = v_fma(v_set(statistics[part][1]), loaded, sum);
        }
        sum = v_mul(sum, v_set(1.0f / total));
        if (lanes == LANES) {
            STORE((ELEMENT *)output + i, sum);
        } else {
            STORE_END((ELEMENT *)output + i, sum, lanes);
        }
    }
}

#include "typed_end.h"
