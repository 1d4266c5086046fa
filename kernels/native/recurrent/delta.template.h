/* The gated delta rule of four tokens at once, in columns of a state: S' = decay S + k (beta (v - S'k))'.
 *
 * Columns of the values know nothing of each other, so a few of them go through all tokens of a
 * stretch while they stay in the processor's first cache. Of each quad what its keys and queries
 * find in the state before it is computed in the pass that adds what the quad before has learnt. */

/* Tokens whose keys are prepared together. */
#define STRETCH 32

#if LANES == 16
#define NARROW 2 /* vectors of columns, for four tokens */
#define WIDE 8   /* for one */
#else
#define NARROW 1 /* half as many registers */
#define WIDE 4
#endif

/* Four tokens of a head, or fewer: the others change nothing. Products of decays are included. */
typedef struct {
    float keys[QUAD][PW_MOST_KEYS], queries[QUAD][PW_MOST_KEYS]; /* on the state before the quad */
    float added[QUAD][PW_MOST_KEYS]; /* keys, on the state behind it */
    float decay[PW_MOST_KEYS];       /* of the state before */
    float known[8];                  /* of each strict pair: the late key's, by the early one */
    float given[12];                 /* of each pair: the late query's */
    float beta[QUAD];
    int64_t token, count;
} delta_quad;

/* Rows of columns of a state, so many floats apart. */
typedef struct {
    float *rows;
    int64_t row;
} delta_columns;

/* The quad `done` is added to what `from` has, which goes to `to`; and what the keys and queries of
 * `next` find there. Neither needs to be. */
PW_INLINE void pass_delta(delta_columns from, delta_columns to, int64_t num_keys,
                          const delta_quad *done, vf learnt[QUAD][WIDE], const delta_quad *next,
                          vf known[QUAD][WIDE], vf found[QUAD][WIDE], int vectors, int tokens) {
    for (int64_t i = 0; i < num_keys; i++) {
#pragma GCC unroll 8
        for (int w = 0; w < vectors; w++) {
            vf state = v_load_f32(from.rows + i * from.row + w * LANES);
            if (done) {
                state = v_mul(state, v_set(done->decay[i]));
#pragma GCC unroll 4
                for (int t = 0; t < tokens; t++) {
                    state = v_fma(v_set(done->added[t][i]), learnt[t][w], state);
                }
                v_store_f32(to.rows + i * to.row + w * LANES, state);
            }
            if (next) {
#pragma GCC unroll 4
                for (int t = 0; t < tokens; t++) {
                    known[t][w] = v_fma(v_set(next->keys[t][i]), state, known[t][w]);
                    found[t][w] = v_fma(v_set(next->queries[t][i]), state, found[t][w]);
                }
            }
        }
    }
}

PW_INLINE void clear_delta(vf known[QUAD][WIDE], vf found[QUAD][WIDE], int vectors, int tokens) {
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) {
#pragma GCC unroll 8
        for (int w = 0; w < vectors; w++) {
            known[t][w] = found[t][w] = v_set(0.0f);
        }
    }
}
