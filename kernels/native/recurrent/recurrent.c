/* Spreads the heads and sequences of recurrent layers over the threads.
 *
 * Runs that go on from one another, a chain, are one after the other in one part; chains and heads
 * know nothing of each other. */
#include "recurrent.h"

#include "processor/arithmetic.h"
#include "processor/scratch.h"

/* Numbers of states, times tokens, that are worth a thread's while: some 5 us. */
#define STATE_SHARE 16384
/* Inputs of a convolution, likewise. */
#define INPUT_SHARE 8192

typedef void (*head_function)(const void *call, int64_t head, int64_t begin, int64_t end);

typedef struct {
    const void *call;
    head_function compute;
    const int64_t *chains; /* the first run of each, and the number of runs */
    int64_t heads, num_chains;
} heads_context;

static _Thread_local pw_kept kept_chains;

/* Whether a run goes on from what the one before it has left, in any of its pages. */
static int goes_on(const pw_states *states, int64_t run) {
    const int64_t columns = states->num_columns;
    for (int64_t column = run * columns; column < (run + 1) * columns; column++) {
        if (states->sources[column] >= 0 &&
            states->sources[column] == states->targets[column - columns]) {
            return 1;
        }
    }
    return 0;
}

static int64_t find_chains(const pw_states *states, int64_t *chains) {
    int64_t count = 0;
    for (int64_t run = 0; run < states->num_runs; run++) {
        if (run == 0 || !goes_on(states, run)) {
            chains[count++] = run;
        }
    }
    chains[count] = states->num_runs;
    return count;
}

static void heads_part(void *context, int part, int num_parts) {
    const heads_context *task = context;
    const int64_t all = task->num_chains * task->heads;
    for (int64_t i = all * part / num_parts; i < all * (part + 1) / num_parts; i++) {
        const int64_t *chain = task->chains + i / task->heads;
        task->compute(task->call, i % task->heads, chain[0], chain[1]);
    }
}

static void spread_heads(const void *call, const pw_states *states, head_function compute) {
    const size_t bytes = (size_t)(states->num_runs + 1) * sizeof(int64_t);
    int64_t *chains = (int64_t *)pw_keep(&kept_chains, bytes);
    heads_context task = {call, compute, chains, states->num_units, find_chains(states, chains)};
    const int64_t tokens = states->starts[states->num_runs] - states->starts[0];
    const int64_t work = tokens * states->num_units * (states->unit_bytes / 4);
    pw_parallel(heads_part, &task,
                (int)pw_least(task.num_chains * task.heads, work / STATE_SHARE + 1));
}

static void delta_head(const void *call, int64_t head, int64_t begin, int64_t end) {
    PW_CODE(pw_recurrent)->delta[((const pw_delta *)call)->type](call, head, begin, end);
}

static void scan_head(const void *call, int64_t head, int64_t begin, int64_t end) {
    PW_CODE(pw_recurrent)->scan[((const pw_scan *)call)->type](call, head, begin, end);
}

void pw_gated_delta(const pw_delta *call) { spread_heads(call, &call->states, delta_head); }

void pw_selective_scan(const pw_scan *call) { spread_heads(call, &call->states, scan_head); }

/* All runs of some channels: of those there are many, and each has little to do. */
static void convolve_part(void *context, int part, int num_parts) {
    const pw_convolution *call = context;
    const int64_t blocks = pw_ceiling(call->channels, PW_CHANNELS);
    const int64_t last = blocks * (part + 1) / num_parts;
    for (int64_t block = blocks * part / num_parts; block < last; block++) {
        const int64_t begin = block * PW_CHANNELS;
        const int64_t end = pw_least(begin + PW_CHANNELS, call->channels);
        PW_CODE(pw_recurrent)->convolve[call->type](call, begin, end);
    }
}

void pw_convolve(const pw_convolution *call) {
    const pw_states *states = &call->states;
    const int64_t tokens = states->starts[states->num_runs] - states->starts[0];
    const int64_t blocks = pw_ceiling(call->channels, PW_CHANNELS);
    const int64_t parts = tokens * call->channels / INPUT_SHARE + 1;
    pw_parallel(convolve_part, (void *)call, (int)pw_least(blocks, parts));
}
