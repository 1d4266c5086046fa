/* Attention of a few rows in bfloat16 over codes of 8 bits, by the instruction that adds products of
 * pairs of 16 bits to 32 (VNNI).
 *
 * As pairs.template.h does it, in whole numbers: codes are widened to 16 bits, queries and weights
 * rounded to as many, by the largest of a row. No sum can overflow, so nothing but that is rounded. */

#define CODES 32 /* elements of a vector */
#define SCALE (int64_t)sizeof(float) /* bytes behind the codes of a row, often on a line of their own */
#define LARGEST_QUERY 16383.0f /* times 127, of up to 1,024 dimensions: less than 2^31 */
#define LARGEST_WEIGHT 32767.0f /* times 127, of PW_SPLIT keys: the same */

_Static_assert(PW_SPLIT * 127LL * 32767 < 1LL << 31, "sums of a split fit in 32 bits");

/* target = source in whole numbers, the largest magnitude being `most`; returns what 1 stands for. */
static inline float round_row(const float *source, int64_t length, float most, int16_t *target) {
    vf magnitudes = v_set(0.0f);
    for (int64_t i = 0; i < length; i += LANES) {
        magnitudes = v_max(magnitudes, _mm512_abs_ps(v_load_f32(source + i)));
    }
    const float largest = v_highest(magnitudes);
    const vf factor = v_set(largest > 1e-30f ? most / largest : 0.0f);
    for (int64_t i = 0; i < length; i += LANES) {
        const __m512i rounded = _mm512_cvtps_epi32(v_mul(v_load_f32(source + i), factor));
        _mm256_storeu_si256((__m256i *)(target + i), _mm512_cvtsepi32_epi16(rounded));
    }
    return largest / most;
}

static inline float scale_of(const pw_i8 *row, int64_t dim) {
    float scale;
    memcpy(&scale, row + dim, sizeof scale);
    return scale;
}

static inline __m512i load_codes(const pw_i8 *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

/* The sum over x[i], for four vectors. */
static inline __m128 sum_four_words(const __m512i x[4]) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]),
                                        _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]),
                                        _mm512_unpackhi_epi32(x[2], x[3]));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd),
                                         _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all),
                                          _mm512_extracti64x4_epi64(all, 1));
    return _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(half),
                                         _mm256_extracti128_si256(half, 1)));
}

/* scores[row][key] = units[row] * (query[row] . key) * the key's scale. Meanwhile the values, `shift`
 * behind the keys, are fetched: their scales are read before the first of them. */
PW_INLINE void score_codes(const int16_t *query, const float *units, int num_rows, int64_t dim,
                           const pw_i8 *base, const int64_t *offsets, int64_t shift,
                           int64_t num_keys, float *scores) {
    for (int64_t key = 0; key < num_keys; key += AT_ONCE) {
        __m512i sums[FEW][AT_ONCE] = {{{0}}};
        for (int k = 0; k < AT_ONCE; k++) {
            prefetch(base + offsets[key + k + AHEAD], dim);
            fetch(base + offsets[key + k] + shift, dim + SCALE);
        }
        for (int64_t i = 0; i < dim; i += CODES) {
            __m512i loaded[AT_ONCE];
#pragma GCC unroll 4
            for (int k = 0; k < AT_ONCE; k++) {
                loaded[k] = load_codes(base + offsets[key + k] + i);
            }
#pragma GCC unroll 4
            for (int row = 0; row < num_rows; row++) {
                const __m512i part = _mm512_loadu_si512(query + row * dim + i);
#pragma GCC unroll 4
                for (int k = 0; k < AT_ONCE; k++) {
                    sums[row][k] = _mm512_dpwssd_epi32(sums[row][k], part, loaded[k]);
                }
            }
        }
        const __m128 scales = _mm_setr_ps(
            scale_of(base + offsets[key], dim), scale_of(base + offsets[key + 1], dim),
            scale_of(base + offsets[key + 2], dim), scale_of(base + offsets[key + 3], dim));
#pragma GCC unroll 4
        for (int row = 0; row < num_rows; row++) {
            const __m128 factors = _mm_mul_ps(scales, _mm_set1_ps(units[row]));
            _mm_storeu_ps(scores + row * PW_SPLIT + key,
                          _mm_mul_ps(sum_four_words(sums[row]), factors));
        }
    }
}

/* output[row] = units[row] * the sum of weights[row][key] * value, for `width` vectors of the head.
 * Where the number of keys is odd, the weight behind the last is 0. What lies at the next offsets is
 * fetched meanwhile: the keys that are read then. */
