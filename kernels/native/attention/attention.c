/* Paged attention: cuts a batch into items, spreads them over the threads, merges their results.
 *
 * A run is some keys of one block table and the queries that attend to them: all that a sequence
 * has for itself, or a prefix that a group of sequences shares, which is thus read once for all of
 * them (Hydragen, Juravsky et al. 2024). Long runs of few queries are cut into splits
 * (Flash-Decoding, Dao et al. 2023), many queries into blocks of rows. Where several runs or splits
 * contribute to a row, their results are merged by the logarithms of their sums. */
#include "attention.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Queries of a sequence up to which its keys are split: beyond, its rows occupy all threads. */
#define LONGEST_SPLIT 16

/* Pairs of a key and a row that are worth a thread's while: some 10 us. */
#define LEAST_SHARE 2048

/* So many of them that there may be shares without number: some 100 us. */
#define FINE_SHARE 65536

#define PARTS_PER_THREAD 4
#define EVERY_KEY (1 << 23)

/* A run that contributes to a sequence, and which of the run's queries is the sequence's first. */
typedef struct {
    const pw_run *run;
    int64_t query;
} pw_contribution;

typedef struct {
    const pw_attention *call;
    const pw_attention_code *code;
    pw_tiles tiles;
    pw_run *runs;
    int64_t num_runs, num_items, num_partials, most_parts;
    int64_t scratch; /* floats that a thread needs beyond `pw_scratch` */
    pw_contribution *contributions;
    int64_t *first; /* [num_seqs + 1], into the contributions */
    int64_t *costs; /* [num_items + 1], of the items before */
    float *sums;    /* [num_partials, head_dim] */
    float *statistics; /* [num_partials, 2] */
    _Atomic int failed;
} pw_plan;

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

static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Cut up a run whose keys and queries are set. */
static void cut_run(const pw_attention *call, pw_run *run, bool split) {
    const int64_t oldest = run->first_position - call->window + 1;
    const int64_t begin = call->window > 0 ? most(run->begin, oldest) : run->begin;
    run->split = split ? PW_SPLIT : most(run->end, 1);
    run->first_split = begin / run->split;
    run->num_splits = begin < run->end ? ceiling(run->end, run->split) - run->first_split : 0;
}

/* Cut the rows of all runs into blocks: as large as may be, unless threads would find too few. How
 * does not matter to any result. */
static void cut_rows(const pw_attention *call, pw_tiles tiles, pw_run *runs, int64_t num_runs) {
    int64_t num_rows = 0;
    for (int64_t r = 0; r < num_runs; r++) {
        num_rows += runs[r].num_rows * call->num_kv_heads;
    }
    const int64_t share = num_rows / ((int64_t)pw_threads() * PARTS_PER_THREAD);
    const int64_t limit = call->is_invariant ? PW_STRIP_ROWS /* has partial results of every split */
                                             : most(least(share, tiles.rows), PW_STRIP_ROWS);
    for (int64_t r = 0; r < num_runs; r++) {
        pw_run *run = &runs[r];
        run->row_blocks = ceiling(run->num_rows, limit);
        run->block_rows = ceiling(run->num_rows, most(run->row_blocks, 1));
        run->tile_keys = tiles.keys;
    }
}

static int64_t num_items(const pw_attention *call, const pw_run *run) {
    return run->num_splits * run->row_blocks * call->num_kv_heads;
}

/* Item `index` of a run, without its place for results. */
static pw_item item_of(const pw_attention *call, const pw_run *run, int64_t index) {
    const int64_t group = call->num_heads / call->num_kv_heads;
    pw_item item = {.call = call, .run = run, .head = index % call->num_kv_heads};
    index /= call->num_kv_heads;
    item.row = index % run->row_blocks * run->block_rows;
    item.num_rows = least(run->block_rows, run->num_rows - item.row);
    const int64_t split = run->first_split + index / run->row_blocks;
    const int64_t oldest = run->first_position + item.row / group - call->window + 1;
    const int64_t newest = run->first_position + (item.row + item.num_rows - 1) / group;
    item.begin = most(run->begin, split * run->split);
    if (call->window > 0) {
        item.begin = most(item.begin, call->is_invariant ? oldest / PW_SPLIT * PW_SPLIT : oldest);
    }
    item.end = least(least(run->end, (split + 1) * run->split), newest + 1);
    item.end = most(item.end, item.begin); /* a split that these rows do not reach */
    return item;
}

