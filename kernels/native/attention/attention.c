/* Paged attention: spreads the items of a call over the threads, and merges their results.
 *
 * Where several runs or splits (see plan.c) contribute to a row, their results are merged by the
 * logarithms of their sums. */
#include "attention.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* Pairs of a key and a row that are worth a thread's while: some 10 us. */
#define LEAST_SHARE 2048

/* So many of them that there may be shares without number: some 100 us. */
#define FINE_SHARE 65536

typedef struct {
    pw_plan plan;
    const pw_attention_code *code;
    _Atomic int failed;
} task_context;

static const pw_attention_code *choose_code(void) {
#if defined(__x86_64__)
    switch (pw_cpu_level()) {
    case PW_PLAIN: return &pw_attention_plain;
    case PW_AVX2: return &pw_attention_avx2;
    case PW_AVX512: return &pw_attention_avx512;
    case PW_AVX512_BF16: return &pw_attention_avx512_bf16;
    default: return &pw_attention_amx;
    }
#else
    return &pw_attention_plain;
#endif
}

static _Atomic int wanted_path = PW_BY_TILES;

pw_path pw_attention_path(void) {
    return (pw_path)atomic_load_explicit(&wanted_path, memory_order_relaxed);
}

void pw_attention_use_path(int64_t path) { atomic_store(&wanted_path, (int)path); }

static const pw_tiles tile_sizes[] = {{.rows = 192, .keys = 256}, {.rows = 384, .keys = 512}};
static _Atomic int wanted_tiles = 0;

void pw_attention_use_tiles(int64_t which) { atomic_store(&wanted_tiles, which != 0); }

/* Merge what each split gives to a row of an item, of which the thread has all, and store it. */
static void merge_splits(const task_context *task, const pw_item *item, const pw_item *first,
                         int64_t row, const float **pointers) {
    const pw_attention *call = item->call;
    const int64_t count = pw_num_splits(item);
    float **statistics = (float **)(pointers + count);
    for (int64_t split = 0; split < count; split++) {
        const int64_t place = split * item->num_rows + row;
        pointers[split] = first->sums + place * call->value_dim;
        statistics[split] = first->statistics + place * 2;
    }
    const int64_t head = pw_row_head(item, row);
    const int64_t place = pw_row_token(item, row) * call->num_heads + head;
    char *output = (char *)call->output + place * call->value_dim * pw_size(call->type);
    task->code->merge[call->type](call, pointers, statistics, count, pw_sink(call, head), output);
}

/* Attend to many rows split by split, and merge: the bits of splits that are items of their own,
 * from memory of the thread's in place of partial results of the whole chunk. */
static void attend_splits(const task_context *task, const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    const int64_t count = pw_num_splits(item), first_split = item->begin / PW_SPLIT;
    const float **pointers = (const float **)(scratch + task->plan.scratch);
    pw_item first = *item;
    first.next = NULL;
    first.statistics = (float *)(pointers + 2 * count);
    first.sums = first.statistics + 2 * count * item->num_rows;
    for (int64_t split = 0; split < count; split++) {
        pw_item part = first;
        part.begin = pw_most(item->begin, (first_split + split) * PW_SPLIT);
        part.end = pw_least(item->end, (first_split + split + 1) * PW_SPLIT);
        part.statistics += 2 * split * item->num_rows;
        part.sums += split * item->num_rows * call->value_dim;
        task->code->attend[call->type](&part, scratch);
    }
    for (int64_t row = 0; row < item->num_rows; row++) {
        merge_splits(task, item, &first, row, pointers);
    }
}

static void attend_item(const task_context *task, const pw_item *item, float *scratch) {
    const pw_attention *call = item->call;
    if (pw_splits_scratch(item) > 0) {
        attend_splits(task, item, scratch);
        return;
    }
    if (item->begin < item->end) {
        task->code->attend[call->type](item, scratch);
        return;
    }
    memset(item->sums, 0, (size_t)(item->num_rows * call->value_dim) * sizeof *item->sums);
    for (int64_t row = 0; row < item->num_rows; row++) {
        item->statistics[2 * row] = -INFINITY;
        item->statistics[2 * row + 1] = 0.0f;
    }
}

/* Memory of the calling thread, which keeps it; grows to what its largest call needs. */
static float *scratch_of_thread(size_t bytes) {
    static _Thread_local float *memory;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(memory);
        memory = aligned_alloc(64, bytes);
        size = memory ? bytes : 0;
    }
    return memory;
}

