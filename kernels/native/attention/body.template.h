/* Paged attention in the vectors of one instruction set, which has been included before. */
#include <string.h>

#include "attention.h"
#include "processor/vector_math.template.h"

/* FEW rows are multiplied together; fewer than MANY do not pay for packing keys. STRIP vectors of a
 * head are summed at a time, and BLOCK rows times PANEL vectors of a product: what the registers
 * hold, of which AVX-512 has twice as many. FOR_ROWS is call_with(rows) with a constant,
 * 1 <= rows <= FEW, so that its loops unroll into registers. */
#if LANES == 16
#define FEW 4
#define MANY 9
#define STRIP 4
#define BLOCK 6
#define PANEL 4
#define FOR_ROWS(rows, call_with)  \
    switch (rows) {                \
    case 1: call_with(1); break;   \
    case 2: call_with(2); break;   \
    case 3: call_with(3); break;   \
    default: call_with(4); break;  \
    }
#else
#define FEW 2
#define MANY 8
#define STRIP 2
#define BLOCK (LANES == 8 ? 6 : 4)
#define PANEL 2
#define FOR_ROWS(rows, call_with) \
    if ((rows) == 1) {            \
        call_with(1);             \
    } else {                      \
        call_with(2);             \
    }
#endif

#define AT_ONCE 4 /* keys that are multiplied together with FEW rows */
#define AHEAD 16  /* keys between asking for memory and using it */

static inline void prefetch(const void *start, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const char *)start + i);
    }
}

/* Into the second cache, for what is read some microseconds later. */
static inline void fetch(const void *start, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const char *)start + i, 0, 2);
    }
}

/* The offsets beyond the last key: those which loops that read in larger steps, or look ahead, see. */
static inline void look_ahead(int64_t *offsets, int64_t num_keys, int64_t shift) {
    for (int i = 0; i < 2 * AHEAD; i++) {
        offsets[num_keys + i] =
            shift ? offsets[i < num_keys ? i : num_keys - 1] + shift : offsets[num_keys - 1];
    }
}

/* Where each key lies, in elements from the start of the KV memory; for those that nobody sees, where
 * the first one lies that somebody does. */
static inline void key_offsets(const pw_item *item, int64_t begin, int64_t end, int64_t *offsets) {
    const pw_attention *call = item->call;
    const int64_t seen = begin < item->oldest ? item->oldest : begin;
    int64_t position = seen;
    while (position < end) {
        const int64_t block = position / call->block_size, first = block * call->block_size;
        const int64_t stop = first + call->block_size < end ? first + call->block_size : end;
        int64_t offset = item->run->table[block] * call->kv_block + item->head * call->kv_head +
                         (position - first) * call->kv_token;
        for (; position < stop; position++, offset += call->kv_token) {
            offsets[position - begin] = offset;
        }
    }
    for (int64_t key = 0; key < seen - begin; key++) {
        offsets[key] = offsets[seen - begin];
    }
    look_ahead(offsets, end - begin, 0);
}

/* The offsets of as many keys of the next item as this one has, which has them in `offsets`. */
static inline const int64_t *offsets_of_next(const pw_item *item, const int64_t *offsets,
                                             int64_t *next_offsets) {
    const pw_item *next = item->next;
    const int64_t wanted = item->end - item->begin;
    if (!next || next->begin == next->end) {
        return offsets;
    }
    const int64_t found = next->end - next->begin < wanted ? next->end - next->begin : wanted;
    key_offsets(next, next->begin, next->begin + found, next_offsets);
    for (int64_t key = found; key < wanted; key++) {
        next_offsets[key] = next_offsets[key - 1];
    }
    look_ahead(next_offsets, wanted, 0);
    return next_offsets;
}

static inline vf form_scores(const pw_attention *call, vf products) {
    const vf scores = v_mul(products, v_set((float)call->scale));
    if (call->softcap == 0) {
        return scores;
    }
    const float cap = (float)call->softcap;
    return v_mul(v_set(cap), v_tanh(v_div(scores, v_set(cap))));
}

/* Products of one row with keys from `begin` on become weights. The statistics, maximum and sum,
 * go on from what they are; returns the factor by which sums of earlier weights shrink. */
