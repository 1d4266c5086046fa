/* The gated delta rule for one element type, T. */
#include "processor/typed.template.h"

/* 1 over the length of a key or query. */
static float TYPED(shorten)(const ELEMENT *row, int64_t dim) {
    vf squares = v_set(0.0f);
    for (int64_t i = 0; i < dim; i += LANES) {
        const vf x = LOAD_SOME(row + i, dim - i);
        squares = v_fma(x, x, squares);
    }
    return 1.0f / sqrtf(v_sum(squares) + 1e-6f);
}

static void TYPED(prepare_quad)(const pw_delta *call, int64_t head, int64_t token, int64_t count,
                                delta_quad *quad) {
    const int64_t dim = call->key_dim, heads = call->value_heads;
    const int64_t key_head = head / (heads / call->key_heads);
    const ELEMENT *queries[QUAD], *keys[QUAD];
    const float *decays[QUAD];
    float query_factors[QUAD], key_factors[QUAD];
    for (int t = 0; t < QUAD; t++) {
        const int64_t row = token + pw_least(t, count - 1); /* those that are not count nothing */
        queries[t] = (const ELEMENT *)call->q + row * call->q_row + key_head * dim;
        keys[t] = (const ELEMENT *)call->k + row * call->k_row + key_head * dim;
        decays[t] = call->decay + (row * heads + head) * (call->has_decays ? dim : 1);
        const bool is_there = t < count;
        query_factors[t] = is_there ? TYPED(shorten)(queries[t], dim) / sqrtf((float)dim) : 0.0f;
        key_factors[t] = is_there ? TYPED(shorten)(keys[t], dim) : 0.0f;
        quad->beta[t] = is_there ? call->beta[row * heads + head] : 0.0f;
    }
    quad->token = token, quad->count = count;
    vf known[8], given[12], kept[QUAD];
    for (int i = 0; i < 12; i++) {
        known[i % 8] = given[i] = v_set(0.0f);
    }
    for (int t = 0; t < QUAD; t++) {
        kept[t] = t < count && !call->has_decays ? v_exp(v_set(decays[t][0])) : v_set(1.0f);
    }
    for (int64_t i = 0; i < dim; i += LANES) {
        vf q[QUAD], k[QUAD], product = v_set(1.0f);
        for (int t = 0; t < QUAD; t++) {
            q[t] = v_mul(LOAD_SOME(queries[t] + i, dim - i), v_set(query_factors[t]));
            k[t] = v_mul(LOAD_SOME(keys[t] + i, dim - i), v_set(key_factors[t]));
            if (call->has_decays && t < count) {
                kept[t] = v_exp(v_load_some_f32(decays[t] + i, dim - i));
            }
            product = v_mul(product, kept[t]);
            v_store_f32(quad->keys[t] + i, v_mul(k[t], product));
            v_store_f32(quad->queries[t] + i, v_mul(q[t], product));
        }
        v_store_f32(quad->decay + i, product);
#pragma GCC unroll 4
        for (int early = 0; early < QUAD; early++) {
            vf key = k[early];
            given[PAIR(early, early)] = v_fma(q[early], key, given[PAIR(early, early)]);
#pragma GCC unroll 4
            for (int late = early + 1; late < QUAD; late++) {
                key = v_mul(key, kept[late]);
                const int pair = PAIR(late, early), strict = STRICT_PAIR(late, early);
                given[pair] = v_fma(q[late], key, given[pair]);
                known[strict] = v_fma(k[late], key, known[strict]);
            }
            v_store_f32(quad->added[early] + i, key);
        }
    }
    for (int i = 0; i < 12; i += 4) {
        v_sum_four(given + i, quad->given + i);
        v_sum_four(known + i % 8, quad->known + i % 8);
    }
}

/* What the tokens of a quad learn, and their results, of what they have found in the state. */
PW_INLINE void TYPED(learn)(const pw_delta *call, int64_t head, const delta_quad *quad,
                            int64_t column, vf known[QUAD][WIDE], vf found[QUAD][WIDE],
                            vf learnt[QUAD][WIDE], int vectors, int tokens) {
#pragma GCC unroll 8
    for (int w = 0; w < vectors; w++) {
        const int64_t first = column + w * LANES, left = call->value_dim - first;
#pragma GCC unroll 4
        for (int late = 0; late < tokens; late++) {
            const int64_t row = quad->token + late;
            vf known_now = known[late][w], result = found[late][w], unknown = v_set(0.0f);
            for (int early = 0; early < late; early++) {
                const vf factor = v_set(quad->known[STRICT_PAIR(late, early)]);
                known_now = v_fma(factor, learnt[early][w], known_now);
            }
            if (late < quad->count) {
                const ELEMENT *value = (const ELEMENT *)call->v + row * call->v_row;
                value += head * call->value_dim + first;
                unknown = v_sub(LOAD_SOME(value, left), known_now);
            }
            learnt[late][w] = v_mul(unknown, v_set(quad->beta[late]));
            for (int early = 0; early <= late; early++) {
                const vf factor = v_set(quad->given[PAIR(late, early)]);
                result = v_fma(factor, learnt[early][w], result);
            }
            if (late < quad->count) {
                const int64_t place = (row * call->value_heads + head) * call->value_dim + first;
                STORE_SOME((ELEMENT *)call->output + place, result, left);
            }
        }
    }
}

/* Some quads of a head, in so many vectors of columns. Between the first and the last pass the
 * columns lie in `scratch`. */
