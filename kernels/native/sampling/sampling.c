/* Rows of scores to tokens. What decides is compared in whole numbers and in exact products, so that
 * every instruction set, and the other rooms, decide alike.
 *
 * A row is cut into blocks, whose largest scores are known: most of what follows passes over all
 * blocks but a few. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK PW_SAMPLE_BLOCK
#define GOLDEN 0x9E3779B97F4A7C15
#define CELLS 0x1p52 /* of noise */
#define MOST_DIGITS 2048

/* What a thread works in; it grows and stays. */
typedef struct {
    float *row;  /* [size], whole blocks */
    float *tops; /* [num_blocks]: the largest score of each */
    float *gaps; /* [size], whole blocks: those of tokens that a cut is looked for in */
    double digits[MOST_DIGITS];
    int64_t size;
} workspace;

/* One row that is drawn from. A token's gap is its distance from the row's largest score, over the
 * temperature: never negative, and ordered like its bits. */
typedef struct {
    const pw_sampling_code *code;
    workspace *space;
    int64_t num_blocks;
    float highest, inverse;
} search;

/* Tokens with smaller gaps than `gap` are kept, and those with this one up to token `last`. */
typedef struct {
    float gap;
    int64_t last;
} cut;

static workspace *prepared(int64_t size) {
    static _Thread_local workspace space;
    if (space.size < size) {
        const size_t floats = (size_t)size * sizeof(float);
        free(space.row);
        space.row = malloc(2 * floats + floats / BLOCK);
        space.size = space.row ? size : 0;
        if (!space.row) {
            return NULL;
        }
        space.gaps = space.row + size;
        space.tops = space.gaps + size;
    }
    return &space;
}

static inline float gap_of(const search *in, float score) {
    return (in->highest - score) * in->inverse;
}

static inline uint32_t bits_of(float gap) {
    uint32_t bits;
    memcpy(&bits, &gap, sizeof bits);
    return bits;
}

static inline float gap_from(uint32_t bits) {
    float gap;
    memcpy(&gap, &bits, sizeof gap);
    return gap;
}

/* Puts the gaps above `least` and up to `most` together. Returns how many there are. */
static int64_t gather(const search *in, float least, float most) {
    float *gaps = in->space->gaps;
    int64_t count = 0;
    for (int64_t block = 0; block < in->num_blocks; block++) {
        if (gap_of(in, in->space->tops[block]) <= most) {
            const float *scores = in->space->row + block * BLOCK;
            for (int i = 0; i < BLOCK; i++) {
                gaps[count] = gap_of(in, scores[i]);
                count += (gaps[count] > least) & (gaps[count] <= most);
            }
        }
    }
    return count;
}

/* The weights of gaps from `begin` on, a block at most: those behind the last one are 0. */
static double weigh_some(const search *in, int64_t begin, int64_t count, double *weights) {
    float some[BLOCK];
    const int64_t left = count - begin;
    if (left >= BLOCK) {
        return in->code->weigh(in->space->gaps + begin, weights);
    }
    for (int i = 0; i < BLOCK; i++) {
        some[i] = i < left ? in->space->gaps[begin + i] : INFINITY;
    }
    return in->code->weigh(some, weights);
}

static double mass_of(const search *in, int64_t count) {
    double weights[BLOCK], mass = 0;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        mass += weigh_some(in, begin, count, weights);
    }
    return mass;
}

/* The mass of the whole row. */
static double whole_mass(const search *in) {
    double weights[BLOCK], mass = 0;
    float gaps[BLOCK];
    for (int64_t block = 0; block < in->num_blocks; block++) {
        if (gap_of(in, in->space->tops[block]) < 25.0f) { /* beyond that all weights are 0 */
            for (int i = 0; i < BLOCK; i++) {
                gaps[i] = gap_of(in, in->space->row[block * BLOCK + i]);
            }
            mass += in->code->weigh(gaps, weights);
        }
    }
    return mass;
}

