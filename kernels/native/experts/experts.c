/* What experts make of the tokens that chose them, and the sum of it for each token.
 *
 * The rows of a product are pairs of a token and one of its experts, sorted by expert. So each expert
 * that somebody chose reads its weights once, for a run of neighbouring rows, and nobody reads the
 * others; the threads share out all runs at once, whatever the length of each. */
#include "experts.h"

#include <math.h>
#include <string.h>

#include "layers/layers.h"
#include "linear/linear.h"
#include "processor/arithmetic.h"
#include "processor/scratch.h"

enum {
    MOST_ROWS = 8192,       /* that are computed together: no prompt takes memory without end */
    SUMMED_SHARE = 1 << 15, /* multiply-adds worth being handed over */
    SUMMED = 64,            /* elements that are summed together */
};

typedef struct {
    pw_mixing call;
    int64_t first; /* of all tokens, the first one of the call */
    int64_t rows, num_runs;
    int64_t *ends;         /* [num_experts]: of the rows of each, once they are sorted */
    int32_t *places;       /* [num_tokens, per_token]: the row of each pair */
    int32_t *sources;      /* [rows]: the token of each row */
    pw_linear_run *into;   /* [num_runs]: of gate and up */
    pw_linear_run *back;   /* [num_runs]: of down */
    char *gate_up, *gated; /* [rows, 2 * inter], [rows, inter] */
    float *results;        /* [rows, hidden_size] */
} mixture;

/* Memory of the calling thread. */
static void take_memory(mixture *mix) {
    static _Thread_local pw_kept kept;
    const pw_experts *experts = mix->call.experts;
    const int64_t rows = mix->rows, size = pw_size(mix->call.type);
    const int64_t runs = pw_least(rows, experts->num_experts) * (int64_t)sizeof(pw_linear_run);
    size_t bytes = 0;
    const size_t ends = pw_carve(&bytes, experts->num_experts * (int64_t)sizeof(int64_t));
    const size_t places = pw_carve(&bytes, rows * (int64_t)sizeof(int32_t));
    const size_t sources = pw_carve(&bytes, rows * (int64_t)sizeof(int32_t));
    const size_t into = pw_carve(&bytes, runs), back = pw_carve(&bytes, runs);
    const size_t gate_up = pw_carve(&bytes, rows * experts->gate_up[0]->out_features * size);
    const size_t gated = pw_carve(&bytes, rows * experts->down[0]->in_features * size);
    const int64_t result = experts->down[0]->out_features * (int64_t)sizeof(float);
    const size_t results = pw_carve(&bytes, rows * result);
    char *memory = pw_keep(&kept, bytes);
    mix->ends = (int64_t *)(memory + ends);
    mix->places = (int32_t *)(memory + places);
    mix->sources = (int32_t *)(memory + sources);
    mix->into = (pw_linear_run *)(memory + into);
    mix->back = (pw_linear_run *)(memory + back);
    mix->gate_up = memory + gate_up;
    mix->gated = memory + gated;
    mix->results = (float *)(memory + results);
}

/* A run of rows for each expert that is chosen, as `ends` counts them; then that says where each begins.
 * Rows and runs are counted for good as well. */
static void form_runs(mixture *mix) {
    const pw_experts *experts = mix->call.experts;
    int64_t row = 0;
    mix->num_runs = 0;
    for (int64_t expert = 0; expert < experts->num_experts; expert++) {
        const int64_t rows = mix->ends[expert];
        mix->ends[expert] = row;
        row += rows;
        experts->uses[expert] += rows;
        if (rows > 0) {
            mix->into[mix->num_runs] = (pw_linear_run){experts->gate_up[expert], rows};
            mix->back[mix->num_runs++] = (pw_linear_run){experts->down[expert], rows};
        }
    }
    experts->uses[experts->num_experts] += mix->num_runs;
    experts->uses[experts->num_experts + 1]++;
}

/* Sorts the pairs by expert, those of one in the order of their tokens. */
static void sort(mixture *mix) {
    const int32_t *chosen = mix->call.chosen;
    memset(mix->ends, 0, (size_t)mix->call.experts->num_experts * sizeof *mix->ends);
    for (int64_t pair = 0; pair < mix->rows; pair++) {
        mix->ends[chosen[pair]]++;
    }
    form_runs(mix);
    for (int64_t pair = 0; pair < mix->rows; pair++) {
        const int64_t row = mix->ends[chosen[pair]]++;
        mix->places[pair] = (int32_t)row;
        mix->sources[row] = (int32_t)(pair / mix->call.per_token);
    }
}

/* Adds what adapters change in a product of all experts. */
static void adapt(const mixture *mix, int64_t change, const pw_adaptation *product) {
    const pw_expert_rows rows = {
        .adapters = mix->call.adapters, .num_adapters = mix->call.num_adapters, .change = change,
        .first_token = mix->first, .num_tokens = mix->call.num_tokens, .ends = mix->ends,
        .tokens = mix->sources, .num_experts = mix->call.experts->num_experts,
    };
    pw_adapt_experts(&rows, product);
}