/* The runs of groups, then one for each sequence; returns how many. */
static int64_t make_runs(const pw_attention *call, pw_tiles tiles, pw_run *runs) {
    const int64_t group = call->num_heads / call->num_kv_heads;
    const int64_t num_groups = call->window > 0 ? 0 : call->num_groups;
    int64_t count = 0;
    for (int64_t g = 0; g < num_groups; g++) {
        const int32_t *members = call->members + call->member_starts[g];
        const int64_t num_members = call->member_starts[g + 1] - call->member_starts[g];
        if (call->begins[g] >= call->ends[g] || num_members == 0) {
            continue;
        }
        pw_run *run = &runs[count++];
        *run = (pw_run){.table = call->tables + members[0] * call->table_row,
                        .members = members,
                        .first_position = EVERY_KEY,
                        .begin = call->begins[g],
                        .end = call->ends[g],
                        .num_rows = num_members * group};
        cut_run(call, run, true);
    }
    for (int64_t seq = 0; seq < call->num_seqs; seq++) {
        const int64_t start = call->query_starts[seq], end = call->query_starts[seq + 1];
        pw_run *run = &runs[count++];
        *run = (pw_run){.table = call->tables + seq * call->table_row,
                        .first_token = start,
                        .first_position = call->context_lens[seq] - (end - start),
                        .begin = num_groups ? call->private_starts[seq] : 0,
                        .end = call->context_lens[seq],
                        .num_rows = (end - start) * group};
        cut_run(call, run, end - start <= LONGEST_SPLIT);
    }
    cut_rows(call, tiles, runs, count);
    return count;
}

/* Which runs contribute to each sequence: those of its groups in order, then its own, the last. */
static void list_contributions(pw_plan *plan) {
    const int64_t num_seqs = plan->call->num_seqs, num_groups = plan->num_runs - num_seqs;
    const int64_t group = plan->call->num_heads / plan->call->num_kv_heads;
    int64_t *next = plan->first + 1;
    memset(plan->first, 0, (size_t)(num_seqs + 2) * sizeof *plan->first);
    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t member = 0; member < plan->runs[g].num_rows / group; member++) {
            next[plan->runs[g].members[member] + 1]++;
        }
    }
    for (int64_t seq = 0; seq < num_seqs; seq++) {
        next[seq + 1] += next[seq] + 1;
    }
    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t member = 0; member < plan->runs[g].num_rows / group; member++) {
            const int64_t seq = plan->runs[g].members[member];
            plan->contributions[next[seq]++] = (pw_contribution){&plan->runs[g], member};
        }
    }
    for (int64_t seq = 0; seq < num_seqs; seq++) {
        plan->contributions[next[seq]++] = (pw_contribution){&plan->runs[num_groups + seq], 0};
    }
}

/* Where each run keeps its partial results; a sequence with one part in all needs no place. */
static void place_results(pw_plan *plan) {
    const pw_attention *call = plan->call;
    for (int64_t r = 0; r < plan->num_runs; r++) {
        plan->runs[r].first_partial = 0;
    }
    for (int64_t seq = 0; seq < call->num_seqs; seq++) {
        int64_t parts = 0;
        for (int64_t i = plan->first[seq]; i < plan->first[seq + 1]; i++) {
            parts += plan->contributions[i].run->num_splits;
        }
        plan->most_parts = most(plan->most_parts, parts);
        if (plan->first[seq + 1] - plan->first[seq] == 1 && parts == 1) {
            plan->runs[plan->num_runs - call->num_seqs + seq].first_partial = -1;
        }
    }
    for (int64_t r = 0; r < plan->num_runs; r++) {
        pw_run *run = &plan->runs[r];
        if (run->first_partial == 0) {
            run->first_partial = plan->num_partials;
            plan->num_partials += run->num_splits * call->num_kv_heads * run->num_rows;
        }
    }
}

static int64_t splits_of(const pw_item *item) {
    return ceiling(item->end, PW_SPLIT) - item->begin / PW_SPLIT;
}

/* Floats that `attend_splits` needs: of each split two pointers, statistics and sums. */
static int64_t splits_scratch(const pw_item *item) {
    const pw_attention *call = item->call;
    const int64_t of_split = 4 + item->num_rows * (call->head_dim + 2);
    return call->is_invariant && splits_of(item) > 1 ? splits_of(item) * of_split : 0;
}

