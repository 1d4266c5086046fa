/* Attention of the rows of one KV head over some keys in bfloat16, by AMX.
 *
 * A tile is 16 rows of 64 bytes. Keys go in as they lie in their blocks, 16 at a time, times the
 * transposed queries: scores [key][row], which are turned round, so that the softmax runs over the
 * keys of real rows only. Weights go in as they come out of it, rounded to bfloat16, times the
 * values, two keys of which are interleaved first: that is how AMX wants the second factor. */
#include "tiles.h"

#define TILE_ROWS 16
#define TILE_PAIRS 16 /* of bfloat16 in a row of a tile */
#define TILE_INNER 32
#define TILE_WORDS (TILE_ROWS * TILE_PAIRS)

/* target[column][row] = source[row][column], 16 by 16 words; strides in words. */
static inline void transpose_words(const void *source, int64_t source_row, void *target,
                                   int64_t target_row) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) {
        a[i] = _mm512_loadu_si512((const uint32_t *)source + i * source_row);
    }
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3, one a quarter. */
    for (int c = 0; c < 4; c++) {
        const __m512i low = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88);
        const __m512i low_odd = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd);
        const __m512i high_odd = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        b[c] = _mm512_shuffle_i32x4(low, high, 0x88);
        b[c + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        b[c + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        b[c + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
    for (int i = 0; i < 16; i++) {
        _mm512_storeu_si512((uint32_t *)target + i * target_row, b[i]);
    }
}

/* packed[row tile][32 dims][pair of dims][row]: the second factors of scores. */
static void pack_queries(const pw_item *item, int64_t row_tiles, pw_bf16 *rows, uint32_t *packed) {
    const int64_t dim = item->call->head_dim, steps = dim / TILE_INNER;
    for (int64_t tile = 0; tile < row_tiles; tile++) {
        for (int64_t i = 0; i < TILE_ROWS; i++) {
            const int64_t row = tile * TILE_ROWS + i;
            if (row < item->num_rows) {
                memcpy(rows + i * dim, query_row_bf16(item, row), (size_t)dim * sizeof *rows);
            } else {
                memset(rows + i * dim, 0, (size_t)dim * sizeof *rows);
            }
        }
        for (int64_t step = 0; step < steps; step++, packed += TILE_WORDS) {
            transpose_words(rows + step * TILE_INNER, dim / 2, packed, TILE_PAIRS);
        }
    }
}

/* scores[row][key] of 16 keys, which lie `key_row` elements apart, for all rows. */
static void score_tile(const pw_bf16 *keys, int64_t key_row, int64_t steps, int64_t row_tiles,
                       const uint32_t *queries, float *turned, float *scores) {
    const int64_t stride = key_row * (int64_t)sizeof *keys;
    for (int64_t tile = 0; tile < row_tiles; tile++) {
        TILE_ZERO(0);
        for (int64_t step = 0; step < steps; step++, queries += TILE_WORDS) {
            TILE_LOAD(1, keys + step * TILE_INNER, stride);
            TILE_LOAD(2, queries, 64);
            TILE_DOT_BF16(0, 1, 2);
        }
        TILE_STORE(0, turned, 64);
        transpose_words(turned, TILE_ROWS, scores + tile * TILE_ROWS * PW_SPLIT, PW_SPLIT);
    }
}

/* Whether a tile of keys lies in memory one after the other, as in a block. */
static bool in_one_piece(const int64_t *offsets, int64_t kv_token) {
    for (int i = 1; i < TILE_ROWS; i++) {
        if (offsets[i] - offsets[i - 1] != kv_token) {
            return false;
        }
    }
    return true;
}

/* Scores of all keys of a part; those of its last tile beyond num_keys are of zeros. */
static void score_keys(const pw_item *item, const int64_t *offsets, int64_t num_keys,
                       int64_t row_tiles, const uint32_t *queries, pw_bf16 *copy, float *turned,
                       float *scores) {
    const pw_attention *call = item->call;
    const pw_bf16 *base = call->kv;
    const int64_t dim = call->head_dim, steps = dim / TILE_INNER;
    for (int64_t key = 0; key < num_keys; key += TILE_ROWS) {
        const bool whole = key + TILE_ROWS <= num_keys && in_one_piece(offsets + key, call->kv_token);
        for (int i = 0; i < TILE_ROWS; i++) {
            prefetch(base + offsets[key + AHEAD + i], dim * (int64_t)sizeof *base);
            if (!whole && key + i < num_keys) {
                memcpy(copy + i * dim, base + offsets[key + i], (size_t)dim * sizeof *copy);
            } else if (!whole) {
                memset(copy + i * dim, 0, (size_t)dim * sizeof *copy);
            }
        }
        score_tile(whole ? base + offsets[key] : copy, whole ? call->kv_token : dim, steps,
                   row_tiles, queries, turned, scores + key);
    }
}

/* packed[32 keys][16 dims][pair of keys][dim]: the second factors of sums; zeros beyond the keys. */
static void pack_values(const pw_item *item, const int64_t *offsets, int64_t num_keys,
                        uint32_t *packed) {
    const pw_attention *call = item->call;
    const pw_bf16 *base = (const pw_bf16 *)call->kv + call->kv_value;
    const int64_t dim = call->head_dim, tiles = dim / TILE_ROWS;
    const int64_t padded = (num_keys + TILE_INNER - 1) / TILE_INNER * TILE_INNER;
    for (int64_t key = 0; key < padded; key += 2) {
        uint32_t *target = packed + key / TILE_INNER * tiles * TILE_WORDS +
                           key % TILE_INNER / 2 * TILE_PAIRS;
        for (int64_t tile = 0; tile < tiles; tile++, target += TILE_WORDS) {
            __m512i even = _mm512_setzero_si512(), odd = even;
            if (key < num_keys) {
                const pw_bf16 *value = base + offsets[key] + tile * TILE_ROWS;
                even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)value));
            }
            if (key + 1 < num_keys) {
                const pw_bf16 *value = base + offsets[key + 1] + tile * TILE_ROWS;
                odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)value));
            }
            _mm512_storeu_si512(target, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
        if (key < num_keys) {
            prefetch(base + offsets[key + AHEAD], dim * (int64_t)sizeof *base);
            prefetch(base + offsets[key + AHEAD + 1], dim * (int64_t)sizeof *base);
        }
    }
}