static void compute(const mixture *mix) {
    const pw_mixing *call = &mix->call;
    const pw_linear_product into = {
        .runs = mix->into, .num_runs = mix->num_runs, .rows = mix->rows,
        .num_inputs = call->num_tokens, .inputs = call->inputs, .sources = mix->sources,
        .outputs = mix->gate_up, .type = call->type, .output_type = call->type,
    };
    pw_linear_runs(&into);
    const pw_adaptation into_more = {
        .inputs = call->inputs, .outputs = mix->gate_up, .sources = mix->sources,
        .input_row = call->experts->gate_up[0]->in_features,
        .output_row = call->experts->gate_up[0]->out_features,
        .type = call->type, .output_type = call->type,
    };
    adapt(mix, call->gate_up, &into_more);
    const pw_gating gating = {
        .gate_up = mix->gate_up, .output = mix->gated,
        .gate_up_row = call->experts->gate_up[0]->out_features, .num_tokens = mix->rows,
        .inter = call->experts->down[0]->in_features, .type = call->type,
        .activation = call->experts->activation,
    };
    pw_gate(&gating);
    const pw_linear_product back = {
        .runs = mix->back, .num_runs = mix->num_runs, .rows = mix->rows, .num_inputs = mix->rows,
        .inputs = mix->gated, .outputs = mix->results, .type = call->type, .output_type = PW_F32,
    };
    pw_linear_runs(&back);
    const pw_adaptation back_more = {
        .inputs = mix->gated, .outputs = mix->results,
        .input_row = call->experts->down[0]->in_features,
        .output_row = call->experts->down[0]->out_features,
        .type = call->type, .output_type = PW_F32,
    };
    adapt(mix, call->down, &back_more);
}

/* `count` elements of a token's result, from `first` on, in the order of its experts. */
static void sum_some(const mixture *mix, int64_t token, int64_t first, int64_t count, float *sums) {
    const int64_t per_token = mix->call.per_token;
    const int64_t dim = mix->call.experts->down[0]->out_features;
    memset(sums, 0, SUMMED * sizeof *sums);
    for (int64_t pair = token * per_token; pair < (token + 1) * per_token; pair++) {
        const float *row = mix->results + mix->places[pair] * dim + first;
        const float share = mix->call.shares[pair];
        for (int64_t i = 0; i < count; i++) {
            sums[i] += share * row[i];
        }
    }
}

/* In float32 as they are, in bfloat16 to the nearest, ties to even. */
static void store(const float *sums, int64_t count, int64_t type, void *outputs, int64_t at) {
    if (type == PW_F32) {
        memcpy((float *)outputs + at, sums, (size_t)count * sizeof *sums);
        return;
    }
    uint16_t *to = (uint16_t *)outputs + at;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, sums + i, sizeof bits);
        to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

static void sum_part(void *context, int part, int num_parts) {
    const mixture *mix = context;
    const int64_t dim = mix->call.experts->down[0]->out_features, tokens = mix->call.num_tokens;
    const int64_t last = tokens * (part + 1) / num_parts;
    float sums[SUMMED];
    for (int64_t token = tokens * part / num_parts; token < last; token++) {
        for (int64_t first = 0; first < dim; first += SUMMED) {
            const int64_t count = pw_least(dim - first, SUMMED);
            sum_some(mix, token, first, count, sums);
            store(sums, count, mix->call.type, mix->call.outputs, token * dim + first);
        }
    }
}

/* The call for `count` of its tokens, from `first` on. */
static pw_mixing tokens_of(const pw_mixing *all, int64_t first, int64_t count) {
    const int64_t dim = all->experts->down[0]->out_features, size = pw_size(all->type);
    pw_mixing call = *all;
    call.inputs = (const char *)call.inputs + first * dim * size;
    call.outputs = (char *)call.outputs + first * dim * size;
    call.chosen += first * call.per_token;
    call.shares += first * call.per_token;
    call.num_tokens = count;
    return call;
}

void pw_mix_experts(const pw_mixing *call) {
    const int64_t most = pw_most(MOST_ROWS / call->per_token, 1);
    for (int64_t first = 0; first < call->num_tokens; first += most) {
        const int64_t count = pw_least(call->num_tokens - first, most);
        mixture mix = {
            .call = tokens_of(call, first, count), .first = first, .rows = count * call->per_token,
        };
        take_memory(&mix);
        sort(&mix);
        compute(&mix);
        const int64_t work = mix.rows * call->experts->down[0]->out_features;
        pw_parallel(sum_part, &mix, (int)pw_least(count, work / SUMMED_SHARE + 1));
    }
}

/* Elements of a row, of which there are up to SUMMED, in float32. */
static void load(const void *inputs, int64_t at, int64_t count, int64_t type, float *values) {
    if (type == PW_F32) {
        memcpy(values, (const float *)inputs + at, (size_t)count * sizeof *values);
        return;
    }
    const uint16_t *from = (const uint16_t *)inputs + at;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(values + i, &bits, sizeof bits);
    }
}

static void add_part(void *context, int part, int num_parts) {
    const pw_addition *call = context;
    const int64_t last = call->num_tokens * (part + 1) / num_parts;
    float sums[SUMMED], shared[SUMMED];
    for (int64_t token = call->num_tokens * part / num_parts; token < last; token++) {
        const float factor = call->gates ? 1.0f / (1.0f + expf(-call->gates[token])) : 1.0f;
        for (int64_t first = 0; first < call->dim; first += SUMMED) {
            const int64_t count = pw_least(call->dim - first, SUMMED);
            const int64_t at = token * call->dim + first;
            load(call->update, at, count, call->type, sums);
            load(call->shared, at, count, call->type, shared);
            for (int64_t i = 0; i < count; i++) {
                sums[i] += factor * shared[i];
            }
            store(sums, count, call->type, call->update, at);
        }
    }
}

void pw_add_shared(const pw_addition *call) {
    const int64_t parts = call->num_tokens * call->dim / SUMMED_SHARE + 1;
    pw_parallel(add_part, (void *)call, (int)pw_least(call->num_tokens, parts));
}
