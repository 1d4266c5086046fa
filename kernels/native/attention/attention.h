/* Paged attention: what a call says, and how it is cut into items for the threads. */
#ifndef PW_ATTENTION_H
#define PW_ATTENTION_H

#include <math.h>
#include <stdbool.h>

#include "processor/cpu.h"

/* One call, as kernels/native/attention.py packs it: strides count elements. */
typedef struct {
    const void *query; /* [num_tokens, num_heads, head_dim] */
    void *output;      /* [num_tokens, num_heads, value_dim], contiguous */
    const void *kv;    /* [num_blocks, 2, num_kv_heads, block_size, head_dim], or rows of pw_i8 */
    const int32_t *tables;       /* [num_seqs, table_row] */
    const int32_t *query_starts; /* [num_seqs + 1] */
    const int32_t *context_lens; /* [num_seqs] */
    const int32_t *begins;       /* prefix groups: see kernels.types.PrefixGroups */
    const int32_t *ends;
    const int32_t *member_starts;
    const int32_t *members;
    const int32_t *private_starts;
    const float *sinks; /* [num_heads], or NULL: scores in each softmax's sum that have no value */
    int64_t query_token, query_head;
    int64_t kv_block, kv_value, kv_head, kv_token; /* kv_value 0: values are a part of their keys */
    int64_t table_row;
    int64_t num_seqs, num_groups;
    int64_t num_heads, num_kv_heads, head_dim, value_dim, block_size; /* value_dim <= head_dim */
    int64_t window; /* 0 for none */
    int64_t chunk;  /* the same */
    int64_t type;   /* pw_type of query, output and kv */
    int64_t is_quantized; /* kv: head_dim codes, then their scale, a row; see kernels/kv_format.py */
    int64_t is_invariant; /* a row's result has the same bits whatever else the call computes: rows
                           * are attended to split by split, as a few are, and groups have whole
                           * splits */
    double scale, softcap; /* softcap 0 for none */
} pw_attention;

/* Tiles of many rows: query rows that an item attends together, at most, and keys between two updates
 * of their softmax. A row is one query of one head; the rows of a KV head are its queries in order,
 * each with its group of heads. Larger tiles pack keys for more rows and update sums less often, and
 * need more of the core's second cache: so which are used is chosen for the machine, never by the
 * batch, on which a result would then depend. */
typedef struct {
    int64_t rows, keys;
} pw_tiles;

/* Of the rows of a tile, those whose scores are held at a time; a multiple of what any instruction
 * set takes. */
#define PW_STRIP_ROWS 48

/* Rows that may be read behind the last. */
#define PW_SPARE_ROWS 16

/* Keys in a split of a run that several threads may share: never chosen by the batch, so that a
 * result depends neither on batch-mates nor on the number of threads. */
#define PW_SPLIT 256

/* Consecutive keys of one block table, and the queries that attend to them. */
typedef struct {
    const int32_t *table;
    const int32_t *members; /* sequences with one query each; NULL: tokens from first_token on */
    int64_t first_token;
    int64_t first_position; /* of the first query; members: so far on that they see every key */
    int64_t begin, end;     /* keys */
    int64_t num_rows;       /* of a KV head */
    int64_t split;          /* keys in a split */
    int64_t first_split, num_splits;
    int64_t row_blocks, block_rows;
    int64_t tile_keys;
    int64_t first_partial; /* row of the partial results, or -1: each row is done at once */
    int64_t first_item;
} pw_run;

/* Some rows of one KV head, and the keys that they attend to. */
typedef struct pw_item {
    const pw_attention *call;
    const pw_run *run;
    int64_t head; /* of KV */
    int64_t begin, end;
    int64_t oldest; /* the first key that a row sees: those before it have no weight, and are not read */
    int64_t row, num_rows;
    float *sums;       /* [num_rows, value_dim], or NULL: store the result */
    float *statistics; /* [num_rows, 2]: highest score, sum of weights */
    const struct pw_item *next; /* what this thread attends to then, or NULL */
} pw_item;

/* Whether there are keys that later queries do not see. */
static inline bool pw_is_local(const pw_attention *call) {
    return call->window > 0 || call->chunk > 0;
}

/* The first key that a query sees. */
static inline int64_t pw_first_seen(const pw_attention *call, int64_t position) {
    int64_t first = 0;
    if (call->window > 0 && position >= call->window) {
        first = position - call->window + 1;
    }
    if (call->chunk > 0 && position - position % call->chunk > first) {
        first = position - position % call->chunk;
    }
    return first;
}

/* The score of a head's sink; what weighs nothing, if there is none. */
static inline float pw_sink(const pw_attention *call, int64_t head) {
    return call->sinks ? call->sinks[head] : -INFINITY;
}

/* Query heads that share a KV head. */
static inline int64_t pw_group(const pw_attention *call) {
    return call->num_heads / call->num_kv_heads;
}

/* The token and the query head of a row of an item. */
static inline int64_t pw_row_token(const pw_item *item, int64_t row) {
    const int64_t query = (item->row + row) / pw_group(item->call);
    const pw_run *run = item->run;
    return run->members ? item->call->query_starts[run->members[query]] : run->first_token + query;
}

static inline int64_t pw_row_head(const pw_item *item, int64_t row) {
    const int64_t group = pw_group(item->call);
    return item->head * group + (item->row + row) % group;
}

/* Floats of scratch memory that an item of this call needs; strip.template.h shares them out. */
static inline int64_t pw_scratch(const pw_attention *call, pw_tiles tiles) {
    const int64_t dim = (call->head_dim + 63) & ~63;
    const int64_t keys = (call->is_quantized ? 4 : 2) * tiles.keys;
    const int64_t rows = 2 * (tiles.rows + PW_SPARE_ROWS) + PW_STRIP_ROWS + keys;
    return rows * dim + PW_STRIP_ROWS * tiles.keys + 2 * tiles.rows + 4 * tiles.keys;
}

/* The code for one instruction set. */
typedef struct {
    void (*attend[PW_NUM_TYPES])(const pw_item *item, float *scratch);
    /* Combine the partial results of one row by their statistics, and its head's sink, and store it. */
    void (*merge[PW_NUM_TYPES])(const pw_attention *call, const float *const *sums,
                                float *const *statistics, int64_t count, float sink, void *output);
} pw_attention_code;

extern const pw_attention_code pw_attention_plain, pw_attention_avx2, pw_attention_avx512,
    pw_attention_avx512_bf16, pw_attention_amx;

/* How many rows in bfloat16 are multiplied: by the wanted path, or by the best one below it that the
 * code for this instruction set has. */
pw_path pw_attention_path(void);
PW_EXPORT void pw_attention_use_path(int64_t path);

/* Attend to many rows by the small tiles, 0, or the large ones, 1. */
PW_EXPORT void pw_attention_use_tiles(int64_t which);

/* 0, or -1 without the memory for it. */
PW_EXPORT int pw_attend(const pw_attention *call);

#endif
