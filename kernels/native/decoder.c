/* A decoder's layers without a return to the caller: with few tokens, what lies between two
 * operations would otherwise take as long as the smaller ones. */
#include "decoder.h"

#include <stdlib.h>

#include "layers/layers.h"
#include "processor/arithmetic.h"

enum {
    NORMED, QKV, QUERY, ATTENDED, GATE_UP, GATED, PLAIN,
    LOGITS, CHOSEN, SHARES, BESIDE, GATES, /* of a mixture */
    NUM_BUFFERS
};

typedef struct {
    const pw_step *step;
    const pw_column *columns;
    pw_attention attention;
    char *buffers[NUM_BUFFERS];
    int64_t layer; /* its number */
} decoder;

static void need(int64_t *bytes, int64_t width, int64_t type) {
    *bytes = pw_most(*bytes, width * pw_size(type));
}

/* Bytes of a token's row of each buffer, where this layer needs more than those before it. */
static void need_for(const decoder *d, const pw_layer *layer, int64_t *bytes) {
    const int64_t type = d->attention.type, dim = layer->qkv->in_features;
    const int64_t heads = d->attention.num_heads * d->attention.head_dim;
    need(&bytes[NORMED], dim, type);
    need(&bytes[PLAIN], dim, type);
    need(&bytes[QKV], layer->qkv->out_features, type);
    need(&bytes[QUERY], heads, type);
    need(&bytes[ATTENDED], heads, type);
    if (layer->gate_up) {
        need(&bytes[GATE_UP], layer->gate_up->out_features, type);
        need(&bytes[GATED], layer->down->in_features, type);
    }
    if (layer->mixture) {
        const pw_routing *routing = &layer->mixture->routing;
        need(&bytes[LOGITS], routing->num_experts, PW_F32);
        need(&bytes[CHOSEN], routing->per_token, PW_F32); /* as wide as int32 */
        need(&bytes[SHARES], routing->per_token, PW_F32);
        need(&bytes[BESIDE], dim, type);
        need(&bytes[GATES], 1, PW_F32);
    }
}

/* The buffers of one layer, which the next one uses again; the caller frees `memory`. */
static bool allocate(decoder *d, const pw_layer *layers, int64_t num_layers, char **memory) {
    int64_t bytes[NUM_BUFFERS] = {0}, starts[NUM_BUFFERS + 1] = {0};
    for (int64_t i = 0; i < num_layers; i++) {
        need_for(d, &layers[i], bytes);
    }
    for (int i = 0; i < NUM_BUFFERS; i++) {
        starts[i + 1] = starts[i] + pw_ceiling(d->step->num_tokens * bytes[i], 64) * 64;
    }
    *memory = aligned_alloc(64, (size_t)starts[NUM_BUFFERS]);
    for (int i = 0; *memory && i < NUM_BUFFERS; i++) {
        d->buffers[i] = *memory + starts[i];
    }
    return *memory;
}

/* And what adapters add to this product of the layer. */
static void multiply(const decoder *d, int product, const pw_linear_weights *weights,
                     const void *inputs, void *outputs) {
    pw_linear(weights, d->step->num_tokens, d->attention.type, inputs, outputs);
    const pw_adaptation adaptation = {
        .adapters = d->step->adapters, .num_adapters = d->step->num_adapters,
        .inputs = inputs, .outputs = outputs, .change = d->layer * PW_NUM_ADAPTED + product,
        .input_row = weights->in_features, .output_row = weights->out_features,
        .type = d->attention.type, .output_type = d->attention.type,
    };
    pw_adapt(&adaptation);
}

/* The same with results in float32, whatever the inputs are. */
static void multiply_wide(const decoder *d, const pw_linear_weights *weights, const void *inputs,
                          void *outputs) {
    const int64_t rows = d->step->num_tokens;
    const pw_linear_run run = {weights, rows};
    const pw_linear_product product = {
        .runs = &run, .num_runs = 1, .rows = rows, .num_inputs = rows, .inputs = inputs,
        .outputs = outputs, .type = d->attention.type, .output_type = PW_F32,
    };
    pw_linear_runs(&product);
}

