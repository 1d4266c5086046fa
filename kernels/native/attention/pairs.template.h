/* Attention in bfloat16 by the instruction that adds products of pairs to float32, or by tiles.
 *
 * A few rows are as those of rows.template.h, without widening what is read: a pair is two
 * neighbours of a head for the scores, and two keys, whose values are interleaved, for the sums.
 * Weights are rounded to bfloat16. */

#define PAIRED 32 /* elements of a vector */

/* scores[row][key] = query[row] . key. Meanwhile the values, `shift` elements behind the keys, are
 * fetched, so that memory is never idle. */
PW_INLINE void score_pairs(const pw_bf16 *query, int num_rows, int64_t dim, const pw_bf16 *base,
                           const int64_t *offsets, int64_t shift, int64_t num_keys, float *scores) {
    for (int64_t key = 0; key < num_keys; key += AT_ONCE) {
        vf sums[FEW][AT_ONCE] = {{{0}}};
        for (int64_t i = 0; i < dim; i += PAIRED) {
            __m512bh loaded[AT_ONCE];
#pragma GCC unroll 4
            for (int k = 0; k < AT_ONCE; k++) {
                loaded[k] = (__m512bh)_mm512_loadu_si512(base + offsets[key + k] + i);
                prefetch(base + offsets[key + k + AHEAD] + i, 64);
                fetch(base + offsets[key + k] + shift + i, 64);
            }
#pragma GCC unroll 4
            for (int row = 0; row < num_rows; row++) {
                const __m512bh part = (__m512bh)_mm512_loadu_si512(query + row * dim + i);
#pragma GCC unroll 4
                for (int k = 0; k < AT_ONCE; k++) {
                    sums[row][k] = _mm512_dpbf16_ps(sums[row][k], part, loaded[k]);
                }
            }
        }
#pragma GCC unroll 4
        for (int row = 0; row < num_rows; row++) {
            v_sum_four(sums[row], scores + row * PW_SPLIT + key);
        }
    }
}

/* output[row] = the sum of weights[row][key] * value, for `width` vectors of the head. Where the
 * number of keys is odd, the weight behind the last is 0, and the last value is read again. What lies
 * at the next offsets is fetched meanwhile: the keys that are read then. */
PW_INLINE void add_pairs(const pw_bf16 *weights, int num_rows, int width, int64_t dim,
                         const pw_bf16 *base, const int64_t *offsets, const pw_bf16 *next,
                         const int64_t *next_offsets, int64_t num_keys, float *output) {
    vf low[FEW][2] = {{{0}}}, high[FEW][2] = {{{0}}};
    for (int64_t key = 0; key < num_keys; key += 2) {
        prefetch(base + offsets[key + AHEAD], width * 64);
        prefetch(base + offsets[key + AHEAD + 1], width * 64);
        fetch(next + next_offsets[key], width * 64);
        fetch(next + next_offsets[key + 1], width * 64);
        __m512bh lows[2], highs[2];
        for (int w = 0; w < width; w++) {
            const __m512i even = _mm512_loadu_si512(base + offsets[key] + w * PAIRED);
            const __m512i odd = _mm512_loadu_si512(base + offsets[key + 1] + w * PAIRED);
            lows[w] = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            highs[w] = (__m512bh)_mm512_unpackhi_epi16(even, odd);
        }
        for (int row = 0; row < num_rows; row++) {
            int32_t pair;
            memcpy(&pair, weights + row * PW_SPLIT + key, sizeof pair);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int w = 0; w < width; w++) {
                low[row][w] = _mm512_dpbf16_ps(low[row][w], both, lows[w]);
                high[row][w] = _mm512_dpbf16_ps(high[row][w], both, highs[w]);
            }
        }
    }
    /* A quarter of a vector holds 4 of 8 neighbours: the low ones here, the high ones there. */
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int row = 0; row < num_rows; row++) {
        for (int w = 0; w < width; w++) {
            float *target = output + row * dim + w * PAIRED;
            v_store_f32(target, _mm512_permutex2var_ps(low[row][w], first, high[row][w]));
            v_store_f32(target + LANES, _mm512_permutex2var_ps(low[row][w], second, high[row][w]));
        }
    }
}

