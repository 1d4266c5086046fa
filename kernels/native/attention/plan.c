/* Cuts a batch into items.
 *
 * A run is some keys of one block table and the queries that attend to them: all that a sequence
 * has for itself, or a prefix that a group of sequences shares, which is thus read once for all of
 * them (Hydragen, Juravsky et al. 2024). Long runs of few queries are cut into splits
 * (Flash-Decoding, Dao et al. 2023), many queries into blocks of rows. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Queries of a sequence up to which its keys are split: beyond, its rows occupy all threads. */
#define LONGEST_SPLIT 16

#define EVERY_KEY (1 << 23)

/* Floats of whole lines of the cache. */
static int64_t whole_lines(int64_t floats) { return pw_ceiling(floats, 16) * 16; }

/* Cut up a run whose keys and queries are set. */
static void cut_run(const pw_attention *call, pw_run *run, bool split) {
    const int64_t begin = pw_most(run->begin, pw_first_seen(call, run->first_position));
    run->split = split ? PW_SPLIT : pw_most(run->end, 1);
    run->first_split = begin / run->split;
    run->num_splits = begin < run->end ? pw_ceiling(run->end, run->split) - run->first_split : 0;
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
                                             : pw_most(pw_least(share, tiles.rows), PW_STRIP_ROWS);
    for (int64_t r = 0; r < num_runs; r++) {
        pw_run *run = &runs[r];
        run->row_blocks = pw_ceiling(run->num_rows, limit);
        run->block_rows = pw_ceiling(run->num_rows, pw_most(run->row_blocks, 1));
        run->tile_keys = tiles.keys;
    }
}

/* The runs of groups, then one for each sequence; returns how many. */
static int64_t make_runs(const pw_attention *call, pw_tiles tiles, pw_run *runs) {
    const int64_t group = pw_group(call);
    const int64_t num_groups = pw_is_local(call) ? 0 : call->num_groups;
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
    const int64_t group = pw_group(plan->call);
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
        plan->most_parts = pw_most(plan->most_parts, parts);
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

/* Item `index` of a run, without its place for results. */
static pw_item item_of(const pw_attention *call, const pw_run *run, int64_t index) {
    const int64_t group = pw_group(call);
    pw_item item = {.call = call, .run = run, .head = index % call->num_kv_heads};
    index /= call->num_kv_heads;
    item.row = index % run->row_blocks * run->block_rows;
    item.num_rows = pw_least(run->block_rows, run->num_rows - item.row);
    const int64_t split = run->first_split + index / run->row_blocks;
    item.oldest = pw_first_seen(call, run->first_position + item.row / group);
    const int64_t newest = run->first_position + (item.row + item.num_rows - 1) / group;
    item.begin = pw_most(run->begin, split * run->split);
    item.begin = pw_most(item.begin, call->is_invariant ? item.oldest / PW_SPLIT * PW_SPLIT
                                                        : item.oldest);
    item.end = pw_least(pw_least(run->end, (split + 1) * run->split), newest + 1);
    item.end = pw_most(item.end, item.begin); /* a split that these rows do not reach */
    return item;
}

/* What items cost, in pairs of a key and a row, and the memory that they take. */
static void count_costs(pw_plan *plan) {
    int64_t index = 0, splits_scratch = 0;
    plan->costs[0] = 0;
    for (int64_t r = 0; r < plan->num_runs; r++) {
        pw_run *run = &plan->runs[r];
        run->first_item = index;
        for (int64_t i = 0; i < pw_num_items(plan->call, run); i++, index++) {
            const pw_item item = item_of(plan->call, run, i);
            const int64_t cost = (item.end - item.begin) * (item.num_rows + 2);
            splits_scratch = pw_most(splits_scratch, pw_splits_scratch(&item));
            plan->costs[index + 1] = plan->costs[index] + cost;
        }
    }
    plan->scratch = whole_lines(pw_scratch(plan->call, plan->tiles));
    plan->all_scratch = plan->scratch + whole_lines(splits_scratch);
}

pw_item pw_planned_item(const pw_plan *plan, const pw_run *run, int64_t index) {
    const pw_attention *call = plan->call;
    pw_item item = item_of(call, run, index);
    if (run->first_partial >= 0) {
        const int64_t split = index / call->num_kv_heads / run->row_blocks;
        const int64_t place = (split * call->num_kv_heads + item.head) * run->num_rows + item.row;
        item.sums = plan->sums + (run->first_partial + place) * call->value_dim;
        item.statistics = plan->statistics + (run->first_partial + place) * 2;
    }
    return item;
}

bool pw_make_plan(pw_plan *plan) {
    const pw_attention *call = plan->call;
    plan->runs = malloc((size_t)(call->num_groups + call->num_seqs + 1) * sizeof *plan->runs);
    if (!plan->runs) {
        return false;
    }
    plan->num_runs = make_runs(call, plan->tiles, plan->runs);
    const int64_t memberships = call->num_groups ? call->member_starts[call->num_groups] : 0;
    const size_t listed = (size_t)(call->num_seqs + memberships + 1);
    plan->contributions = malloc(listed * sizeof *plan->contributions);
    plan->first = malloc((size_t)(call->num_seqs + 2) * sizeof *plan->first);
    for (int64_t r = 0; r < plan->num_runs; r++) {
        plan->num_items += pw_num_items(call, &plan->runs[r]);
    }
    plan->costs = malloc((size_t)(plan->num_items + 1) * sizeof *plan->costs);
    if (!plan->contributions || !plan->first || !plan->costs) {
        return false;
    }
    list_contributions(plan);
    place_results(plan);
    count_costs(plan);
    const int64_t partials = pw_most(plan->num_partials, 1);
    plan->sums = aligned_alloc(64, (size_t)whole_lines(partials * call->value_dim) * sizeof(float));
    plan->statistics = malloc((size_t)partials * 2 * sizeof *plan->statistics);
    return plan->sums && plan->statistics;
}

void pw_free_plan(pw_plan *plan) {
    free(plan->runs);
    free(plan->contributions);
    free(plan->first);
    free(plan->costs);
    free(plan->sums);
    free(plan->statistics);
}
