/* Attention of many rows of one KV head over some keys, for one element type and instruction set:
 * flash attention (Dao et al. 2022) by tiles of queries and keys.
 *
 * Included with T as the type's name; `way` says how to multiply, and is a constant wherever this is
 * inlined. A tile's keys at a time are packed into panels, and used by all rows of the item: keys
 * transposed, so that the lanes of a row's scores are keys, values as they lie or, as pairs, two of
 * them interleaved. The rows pass over them a strip at a time, whose scores stay in the core's first
 * cache. Panels that are hidden from all of a strip are skipped, and only rows at an edge are
 * masked. Where tiles begin depends on the run alone, so that a row's result depends neither on the
 * rows beside it nor on how their work is shared out. */

#include "processor/typed.template.h"

/* A word of each lane, from an element of a row on; zeros behind its last. */
PW_INLINE vf TYPED(load_words)(const ELEMENT *row, int64_t start, int64_t dim, int way) {
    const int64_t width = LANES * per_word(way);
    if (start + width > dim || way == PW_BY_FLOATS) {
        if (start + width <= dim) {
            return LOAD(row + start);
        }
        ELEMENT end[2 * LANES] = {0};
        if (start < dim) {
            memcpy(end, row + start, (size_t)(dim - start) * sizeof *end);
        }
        return way == PW_BY_FLOATS ? LOAD(end) : v_load_f32((const float *)(const void *)end);
    }
    return v_load_f32((const float *)(const void *)(row + start));
}

/* Codes of the KV memory, times their scale. */
static inline void TYPED(widen_codes)(const pw_i8 *row, int64_t dim, ELEMENT *target) {
    float scale;
    memcpy(&scale, row + dim, sizeof scale);
    for (int64_t i = 0; i < dim; i += LANES) {
        STORE(target + i, v_mul(v_load_i8(row + i), v_set(scale)));
    }
}

/* The keys and values of a tile that an item sees, once for all of its rows. */
static void TYPED(widen_tile)(const pw_attention *call, const many_rows *many, key_tile *tile) {
    const int64_t dim = call->head_dim;
    ELEMENT *keys = many->widened, *values = call->kv_value ? keys + many->tile_keys * dim : keys;
    for (int64_t key = tile->first; key < tile->end; key++) {
        const pw_i8 *row = (const pw_i8 *)call->kv + many->offsets[key];
        TYPED(widen_codes)(row, dim, keys + key * dim);
        if (values != keys) {
            TYPED(widen_codes)(row + call->kv_value, dim, values + key * dim);
        }
        many->offsets[key] = key * dim;
    }
    tile->keys = keys, tile->values = values;
}

/* packed[row][word] */
PW_INLINE void TYPED(pack_queries)(const pw_item *item, const many_rows *many, int way) {
    float *target = many->queries;
    for (int64_t row = 0; row < item->num_rows; row++, target += many->words) {
        const ELEMENT *source = TYPED(query_row)(item, row);
        for (int64_t word = 0; word < many->words; word += LANES) {
            v_store_f32(target + word, TYPED(load_words)(source, word * per_word(way),
                                                         item->call->head_dim, way));
        }
    }
    memset(target, 0, (size_t)(ROUNDED_ROWS * many->words) * sizeof *target);
}

/* Where the keys of a tile lie, and those read beside them: as often as needed, the nearest one that
 * is seen. What nobody sees has no weight. */
static inline void TYPED(find_keys)(const pw_item *item, const many_rows *many, key_tile *tile) {
    const pw_attention *call = item->call;
    int64_t *offsets = many->offsets;
    key_offsets(item, tile->begin + tile->first, tile->begin + tile->end, offsets + tile->first);
    if (call->is_quantized) {
        TYPED(widen_tile)(call, many, tile);
    } else {
        tile->keys = call->kv, tile->values = (const ELEMENT *)call->kv + call->kv_value;
    }
    for (int64_t key = tile->first / PANEL_WIDTH * PANEL_WIDTH; key < tile->first; key++) {
        offsets[key] = offsets[tile->first];
    }
    for (int64_t key = tile->end; key < tile->padded + AHEAD; key++) {
        offsets[key] = offsets[tile->end - 1];
    }
}

