/* Mamba-2's state space, four tokens at once, in rows of a state: h' = decay h + dt x b', y = h'c.
 *
 * Rows know nothing of each other: two of them go through all tokens of a stretch while they stay
 * in the processor's first cache, as do the stretch's b and c, which all rows of a head share. */

#define SCANNED 16 /* tokens of a stretch */

/* Four tokens of a head, or fewer: the others change nothing. */
typedef struct {
    float decay;        /* of the state before */
    float reach[QUAD];  /* what of the state before is left when a token's result is taken */
    float behind[QUAD]; /* what of a token's own is left behind the quad */
    float given[12];    /* of each pair: what the late result has of the early one's dt x */
} scan_quad;

/* A stretch of a head; rows of whole vectors, zeros beyond their ends. */
typedef struct {
    scan_quad *quads;
    float *b, *c;  /* [tokens, states] */
    float *inputs; /* dt x, [tokens, rows]; then times `behind` */
    float *output; /* [tokens, rows] */
    int64_t states, rows, num_quads;
} scan_stretch;

PW_INLINE void sum_all(const vf *sums, int count, float *out) {
    for (int i = 0; i + 4 <= count; i += 4) {
        v_sum_four(sums + i, out + i);
    }
    for (int i = count / 4 * 4; i < count; i++) {
        out[i] = v_sum(sums[i]);
    }
}

/* A vector of some rows of a state: what the tokens want of it is added to `sums`, and they bring. */
PW_INLINE void scan_vector(const float *from, float *to, int64_t dim, int64_t left, vf decay,
                           const float *b, const float *c, int64_t token_row,
                           vf inputs[4][QUAD], vf sums[16], int rows, int tokens) {
    vf state[4], next[4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        state[r] = from ? v_load_some_f32(from + r * dim, left) : v_set(0.0f);
        next[r] = v_mul(state[r], decay);
    }
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) {
        const vf wanted = v_load_f32(c + t * token_row), brought = v_load_f32(b + t * token_row);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            sums[r * tokens + t] = v_fma(state[r], wanted, sums[r * tokens + t]);
            next[r] = v_fma(inputs[r][t], brought, next[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        v_store_some_f32(to + r * dim, next[r], left);
    }
}

/* Some rows of a state, from `from`, where they may be zero (NULL), to `to`: a quad. */
PW_INLINE void scan_quad_rows(const scan_stretch *all, int64_t i, int64_t dim, int64_t row,
                              const float *from, float *to, int rows, int tokens) {
    const scan_quad *quad = all->quads + i;
    const int64_t states = all->states, first = i * QUAD, whole = dim / LANES * LANES;
    const float *b = all->b + first * states, *c = all->c + first * states;
    const vf decay = v_set(quad->decay);
    vf inputs[4][QUAD], sums[16];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int t = 0; t < tokens; t++) {
            inputs[r][t] = v_set(all->inputs[(first + t) * all->rows + row + r]);
            sums[r * tokens + t] = v_set(0.0f);
        }
    }
    /* One token reads a state as it lies; with several, what two rows share is read once. */
    const int together = tokens == 1 ? 1 : rows;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r += together) {
        const float *source = from ? from + r * dim : NULL;
        float *target = to + r * dim;
        vf *some = sums + r * tokens;
        for (int64_t j = 0; j < whole; j += LANES) {
            scan_vector(source ? source + j : NULL, target + j, dim, LANES, decay, b + j, c + j,
                        states, inputs + r, some, together, tokens);
        }
        if (whole < dim) {
            scan_vector(source ? source + whole : NULL, target + whole, dim, dim - whole, decay,
                        b + whole, c + whole, states, inputs + r, some, together, tokens);
        }
    }
    float found[16];
    sum_all(sums, rows * tokens, found);
    for (int t = 0; t < tokens; t++) {
        float *output = all->output + (first + t) * all->rows + row;
        for (int r = 0; r < rows; r++) {
            output[r] += quad->reach[t] * found[r * tokens + t];
        }
    }
}

/* All quads. */
PW_INLINE void scan_rows(const scan_stretch *all, int64_t dim, int64_t row, const float *from,
                         float *to, int rows, int tokens) {
    if (from) {
        scan_quad_rows(all, 0, dim, row, from, to, rows, tokens);
    } else {
        scan_quad_rows(all, 0, dim, row, NULL, to, rows, tokens);
    }
    for (int64_t i = 1; i < all->num_quads; i++) {
        scan_quad_rows(all, i, dim, row, to, to, rows, tokens);
    }
}

static void scan_one(const scan_stretch *all, int64_t dim, int64_t num_rows, const float *from,
                     float *to) {
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) {
        scan_rows(all, dim, row, from ? from + row * dim : NULL, to + row * dim, 4, 1);
    }
    for (; row < num_rows; row++) {
        scan_rows(all, dim, row, from ? from + row * dim : NULL, to + row * dim, 1, 1);
    }
}

static void scan_many(const scan_stretch *all, int64_t dim, int64_t num_rows, const float *from,
                      float *to) {
    int64_t row = 0;
    for (; row + 2 <= num_rows; row += 2) {
        scan_rows(all, dim, row, from ? from + row * dim : NULL, to + row * dim, 2, QUAD);
    }
    for (; row < num_rows; row++) {
        scan_rows(all, dim, row, from ? from + row * dim : NULL, to + row * dim, 1, QUAD);
    }
}

/* Of a quad all that its tokens' dt say, and its b and c by each other. */
static void prepare_scan_quad(const pw_scan *call, int64_t head, int64_t token, int64_t count,
                              const float *b, const float *c, int64_t states, scan_quad *quad) {
    float kept[QUAD];
    for (int t = 0; t < QUAD; t++) {
        const int64_t place = (token + t) * call->heads + head;
        kept[t] = t < count ? expf(call->dt[place] * call->a[head]) : 1.0f;
    }
    vf products[12];
    for (int i = 0; i < 12; i++) {
        products[i] = v_set(0.0f);
    }
    for (int64_t j = 0; j < states; j += LANES) {
#pragma GCC unroll 4
        for (int late = 0; late < QUAD; late++) {
            const vf wanted = v_load_f32(c + late * states + j);
#pragma GCC unroll 4
            for (int early = 0; early <= late; early++) {
                const int pair = PAIR(late, early);
                products[pair] = v_fma(wanted, v_load_f32(b + early * states + j), products[pair]);
            }
        }
    }
    sum_all(products, 12, quad->given);
    quad->decay = 1.0f;
    for (int early = 0; early < QUAD; early++) {
        quad->decay *= kept[early];
        quad->reach[early] = quad->decay;
        float left = 1.0f;
        for (int late = early + 1; late < QUAD; late++) {
            left *= kept[late];
            quad->given[PAIR(late, early)] *= left;
        }
        quad->behind[early] = left;
    }
}
