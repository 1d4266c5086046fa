/* Mamba-2's state space for one element type, T. */
#include "processor/typed.template.h"

/* `count` rows of `dim` elements, `row` apart, become floats, and further ones zeros. */
static void TYPED(widen_rows)(const ELEMENT *from, int64_t row, int64_t dim, int64_t count, float *to,
                         int64_t to_row, int64_t num_rows) {
    for (int64_t t = 0; t < num_rows; t++) {
        for (int64_t j = 0; j < to_row; j += LANES) {
            const vf x = t < count ? LOAD_SOME(from + t * row + j, dim - j) : v_set(0.0f);
            v_store_f32(to + t * to_row + j, x);
        }
    }
}

/* Of a quad's tokens what they bring, and of their results all but what the state before gives. */
static void TYPED(prepare_rows)(const pw_scan *call, int64_t head, int64_t token, int64_t count,
                                const scan_quad *quad, int64_t rows, float *inputs,
                                float *output) {
    const int64_t dim = call->head_dim;
    const vf skip = v_set(call->d ? call->d[head] : 0.0f);
    for (int64_t p = 0; p < rows; p += LANES) {
        vf brought[QUAD];
        for (int late = 0; late < count; late++) {
            const ELEMENT *row = (const ELEMENT *)call->x + (token + late) * call->x_row;
            const vf x = LOAD_SOME(row + head * dim + p, dim - p);
            brought[late] = v_mul(x, v_set(call->dt[(token + late) * call->heads + head]));
            vf result = v_mul(x, skip);
            for (int early = 0; early <= late; early++) {
                result = v_fma(v_set(quad->given[PAIR(late, early)]), brought[early], result);
            }
            v_store_f32(output + late * rows + p, result);
            v_store_f32(inputs + late * rows + p, v_mul(brought[late], v_set(quad->behind[late])));
        }
        for (int64_t late = count; late < QUAD; late++) {
            v_store_f32(output + late * rows + p, v_set(0.0f));
            v_store_f32(inputs + late * rows + p, v_set(0.0f));
        }
    }
}

static _Thread_local pw_kept TYPED(kept_stretch);

static scan_stretch TYPED(take_stretch)(const pw_scan *call, int64_t count) {
    scan_stretch all = {.num_quads = pw_ceiling(count, QUAD)};
    all.states = pw_ceiling(call->state_dim, LANES) * LANES;
    all.rows = pw_ceiling(call->head_dim, LANES) * LANES;
    const int64_t tokens = all.num_quads * QUAD;
    size_t bytes = 0;
    const size_t quads = pw_carve(&bytes, all.num_quads * (int64_t)sizeof(scan_quad));
    const size_t b = pw_carve(&bytes, tokens * all.states * 4);
    const size_t c = pw_carve(&bytes, tokens * all.states * 4);
    const size_t inputs = pw_carve(&bytes, tokens * all.rows * 4);
    const size_t output = pw_carve(&bytes, tokens * all.rows * 4);
    char *memory = pw_keep(&TYPED(kept_stretch), bytes);
    all.quads = (scan_quad *)(memory + quads);
    all.b = (float *)(memory + b), all.c = (float *)(memory + c);
    all.inputs = (float *)(memory + inputs), all.output = (float *)(memory + output);
    return all;
}

/* Up to SCANNED tokens of a head, from the state `source`, or from zeros, to `target`. */
static void TYPED(scan_some)(const pw_scan *call, int64_t head, int64_t token, int64_t count,
                             const float *source, float *target) {
    const int64_t dim = call->head_dim, states = call->state_dim;
    const scan_stretch all = TYPED(take_stretch)(call, count);
    const int64_t group = head / (call->heads / call->groups) * states;
    const ELEMENT *b = (const ELEMENT *)call->b + token * call->b_row + group;
    const ELEMENT *c = (const ELEMENT *)call->c + token * call->c_row + group;
    TYPED(widen_rows)(b, call->b_row, states, count, all.b, all.states, all.num_quads * QUAD);
    TYPED(widen_rows)(c, call->c_row, states, count, all.c, all.states, all.num_quads * QUAD);
    for (int64_t i = 0; i < all.num_quads; i++) {
        const int64_t first = token + i * QUAD, some = pw_least(count - i * QUAD, QUAD);
        const int64_t at = i * QUAD * all.states, place = i * QUAD * all.rows;
        prepare_scan_quad(call, head, first, some, all.b + at, all.c + at, all.states,
                          all.quads + i);
        TYPED(prepare_rows)(call, head, first, some, all.quads + i, all.rows, all.inputs + place,
                            all.output + place);
    }
    (count == 1 ? scan_one : scan_many)(&all, states, dim, source, target);
    for (int64_t t = 0; t < count; t++) {
        ELEMENT *output = (ELEMENT *)call->output + ((token + t) * call->heads + head) * dim;
        for (int64_t p = 0; p < dim; p += LANES) {
            STORE_SOME(output + p, v_load_f32(all.output + t * all.rows + p), dim - p);
        }
    }
}

static void TYPED(scan)(const pw_scan *call, int64_t head, int64_t begin, int64_t end) {
    const pw_states *states = &call->states;
    const int64_t most = states->one_by_one ? 1 : SCANNED;
    for (int64_t run = begin; run < end; run++) {
        const float *source = pw_unit(states, states->sources, run, head);
        float *target = pw_unit(states, states->targets, run, head);
        for (int64_t token = states->starts[run]; token < states->starts[run + 1];) {
            const int64_t count = pw_least(states->starts[run + 1] - token, most);
            TYPED(scan_some)(call, head, token, count, source, target);
            token += count;
            source = target;
        }
    }
}

#include "processor/typed_end.template.h"
