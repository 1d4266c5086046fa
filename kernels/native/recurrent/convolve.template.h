/* Causal convolutions of channels for one element type, T. */
#include "processor/typed.template.h"

/* [channels, width] the other way round; a row has room for PW_CHANNELS. */
PW_INLINE void TYPED(turn)(const ELEMENT *restrict from, int64_t channels, int width,
                           ELEMENT *restrict to) {
    for (int64_t i = 0; i < channels; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < width; j++) {
            to[j * PW_CHANNELS + i] = from[i * width + j];
        }
    }
}

/* And back, of rows anywhere. */
PW_INLINE void TYPED(turn_back)(const ELEMENT *const *rows, int64_t first, int64_t channels,
                                int width, ELEMENT *restrict to) {
    for (int64_t i = 0; i < channels; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < width; j++) {
            to[i * width + j] = rows[j][first + i];
        }
    }
}

/* Some channels of the state that a run goes on from, segment by segment, become rows. */
PW_INLINE void TYPED(read_inputs)(const pw_states *states, int64_t run, int64_t begin,
                                  int64_t end, int width, ELEMENT *rows) {
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = pw_least(end, pw_segment_end(states, unit)) - unit;
        const ELEMENT *state = pw_unit(states, states->sources, run, unit);
        ELEMENT *to = rows + unit - begin;
        if (state) {
            TYPED(turn)(state, count, width, to);
        }
        for (int j = 0; !state && j < width; j++) {
            memset(to + j * PW_CHANNELS, 0, (size_t)count * sizeof *to);
        }
        unit += count;
    }
}

PW_INLINE void TYPED(write_inputs)(const pw_states *states, int64_t run, int64_t begin,
                                   int64_t end, int width, const ELEMENT *const *rows) {
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = pw_least(end, pw_segment_end(states, unit)) - unit;
        ELEMENT *state = pw_unit(states, states->targets, run, unit);
        TYPED(turn_back)(rows, unit - begin, count, width, state);
        unit += count;
    }
}

/* Rows of inputs, times rows of weights. */
PW_INLINE void TYPED(convolve_token)(const ELEMENT *const *rows, const ELEMENT *weights,
                                     const ELEMENT *bias, bool is_activated, ELEMENT *output,
                                     int64_t channels, int width) {
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t left = channels - i;
        vf sum = bias ? LOAD_SOME(bias + i, left) : v_set(0.0f);
#pragma GCC unroll 8
        for (int j = 0; j < width; j++) {
            const vf weight = LOAD(weights + j * PW_CHANNELS + i);
            sum = v_fma(weight, LOAD_SOME(rows[j] + i, left), sum);
        }
        if (is_activated) {
            const vf powers = v_exp(v_clamp(v_sub(v_set(0.0f), sum), -87.0f, 87.0f));
            sum = v_div(sum, v_add(v_set(1.0f), powers));
        }
        STORE_SOME(output + i, sum, left);
    }
}

/* At most PW_CHANNELS channels of all runs. */
PW_INLINE void TYPED(convolve_all)(const pw_convolution *call, int64_t begin, int64_t end,
                                   int width) {
    const pw_states *states = &call->states;
    ELEMENT weights[PW_WIDEST * PW_CHANNELS], before[PW_WIDEST * PW_CHANNELS];
    TYPED(turn)((const ELEMENT *)call->weight + begin * width, end - begin, width, weights);
    const ELEMENT *bias = call->bias ? (const ELEMENT *)call->bias + begin : NULL;
    for (int64_t run = 0; run < states->num_runs; run++) {
        const int64_t first = states->starts[run], last = states->starts[run + 1];
        if (first == last) {
            continue;
        }
        TYPED(read_inputs)(states, run, begin, end, width, before);
        const ELEMENT *rows[PW_WIDEST];
        for (int j = 0; j < width; j++) {
            rows[j] = before + j * PW_CHANNELS;
        }
        for (int64_t token = first; token < last; token++) {
            for (int j = 0; j < width - 1; j++) {
                rows[j] = rows[j + 1];
            }
            rows[width - 1] = (const ELEMENT *)call->x + token * call->x_row + begin;
            ELEMENT *output = (ELEMENT *)call->output + token * call->channels + begin;
            TYPED(convolve_token)(rows, weights, bias, call->is_activated, output, end - begin,
                                  width);
        }
        TYPED(write_inputs)(states, run, begin, end, width, rows);
    }
}

static void TYPED(convolve)(const pw_convolution *call, int64_t begin, int64_t end) {
    switch (call->width) {
    case 3: TYPED(convolve_all)(call, begin, end, 3); break;
    case 4: TYPED(convolve_all)(call, begin, end, 4); break;
    default: TYPED(convolve_all)(call, begin, end, (int)call->width);
    }
}

#include "processor/typed_end.template.h"