static float weigh_row(const pw_attention *call, float *scores, int64_t begin, int64_t num_keys,
                       int64_t position, float *statistics) {
    const int64_t first = pw_first_seen(call, position) - begin;
    int64_t last = position + 1 - begin;
    last = last < num_keys ? last : num_keys;
    const int64_t padded = (num_keys + LANES - 1) / LANES * LANES;
    for (int64_t key = 0; key < padded; key += LANES) {
        v_store_f32(scores + key, form_scores(call, v_load_f32(scores + key)));
    }
    for (int64_t key = 0; key < first && key < padded; key++) {
        scores[key] = -INFINITY;
    }
    for (int64_t key = last < 0 ? 0 : last; key < padded; key++) {
        scores[key] = -INFINITY;
    }
    vf maxima = v_set(statistics[0]), sums = v_set(0.0f);
    for (int64_t key = 0; key < padded; key += LANES) {
        maxima = v_max(maxima, v_load_f32(scores + key));
    }
    const float highest = v_highest(maxima);
    for (int64_t key = 0; key < padded; key += LANES) {
        const vf weights = v_exp(v_sub(v_load_f32(scores + key), v_set(highest)));
        v_store_f32(scores + key, weights);
        sums = v_add(sums, weights);
    }
    const float factor = statistics[0] == highest ? 1.0f : expf(statistics[0] - highest);
    statistics[0] = highest;
    statistics[1] = statistics[1] * factor + v_sum(sums);
    return factor;
}

/* `weigh_row` of each of some rows of an item, from `first` on, over all of its keys. */
static void weigh_rows(const pw_item *item, int64_t first, int num_rows, float *scores,
                       float statistics[][2]) {
    for (int row = 0; row < num_rows; row++) {
        const int64_t query = (item->row + first + row) / pw_group(item->call);
        statistics[row][0] = -INFINITY, statistics[row][1] = 0.0f;
        weigh_row(item->call, scores + row * PW_SPLIT, item->begin, item->end - item->begin,
                  item->run->first_position + query, statistics[row]);
    }
}

/* Where the KV memory holds codes: multiply what some rows have for each key, scores or weights, by
 * the scale of its codes, or of those that lie `shift` behind it. */
static void scale_rows(const pw_attention *call, int64_t shift, const int64_t *offsets,
                       int64_t num_keys, int num_rows, float *rows) {
    if (!call->is_quantized) {
        return;
    }
    float scales[PW_SPLIT] = {0};
    const pw_i8 *base = (const pw_i8 *)call->kv + shift + call->head_dim;
    for (int64_t key = 0; key < num_keys; key++) {
        memcpy(&scales[key], base + offsets[key], sizeof *scales);
    }
    for (int row = 0; row < num_rows; row++) {
        for (int64_t key = 0; key < num_keys; key += LANES) {
            float *place = rows + row * PW_SPLIT + key;
            v_store_f32(place, v_mul(v_load_f32(place), v_load_f32(scales + key)));
        }
    }
}

/* Whether rows are too few to pack keys for, or are to be attended to as if they were. */
static inline bool is_few(const pw_item *item) {
    const bool few = item->num_rows < MANY || item->call->is_invariant;
    return few && item->end - item->begin <= PW_SPLIT;
}

/* Whether heads are whole vectors of so many elements. */
static inline bool has_whole_vectors(const pw_attention *call, int64_t elements) {
    return call->head_dim % elements == 0 && call->value_dim % elements == 0;
}

/* The weight of each part, in statistics[part][1]; returns their total, with the sink's. */
static float merge_weights(float *const *statistics, int64_t count, float sink) {
    float highest = sink;
    for (int64_t part = 0; part < count; part++) {
        highest = fmaxf(highest, statistics[part][0]);
    }
    float total = sink > -INFINITY ? expf(sink - highest) : 0.0f;
    for (int64_t part = 0; part < count; part++) {
        const float weight = expf(statistics[part][0] - highest);
        total += weight * statistics[part][1];
        statistics[part][1] = weight;
    }
    return total;
}

#include "products.template.h"
#include "strip.template.h"

#define T i8
#include "keys.template.h"
#define T f32
#include "keys.template.h"
#define T bf16
#include "keys.template.h"
#define T f16
#include "keys.template.h"

#define T f32
#include "rows.template.h"
#define T bf16
#include "rows.template.h"
#define T f16
#include "rows.template.h"

#define T f32
#include "many.template.h"
#define T bf16
#include "many.template.h"
#define T f16
#include "many.template.h"

#ifdef BF16_PAIRS
#include "codes.template.h"
#include "pairs.template.h"
#define ATTEND_BF16 attend_pairs
#else
#define ATTEND_BF16 attend_bf16
#endif

const pw_attention_code CAT(pw_attention_, ISA) = {
    .attend = {attend_f32, ATTEND_BF16, attend_f16},
    .merge = {merge_f32, merge_bf16, merge_f16},
};