PW_INLINE void TYPED(go_through)(const pw_delta *call, int64_t head, const delta_quad *quads,
                                 int64_t num_quads, int64_t column, delta_columns from,
                                 delta_columns scratch, delta_columns to, int vectors,
                                 int tokens) {
    vf learnt[QUAD][WIDE], known[QUAD][WIDE], found[QUAD][WIDE];
    clear_delta(known, found, vectors, tokens);
    pass_delta(from, from, call->key_dim, NULL, learnt, quads, known, found, vectors, tokens);
    TYPED(learn)(call, head, quads, column, known, found, learnt, vectors, tokens);
    for (int64_t i = 1; i < num_quads; i++, from = scratch) {
        clear_delta(known, found, vectors, tokens);
        pass_delta(from, scratch, call->key_dim, quads + i - 1, learnt, quads + i, known, found,
                   vectors, tokens);
        TYPED(learn)(call, head, quads + i, column, known, found, learnt, vectors, tokens);
    }
    pass_delta(from, to, call->key_dim, quads + num_quads - 1, learnt, NULL, NULL, NULL, vectors,
               tokens);
}

static void TYPED(one_wide)(const pw_delta *call, int64_t head, const delta_quad *quads,
                            int64_t column, delta_columns from, delta_columns to) {
    TYPED(go_through)(call, head, quads, 1, column, from, to, to, WIDE, 1);
}

static void TYPED(one_narrow)(const pw_delta *call, int64_t head, const delta_quad *quads,
                              int64_t column, delta_columns from, delta_columns to) {
    TYPED(go_through)(call, head, quads, 1, column, from, to, to, NARROW, 1);
}

static void TYPED(all_narrow)(const pw_delta *call, int64_t head, const delta_quad *quads,
                              int64_t num_quads, int64_t column, delta_columns from,
                              delta_columns scratch, delta_columns to) {
    TYPED(go_through)(call, head, quads, num_quads, column, from, scratch, to, NARROW, QUAD);
}

/* Columns that are not whole vectors go through a copy, with zeros beyond. */
static void TYPED(narrow_columns)(const pw_delta *call, int64_t head, const delta_quad *quads,
                                  int64_t num_quads, int64_t column, delta_columns from,
                                  delta_columns to, float *copy) {
    const int64_t dim = call->key_dim, width = NARROW * LANES;
    const int64_t left = pw_least(call->value_dim - column, width);
    const delta_columns scratch = {copy, width}, target = to;
    if (left < width) {
        for (int64_t i = 0; i < dim; i++) {
            memset(copy + i * width, 0, (size_t)width * sizeof *copy);
            memcpy(copy + i * width, from.rows + i * from.row, (size_t)left * sizeof *copy);
        }
        from = to = scratch;
    }
    if (num_quads == 1 && quads->count == 1) {
        TYPED(one_narrow)(call, head, quads, column, from, to);
    } else {
        TYPED(all_narrow)(call, head, quads, num_quads, column, from, scratch, to);
    }
    for (int64_t i = 0; left < width && i < dim; i++) {
        memcpy(target.rows + i * target.row, copy + i * width, (size_t)left * sizeof *copy);
    }
}

static _Thread_local pw_kept TYPED(kept_quads);

/* Up to STRETCH tokens of a head, from the state `source`, or from zeros, to `target`. */
static void TYPED(stretch)(const pw_delta *call, int64_t head, int64_t token, int64_t count,
                           float *source, float *target) {
    static float zeros[WIDE * LANES];
    const int64_t dim = call->value_dim, num_quads = pw_ceiling(count, QUAD);
    size_t bytes = 0;
    const size_t quads_at = pw_carve(&bytes, num_quads * (int64_t)sizeof(delta_quad));
    const size_t copy_at = pw_carve(&bytes, call->key_dim * NARROW * LANES * 4);
    char *memory = pw_keep(&TYPED(kept_quads), bytes);
    delta_quad *quads = (delta_quad *)(memory + quads_at);
    for (int64_t i = 0; i < num_quads; i++) {
        const int64_t some = pw_least(count - i * QUAD, QUAD);
        TYPED(prepare_quad)(call, head, token + i * QUAD, some, quads + i);
    }
    for (int64_t column = 0; column < dim;) {
        const delta_columns to = {target + column, dim};
        delta_columns from = {zeros, 0};
        if (source) {
            from = (delta_columns){source + column, dim};
        }
        if (count == 1 && dim - column >= WIDE * LANES) {
            TYPED(one_wide)(call, head, quads, column, from, to);
            column += WIDE * LANES;
        } else {
            float *copy = (float *)(memory + copy_at);
            TYPED(narrow_columns)(call, head, quads, num_quads, column, from, to, copy);
            column += NARROW * LANES;
        }
    }
}

static void TYPED(delta)(const pw_delta *call, int64_t head, int64_t begin, int64_t end) {
    const pw_states *states = &call->states;
    const int64_t most = states->one_by_one ? 1 : STRETCH;
    for (int64_t run = begin; run < end; run++) {
        float *source = pw_unit(states, states->sources, run, head);
        float *target = pw_unit(states, states->targets, run, head);
        for (int64_t token = states->starts[run]; token < states->starts[run + 1];) {
            const int64_t count = pw_least(states->starts[run + 1] - token, most);
            TYPED(stretch)(call, head, token, count, source, target);
            token += count;
            source = target;
        }
    }
}

#include "processor/typed_end.template.h"