static void count_costs(pw_plan *plan) {
    int64_t index = 0;
    plan->costs[0] = 0;
    for (int64_t r = 0; r < plan->num_runs; r++) {
        pw_run *run = &plan->runs[r];
        run->first_item = index;
        for (int64_t i = 0; i < num_items(plan->call, run); i++, index++) {
            const pw_item item = item_of(plan->call, run, i);
            const int64_t cost = (item.end - item.begin) * (item.num_rows + 2);
            plan->scratch = most(plan->scratch, splits_scratch(&item));
            plan->costs[index + 1] = plan->costs[index] + cost;
        }
    }
}

/* Item `index` of a run, with its place for results. */
static pw_item placed_item(const pw_plan *plan, const pw_run *run, int64_t index) {
    const pw_attention *call = plan->call;
    pw_item item = item_of(call, run, index);
    if (run->first_partial >= 0) {
        const int64_t split = index / call->num_kv_heads / run->row_blocks;
        const int64_t place = (split * call->num_kv_heads + item.head) * run->num_rows + item.row;
        item.sums = plan->sums + (run->first_partial + place) * call->head_dim;
        item.statistics = plan->statistics + (run->first_partial + place) * 2;
    }
    return item;
}

static int64_t common_scratch(const pw_plan *plan) {
    return ceiling(pw_scratch(plan->call, plan->tiles), 16) * 16;
}

/* Merge what each split gives to a row of an item, of which the thread has all, and store it. */
static void merge_splits(const pw_plan *plan, const pw_item *item, const pw_item *first, int64_t row,
                         const float **pointers) {
    const pw_attention *call = plan->call;
    const int64_t count = splits_of(item), group = call->num_heads / call->num_kv_heads;
    float **statistics = (float **)(pointers + count);
    for (int64_t split = 0; split < count; split++) {
        const int64_t place = split * item->num_rows + row;
        pointers[split] = first->sums + place * call->head_dim;
        statistics[split] = first->statistics + place * 2;
    }
    const int64_t token = pw_token(call, item->run, (item->row + row) / group);
    const int64_t head = item->head * group + (item->row + row) % group;
    const int64_t row_bytes = call->head_dim * (call->type == PW_F32 ? 4 : 2);
    char *output = (char *)call->output + (token * call->num_heads + head) * row_bytes;
    plan->code->merge[call->type](call, pointers, statistics, count, output);
}

/* Attend to many rows split by split, and merge: the bits of splits that are items of their own,
 * from memory of the thread's in place of partial results of the whole chunk. */
static void attend_splits(const pw_plan *plan, const pw_item *item, float *scratch) {
    const pw_attention *call = plan->call;
    const int64_t count = splits_of(item), first_split = item->begin / PW_SPLIT;
    const float **pointers = (const float **)(scratch + common_scratch(plan));
    pw_item first = *item;
    first.next = NULL;
    first.statistics = (float *)(pointers + 2 * count);
    first.sums = first.statistics + 2 * count * item->num_rows;
    for (int64_t split = 0; split < count; split++) {
        pw_item part = first;
        part.begin = most(item->begin, (first_split + split) * PW_SPLIT);
        part.end = least(item->end, (first_split + split + 1) * PW_SPLIT);
        part.statistics += 2 * split * item->num_rows;
        part.sums += split * item->num_rows * call->head_dim;
        plan->code->attend[call->type](&part, scratch);
    }
    for (int64_t row = 0; row < item->num_rows; row++) {
        merge_splits(plan, item, &first, row, pointers);
    }
}

static void attend_item(const pw_plan *plan, const pw_item *item, float *scratch) {
    const pw_attention *call = plan->call;
    if (splits_scratch(item) > 0) {
        attend_splits(plan, item, scratch);
        return;
    }
    if (item->begin < item->end) {
        plan->code->attend[call->type](item, scratch);
        return;
    }
    memset(item->sums, 0, (size_t)(item->num_rows * call->head_dim) * sizeof *item->sums);
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
    pw_plan *plan = context;
    part = num_parts - 1 - part;
    const int64_t total = plan->costs[plan->num_items];
    const int64_t begin = item_at(plan, total * part / num_parts);
    const int64_t end = part == num_parts - 1 ? plan->num_items
                                              : item_at(plan, total * (part + 1) / num_parts);
    float *scratch = scratch_of_thread((size_t)(common_scratch(plan) + ceiling(plan->scratch, 16) * 16) * 4);
    if (scratch == NULL) {
        plan->failed = 1;
        return;
    }
    const pw_run *run = plan->runs;
    pw_item items[2]; /* in turns the one that is attended to and the one that comes next */
    for (int64_t i = begin; i <= end; i++) {
        pw_item *item = &items[(i + 1) % 2], *next = i < end ? &items[i % 2] : NULL;
        if (next) {
            while (i >= run->first_item + num_items(plan->call, run)) {
                run++;
            }
            *next = placed_item(plan, run, i - run->first_item);
        }
        if (i > begin) {
            item->next = next;
            attend_item(plan, item, scratch);
        }
    }
}

