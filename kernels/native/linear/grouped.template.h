/* Sums of products with weights in groups, for vectors of integers. A template: besides TARGET, NAME
 * and LANES, the operations on vectors: DOT(sum, codes, four) adds the products of four codes of 4
 * bits of each column with four inputs, WHOLE(sum) makes int32 of such sums of a group; DOT_BYTES
 * adds those of codes of 8 bits, in int32.
 *
 * The codes of a group are unpacked once for all rows. Whole numbers are exact; a group's sum is
 * scaled, and added to those of the groups before it, in float32. */
enum { NAME(parts) = PW_STRIP / LANES };

/* The codes of all inputs of a group, of LANES columns. */
PW_INLINE TARGET void NAME(unpack)(const char *group, const bool bytes, INTEGERS *codes) {
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) {
        const INTEGERS both = LOAD(group + PW_LINE * line);
        codes[line] = bytes ? both : LOW_BITS(both);
        codes[line + 4] = bytes ? LOAD(group + PW_LINE * (line + 4)) : LOW_BITS(SHIFT_BITS(both));
    }
}

PW_INLINE TARGET void NAME(add_group)(const char *x, int64_t stride, const char *group,
                                      const bool bytes, const int rows, FLOATS *sums) {
    const char *numbers = group + PW_LINE * (bytes ? 8 : 4);
#pragma GCC unroll 2
    for (int part = 0; part < NAME(parts); part++) {
        INTEGERS codes[8];
        NAME(unpack)(group + 4 * LANES * part, bytes, codes);
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
                                 int64_t num_groups, const bool bytes, const int rows,
                                 const char *ahead, int64_t ahead_bytes, uint32_t *out) {
    FLOATS sums[TILE_ROWS * NAME(parts)] = {{0}};
    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t byte = 0; byte < ahead_bytes; byte += 64) {
            __builtin_prefetch(ahead + byte, 0, 2);
        }
        ahead += ahead_bytes;
        NAME(add_group)(x + g * (int64_t)sizeof(pw_input_group), stride,
                        groups + g * PW_LINE * (bytes ? 9 : 5), bytes, rows, sums);
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
    const bool bytes = job->weights->type == PW_INT8_GROUPS;
    const int64_t group_lines = pw_group_lines(job->weights->type);
    const int64_t num_groups = job->weights->words / group_lines;
    const int64_t ahead_bytes = group_lines * PW_LINE / 4 * lines; /* `lines` for every 4 */
    const char *groups = (const char *)w;
    const char *x = job->operand + row * stride;
#define PW_BYTES(n) NAME(tile)(x, stride, groups, num_groups, true, n, ahead, ahead_bytes, sums)
#define PW_HALVES(n) NAME(tile)(x, stride, groups, num_groups, false, n, ahead, ahead_bytes, sums)
    if (bytes) {
        PW_FOR_ROWS(rows, PW_BYTES)
    } else {
        PW_FOR_ROWS(rows, PW_HALVES)
    }
#undef PW_BYTES
#undef PW_HALVES
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