/* `row` is from one row of `residual`, and of `output`, to the next one. */
static void norm_rows(const decoder *d, const pw_norm_weight *norm, int64_t dim, int64_t row,
                      void *residual, const void *update, void *output) {
    const pw_norm call = {
        .residual = residual, .update = update, .weight = norm->weight, .bias = norm->bias,
        .output = output, .residual_row = row, .update_row = dim, .output_row = row,
        .num_tokens = d->step->num_tokens, .dim = dim, .type = d->attention.type,
        .weight_is_f32 = norm->is_f32, .centres = norm->centres, .eps = norm->eps,
    };
    pw_add_rms_norm(&call);
}

/* The residual stream with the update added to it, through the norm where there is one. */
static const void *normed(const decoder *d, const pw_norm_weight *norm, int64_t dim,
                          const void *update) {
    norm_rows(d, norm, dim, dim, d->step->residual, update, d->buffers[NORMED]);
    return norm->weight ? d->buffers[NORMED] : d->step->residual;
}

/* All heads of queries, and of keys, through the norm that they share, if there is one. */
static void norm_jointly(const decoder *d, const pw_layer *layer) {
    const int64_t queries = d->attention.num_heads * d->attention.head_dim;
    const int64_t keys = d->attention.num_kv_heads * d->attention.head_dim;
    const int64_t row = layer->qkv->out_features;
    char *query = d->buffers[QKV], *key = query + queries * pw_size(d->attention.type);
    if (layer->all_queries.weight) {
        norm_rows(d, &layer->all_queries, queries, row, query, NULL, query);
        norm_rows(d, &layer->all_keys, keys, row, key, NULL, key);
    }
}

/* Where what becomes the step's update is computed: if a norm follows, not in its place. */
static void *before_norm(const decoder *d, const pw_norm_weight *after) {
    return after->weight ? d->buffers[PLAIN] : d->step->update;
}

/* It becomes the step's update, through the norm where there is one. */
static void norm_update(const decoder *d, const pw_norm_weight *after, int64_t dim) {
    if (after->weight) {
        norm_rows(d, after, dim, dim, d->buffers[PLAIN], NULL, d->step->update);
    }
}

static void rotate(const decoder *d, const pw_layer *layer, const pw_cache *cache) {
    const pw_attention *attention = &d->attention;
    const pw_rotation call = {
        .qkv = d->buffers[QKV], .cos = layer->cos, .sin = layer->sin,
        .positions = d->step->positions, .slots = d->columns[cache->column].slots,
        .kv = cache->kv,
        .query = d->buffers[QUERY],
        .query_weight = layer->query.weight, .key_weight = layer->key.weight,
        .qkv_row = layer->qkv->out_features,
        .kv_block = attention->kv_block, .kv_value = attention->kv_value,
        .kv_head = attention->kv_head, .kv_token = attention->kv_token,
        .block_size = attention->block_size, .num_tokens = d->step->num_tokens,
        .num_heads = attention->num_heads, .num_kv_heads = attention->num_kv_heads,
        .head_dim = attention->head_dim, .half = layer->half, .type = attention->type,
        .is_quantized = attention->is_quantized,
        .query_weight_is_f32 = layer->query.is_f32, .key_weight_is_f32 = layer->key.is_f32,
        .eps = layer->query.weight ? layer->query.eps : layer->key.eps,
    };
    pw_rotate_and_write(&call);
}

/* The network that all tokens go through. */
static void run_network(const decoder *d, const pw_layer *layer, const void *seen, void *outputs) {
    multiply(d, PW_OF_GATE_UP, layer->gate_up, seen, d->buffers[GATE_UP]);
    const pw_gating gating = {
        .gate_up = d->buffers[GATE_UP], .output = d->buffers[GATED],
        .gate_up_row = layer->gate_up->out_features, .num_tokens = d->step->num_tokens,
        .inter = layer->down->in_features, .type = d->attention.type,
        .activation = layer->activation, .is_plain = layer->is_plain,
    };
    pw_gate(&gating);
    multiply(d, PW_OF_DOWN, layer->down, d->buffers[GATED], outputs);
}