/* Leaves in `digits` how much there is of each digit of the gaps' bits: tokens, or their mass. */
static void count_digits(const search *in, int64_t count, bool by_mass, int shift, uint32_t mask) {
    double weights[BLOCK], *digits = in->space->digits;
    const float *gaps = in->space->gaps;
    memset(digits, 0, (mask + 1) * sizeof *digits);
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        if (by_mass) {
            weigh_some(in, begin, count, weights);
        }
        for (int64_t i = begin; i < begin + BLOCK && i < count; i++) {
            digits[bits_of(gaps[i]) >> shift & mask] += by_mass ? weights[i - begin] : 1.0;
        }
    }
}

/* The smallest gap up to which `needed` (at least 1) tokens, or so much mass, lie among the first
 * `count` gaps, which hold as much; and in *ties, how many tokens of that gap it takes. A search by
 * digits, from the first: what is looked at shrinks with each. The gaps are used up. */
static float find_gap(const search *in, int64_t count, bool by_mass, double needed, int64_t *ties) {
    static const struct {
        int shift;
        uint32_t mask;
    } places[] = {{20, 0x7ff}, {10, 0x3ff}, {0, 0x3ff}}; /* the sign is never set */
    float *gaps = in->space->gaps;
    for (int place = 0; place < 3; place++) {
        const int shift = places[place].shift;
        const uint32_t mask = places[place].mask;
        count_digits(in, count, by_mass, shift, mask);
        uint32_t digit = 0;
        while (digit < mask && in->space->digits[digit] < needed) {
            needed -= in->space->digits[digit++];
        }
        int64_t left = 0;
        for (int64_t i = 0; i < count; i++) {
            const float gap = gaps[i];
            gaps[left] = gap;
            left += (bits_of(gap) >> shift & mask) == digit;
        }
        count = left;
    }
    double each = 1, weights[BLOCK];
    if (by_mass) {
        weigh_some(in, 0, 1, weights);
        each = weights[0];
    }
    *ties = (int64_t)ceil(needed / each); /* of whole numbers below 2^53: never off by one */
    return gaps[0];
}

/* The token that is the `ties`th of this gap. */
static int64_t token_of_tie(const search *in, float gap, int64_t ties) {
    int64_t last = -1;
    for (int64_t block = 0; block < in->num_blocks && ties > 0; block++) {
        if (gap_of(in, in->space->tops[block]) <= gap) {
            for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK && ties > 0; i++) {
                if (gap_of(in, in->space->row[i]) == gap) {
                    last = i;
                    ties--;
                }
            }
        }
    }
    return last;
}

/* Gathers the gaps among which `needed` tokens, or so much mass, end: most rows need no more than
 * the first look. Returns how many, and takes from *needed what comes before them. */
static int64_t gather_end(const search *in, bool by_mass, double *needed) {
    static const float looks[] = {-1.0f, 6.0f, 9.0f, 12.0f, 16.0f, INFINITY};
    for (int i = 1;; i++) {
        const int64_t count = gather(in, looks[i - 1], looks[i]);
        const double found = by_mass ? mass_of(in, count) : (double)count;
        if (found >= *needed || looks[i] == INFINITY) {
            return count;
        }
        *needed -= found;
    }
}

static double needed_mass(double top_p, double whole) {
    const double needed = ceil(top_p * whole);
    return needed < 1 ? 1 : needed;
}

/* What top_k, then top_p, then the widest gap allow. */
static cut find_cut(const search *in, int64_t size, double top_k, double top_p, float widest) {
    cut kept = {INFINITY, size - 1};
    int64_t count = 0, ties = 0;
    const bool by_count = top_k > 0 && top_k < (double)size;
    if (by_count) {
        double needed = top_k;
        count = gather_end(in, false, &needed);
        kept.gap = find_gap(in, count, false, needed, &ties);
        kept.last = token_of_tie(in, kept.gap, ties);
    }
    if (top_p < 1) {
        double needed;
        if (by_count) {
            const float below = kept.gap > 0 ? gap_from(bits_of(kept.gap) - 1) : -1.0f;
            count = gather(in, -1.0f, below);
            for (int64_t i = 0; i < ties; i++) {
                in->space->gaps[count++] = kept.gap;
            }
            needed = needed_mass(top_p, mass_of(in, count));
        } else {
            needed = needed_mass(top_p, whole_mass(in));
            count = gather_end(in, true, &needed);
        }
        kept.gap = find_gap(in, count, true, needed, &ties);
        kept.last = token_of_tie(in, kept.gap, ties);
    }
    return widest < kept.gap ? (cut){widest, size - 1} : kept;
}

