/* Memory of one thread for what lies between two operations. */
#ifndef PW_SCRATCH_H
#define PW_SCRATCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Thread-local with its user: it grows to what its largest call needs, and is kept. */
typedef struct {
    char *memory;
    size_t size;
} pw_kept;

static inline size_t pw_whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Where the next `bytes` lie in memory of which `used` are taken: on lines of their own. */
static inline size_t pw_carve(size_t *used, int64_t bytes) {
    const size_t start = *used;
    *used += pw_whole_lines((size_t)bytes);
    return start;
}

/* At least so many bytes, from a cache line on; what was there before is lost. */
static inline char *pw_keep(pw_kept *kept, size_t bytes) {
    if (bytes > kept->size) {
        free(kept->memory);
        kept->size = pw_whole_lines(bytes);
        kept->memory = aligned_alloc(64, kept->size);
        if (!kept->memory) {
            perror("partywall: memory of a thread");
            abort();
        }
    }
    return kept->memory;
}

#endif