/* Where the partial results of one row lie: a query of a sequence, and a head. Returns how many. */
static int64_t find_partials(const pw_plan *plan, int64_t seq, int64_t query, int64_t head,
                             const float **sums, float **statistics) {
    const pw_attention *call = plan->call;
    const int64_t group = call->num_heads / call->num_kv_heads;
    int64_t count = 0;
    for (int64_t i = plan->first[seq]; i < plan->first[seq + 1]; i++) {
        const pw_run *run = plan->contributions[i].run;
        int64_t place = run->first_partial + head / group * run->num_rows +
                        (plan->contributions[i].query + query) * group + head % group;
        for (int64_t split = 0; split < run->num_splits; split++, count++) {
            sums[count] = plan->sums + place * call->head_dim;
            statistics[count] = plan->statistics + place * 2;
            place += call->num_kv_heads * run->num_rows;
        }
    }
    return count;
}

/* Merge the rows of some sequences. */
static void merge_part(void *context, int part, int num_parts) {
    pw_plan *plan = context;
    const pw_attention *call = plan->call;
    const int64_t row_bytes = call->head_dim * (call->type == PW_F32 ? 4 : 2);
    const float **sums = malloc((size_t)(plan->most_parts + 1) * 2 * sizeof *sums);
    if (sums == NULL) {
        plan->failed = 1;
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
                plan->code->merge[call->type](call, sums, statistics, count, output);
            }
        }
    }
    free(sums);
}

static int num_parts(int64_t cost) {
    const int64_t worth = most(cost / LEAST_SHARE, 1);
    const int64_t threads = pw_threads(), fine = most(threads * PARTS_PER_THREAD, cost / FINE_SHARE);
    return (int)(threads == 1 ? 1 : least(worth, fine));
}

static int64_t num_memberships(const pw_attention *call) {
    return call->num_groups ? call->member_starts[call->num_groups] : 0;
}

static bool allocate(pw_plan *plan) {
    const pw_attention *call = plan->call;
    const size_t listed = (size_t)(call->num_seqs + num_memberships(call) + 1);
    plan->contributions = malloc(listed * sizeof *plan->contributions);
    plan->first = malloc((size_t)(call->num_seqs + 2) * sizeof *plan->first);
    for (int64_t r = 0; r < plan->num_runs; r++) {
        plan->num_items += num_items(call, &plan->runs[r]);
    }
    plan->costs = malloc((size_t)(plan->num_items + 1) * sizeof *plan->costs);
    if (!plan->contributions || !plan->first || !plan->costs) {
        return false;
    }
    list_contributions(plan);
    place_results(plan);
    count_costs(plan);
    const size_t partials = (size_t)most(plan->num_partials, 1);
    plan->sums = aligned_alloc(64, (partials * (size_t)call->head_dim * 4 + 63) / 64 * 64);
    plan->statistics = malloc(partials * 2 * sizeof *plan->statistics);
    return plan->sums && plan->statistics;
}

int pw_attend(const pw_attention *call) {
    const int which = atomic_load_explicit(&wanted_tiles, memory_order_relaxed);
    pw_plan plan = {.call = call, .code = choose_code(), .tiles = tile_sizes[which]};
    plan.runs = malloc((size_t)(call->num_groups + call->num_seqs + 1) * sizeof *plan.runs);
    if (plan.runs) {
        plan.num_runs = make_runs(call, plan.tiles, plan.runs);
    }
    if (plan.runs == NULL || !allocate(&plan)) {
        plan.failed = 1;
    } else {
        pw_parallel(attend_part, &plan, num_parts(plan.costs[plan.num_items]));
        pw_parallel(merge_part, &plan, num_parts(plan.num_partials * 4));
    }
    free(plan.runs);
    free(plan.contributions);
    free(plan.first);
    free(plan.costs);
    free(plan.sums);
    free(plan.statistics);
    return plan.failed ? -1 : 0;
}
