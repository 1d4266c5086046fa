/* How a call is cut into items for the threads, and where they leave what is to be merged. */
#ifndef PW_ATTENTION_PLAN_H
#define PW_ATTENTION_PLAN_H

#include "attention.h"
#include "processor/arithmetic.h"

/* Parts of the work for each thread, so that none waits long for the others. */
#define PARTS_PER_THREAD 4

/* A run that contributes to a sequence, and which of the run's queries is the sequence's first. */
typedef struct {
    const pw_run *run;
    int64_t query;
} pw_contribution;

typedef struct {
    const pw_attention *call;
    pw_tiles tiles;
    pw_run *runs; /* those of groups, then one for each sequence */
    int64_t num_runs, num_items, num_partials, most_parts;
    int64_t scratch;     /* floats of a thread for an item, as `pw_scratch` has it */
    int64_t all_scratch; /* with those behind them, for the splits of one */
    pw_contribution *contributions;
    int64_t *first; /* [num_seqs + 1], into the contributions */
    int64_t *costs; /* [num_items + 1], of the items before */
    float *sums;    /* [num_partials, value_dim] */
    float *statistics; /* [num_partials, 2] */
} pw_plan;

/* Fill in what follows from call and tiles; false without the memory for it. To be freed anyway. */
bool pw_make_plan(pw_plan *plan);
void pw_free_plan(pw_plan *plan);

/* Item `index` of a run, with its place for results. */
pw_item pw_planned_item(const pw_plan *plan, const pw_run *run, int64_t index);

static inline int64_t pw_num_items(const pw_attention *call, const pw_run *run) {
    return run->num_splits * run->row_blocks * call->num_kv_heads;
}

static inline int64_t pw_num_splits(const pw_item *item) {
    return pw_ceiling(item->end, PW_SPLIT) - item->begin / PW_SPLIT;
}

/* Floats that an item needs which is attended to split by split: of each two pointers, statistics and
 * sums. 0 for others. */
static inline int64_t pw_splits_scratch(const pw_item *item) {
    const pw_attention *call = item->call;
    const int64_t of_split = 4 + item->num_rows * (call->value_dim + 2);
    return call->is_invariant && pw_num_splits(item) > 1 ? pw_num_splits(item) * of_split : 0;
}

#endif