/* The weights of all rows, in bfloat16, [row][PW_SPLIT]; earlier sums shrink as maxima grow. */
static void weigh_rows(const pw_item *item, int64_t begin, int64_t num_keys, float *scores,
                       pw_bf16 *weights, float *statistics, float *sums) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, group = call->num_heads / call->num_kv_heads;
    const int64_t padded = (num_keys + LANES - 1) / LANES * LANES;
    for (int64_t row = 0; row < item->num_rows; row++) {
        float *of_row = scores + row * PW_SPLIT;
        const int64_t position = item->run->first_position + (item->row + row) / group;
        const float factor = weigh_row(call, of_row, begin, num_keys, position, statistics + 2 * row);
        for (int64_t i = 0; i < dim && factor != 1.0f; i += LANES) {
            v_store_f32(sums + row * dim + i,
                        v_mul(v_load_f32(sums + row * dim + i), v_set(factor)));
        }
        pw_bf16 *target = weights + row * PW_SPLIT;
        for (int64_t key = 0; key < padded; key += LANES) {
            v_store_bf16(target + key, v_load_f32(of_row + key));
        }
        if (padded % TILE_INNER) {
            memset(target + padded, 0, LANES * sizeof *target);
        }
    }
}

/* sums[row][dim] += weights times values, for the 16 rows of a tile. */
static void add_tile(const pw_bf16 *weights, const uint32_t *values, int64_t num_keys, int64_t dim,
                     float *sums) {
    const int64_t stride = dim * (int64_t)sizeof *sums, next = dim / TILE_ROWS * TILE_WORDS;
    for (int64_t i = 0; i < dim; i += 2 * TILE_ROWS, values += 2 * TILE_WORDS) {
        TILE_LOAD(0, sums + i, stride);
        TILE_LOAD(1, sums + i + TILE_ROWS, stride);
        for (int64_t key = 0, step = 0; key < num_keys; key += TILE_INNER, step += next) {
            TILE_LOAD(2, weights + key, PW_SPLIT * sizeof *weights);
            TILE_LOAD(3, values + step, 64);
            TILE_LOAD(4, values + step + TILE_WORDS, 64);
            TILE_DOT_BF16(0, 2, 3);
            TILE_DOT_BF16(1, 2, 4);
        }
        TILE_STORE(0, sums + i, stride);
        TILE_STORE(1, sums + i + TILE_ROWS, stride);
    }
}

static void attend_tiles(const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t dim = call->head_dim, row_tiles = (item->num_rows + TILE_ROWS - 1) / TILE_ROWS;
    if (dim % TILE_INNER != 0 || item->num_rows <= FEW) {
        attend_pairs(item, scratch);
        return;
    }
    float *sums = scratch, *scores = sums + PW_ROWS * dim, *statistics = scores + PW_ROWS * PW_SPLIT;
    float *turned = statistics + 2 * PW_ROWS;
    int64_t *offsets = (int64_t *)(turned + TILE_WORDS);
    uint32_t *queries = (uint32_t *)(offsets + PW_SPLIT + 2 * AHEAD);
    uint32_t *values = queries + PW_ROWS * dim / 2;
    pw_bf16 *weights = (pw_bf16 *)(values + PW_SPLIT * dim / 2);
    pw_bf16 *copy = weights + PW_ROWS * PW_SPLIT;
    configure_tiles((const uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
    pack_queries(item, row_tiles, copy, queries);
    memset(sums, 0, (size_t)(row_tiles * TILE_ROWS * dim) * sizeof *sums);
    memset(weights, 0, (size_t)(row_tiles * TILE_ROWS * PW_SPLIT) * sizeof *weights);
    for (int64_t row = 0; row < item->num_rows; row++) {
        statistics[2 * row] = -INFINITY, statistics[2 * row + 1] = 0.0f;
    }
    for (int64_t begin = item->begin; begin < item->end; begin += PW_SPLIT) {
        const int64_t end = begin + PW_SPLIT < item->end ? begin + PW_SPLIT : item->end;
        const int64_t num_keys = end - begin;
        key_offsets(item, begin, end, offsets);
        look_ahead(offsets, num_keys, call->kv_value);
        score_keys(item, offsets, num_keys, row_tiles, queries, copy, turned, scores);
        look_ahead(offsets, num_keys, 0);
        weigh_rows(item, begin, num_keys, scores, weights, statistics, sums);
        pack_values(item, offsets, num_keys, values);
        for (int64_t tile = 0; tile < row_tiles; tile++) {
            add_tile(weights + tile * TILE_ROWS * PW_SPLIT, values, num_keys, dim,
                     sums + tile * TILE_ROWS * dim);
        }
    }
    TILE_RELEASE();
    for (int64_t row = 0; row < item->num_rows; row++) {
        finish_bf16(item, row, sums + row * dim, statistics[2 * row], statistics[2 * row + 1]);
    }
}