/* The first item before which others have cost at least `cost`. */
static int64_t item_at(const pw_plan *plan, int64_t cost) {
    int64_t low = 0, high = plan->num_items;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (plan->costs[middle] < cost) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The items whose first cost lies in this part's share of the whole; the last ones, which see the
 * most keys, first. */
static void attend_part(void *context, int part, int num_parts) {
    task_context *task = context;
    const pw_plan *plan = &task->plan;
    part = num_parts - 1 - part;
    const int64_t total = plan->costs[plan->num_items];
    const int64_t begin = item_at(plan, total * part / num_parts);
    const int64_t end = part == num_parts - 1 ? plan->num_items
                                              : item_at(plan, total * (part + 1) / num_parts);
    float *scratch = scratch_of_thread((size_t)plan->all_scratch * sizeof *scratch);
    if (scratch == NULL) {
        task->failed = 1;
        return;
    }
    const pw_run *run = plan->runs;
    pw_item items[2]; /* in turns the one that is attended to and the one that comes next */
    for (int64_t i = begin; i <= end; i++) {
        pw_item *item = &items[(i + 1) % 2], *next = i < end ? &items[i % 2] : NULL;
        if (next) {
            while (i >= run->first_item + pw_num_items(plan->call, run)) {
                run++;
            }
            *next = pw_planned_item(plan, run, i - run->first_item);
        }
        if (i > begin) {
            item->next = next;
            attend_item(task, item, scratch);
        }
    }
}

/* Where the partial results of one row lie: a query of a sequence, and a head. Returns how many. */
static int64_t find_partials(const pw_plan *plan, int64_t seq, int64_t query, int64_t head,
                             const float **sums, float **statistics) {
    const pw_attention *call = plan->call;
    const int64_t group = pw_group(call);
    int64_t count = 0;
    for (int64_t i = plan->first[seq]; i < plan->first[seq + 1]; i++) {
        const pw_run *run = plan->contributions[i].run;
        int64_t place = run->first_partial + head / group * run->num_rows +
                        (plan->contributions[i].query + query) * group + head % group;
        for (int64_t split = 0; split < run->num_splits; split++, count++) {
            sums[count] = plan->sums + place * call->value_dim;
            statistics[count] = plan->statistics + place * 2;
            place += call->num_kv_heads * run->num_rows;
        }
    }
    return count;
}

/* Merge the rows of some sequences. */
static void merge_part(void *context, int part, int num_parts) {
    task_context *task = context;
    const pw_plan *plan = &task->plan;
    const pw_attention *call = plan->call;
    const int64_t row_bytes = call->value_dim * pw_size(call->type);
    const float **sums = malloc((size_t)(plan->most_parts + 1) * 2 * sizeof *sums);
    if (sums == NULL) {
        task->failed = 1;
        return;
    }
    float **statistics = (float **)(sums + plan->most_parts);
    for (int64_t seq = part; seq < call->num_seqs; seq += num_parts) {
        if (plan->runs[plan->num_runs - call->num_seqs + seq].first_partial < 0) {
            continue; /* stored when its one part was done */
        }
        const int64_t start = call->query_starts[seq], end = call->query_starts[seq + 1];
        char *output = (char *)call->output + start * call->num_heads * row_bytes;
        for (int64_t query = 0; query < end - start; query++) {
            for (int64_t head = 0; head < call->num_heads; head++, output += row_bytes) {
                const int64_t count = find_partials(plan, seq, query, head, sums, statistics);
                const float sink = pw_sink(call, head);
                task->code->merge[call->type](call, sums, statistics, count, sink, output);
            }
        }
    }
    free(sums);
}

static int num_parts(int64_t cost) {
    const int64_t worth = pw_most(cost / LEAST_SHARE, 1);
    const int64_t threads = pw_threads();
    const int64_t fine = pw_most(threads * PARTS_PER_THREAD, cost / FINE_SHARE);
    return (int)(threads == 1 ? 1 : pw_least(worth, fine));
}

int pw_attend(const pw_attention *call) {
    const int which = atomic_load_explicit(&wanted_tiles, memory_order_relaxed);
    task_context task = {.plan = {.call = call, .tiles = tile_sizes[which]}, .code = choose_code()};
    if (pw_make_plan(&task.plan)) {
        pw_parallel(attend_part, &task, num_parts(task.plan.costs[task.plan.num_items]));
        pw_parallel(merge_part, &task, num_parts(task.plan.num_partials * 4));
    } else {
        task.failed = 1;
    }
    pw_free_plan(&task.plan);
    return task.failed ? -1 : 0;
}
