/* The way of vector kernels through a product: strips outside, rows inside, so that weights come
 * from memory once and stay in the core's cache for all rows. A template: NAME(sum) computes the
 * sums of up to TILE_ROWS rows and of TILE_STRIPS strips, or of one. */
#include "rows.template.h"

/* While it computes, the strips that come next are fetched: a part of them with each block of rows,
 * `lines` cache lines for every four words. */
TARGET static void NAME(compute_strips)(const pw_linear_job *job, int64_t strip, int64_t strips,
                                        const uint32_t *next, const bool integers) {
    const int64_t words = job->weights->words;
    const uint32_t *weights = pw_strip(job->weights, strip);
    const int64_t blocks = (job->rows + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t lines = (4 * strips + blocks - 1) / blocks;
    const char *ahead = (const char *)next;
    uint32_t sums[TILE_ROWS * TILE_STRIPS * PW_STRIP] __attribute__((aligned(64)));
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t row = job->rows * block / blocks;
        const int64_t rows = job->rows * (block + 1) / blocks - row;
        const bool fetch = block * lines < 4 * strips;
        NAME(sum)(job, row, rows, weights, strips, fetch ? ahead : NULL, fetch ? lines : 0, sums);
        ahead += words * 16 * lines;
        NAME(finish)(job, sums, TILE_STRIPS * PW_STRIP, integers, row, rows, strip, strips);
    }
}

PW_INLINE TARGET void NAME(walk)(const pw_linear_job *job, int64_t first, int64_t last,
                                 const uint32_t *after, const bool integers) {
    for (int64_t strip = first; strip < last;) {
        const int64_t strips = last - strip < TILE_STRIPS ? 1 : TILE_STRIPS;
        const int64_t end = strip + strips;
        const uint32_t *next = end < last ? pw_strip(job->weights, end) : after;
        NAME(compute_strips)(job, strip, strips, next, integers);
        strip = end;
    }
}
