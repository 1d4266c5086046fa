/* The next token of every row, by selection instead of sorting: see kernels/sampling.py. */
#ifndef PW_SAMPLING_H
#define PW_SAMPLING_H

#include <stdbool.h>

#include "processor/cpu.h"

#define PW_SAMPLE_BLOCK 64 /* scores that are looked at, or passed over, together */

typedef struct {
    const void *scores;     /* [num_rows, size], rows scores_row apart */
    const uint64_t *states; /* [num_rows]: what a row's noise starts from */
    const double *numbers;  /* [4, num_rows]: inverse temperature, top_k, top_p, widest gap */
    int64_t *tokens;        /* [num_rows]: the result; -1 where there was no memory to work in */
    const uint32_t *words;  /* [num_masked, num_words]: a bit for each token that may be drawn */
    const int64_t *places;  /* [num_rows]: a row's place in `words`, or -1; or there are none */
    int64_t scores_row, num_rows, size, num_words;
    int64_t type;
} pw_drawing;

/* The code for one instruction set. */
typedef struct {
    /* A row's scores, in float32. */
    void (*copy[PW_NUM_TYPES])(const void *scores, int64_t size, float *row);
    /* Leaves -inf where a token's bit is not set. There is room for whole words. */
    void (*forbid)(float *row, int64_t size, const uint32_t *words);
    /* The largest score of every block, and of all; what is no number becomes -inf. */
    float (*find_tops)(float *row, int64_t num_blocks, float *tops);
    /* The weights of a block of gaps, multiples of 1 up to 2^34, and their sum. */
    double (*weigh)(const float *gaps, double *weights);
    /* Whether noise of a block, whose first counter it is, lies in one of so many last cells. */
    bool (*may_win)(uint64_t counter, uint64_t cells);
} pw_sampling_code;

extern const pw_sampling_code pw_sampling_plain, pw_sampling_avx2, pw_sampling_avx512;

PW_EXPORT void pw_draw(const pw_drawing *call);

#endif
