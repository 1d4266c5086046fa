/* Layers that keep a state of fixed size a sequence: see kernels/recurrent.py for what each computes. */
#ifndef PW_RECURRENT_H
#define PW_RECURRENT_H

#include <stddef.h>

#include "processor/cpu.h"

/* As kernels/recurrent.py has them. */
#define PW_WIDEST 8
#define PW_MOST_KEYS 256

#define PW_CHANNELS 256 /* of a convolution, that one call computes */

/* Neighbouring units of a state that lie in one page, from the byte `offset` on. */
typedef struct {
    int64_t first, count, column, offset;
} pw_segment;

/* What kernels.types has as StateRuns and StatePlace. */
typedef struct {
    char *memory;           /* [num_pages, page_bytes] */
    const int32_t *starts;  /* [num_runs + 1] */
    const int32_t *sources; /* [num_runs, num_columns] */
    const int32_t *targets;
    const pw_segment *segments;
    int64_t page_bytes, num_runs, num_columns, num_segments, num_units, unit_bytes;
    int64_t one_by_one; /* where tokens that go through together would have other bits */
} pw_states;

typedef struct {
    pw_states states;
    const void *x;            /* [num_tokens, channels], tokens x_row elements apart */
    const void *weight, *bias; /* [channels, width], [channels] or NULL */
    void *output;             /* [num_tokens, channels] */
    int64_t x_row, channels, width, is_activated, type;
} pw_convolution;

typedef struct {
    pw_states states;
    const void *q, *k, *v;     /* [num_tokens, heads, dim], tokens so many elements apart: */
    const float *decay, *beta; /* [num_tokens, value_heads]; has_decays: [.., key_dim] */
    void *output;              /* [num_tokens, value_heads, value_dim] */
    int64_t q_row, k_row, v_row, key_heads, key_dim, value_heads, value_dim, has_decays, type;
} pw_delta;

typedef struct {
    pw_states states;
    const void *x, *b, *c;  /* [num_tokens, heads or groups, dim], tokens so many elements apart: */
    const float *dt;        /* [num_tokens, heads] */
    const float *a, *d;     /* [heads]; d may be NULL */
    void *output;           /* [num_tokens, heads, head_dim] */
    int64_t x_row, b_row, c_row, heads, head_dim, groups, state_dim, type;
} pw_scan;

/* The code for one instruction set: of all runs some channels, of some runs a head. */
typedef struct {
    void (*convolve[PW_F16])(const pw_convolution *call, int64_t begin, int64_t end);
    void (*delta[PW_F16])(const pw_delta *call, int64_t head, int64_t begin, int64_t end);
    void (*scan[PW_F16])(const pw_scan *call, int64_t head, int64_t begin, int64_t end);
} pw_recurrent_code;

extern const pw_recurrent_code pw_recurrent_plain, pw_recurrent_avx2, pw_recurrent_avx512;

PW_EXPORT void pw_convolve(const pw_convolution *call);
PW_EXPORT void pw_gated_delta(const pw_delta *call);
PW_EXPORT void pw_selective_scan(const pw_scan *call);

static inline const pw_segment *pw_segment_of(const pw_states *states, int64_t unit) {
    const pw_segment *segment = states->segments;
    while (unit >= segment->first + segment->count) {
        segment++; /* they are few, and in order */
    }
    return segment;
}

/* The unit behind those that lie in one piece with this one. */
static inline int64_t pw_segment_end(const pw_states *states, int64_t unit) {
    const pw_segment *segment = pw_segment_of(states, unit);
    return segment->first + segment->count;
}

/* Where a unit of the state lies that a run leaves, or goes on from: NULL where that is zero. */
static inline void *pw_unit(const pw_states *states, const int32_t *pages, int64_t run,
                            int64_t unit) {
    const pw_segment *segment = pw_segment_of(states, unit);
    const int32_t page = pages[run * states->num_columns + segment->column];
    char *base = states->memory + page * states->page_bytes + segment->offset;
    return page < 0 ? NULL : base + (unit - segment->first) * states->unit_bytes;
}

#endif
