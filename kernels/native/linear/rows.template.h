/* Both ends of a product: rows of activations in, sums out. A template: TARGET says for which
 * instructions to compile, NAME(x) gives the functions their names. */
#include <string.h>

#include "kernel.h"

#define PW_UNUSED __attribute__((unused)) /* not every kernel reads its rows in every way */

PW_INLINE float NAME(widen)(uint16_t value) {
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)value << 16};
    return wide.value;
}

/* To the nearest bfloat16, ties to even. */
PW_INLINE uint16_t NAME(narrow)(float value) {
    union {
        float value;
        uint32_t bits;
    } wide = {.value = value};
    return (uint16_t)((wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16);
}

typedef float NAME(sixteen) __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t NAME(magnitudes) __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t NAME(halves) __attribute__((vector_size(32), aligned(2), may_alias));

/* One stage of a Hadamard transform of 16 values: sums and differences of partners. */
#if defined(__clang__)
#define PW_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define PW_SHUFFLE(v, ...) __builtin_shuffle(v, (NAME(magnitudes)){__VA_ARGS__})
#endif
#define PW_PARTNERS(v, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...)                        \
    v = PW_SHUFFLE(v, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) +                            \
        v * (NAME(sixteen)){__VA_ARGS__}

/* Multiplies 64 values by the Hadamard matrix of that size over 8, which leaves lengths as they are
 * (QuaRot, arXiv 2404.00456, section 3): an outlier is spread over the block, and the scale that
 * holds it no longer rounds its neighbours away. Products of rows and weights that are both rotated
 * are those of the originals. */
PW_INLINE TARGET void NAME(rotate)(float *values) {
    NAME(sixteen) v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = *(const NAME(sixteen) *)(values + 16 * i);
        PW_PARTNERS(v[i], 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14,
                    1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
        PW_PARTNERS(v[i], 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
                    1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
        PW_PARTNERS(v[i], 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11,
                    1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
        PW_PARTNERS(v[i], 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7,
                    1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    }
    const NAME(sixteen) sums[2] = {v[0] + v[1], v[2] + v[3]};
    const NAME(sixteen) differences[2] = {v[0] - v[1], v[2] - v[3]};
    *(NAME(sixteen) *)values = (sums[0] + sums[1]) * 0.125f;
    *(NAME(sixteen) *)(values + 16) = (differences[0] + differences[1]) * 0.125f;
    *(NAME(sixteen) *)(values + 32) = (sums[0] - sums[1]) * 0.125f;
    *(NAME(sixteen) *)(values + 48) = (differences[0] - differences[1]) * 0.125f;
}

#undef PW_PARTNERS
#undef PW_SHUFFLE

/* A row's inputs from `start` on as float32, zeros behind the last; rotated for int8 weights. */
PW_INLINE TARGET void NAME(read_block)(const pw_linear_job *job, int64_t row, int64_t start,
                                       float *out) {
    const int64_t width = job->weights->in_features;
    const int64_t count = width - start < PW_BLOCK ? width - start : PW_BLOCK;
    const float *floats = (const float *)job->inputs + row * width + start;
    const uint16_t *halves = (const uint16_t *)job->inputs + row * width + start;
    if (count < PW_BLOCK) {
        for (int64_t i = 0; i < PW_BLOCK; i++) {
            out[i] = i >= count ? 0 : job->type == PW_FLOAT32 ? floats[i] : NAME(widen)(halves[i]);
        }
    } else if (job->type == PW_FLOAT32) {
        memcpy(out, floats, PW_BLOCK * sizeof(float));
    } else {
        for (int64_t i = 0; i < PW_BLOCK; i++) {
            out[i] = NAME(widen)(halves[i]);
        }
    }
    if (job->weights->type == PW_INT8) {
        NAME(rotate)(out);
    }
}

/* One row as int8 with a scale of its own, moved up by 128. The largest magnitude becomes 127.
 * Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits of a float32. */
TARGET static float NAME(quantize)(const pw_linear_job *job, int64_t row, float *values,
                                   uint8_t *out, int64_t width) {
    NAME(magnitudes) largest = {0};
    for (int64_t start = 0; start < width; start += PW_BLOCK) {
        NAME(read_block)(job, row, start, values + start);
        for (int64_t i = start; i < start + PW_BLOCK; i += 16) {
            const NAME(magnitudes) next = *(NAME(magnitudes) *)(values + i) & 0x7fffffff;
            const NAME(magnitudes) larger = next > largest;
            largest = (next & larger) | (largest & ~larger);
        }
    }
    union {
        int32_t bits;
        float value;
    } most = {0}, shifted;
    for (int i = 0; i < 16; i++) {
        most.bits = largest[i] > most.bits ? largest[i] : most.bits;
    }
    const float inverse = most.value < 1e-30f ? 0 : 127.0f / most.value;
    for (int64_t i = 0; i < width; i++) {
        shifted.value = values[i] * inverse + 12582912.0f;
        out[i] = (uint8_t)(shifted.bits + 128);
    }
    return most.value / 127.0f;
}

PW_UNUSED TARGET static void NAME(prepare_floats)(const pw_linear_job *job, char *operand,
                                                  float *spare, int64_t first, int64_t last) {
    (void)spare;
    const int64_t width = job->operand_stride / (int64_t)sizeof(float);
    float block[PW_BLOCK] __attribute__((aligned(64)));
    for (int64_t row = first; row < last; row++) {
        float *out = (float *)(operand + row * job->operand_stride);
        for (int64_t start = 0; start < width; start += PW_BLOCK) {
            const int64_t count = width - start < PW_BLOCK ? width - start : PW_BLOCK;
            NAME(read_block)(job, row, start, block);
            memcpy(out + start, block, (size_t)count * sizeof(float));
        }
    }
}

PW_UNUSED TARGET static void NAME(prepare_halves)(const pw_linear_job *job, char *operand,
                                                  float *spare, int64_t first, int64_t last) {
    (void)spare;
    const int64_t count = job->weights->in_features;
    const int64_t width = job->operand_stride / (int64_t)sizeof(uint16_t);
    for (int64_t row = first; row < last; row++) {
        uint16_t *out = (uint16_t *)(operand + row * job->operand_stride);
        if (job->type == PW_BFLOAT16) {
            memcpy(out, (const uint16_t *)job->inputs + row * count, (size_t)count * 2);
        } else {
            for (int64_t i = 0; i < count; i++) {
                out[i] = NAME(narrow)(((const float *)job->inputs)[row * count + i]);
            }
        }
        memset(out + count, 0, (size_t)(width - count) * 2);
    }
}

PW_UNUSED TARGET static void NAME(prepare_bytes)(const pw_linear_job *job, char *operand,
                                                 float *spare, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        uint8_t *out = (uint8_t *)operand + row * job->operand_stride;
        job->row_scales[row] = NAME(quantize)(job, row, spare, out, job->operand_stride);
    }
}

/* The outputs of one strip of a row, from its sums: scaled back, with the bias. */
PW_INLINE TARGET void NAME(form_outputs)(const pw_linear_job *job, const uint32_t *sums,
                                         const bool integers, int64_t row, int64_t column,
                                         NAME(sixteen) *outputs) {
    const pw_linear_weights *weights = job->weights;
    NAME(sixteen) values = *(const NAME(sixteen) *)sums;
    if (integers) {
        const NAME(magnitudes) zeros = *(const NAME(magnitudes) *)(weights->zeros + column);
        const NAME(magnitudes) whole = *(const NAME(magnitudes) *)sums - zeros;
        values = __builtin_convertvector(whole, NAME(sixteen)) * job->row_scales[row];
    }
    if (weights->scales) {
        values *= *(const NAME(sixteen) *)(weights->scales + column);
    }
    if (weights->bias) {
        values += *(const NAME(sixteen) *)(weights->bias + column);
    }
    *outputs = values;
}

/* To the nearest bfloat16 each, as `narrow`. */
PW_INLINE TARGET void NAME(narrow_all)(const NAME(sixteen) *values, NAME(halves) *out) {
    const NAME(words) bits = *(const NAME(words) *)values;
    *out = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, NAME(halves));
}

/* Stores the outputs of one strip of a row, the last of which may be missing. */
PW_INLINE TARGET void NAME(store_outputs)(const pw_linear_job *job, const NAME(sixteen) *values,
                                          int64_t row, int64_t column) {
    const int64_t width = job->weights->out_features, start = row * width + column;
    const int64_t left = width - column;
    if (job->output_type == PW_FLOAT32) {
        float *to = (float *)job->outputs + start;
        if (left >= PW_STRIP) {
            *(NAME(sixteen) *)to = *values;
        } else {
            memcpy(to, values, (size_t)left * sizeof *to);
        }
        return;
    }
    uint16_t *to = (uint16_t *)job->outputs + start;
    NAME(halves) halves;
    NAME(narrow_all)(values, &halves);
    if (left >= PW_STRIP) {
        *(NAME(halves) *)to = halves;
    } else {
        memcpy(to, &halves, (size_t)left * sizeof *to);
    }
}

/* Turns the sums of some rows and strips into outputs. The sums are float32, or int32 of quantized
 * rows; a row of them is `stride` long. */
PW_INLINE TARGET void NAME(finish)(const pw_linear_job *job, const uint32_t *sums, int64_t stride,
                                   const bool integers, int64_t row, int64_t rows, int64_t strip,
                                   int64_t strips) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t s = 0; s < strips; s++) {
            const int64_t column = (strip + s) * PW_STRIP;
            NAME(sixteen) values;
            NAME(form_outputs)(job, sums + r * stride + s * PW_STRIP, integers, row + r, column,
                               &values);
            NAME(store_outputs)(job, &values, row + r, column);
        }
    }
}