/* A token's random bits: those of kernels/noise.py. */
static inline uint64_t cell_of(uint64_t counter) {
    uint64_t bits = (counter ^ (counter >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return (bits ^ (bits >> 31)) >> 12;
}

/* How many of the last cells hold all noise of `lead` or more, e^-lead of them at most, since
 * 1 - u <= -log u; some more for what expf and rounding do. */
static double cells_beyond(double lead) {
    return lead > 0 ? 1.001 * CELLS * expf((float)-lead) : CELLS;
}

/* The token with the largest sum of Gumbel noise and negative gap. Of most, no noise that there is
 * could win any more, or theirs falls short at a look at its bits: few take logarithms. */
static int64_t race(const search *in, uint64_t state, cut kept) {
    double best = -INFINITY;
    int64_t winner = 0;
    for (int64_t block = 0; block < in->num_blocks; block++) {
        const float nearest = gap_of(in, in->space->tops[block]);
        const double cells = cells_beyond(best + nearest);
        uint64_t counter = state + (uint64_t)(block * BLOCK + 1) * GOLDEN;
        if (!(nearest <= kept.gap) || cells < 0.5 || !in->code->may_win(counter, (uint64_t)cells)) {
            continue;
        }
        for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++, counter += GOLDEN) {
            const uint64_t cell = cell_of(counter);
            const float gap = gap_of(in, in->space->row[i]);
            const bool is_kept = gap < kept.gap || (gap == kept.gap && i <= kept.last);
            if (is_kept && (uint64_t)CELLS - 1 - cell <= (uint64_t)cells) {
                const double sum = -log(-log(((double)cell + 0.5) / CELLS)) - gap;
                if (sum > best) {
                    best = sum;
                    winner = i;
                }
            }
        }
    }
    return winner;
}

/* The first of the largest scores. */
static int64_t first_highest(const search *in) {
    for (int64_t block = 0; block < in->num_blocks; block++) {
        if (in->space->tops[block] == in->highest) {
            for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
                if (in->space->row[i] == in->highest) {
                    return i;
                }
            }
        }
    }
    return 0;
}

static int64_t draw_row(const pw_drawing *call, int64_t row) {
    const pw_sampling_code *code = PW_CODE(pw_sampling);
    const int64_t num_blocks = (call->size + BLOCK - 1) / BLOCK;
    workspace *space = prepared(num_blocks * BLOCK);
    if (!space) {
        return -1;
    }
    const char *scores = (const char *)call->scores + row * call->scores_row * pw_size(call->type);
    const double *numbers = call->numbers + row;
    code->copy[call->type](scores, call->size, space->row);
    if (call->places && call->places[row] >= 0) {
        code->forbid(space->row, call->size, call->words + call->places[row] * call->num_words);
    }
    for (int64_t i = call->size; i < num_blocks * BLOCK; i++) {
        space->row[i] = -INFINITY;
    }
    const float highest = code->find_tops(space->row, num_blocks, space->tops);
    const search in = {code, space, num_blocks, highest, (float)numbers[0]};
    if (in.inverse == 0 || !isfinite(highest)) {
        return first_highest(&in);
    }
    const cut kept = find_cut(&in, call->size, numbers[call->num_rows], numbers[2 * call->num_rows],
                              (float)numbers[3 * call->num_rows]);
    return race(&in, call->states[row], kept);
}

static void draw_part(void *context, int part, int parts) {
    const pw_drawing *call = context;
    for (int64_t row = part; row < call->num_rows; row += parts) {
        call->tokens[row] = draw_row(call, row);
    }
}

void pw_draw(const pw_drawing *call) {
    pw_parallel(draw_part, (void *)call, (int)call->num_rows);
}
