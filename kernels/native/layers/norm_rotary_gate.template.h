/* The small operations for one element type, T, and instruction set. */
#include "processor/typed.template.h"

static inline vf TYPED(load_weight)(const void *weight, bool is_f32, int64_t i, int64_t left) {
    if (is_f32) {
        const float *p = (const float *)weight + i;
        return left >= LANES ? v_load_f32(p) : v_load_end_f32(p, (int)left);
    }
    return LOAD_SOME((const ELEMENT *)weight + i, left);
}

/* What of a row is above its mean; beyond its end lie zeros. */
static inline vf TYPED(centred)(const ELEMENT *p, float mean, int64_t left) {
    const vf x = v_sub(LOAD_SOME(p, left), v_set(mean));
    if (left >= LANES) {
        return x;
    }
    float end[LANES];
    v_store_f32(end, x);
    return v_load_end_f32(end, (int)left);
}

static float TYPED(mean)(const ELEMENT *row, int64_t dim) {
    vf sum = v_set(0.0f);
    for (int64_t i = 0; i < dim; i += LANES) {
        sum = v_add(sum, LOAD_SOME(row + i, dim - i));
    }
    return v_sum(sum) / (float)dim;
}

static vf TYPED(squares_around)(const ELEMENT *row, int64_t dim, float mean) {
    vf squares = v_set(0.0f);
    for (int64_t i = 0; i < dim; i += LANES) {
        const vf x = TYPED(centred)(row + i, mean, dim - i);
        squares = v_fma(x, x, squares);
    }
    return squares;
}

static inline vf TYPED(shrink)(const pw_norm *call, vf squares) {
    return v_set(1.0f / sqrtf(v_sum(squares) / (float)call->dim + (float)call->eps));
}

static void TYPED(layer_norm)(const pw_norm *call, const ELEMENT *row, ELEMENT *output) {
    const int64_t dim = call->dim;
    const float mean = TYPED(mean)(row, dim);
    const vf factor = TYPED(shrink)(call, TYPED(squares_around)(row, dim, mean));
    for (int64_t i = 0; i < dim; i += LANES) {
        const int64_t left = dim - i;
        const vf x = v_mul(v_sub(LOAD_SOME(row + i, left), v_set(mean)), factor);
        vf y = v_mul(x, TYPED(load_weight)(call->weight, call->weight_is_f32, i, left));
        if (call->bias) {
            y = v_add(y, TYPED(load_weight)(call->bias, call->weight_is_f32, i, left));
        }
        STORE_SOME(output + i, y, left);
    }
}

static void TYPED(norm)(const pw_norm *call, int64_t begin, int64_t end) {
    const int64_t dim = call->dim;
    for (int64_t token = begin; token < end; token++) {
        ELEMENT *residual = (ELEMENT *)call->residual + token * call->residual_row;
        const ELEMENT *update =
            call->update ? (const ELEMENT *)call->update + token * call->update_row : NULL;
        ELEMENT *output = (ELEMENT *)call->output + token * call->output_row;
        vf squares = v_set(0.0f);
        for (int64_t i = 0; i < dim; i += LANES) {
            vf x = LOAD_SOME(residual + i, dim - i);
            if (update) {
                x = v_add(x, LOAD_SOME(update + i, dim - i));
                STORE_SOME(residual + i, x, dim - i);
                x = LOAD_SOME(residual + i, dim - i); /* as it is stored */
            }
            squares = v_fma(x, x, squares);
        }
        if (!call->weight) {
            continue;
        }
        if (call->centres) {
            TYPED(layer_norm)(call, residual, output);
            continue;
        }
        const vf factor = TYPED(shrink)(call, squares);
        for (int64_t i = 0; i < dim; i += LANES) {
            const vf x = v_mul(LOAD_SOME(residual + i, dim - i), factor);
            const vf weight = TYPED(load_weight)(call->weight, call->weight_is_f32, i, dim - i);
            STORE_SOME(output + i, v_mul(x, weight), dim - i);
        }
    }
}

/* head = head / rms(head) * weight, for one head in float32. */
static void TYPED(norm_head)(const pw_rotation *call, const void *weight, bool is_f32,
                             float *head) {
    const int64_t dim = call->head_dim;
    vf squares = v_set(0.0f);
    for (int64_t i = 0; i < dim; i += LANES) { /* beyond the head lie zeros */
        const vf x = v_load_f32(head + i);
        squares = v_fma(x, x, squares);
    }
    const vf factor = v_set(1.0f / sqrtf(v_sum(squares) / (float)dim + (float)call->eps));
    for (int64_t i = 0; i < dim; i += LANES) {
        const vf scaled = v_mul(v_load_f32(head + i), factor);
        v_store_f32(head + i, v_mul(scaled, TYPED(load_weight)(weight, is_f32, i, dim - i)));
    }
}