/* Adds what the network beside the experts gives. */
static void add_network(const decoder *d, const pw_layer *layer, const void *seen, void *outputs) {
    const pw_linear_weights *gate = layer->mixture->shared_gate;
    run_network(d, layer, seen, d->buffers[BESIDE]);
    if (gate) {
        multiply_wide(d, gate, seen, d->buffers[GATES]);
    }
    const pw_addition addition = {
        .update = outputs, .shared = d->buffers[BESIDE],
        .gates = gate ? (const float *)d->buffers[GATES] : NULL,
        .num_tokens = d->step->num_tokens, .dim = layer->qkv->in_features,
        .type = d->attention.type,
    };
    pw_add_shared(&addition);
}

static void mix_experts(const decoder *d, const pw_layer *layer, const void *seen, void *outputs) {
    const pw_mixture *mixture = layer->mixture;
    const int64_t num_tokens = d->step->num_tokens;
    int32_t *chosen = (int32_t *)d->buffers[CHOSEN];
    float *logits = (float *)d->buffers[LOGITS], *shares = (float *)d->buffers[SHARES];
    multiply_wide(d, mixture->router, seen, logits);
    pw_route(&mixture->routing, logits, num_tokens, chosen, shares);
    const pw_mixing mixing = {
        .experts = mixture->experts, .inputs = seen, .chosen = chosen, .shares = shares,
        .outputs = outputs, .num_tokens = num_tokens, .per_token = mixture->routing.per_token,
        .type = d->attention.type,
        .adapters = d->step->adapters, .num_adapters = d->step->num_adapters,
        .gate_up = d->layer * PW_NUM_ADAPTED + PW_OF_EXPERTS_GATE_UP,
        .down = d->layer * PW_NUM_ADAPTED + PW_OF_EXPERTS_DOWN,
    };
    pw_mix_experts(&mixing);
    if (layer->gate_up) {
        add_network(d, layer, seen, outputs);
    }
}

static int run_layer(decoder *d, const pw_layer *layer, const pw_cache *cache) {
    const pw_step *step = d->step;
    const int64_t dim = layer->qkv->in_features;
    const void *seen = normed(d, &layer->before_attention, dim, d->layer ? step->update : NULL);
    multiply(d, PW_OF_QKV, layer->qkv, seen, d->buffers[QKV]);
    norm_jointly(d, layer);
    rotate(d, layer, cache);
    d->attention.kv = cache->kv;
    d->attention.tables = d->columns[cache->column].tables;
    d->attention.window = layer->window;
    d->attention.scale = layer->scale;
    d->attention.softcap = layer->softcap;
    d->attention.sinks = layer->sinks;
    if (pw_attend(&d->attention) != 0) {
        return -1;
    }
    multiply(d, PW_OF_OUT, layer->out, d->buffers[ATTENDED],
             before_norm(d, &layer->after_attention));
    norm_update(d, &layer->after_attention, dim);
    if (layer->is_parallel) { /* and NORMED is as attention has seen it */
        const pw_norm_weight none = {0};
        normed(d, &none, dim, step->update);
    } else {
        seen = normed(d, &layer->before_mlp, dim, step->update);
    }
    void *outputs = before_norm(d, &layer->after_mlp);
    if (layer->mixture) {
        mix_experts(d, layer, seen, outputs);
    } else {
        run_network(d, layer, seen, outputs);
    }
    norm_update(d, &layer->after_mlp, dim);
    return 0;
}

int pw_decode(const pw_layer *layers, const pw_cache *caches, int64_t num_layers,
              const pw_column *columns, const pw_step *step, const pw_attention *attention) {
    decoder d = {.step = step, .columns = columns, .attention = *attention};
    char *memory;
    if (!allocate(&d, layers, num_layers, &memory)) {
        return -1;
    }
    d.attention.query = d.buffers[QUERY];
    d.attention.output = d.buffers[ATTENDED];
    int status = 0;
    for (; status == 0 && d.layer < num_layers; d.layer++) {
        status = run_layer(&d, &layers[d.layer], &caches[d.layer]);
    }
    free(memory);
    return status;
}
