/* Sums of products with weights in groups, for vectors of integers. A template: besides TARGET, NAME
 * and LANES, the operations on vectors: DOT(sum, codes, four) adds the products of four codes of 4
 * bits of each column with four inputs, WHOLE(sum) makes int32 of such sums of a group; DOT_BYTES
 * adds those of codes of 8 bits, or of what LOOK_UP has for those of floats, in int32.
 *
 * The codes of a group are unpacked once for all rows. Whole numbers are exact; a group's sum is
 * scaled, and added to those of the groups before it, in float32. */
enum { NAME(parts) = PW_STRIP / LANES };

/* The codes of all inputs of a group, of LANES columns. */
PW_INLINE TARGET void NAME(unpack)(const char *group, const int type, INTEGERS *codes) {
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) {
        const INTEGERS both = LOAD(group + PW_LINE * line);
        if (type == PW_INT8_GROUPS) {
            codes[line] = both;
            codes[line + 4] = LOAD(group + PW_LINE * (line + 4));
            continue;
        }
        const INTEGERS low = LOW_BITS(both), high = LOW_BITS(SHIFT_BITS(both));
        codes[line] = type == PW_FP4_GROUPS ? LOOK_UP(low) : low;
        codes[line + 4] = type == PW_FP4_GROUPS ? LOOK_UP(high) : high;
    }
}

PW_INLINE TARGET void NAME(add_group)(const char *x, int64_t stride, const char *group,
                                      const int type, const int rows, FLOATS *sums) {
    const bool bytes = type != PW_INT4_GROUPS; /* codes, unpacked, are larger than 15 */
    const char *numbers = group + PW_LINE * (pw_group_lines(type) - 1);
#pragma GCC unroll 2
    for (int part = 0; part < NAME(parts); part++) {
        INTEGERS codes[8];
        NAME(unpack)(group + 4 * LANES * part, type, codes);
        const FLOATS scales = HALVES(numbers + 2 * LANES * part);
        const FLOATS minima = HALVES(numbers + 2 * PW_STRIP + 2 * LANES * part);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const pw_input_group *inputs = (const pw_input_group *)(x + r * stride);
            INTEGERS sum = ZERO();
#pragma GCC unroll 8
            for (int four = 0; four < 8; four++) {
                int32_t values;
                memcpy(&values, inputs->values + 4 * four, sizeof values);
                sum = bytes ? DOT_BYTES(sum, codes[four], REPEAT(values))
                            : DOT(sum, codes[four], REPEAT(values));
            }
            const FLOATS whole = FLOAT(bytes ? sum : WHOLE(sum));
            FLOATS *total = &sums[r * NAME(parts) + part];
            *total = MULTIPLY_ADD(whole, MULTIPLY(scales, SPREAD(inputs->scale)), *total);
            *total = MULTIPLY_ADD(minima, SPREAD(inputs->sum), *total);
        }
    }
}

PW_INLINE TARGET void NAME(tile)(const char *x, int64_t stride, const char *groups,
                                 int64_t num_groups, const int type, const int rows,
                                 const char *ahead, int64_t ahead_bytes, uint32_t *out) {
    FLOATS sums[TILE_ROWS * NAME(parts)] = {{0}};
    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t byte = 0; byte < ahead_bytes; byte += 64) {
            __builtin_prefetch(ahead + byte, 0, 2);
        }
        ahead += ahead_bytes;
        NAME(add_group)(x + g * (int64_t)sizeof(pw_input_group), stride,
                        groups + g * PW_LINE * pw_group_lines(type), type, rows, sums);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows * NAME(parts); i++) {
        STORE(out + i * LANES, sums[i]);
    }
}

TARGET static void NAME(sum)(const pw_linear_job *job, int64_t row, int64_t rows, const uint32_t *w,
                             int64_t strips, const char *ahead, int64_t lines, uint32_t *sums) {
    (void)strips; /* always 1 */
    const int64_t stride = job->operand_stride;
    const int64_t group_lines = pw_group_lines(job->weights->type);
    const int64_t num_groups = job->weights->words / group_lines;
    const int64_t ahead_bytes = group_lines * PW_LINE / 4 * lines; /* `lines` for every 4 */
    const char *groups = (const char *)w;
    const char *x = job->operand + row * stride;
#define PW_TILE(type, n) NAME(tile)(x, stride, groups, num_groups, type, n, ahead, ahead_bytes, sums)
#define PW_FOUR(n) PW_TILE(PW_INT4_GROUPS, n)
#define PW_EIGHT(n) PW_TILE(PW_INT8_GROUPS, n)
#define PW_FLOATS(n) PW_TILE(PW_FP4_GROUPS, n)
    switch (job->weights->type) {
    case PW_INT4_GROUPS: PW_FOR_ROWS(rows, PW_FOUR) break;
    case PW_INT8_GROUPS: PW_FOR_ROWS(rows, PW_EIGHT) break;
    default: PW_FOR_ROWS(rows, PW_FLOATS)
    }
#undef PW_TILE
#undef PW_FOUR
#undef PW_EIGHT
#undef PW_FLOATS
}

#include "grouped_rows.template.h"

#undef TARGET
#undef NAME
#undef LANES
#undef TILE_ROWS
#undef TILE_STRIPS
#undef INTEGERS
#undef FLOATS
#undef LOAD
#undef LOW_BITS
#undef SHIFT_BITS
#undef LOOK_UP
#undef ZERO
#undef REPEAT
#undef DOT
#undef DOT_BYTES
#undef WHOLE
#undef FLOAT
#undef HALVES
#undef SPREAD
#undef MULTIPLY
#undef MULTIPLY_ADD
#undef STORE
