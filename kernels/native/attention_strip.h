/* Many rows of one KV head and a tile of keys, packed into words: scores, weights and sums of a
 * strip of rows. Common to all element types; `way` as in attention_products.h. */

/* Memory for many rows of an item. */
typedef struct {
    int64_t words; /* of a row of a head */
    int64_t width; /* of a row of sums: whole vectors */
    float *queries;    /* [rows][words] */
    float *sums;       /* [rows][width] */
    float *statistics; /* [rows][2]: highest score, sum of weights */
    int64_t tile_keys; /* between two updates of the softmax */
    float *scores;     /* [PW_STRIP_ROWS][tile_keys]; then weights, a row of them in words */
    float *parts;      /* [PW_STRIP_ROWS][width], the sums of one tile */
    float *keys;       /* panels of tile_keys columns */
    float *values;     /* panels of `width` columns */
    int64_t *offsets;  /* of the keys, as `key_offsets` gives them */
    void *widened;     /* keys, then values of a tile, where the KV memory holds codes */
} many_rows;

/* tile_keys keys of a run, some of which the item sees. */
typedef struct {
    int64_t begin;      /* position of the first */
    int64_t first, end; /* those that the item sees; from 0 on */
    int64_t padded;     /* whole panels */
    const void *keys, *values; /* in the type of the queries */
    const int64_t *offsets;    /* elements from there to each */
} key_tile;

/* bfloat16 in a word, or one float32. */
static inline __attribute__((always_inline)) int per_word(int way) {
    return way == PW_BY_FLOATS ? 1 : 2;
}

/* Places in an item's scratch memory, which `pw_scratch` has measured; nothing attended to yet. */
static many_rows lay_out(const pw_item *item, float *scratch, int way) {
    const int64_t dim = item->call->head_dim, rows = item->num_rows + PW_SPARE_ROWS;
    const int64_t elements = LANES * per_word(way);
    const int64_t words = (dim + elements - 1) / elements * LANES;
    const int64_t width = (dim + LANES - 1) / LANES * LANES;
    const int64_t keys = item->run->tile_keys;
    many_rows many = {.words = words, .width = width, .queries = scratch, .tile_keys = keys};
    many.sums = many.queries + rows * words;
    many.scores = many.sums + rows * width;
    many.parts = many.scores + PW_STRIP_ROWS * keys;
    many.keys = many.parts + PW_STRIP_ROWS * width;
    many.values = many.keys + keys * words;
    many.offsets = (int64_t *)(many.values + keys * width);
    many.statistics = (float *)(many.offsets + keys + 2 * AHEAD);
    many.widened = many.statistics + 2 * rows;
    memset(many.sums, 0, (size_t)(item->num_rows * width) * sizeof *many.sums);
    for (int64_t row = 0; row < item->num_rows; row++) {
        many.statistics[2 * row] = -INFINITY, many.statistics[2 * row + 1] = 0.0f;
    }
    return many;
}

/* Vectors of scores of one row become words of weights; those from `begin` up to `end` are seen. The
 * statistics go on from what they are; returns the factor by which earlier sums shrink. */
static inline __attribute__((always_inline)) float weigh(const pw_attention *call, float *scores,
                                                         int64_t begin, int64_t end,
                                                         int64_t columns, float *statistics,
                                                         int way) {
    begin = begin < 0 ? 0 : begin;
    if (begin >= end) {
        memset(scores, 0, (size_t)columns / (size_t)per_word(way) * sizeof *scores);
        return 1.0f;
    }
    const int64_t first = begin / LANES * LANES, last = (end + LANES - 1) / LANES * LANES;
    for (int64_t key = first; key < last && call->softcap != 0; key += LANES) {
        v_store_f32(scores + key, form_scores(call, v_load_f32(scores + key)));
    }
    for (int64_t key = first; key < begin; key++) {
        scores[key] = -INFINITY;
    }
    for (int64_t key = end; key < last; key++) {
        scores[key] = -INFINITY;
    }
    const vf scale = v_set(call->softcap != 0 ? 1.0f : (float)call->scale);
    vf maxima = v_set(statistics[0]);
    for (int64_t key = first; key < last; key += LANES) {
        maxima = v_max(maxima, v_mul(v_load_f32(scores + key), scale));
    }
    const float highest = v_highest(maxima);
    vf sums = v_set(0.0f);
    for (int64_t key = 0; key < columns; key += LANES) {
        vf weights = v_set(0.0f);
        if (key >= first && key < last) {
            weights = v_weight(v_sub(v_mul(v_load_f32(scores + key), scale), v_set(highest)));
            sums = v_add(sums, weights);
        }
        if (way == PW_BY_FLOATS) {
            v_store_f32(scores + key, weights);
        } else {
            v_store_bf16((pw_bf16 *)(void *)scores + key, weights);
        }
    }
    const float factor = statistics[0] == highest ? 1.0f : expf(statistics[0] - highest);
    statistics[0] = highest;
    statistics[1] = statistics[1] * factor + v_sum(sums);
    return factor;
}

/* The rows of an item from `strip` on over one tile. */
static inline __attribute__((always_inline)) void attend_strip(const pw_item *item,
                                                               const many_rows *many,
                                                               const key_tile *tile, int64_t strip,
                                                               int way) {
    const pw_attention *call = item->call;
    const int64_t group = call->num_heads / call->num_kv_heads, left = item->num_rows - strip;
    const int64_t rows = left < PW_STRIP_ROWS ? left : PW_STRIP_ROWS;
    /* Positions as seen from the tile's first key. */
    const int64_t origin = item->run->first_position - tile->begin, row = item->row + strip;
    const int64_t oldest = origin + row / group, newest = origin + (row + rows - 1) / group;
    const int64_t window = call->window > 0 ? call->window : INT32_MAX;
    int64_t first = oldest - window + 1 > tile->first ? oldest - window + 1 : tile->first;
    const int64_t end = newest + 1 < tile->end ? newest + 1 : tile->end;
    if (first >= end) {
        return;
    }
    first = first / PANEL_WIDTH * PANEL_WIDTH;
    const int64_t columns = (end - first + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
    const int64_t words = many->words, width = many->width;
    multiply(many->queries + strip * words, words, rows, many->keys + first * words, words, 0, words,
             columns, way, many->scores, many->tile_keys);
    float factors[PW_STRIP_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t position = origin + (row + i) / group;
        const int64_t from = position - window + 1 > tile->first ? position - window + 1 : tile->first;
        const int64_t until = position + 1 < end ? position + 1 : end;
        factors[i] = weigh(call, many->scores + i * many->tile_keys, from - first, until - first,
                           columns, many->statistics + 2 * (strip + i), way);
    }
    multiply(many->scores, many->tile_keys, rows, many->values, tile->padded / per_word(way),
             first / per_word(way), columns / per_word(way), width, way, many->parts, width);
    for (int64_t i = 0; i < rows; i++) {
        const vf factor = v_set(factors[i]);
        float *sums = many->sums + (strip + i) * width;
        for (int64_t d = 0; d < width; d += LANES) {
            const vf part = v_load_f32(many->parts + i * width + d);
            v_store_f32(sums + d, v_fma(v_load_f32(sums + d), factor, part));
        }
    }
}
