/* Rows through the ranks of an adapter and back, for one element type, T.
 *
 * Numbers of rows, ranks and vectors are constants where these functions are called. */
#include "processor/typed.template.h"

/* One vector of each row, and of each rank. */
PW_INLINE void TYPED(take_vector)(vf sums[SIDE][WIDE], const ELEMENT *const *inputs, int num_rows,
                                  const ELEMENT *down, int64_t width, int num_ranks, int64_t i,
                                  int64_t left) {
    vf x[SIDE];
    for (int r = 0; r < num_rows; r++) {
        x[r] = LOAD_SOME(inputs[r] + i, left);
    }
    for (int k = 0; k < num_ranks; k++) {
        const vf weight = LOAD_SOME(down + k * width + i, left);
        for (int r = 0; r < num_rows; r++) {
            sums[r][k] = v_fma(x[r], weight, sums[r][k]);
        }
    }
}

/* What some ranks, from `rank` on, take of some rows: `taken` [rows, PW_MOST_RANKS]. */
PW_INLINE void TYPED(take)(const pw_low_rank *part, int64_t rank, int num_ranks,
                           const ELEMENT *const *inputs, int num_rows, float *taken) {
    const int64_t width = part->in_features, whole = width / LANES * LANES;
    const ELEMENT *down = (const ELEMENT *)part->down + rank * width;
    vf sums[SIDE][WIDE];
    for (int r = 0; r < num_rows; r++) {
        for (int k = 0; k < num_ranks; k++) {
            sums[r][k] = v_set(0.0f);
        }
    }
    /* What is given comes next, by ranks that lie far apart, and is on its way meanwhile. */
    const char *next = (const char *)((const ELEMENT *)part->up + rank * part->width);
    const int64_t lines = num_ranks * part->width * (int64_t)sizeof(ELEMENT) / 64;
    int64_t line = 0;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (const int64_t end = lines * (i + LANES) / whole; line < end; line++) {
            __builtin_prefetch(next + line * 64);
        }
        TYPED(take_vector)(sums, inputs, num_rows, down, width, num_ranks, i, LANES);
    }
    if (whole < width) {
        const int64_t left = width - whole;
        TYPED(take_vector)(sums, inputs, num_rows, down, width, num_ranks, whole, left);
    }
    const float scale = (float)part->scale;
    for (int r = 0; r < num_rows; r++) {
        float *own = taken + r * PW_MOST_RANKS + rank;
        for (int k = 0; k < num_ranks; k += 4) {
            v_sum_four(sums[r] + k, own + k);
        }
        for (int k = 0; k < num_ranks; k++) {
            own[k] *= scale;
        }
    }
}

/* The same for the last ranks, fewer than SIDE. */
PW_INLINE void TYPED(take_last)(const pw_low_rank *part, int64_t rank,
                                const ELEMENT *const *inputs, int num_rows, float *taken) {
    for (; rank < part->rank; rank++) {
        const int64_t width = part->in_features;
        const ELEMENT *down = (const ELEMENT *)part->down + rank * width;
        for (int r = 0; r < num_rows; r++) {
            vf sum = v_set(0.0f);
            for (int64_t i = 0; i < width; i += LANES) {
                sum = v_fma(LOAD_SOME(inputs[r] + i, width - i), LOAD_SOME(down + i, width - i), sum);
            }
            taken[r * PW_MOST_RANKS + rank] = v_sum(sum) * (float)part->scale;
        }
    }
}

/* What all ranks give of that to `num_vectors` vectors of some rows, of which `left` elements are
 * there. */
PW_INLINE void TYPED(give_vectors)(const pw_low_rank *part, void *const *outputs, bool are_wide,
                                   int num_rows, int num_vectors, const float *taken, int64_t i,
                                   int64_t left) {
    const ELEMENT *up = (const ELEMENT *)part->up + i;
    vf sums[SIDE][SIDE];
    for (int r = 0; r < num_rows; r++) {
        for (int v = 0; v < num_vectors; v++) {
            sums[r][v] = v_set(0.0f);
        }
    }
    for (int64_t k = 0; k < part->rank; k++, up += part->width) {
        vf weights[SIDE];
        for (int v = 0; v < num_vectors; v++) {
            weights[v] = LOAD_SOME(up + v * LANES, left);
        }
        for (int r = 0; r < num_rows; r++) {
            const vf factor = v_set(taken[r * PW_MOST_RANKS + k]);
            for (int v = 0; v < num_vectors; v++) {
                sums[r][v] = v_fma(factor, weights[v], sums[r][v]);
            }
        }
    }
    for (int r = 0; r < num_rows; r++) {
        for (int v = 0; v < num_vectors; v++) {
            const int64_t at = part->column + i + v * LANES;
            if (are_wide) {
                float *output = (float *)outputs[r] + at;
                v_store_some_f32(output, v_add(v_load_some_f32(output, left), sums[r][v]), left);
            } else {
                ELEMENT *output = (ELEMENT *)outputs[r] + at;
                STORE_SOME(output, v_add(LOAD_SOME(output, left), sums[r][v]), left);
            }
        }
    }
}

PW_INLINE void TYPED(give)(const pw_low_rank *part, void *const *outputs, bool are_wide,
                           int num_rows, const float *taken) {
    int64_t i = 0;
    for (; i + SIDE * LANES <= part->width; i += SIDE * LANES) {
        TYPED(give_vectors)(part, outputs, are_wide, num_rows, SIDE, taken, i, LANES);
    }
    for (; i < part->width; i += LANES) {
        TYPED(give_vectors)(part, outputs, are_wide, num_rows, 1, taken, i, part->width - i);
    }
}

/* `num_ranks` at a time, as many as there are registers for. */
PW_INLINE void TYPED(adapt_some)(const pw_adaptation *call, const pw_change *change,
                                 const int64_t *rows, int num_rows, int num_ranks) {
    float taken[SIDE * PW_MOST_RANKS];
    const ELEMENT *inputs[SIDE];
    void *outputs[SIDE];
    for (int r = 0; r < num_rows; r++) {
        const int64_t source = call->sources ? call->sources[rows[r]] : rows[r];
        inputs[r] = (const ELEMENT *)call->inputs + source * call->input_row;
        outputs[r] = (char *)call->outputs + rows[r] * call->output_row * pw_size(call->output_type);
    }
    for (int64_t i = 0; i < change->num_parts; i++) {
        const pw_low_rank *part = &change->parts[i];
        int64_t rank = 0;
        for (; rank + num_ranks <= part->rank; rank += num_ranks) {
            TYPED(take)(part, rank, num_ranks, inputs, num_rows, taken);
        }
        for (; rank + SIDE <= part->rank; rank += SIDE) { /* or a row alone would have other bits */
            TYPED(take)(part, rank, SIDE, inputs, num_rows, taken);
        }
        TYPED(take_last)(part, rank, inputs, num_rows, taken);
        TYPED(give)(part, outputs, call->output_type != call->type, num_rows, taken);
    }
}

static void TYPED(adapt)(const pw_adaptation *call, const pw_change *change, const int64_t *rows,
                         int64_t num_rows) {
    int64_t row = 0;
    for (; row + SIDE <= num_rows; row += SIDE) {
        TYPED(adapt_some)(call, change, rows + row, SIDE, SIDE);
    }
    for (; row < num_rows; row++) {
        TYPED(adapt_some)(call, change, rows + row, 1, WIDE);
    }
}

#include "processor/typed_end.template.h"