static inline void TYPED(turn_head)(const pw_rotation *call, const ELEMENT *source,
                                    int64_t position, const void *weight, bool is_f32,
                                    ELEMENT *target) {
    float head[PW_LONGEST_HEAD + LANES];
    const int64_t dim = call->head_dim, half = call->half;
    const float *cosines = call->cos + position * half, *sines = call->sin + position * half;
    for (int64_t i = 0; i < dim; i += LANES) {
        v_store_f32(head + i, LOAD_SOME(source + i, dim - i));
    }
    if (weight) {
        TYPED(norm_head)(call, weight, is_f32, head);
    }
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vf first = v_load_f32(head + i), second = v_load_f32(head + half + i);
        const vf cosine = v_load_f32(cosines + i), sine = v_load_f32(sines + i);
        v_store_f32(head + i, v_sub(v_mul(first, cosine), v_mul(second, sine)));
        v_store_f32(head + half + i, v_fma(second, cosine, v_mul(first, sine)));
    }
    for (; i < half; i++) {
        const float first = head[i], second = head[half + i];
        head[i] = first * cosines[i] - second * sines[i];
        head[half + i] = second * cosines[i] + first * sines[i];
    }
    for (i = 0; i < dim; i += LANES) {
        STORE_SOME(target + i, v_load_f32(head + i), dim - i);
    }
}

/* Of codes, the largest magnitude is 127; what is hardly more than zeros is stored as zeros. */
static void TYPED(store)(const void *head, int64_t dim, bool is_quantized, char *row) {
    if (!is_quantized) {
        memcpy(row, head, (size_t)dim * sizeof(ELEMENT));
        return;
    }
    const ELEMENT *values = head;
    vf magnitudes = v_set(0.0f);
    for (int64_t i = 0; i < dim; i += LANES) {
        const vf x = LOAD(values + i);
        magnitudes = v_max(magnitudes, v_max(x, v_sub(v_set(0.0f), x)));
    }
    const float largest = v_highest(magnitudes), scale = largest / 127.0f;
    const vf factor = v_set(largest > 1e-30f ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < dim; i += LANES) {
        v_store_i8((pw_i8 *)row + i, v_mul(LOAD(values + i), factor));
    }
    memcpy(row + dim, &scale, sizeof scale);
}

static void TYPED(rotate)(const pw_rotation *call, int64_t begin, int64_t end) {
    const int64_t dim = call->head_dim;
    const int64_t size = call->is_quantized ? (int64_t)sizeof(pw_i8) : (int64_t)sizeof(ELEMENT);
    for (int64_t token = begin; token < end; token++) {
        const ELEMENT *source = (const ELEMENT *)call->qkv + token * call->qkv_row;
        ELEMENT *query = (ELEMENT *)call->query + token * call->num_heads * dim;
        const int64_t position = call->positions[token], slot = call->slots[token];
        char *key = (char *)call->kv + (slot / call->block_size * call->kv_block +
                                        slot % call->block_size * call->kv_token) * size;
        for (int64_t h = 0; h < call->num_heads; h++, source += dim, query += dim) {
            TYPED(turn_head)(call, source, position, call->query_weight,
                             call->query_weight_is_f32, query);
        }
        for (int64_t h = 0; h < call->num_kv_heads; h++, source += dim) {
            ELEMENT turned[PW_LONGEST_HEAD];
            TYPED(turn_head)(call, source, position, call->key_weight, call->key_weight_is_f32,
                             turned);
            TYPED(store)(turned, dim, call->is_quantized, key + h * call->kv_head * size);
        }
        for (int64_t h = 0; h < call->num_kv_heads; h++, source += dim) {
            TYPED(store)(source, dim, call->is_quantized,
                         key + (call->kv_value + h * call->kv_head) * size);
        }
    }
}

/* GELU by its tanh approximation is x * sigmoid(2u): no tanh, and nothing cancels. */
static inline vf TYPED(activate)(vf x, pw_activation activation) {
    if (activation == PW_RELU2) {
        const vf positive = v_max(x, v_set(0.0f));
        return v_mul(positive, positive);
    }
    vf exponent = x;
    if (activation == PW_CLAMPED_SWIGLU) {
        x = v_at_most(x, 7.0f);
        exponent = v_mul(x, v_set(1.702f));
    } else if (activation == PW_GELU_TANH) {
        const vf cubic = v_fma(v_mul(v_mul(x, x), v_set(0.044715f)), x, x);
        exponent = v_mul(cubic, v_set(1.5957691216f)); /* 2 sqrt(2 / pi) */
    }
    const vf inverse = v_exp(v_clamp(v_sub(v_set(0.0f), exponent), -80.0f, 80.0f));
    return v_div(x, v_add(inverse, v_set(1.0f)));
}

/* What is gated, as it is multiplied. */
static inline vf TYPED(gated)(vf x, pw_activation activation) {
    if (activation != PW_CLAMPED_SWIGLU) {
        return x;
    }
    return v_add(v_at_least(v_at_most(x, 7.0f), -7.0f), v_set(1.0f));
}

static void TYPED(gate)(const pw_gating *call, int64_t begin, int64_t end) {
    const int64_t inter = call->inter;
    const pw_activation activation = (pw_activation)call->activation;
    for (int64_t token = begin; token < end; token++) {
        const ELEMENT *first = (const ELEMENT *)call->gate_up + token * call->gate_up_row;
        ELEMENT *output = (ELEMENT *)call->output + token * inter;
        for (int64_t i = 0; i < inter; i += LANES) {
            vf active = TYPED(activate)(LOAD_SOME(first + i, inter - i), activation);
            if (!call->is_plain) {
                const vf second = LOAD_SOME(first + inter + i, inter - i);
                active = v_mul(active, TYPED(gated)(second, activation));
            }
            STORE_SOME(output + i, active, inter - i);
        }
    }
}

#include "processor/typed_end.template.h"