/* The keys of a tile as columns. */
PW_INLINE void TYPED(pack_keys)(const pw_attention *call, const many_rows *many,
                                const key_tile *tile, int way) {
    const ELEMENT *base = tile->keys;
    const int64_t words = many->words, bytes = call->head_dim * (int64_t)sizeof(ELEMENT);
    for (int64_t key = tile->first / PANEL_WIDTH * PANEL_WIDTH; key < tile->padded; key += LANES) {
        const int64_t *offsets = tile->offsets + key;
        float *target = many->keys + key / PANEL_WIDTH * PANEL_WIDTH * words + key % PANEL_WIDTH;
        for (int i = 0; i < LANES; i++) {
            prefetch(base + offsets[i + AHEAD], bytes);
        }
        for (int64_t word = 0; word < words; word += LANES) {
            vf rows[LANES];
            for (int i = 0; i < LANES; i++) {
                rows[i] = TYPED(load_words)(base + offsets[i], word * per_word(way),
                                            call->head_dim, way);
            }
            v_transpose(rows, target + word * PANEL_WIDTH, PANEL_WIDTH);
        }
    }
}

/* LANES columns of the values of the keys of a word, `left` of which the head still has. */
PW_INLINE vf TYPED(load_values)(const ELEMENT *first, const ELEMENT *second, int64_t left,
                                int way) {
    if (way == PW_BY_FLOATS) {
        return left >= LANES ? LOAD(first) : LOAD_END(first, (int)left);
    }
#ifdef BF16_PAIRS
    if (left >= LANES) {
        return v_load_pairs((const pw_bf16 *)(const void *)first,
                            (const pw_bf16 *)(const void *)second);
    }
    pw_bf16 ends[2][LANES] = {{0}};
    memcpy(ends[0], first, (size_t)left * sizeof *first);
    memcpy(ends[1], second, (size_t)left * sizeof *second);
    return v_load_pairs(ends[0], ends[1]);
#else
    (void)second;
    return v_set(0.0f);
#endif
}

/* The values of a tile: words of keys by columns of the head. */
PW_INLINE void TYPED(pack_values)(const pw_attention *call, const many_rows *many,
                                  const key_tile *tile, int way) {
    const ELEMENT *base = tile->values;
    const int64_t width = many->width, words = tile->padded / per_word(way);
    for (int64_t panel = 0; panel < width; panel += PANEL_WIDTH) {
        const int64_t columns = width - panel < PANEL_WIDTH ? width - panel : PANEL_WIDTH;
        const int64_t first = tile->first / PANEL_WIDTH * PANEL_WIDTH / per_word(way);
        float *target = many->values + panel * words + first * columns;
        for (int64_t word = first; word < words; word++, target += columns) {
            const int64_t *offsets = tile->offsets + word * per_word(way);
            for (int i = 0; i < per_word(way); i++) {
                prefetch(base + offsets[i + AHEAD] + panel, columns * (int64_t)sizeof(ELEMENT));
            }
            for (int64_t i = panel; i < panel + columns; i += LANES) {
                const ELEMENT *next = base + offsets[per_word(way) - 1] + i;
                v_store_f32(target + i - panel, TYPED(load_values)(base + offsets[0] + i, next,
                                                                   call->value_dim - i, way));
            }
        }
    }
}

/* All rows of an item over the keys of one tile. */
PW_INLINE void TYPED(attend_tile)(const pw_item *item, const many_rows *many, key_tile *tile,
                                  int way) {
    TYPED(pack_keys)(item->call, many, tile, way);
    TYPED(pack_values)(item->call, many, tile, way);
    for (int64_t strip = 0; strip < item->num_rows; strip += PW_STRIP_ROWS) {
        attend_strip(item, many, tile, strip, way);
    }
}

PW_INLINE void TYPED(attend_many)(const pw_item *item, float *scratch, int way) {
    const many_rows many = lay_out(item, scratch, way);
    TYPED(pack_queries)(item, &many, way);
    const int64_t size = many.tile_keys;
    for (int64_t begin = item->begin - (item->begin - item->run->begin) % size; begin < item->end;
         begin += size) {
        key_tile tile = {.begin = begin, .offsets = many.offsets};
        tile.first = item->begin > begin ? item->begin - begin : 0;
        tile.end = item->end - begin < size ? item->end - begin : size;
        tile.padded = (tile.end + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
        TYPED(find_keys)(item, &many, &tile);
        TYPED(attend_tile)(item, &many, &tile, way);
    }
    for (int64_t row = 0; row < item->num_rows; row++) {
        const float *statistics = many.statistics + 2 * row;
        TYPED(finish)(item, row, many.sums + row * many.width, statistics[0] / LOG2_E,
                      statistics[1]);
    }
}

static void TYPED(attend)(const pw_item *item, float *scratch) {
    if (is_few(item) && has_whole_vectors(item->call, LANES)) {
        TYPED(attend_few)(item, scratch);
    } else {
        TYPED(attend_many)(item, scratch, PW_BY_FLOATS);
    }
}

#include "processor/typed_end.template.h"
