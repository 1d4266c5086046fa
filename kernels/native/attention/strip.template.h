/* Many rows of one KV head and a tile of keys, packed into words: scores, weights and sums of a
 * strip of rows. Common to all element types; `way` as in products.template.h. */

/* Memory for many rows of an item. */
typedef struct {
    int64_t words; /* of a row of a head */
    int64_t width; /* of a row of sums: whole vectors */
    float *queries;    /* [rows][words] */
    float *sums;       /* [rows][width] */
    float *statistics; /* [rows][2]: highest score, as a power of 2, and sum of weights */
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

#define LOG2_E 1.44269504f

/* bfloat16 in a word, or one float32. */
PW_INLINE int per_word(int way) {
    return way == PW_BY_FLOATS ? 1 : 2;
}

/* Places in an item's scratch memory, which `pw_scratch` has measured; nothing attended to yet. */
static many_rows lay_out(const pw_item *item, float *scratch, int way) {
    const int64_t dim = item->call->head_dim, rows = item->num_rows + PW_SPARE_ROWS;
    const int64_t elements = LANES * per_word(way);
    const int64_t words = (dim + elements - 1) / elements * LANES;
    const int64_t width = (item->call->value_dim + LANES - 1) / LANES * LANES;
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

/* Vectors of weights; rounded to bfloat16, where words are pairs. */
PW_INLINE void store_weights(float *weights, int64_t key, vf values, int way) {
    if (way == PW_BY_FLOATS) {
        v_store_f32(weights + key, values);
    } else {
        v_store_bf16((pw_bf16 *)(void *)weights + key, values);
    }
}

/* The columns of a row's scores that it sees. */
typedef struct {
    int64_t begin, end;
} seen_columns;

/* The highest score of a row, as a power of 2, and `before`; those in vectors with seen ones that are
 * hidden are no more. */
PW_INLINE float find_highest(const pw_attention *call, float *scores, seen_columns seen, vf scale,
                             float before) {
    const int64_t first = seen.begin / LANES * LANES, last = (seen.end + LANES - 1) / LANES * LANES;
    for (int64_t key = first; key < last && call->softcap != 0; key += LANES) {
        v_store_f32(scores + key, form_scores(call, v_load_f32(scores + key)));
    }
    for (int64_t key = first; key < seen.begin; key++) {
        scores[key] = -INFINITY;
    }
    for (int64_t key = seen.end; key < last; key++) {
        scores[key] = -INFINITY;
    }
    vf maxima = v_set(before);
    for (int64_t key = first; key < last; key += LANES) {
        maxima = v_max(maxima, v_mul(v_load_f32(scores + key), scale));
    }
    return v_highest(maxima);
}

/* Vectors of scores of a row become words of weights; returns their sum. */
PW_INLINE float weigh(float *scores, seen_columns seen, int64_t columns, vf scale, float highest,
                      int way) {
    const int64_t first = seen.begin / LANES * LANES, last = (seen.end + LANES - 1) / LANES * LANES;
    vf sums = v_set(0.0f);
    for (int64_t key = 0; key < first; key += LANES) {
        store_weights(scores, key, v_set(0.0f), way);
    }
    for (int64_t key = first; key < last; key += LANES) {
        const vf score = v_fma(v_load_f32(scores + key), scale, v_set(-highest));
        const vf weights = way == PW_BY_FLOATS ? v_weight(score) : v_rough_weight(score);
        sums = v_add(sums, weights);
        store_weights(scores, key, weights, way);
    }
    for (int64_t key = last; key < columns; key += LANES) {
        store_weights(scores, key, v_set(0.0f), way);
    }
    return v_sum(sums);
}

/* What a row of an item sees of a tile, as columns from `first` on. */
static inline seen_columns find_seen(const pw_item *item, const key_tile *tile, int64_t row,
                                     int64_t first) {
    const pw_attention *call = item->call;
    const int64_t position = item->run->first_position + (item->row + row) / pw_group(call);
    const int64_t seen = pw_first_seen(call, position) - tile->begin, last = position - tile->begin;
    const int64_t oldest = seen > first ? seen : first;
    const int64_t begin = oldest > tile->first ? oldest : tile->first;
    const int64_t end = last + 1 < tile->end ? last + 1 : tile->end;
    return begin < end ? (seen_columns){begin - first, end - first} : (seen_columns){0, 0};
}

/* The scores of a strip's rows, from column `first` of a tile on, become weights. The statistics go on
 * from what they are; `factors` are those by which earlier sums shrink. What is highest is found for
 * some rows at a time, since it is known long after the last score is read. */
PW_INLINE void weigh_strip(const pw_item *item, const many_rows *many, const key_tile *tile,
                           int64_t strip, int64_t rows, int64_t first, int64_t columns, int way,
                           float *factors) {
    const pw_attention *call = item->call;
    const vf scale = v_set(LOG2_E * (call->softcap != 0 ? 1.0f : (float)call->scale));
    for (int64_t i = 0; i < rows; i += AT_ONCE) {
        const int64_t some = rows - i < AT_ONCE ? rows - i : AT_ONCE;
        float *scores = many->scores + i * many->tile_keys;
        float *statistics = many->statistics + 2 * (strip + i), highest[AT_ONCE];
        seen_columns seen[AT_ONCE];
        for (int64_t j = 0; j < some; j++) {
            seen[j] = find_seen(item, tile, strip + i + j, first);
            highest[j] = find_highest(call, scores + j * many->tile_keys, seen[j], scale,
                                      statistics[2 * j]);
        }
        for (int64_t j = 0; j < some; j++, scores += many->tile_keys, statistics += 2) {
            const float sum = weigh(scores, seen[j], columns, scale, highest[j], way);
            const bool as_before = statistics[0] == highest[j]; /* both -inf, too */
            factors[i + j] = as_before ? 1.0f : exp2f(statistics[0] - highest[j]);
            statistics[0] = highest[j];
            statistics[1] = statistics[1] * factors[i + j] + sum;
        }
    }
}

/* The rows of an item from `strip` on over one tile. */
PW_INLINE void attend_strip(const pw_item *item, const many_rows *many, const key_tile *tile,
                            int64_t strip, int way) {
    const pw_attention *call = item->call;
    const int64_t group = pw_group(call), left = item->num_rows - strip;
    const int64_t rows = left < PW_STRIP_ROWS ? left : PW_STRIP_ROWS;
    const int64_t position = item->run->first_position, row = item->row + strip;
    /* As seen from the tile's first key. */
    const int64_t oldest = pw_first_seen(call, position + row / group) - tile->begin;
    const int64_t newest = position + (row + rows - 1) / group - tile->begin;
    int64_t first = oldest > tile->first ? oldest : tile->first;
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
    weigh_strip(item, many, tile, strip, rows, first, columns, way, factors);
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