PW_INLINE void add_all_pairs(const pw_bf16 *weights, int num_rows, int64_t dim, const pw_bf16 *base,
                             const int64_t *offsets, const pw_bf16 *next,
                             const int64_t *next_offsets, int64_t num_keys, float *output) {
    int64_t i = 0;
    for (; i + 2 * PAIRED <= dim; i += 2 * PAIRED) {
        add_pairs(weights, num_rows, 2, dim, base + i, offsets, next + i, next_offsets, num_keys,
                  output + i);
    }
    if (i < dim) {
        add_pairs(weights, num_rows, 1, dim, base + i, offsets, next + i, next_offsets, num_keys,
                  output + i);
    }
}

static void attend_few_pairs(const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, value_dim = call->value_dim;
    const int64_t num_keys = item->end - item->begin;
    float *sums = scratch, *scores = sums + FEW * dim;
    int64_t *offsets = (int64_t *)(scores + FEW * PW_SPLIT);
    int64_t *next_offsets = offsets + PW_SPLIT + 2 * AHEAD;
    pw_bf16 *weights = (pw_bf16 *)(next_offsets + PW_SPLIT + 2 * AHEAD);
    pw_bf16 *query = weights + FEW * PW_SPLIT;
    const pw_bf16 *base = call->kv, *values = base + call->kv_value;
    key_offsets(item, item->begin, item->end, offsets);
    const int64_t *soon = offsets_of_next(item, offsets, next_offsets);
    for (int64_t first = 0; first < item->num_rows; first += FEW) {
        const int rows = item->num_rows - first < FEW ? (int)(item->num_rows - first) : FEW;
        for (int row = 0; row < rows; row++) {
            const pw_bf16 *source = query_row_bf16(item, first + row);
            memcpy(query + row * dim, source, (size_t)dim * sizeof *query);
        }
        look_ahead(offsets, num_keys, call->kv_value);
#define SCORE(n) score_pairs(query, n, dim, base, offsets, call->kv_value, num_keys, scores)
        FOR_ROWS(rows, SCORE)
#undef SCORE
        look_ahead(offsets, num_keys, 0);
        float statistics[FEW][2];
        weigh_rows(item, first, rows, scores, statistics);
        for (int row = 0; row < rows; row++) {
            for (int64_t key = row * PW_SPLIT; key < row * PW_SPLIT + num_keys; key += LANES) {
                v_store_bf16(weights + key, v_load_f32(scores + key));
            }
        }
#define ADD(n) add_all_pairs(weights, n, value_dim, values, offsets, base, soon, num_keys, sums)
        FOR_ROWS(rows, ADD)
#undef ADD
        for (int row = 0; row < rows; row++) {
            finish_bf16(item, first + row, sums + row * value_dim, statistics[row][0],
                        statistics[row][1]);
        }
    }
}

static void attend_pairs(const pw_item *item, float *scratch) {
    if (is_few(item) && has_whole_vectors(item->call, PAIRED)) {
        (item->call->is_quantized ? attend_few_codes : attend_few_pairs)(item, scratch);
        return;
    }
    const pw_path path = pw_attention_path();
    if (is_few(item) || path == PW_BY_FLOATS) {
        attend_bf16(item, scratch);
        return;
    }
#ifdef BF16_TILES
    if (path == PW_BY_TILES) {
        configure_tiles((const uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
        attend_many_bf16(item, scratch, PW_BY_TILES);
        TILE_RELEASE();
        return;
    }
#endif
    attend_many_bf16(item, scratch, PW_BY_WORDS);
}
