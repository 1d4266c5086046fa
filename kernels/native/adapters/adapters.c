/* Spreads the rows that have adapters over the threads.
 *
 * A few rows of one adapter go through it together, so that its weights are read once for them. */
#include "adapters.h"

#include "processor/arithmetic.h"

enum {
    BLOCK = 4,               /* rows that a thread takes at a time */
    ADAPTED_SHARE = 1 << 16, /* multiply-adds worth being handed over */
};

static int64_t num_blocks(const pw_adaptation *call, const pw_adapted_rows *adapted) {
    return adapted->changes[call->change].num_parts ? pw_ceiling(adapted->num_rows, BLOCK) : 0;
}

/* The parts share all blocks of all adapters. */
static void adapt_part(void *context, int part, int num_parts) {
    const pw_adaptation *call = context;
    int64_t all = 0, first = 0;
    for (int64_t i = 0; i < call->num_adapters; i++) {
        all += num_blocks(call, &call->adapters[i]);
    }
    const int64_t begin = all * part / num_parts, end = all * (part + 1) / num_parts;
    for (int64_t i = 0; i < call->num_adapters && first < end; i++) {
        const pw_adapted_rows *adapted = &call->adapters[i];
        const int64_t count = num_blocks(call, adapted);
        for (int64_t block = pw_most(begin - first, 0); block < pw_least(end - first, count); block++) {
            PW_CODE(pw_adapters)->adapt[call->type](
                call, &adapted->changes[call->change], adapted->rows + block * BLOCK,
                pw_least(adapted->num_rows - block * BLOCK, BLOCK));
        }
        first += count;
    }
}

void pw_adapt(const pw_adaptation *call) {
    int64_t blocks = 0, work = 0;
    for (int64_t i = 0; i < call->num_adapters; i++) {
        const pw_change *change = &call->adapters[i].changes[call->change];
        blocks += num_blocks(call, &call->adapters[i]);
        for (int64_t j = 0; j < change->num_parts; j++) {
            const pw_low_rank *one = &change->parts[j];
            work += call->adapters[i].num_rows * one->rank * (one->in_features + one->width);
        }
    }
    if (blocks) {
        pw_parallel(adapt_part, (void *)call, (int)pw_least(blocks, work / ADAPTED_SHARE + 1));
    }
}