PW_INLINE void add_codes(const int16_t *weights, const float *units, int num_rows, int width,
                         int64_t dim, const pw_i8 *base, const int64_t *offsets, const pw_i8 *next,
                         const int64_t *next_offsets, int64_t num_keys, float *output) {
    __m512i low[FEW][2] = {{{0}}}, high[FEW][2] = {{{0}}};
    for (int64_t key = 0; key < num_keys; key += 2) {
        fetch(next + next_offsets[key], width * CODES + SCALE);
        fetch(next + next_offsets[key + 1], width * CODES + SCALE);
        __m512i lows[2], highs[2];
        for (int w = 0; w < width; w++) {
            const __m512i even = load_codes(base + offsets[key] + w * CODES);
            const __m512i odd = load_codes(base + offsets[key + 1] + w * CODES);
            lows[w] = _mm512_unpacklo_epi16(even, odd);
            highs[w] = _mm512_unpackhi_epi16(even, odd);
        }
        for (int row = 0; row < num_rows; row++) {
            int32_t pair;
            memcpy(&pair, weights + row * PW_SPLIT + key, sizeof pair);
            const __m512i both = _mm512_set1_epi32(pair);
            for (int w = 0; w < width; w++) {
                low[row][w] = _mm512_dpwssd_epi32(low[row][w], both, lows[w]);
                high[row][w] = _mm512_dpwssd_epi32(high[row][w], both, highs[w]);
            }
        }
    }
    /* As in add_pairs of pairs.template.h. */
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int row = 0; row < num_rows; row++) {
        const vf unit = v_set(units[row]);
        for (int w = 0; w < width; w++) {
            float *target = output + row * dim + w * CODES;
            const __m512i lower = _mm512_permutex2var_epi32(low[row][w], first, high[row][w]);
            const __m512i upper = _mm512_permutex2var_epi32(low[row][w], second, high[row][w]);
            v_store_f32(target, v_mul(_mm512_cvtepi32_ps(lower), unit));
            v_store_f32(target + LANES, v_mul(_mm512_cvtepi32_ps(upper), unit));
        }
    }
}

PW_INLINE void add_all_codes(const int16_t *weights, const float *units, int num_rows, int64_t dim,
                             const pw_i8 *base, const int64_t *offsets, const pw_i8 *next,
                             const int64_t *next_offsets, int64_t num_keys, float *output) {
    int64_t i = 0;
    for (; i + 2 * CODES <= dim; i += 2 * CODES) {
        add_codes(weights, units, num_rows, 2, dim, base + i, offsets, next + i, next_offsets,
                  num_keys, output + i);
    }
    if (i < dim) {
        add_codes(weights, units, num_rows, 1, dim, base + i, offsets, next + i, next_offsets,
                  num_keys, output + i);
    }
}

static void attend_few_codes(const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, value_dim = call->value_dim;
    const int64_t num_keys = item->end - item->begin;
    const int64_t num_weights = (num_keys + LANES - 1) / LANES * LANES;
    float *sums = scratch, *wide = sums + FEW * dim, *scores = wide + dim;
    int64_t *offsets = (int64_t *)(scores + FEW * PW_SPLIT);
    int64_t *next_offsets = offsets + PW_SPLIT + 2 * AHEAD;
    int16_t *weights = (int16_t *)(next_offsets + PW_SPLIT + 2 * AHEAD);
    int16_t *query = weights + FEW * PW_SPLIT;
    const pw_i8 *base = call->kv, *values = base + call->kv_value;
    key_offsets(item, item->begin, item->end, offsets);
    const int64_t *soon = offsets_of_next(item, offsets, next_offsets);
    for (int64_t first = 0; first < item->num_rows; first += FEW) {
        const int rows = item->num_rows - first < FEW ? (int)(item->num_rows - first) : FEW;
        float units[FEW], statistics[FEW][2];
        for (int row = 0; row < rows; row++) {
            widen_bf16(query_row_bf16(item, first + row), wide, dim, dim);
            units[row] = round_row(wide, dim, LARGEST_QUERY, query + row * dim);
        }
#define SCORE(n) score_codes(query, units, n, dim, base, offsets, call->kv_value, num_keys, scores)
        FOR_ROWS(rows, SCORE)
#undef SCORE
        weigh_rows(item, first, rows, scores, statistics);
        scale_rows(call, call->kv_value, offsets, num_keys, rows, scores);
        for (int row = 0; row < rows; row++) {
            int16_t *rounded = weights + row * PW_SPLIT;
            units[row] = round_row(scores + row * PW_SPLIT, num_weights, LARGEST_WEIGHT, rounded);
        }
#define ADD(n) \
    add_all_codes(weights, units, n, value_dim, values, offsets, base, soon, num_keys, sums)
        FOR_ROWS(rows, ADD)
#undef ADD
        for (int row = 0; row < rows; row++) {
            finish_bf16(item, first + row, sums + row * value_dim, statistics[row][0],
                        statistics[row][1]);
        }
    }
}
