/* Attention of a few rows of one KV head over some keys, and what happens to the result of any, for
 * one element type of queries and instruction set.
 *
 * Included with T as the type's name. */

#include "processor/typed.template.h"

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
    return (const ELEMENT *)call->query + pw_row_token(item, row) * call->query_token +
           pw_row_head(item, row) * call->query_head;
}

static void TYPED(merge)(const pw_attention *call, const float *const *sums,
                         float *const *statistics, int64_t count, float sink, void *output) {
    const int64_t dim = call->value_dim;
    const float total = merge_weights(statistics, count, sink);
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

/* Hand a row's sums on: as they are, or divided by their weights as the final result. A sink is merged
 * as with several parts, for the same bits. */
static inline void TYPED(finish)(const pw_item *item, int64_t row, const float *sums, float highest,
                                 float total) {
    const pw_attention *call = item->call;
    if (item->sums) {
        memcpy(item->sums + row * call->value_dim, sums, (size_t)call->value_dim * sizeof *sums);
        item->statistics[2 * row] = highest;
        item->statistics[2 * row + 1] = total;
        return;
    }
    const int64_t head = pw_row_head(item, row);
    const int64_t place = pw_row_token(item, row) * call->num_heads + head;
    ELEMENT *output = (ELEMENT *)call->output + place * call->value_dim;
    if (call->sinks) {
        float statistics[] = {highest, total}, *only = statistics;
        TYPED(merge)(call, &sums, &only, 1, pw_sink(call, head), output);
        return;
    }
    TYPED(narrow)(sums, 1.0f / total, output, call->value_dim);
}

/* Scores of a constant number of rows, and sums by their weights, of whatever the blocks hold. */
PW_INLINE void TYPED(score_rows)(const pw_attention *call, const float *query, int num_rows,
                                 const int64_t *offsets, int64_t num_keys, float *scores) {
    if (call->is_quantized) {
        score_few_i8(query, num_rows, call->head_dim, call->kv, offsets, num_keys, scores);
    } else {
        TYPED(score_few)(query, num_rows, call->head_dim, call->kv, offsets, num_keys, scores);
    }
}

PW_INLINE void TYPED(add_rows)(const pw_attention *call, const float *weights, int num_rows,
                               const int64_t *offsets, int64_t num_keys, float *sums) {
    if (call->is_quantized) {
        const pw_i8 *values = (const pw_i8 *)call->kv + call->kv_value;
        add_few_i8(weights, num_rows, call->value_dim, values, offsets, num_keys, sums);
    } else {
        const ELEMENT *values = (const ELEMENT *)call->kv + call->kv_value;
        TYPED(add_few)(weights, num_rows, call->value_dim, values, offsets, num_keys, sums);
    }
}

static void TYPED(attend_few)(const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, num_keys = item->end - item->begin;
    float *query = scratch, *sums = query + FEW * dim, *scores = sums + FEW * dim;
    int64_t *offsets = (int64_t *)(scores + FEW * PW_SPLIT);
    key_offsets(item, item->begin, item->end, offsets);
    for (int64_t first = 0; first < item->num_rows; first += FEW) {
        const int rows = item->num_rows - first < FEW ? (int)(item->num_rows - first) : FEW;
        for (int row = 0; row < rows; row++) {
            TYPED(widen)(TYPED(query_row)(item, first + row), query + row * dim, dim, dim);
        }
#define SCORE(n) TYPED(score_rows)(call, query, n, offsets, num_keys, scores)
#define ADD(n) TYPED(add_rows)(call, scores, n, offsets, num_keys, sums)
        look_ahead(offsets, num_keys, call->kv_value);
        FOR_ROWS(rows, SCORE)
        look_ahead(offsets, num_keys, 0);
        float statistics[FEW][2];
        scale_rows(call, 0, offsets, num_keys, rows, scores);
        weigh_rows(item, first, rows, scores, statistics);
        scale_rows(call, call->kv_value, offsets, num_keys, rows, scores);
        FOR_ROWS(rows, ADD)
#undef ADD
#undef SCORE
        for (int row = 0; row < rows; row++) {
            TYPED(finish)(item, first + row, sums + row * call->value_dim, statistics[row][0],
                          statistics[row][1]);
        }
    }
}

#include "processor/typed_end.template.h"
