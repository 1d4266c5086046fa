/* Both ends of a product: rows of activations in, sums out. A template: TARGET says for which
 * instructions to compile, NAME(x) gives the functions their names. */
#include <string.h>

#include "linear.h"

#define PW_UNUSED __attribute__((unused)) /* not every kernel reads its rows in every way */

static inline __attribute__((always_inline)) float NAME(widen)(uint16_t value) {
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)value << 16};
    return wide.value;
}

/* To the nearest bfloat16, ties to even. */
static inline __attribute__((always_inline)) uint16_t NAME(narrow)(float value) {
    union {
        float value;
        uint32_t bits;
    } wide = {.value = value};
    return (uint16_t)((wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16);
}

/* One row as float32, zeros behind it. */
TARGET static void NAME(widen_row)(const pw_linear_job *job, int64_t row, float *out, int64_t width) {
    int64_t count = job->weights->in_features;
    if (job->type == PW_FLOAT32) {
        memcpy(out, (const float *)job->inputs + row * count, (size_t)count * sizeof(float));
    } else {
        const uint16_t *in = (const uint16_t *)job->inputs + row * count;
        for (int64_t i = 0; i < count; i++) {
            out[i] = NAME(widen)(in[i]);
        }
    }
    memset(out + count, 0, (size_t)(width - count) * sizeof(float));
}

/* One row as int8 with a scale of its own, moved up by 128. The largest magnitude becomes 127.
 * Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits of a float32. */
TARGET static float NAME(quantize)(const pw_linear_job *job, int64_t row, uint8_t *out,
                                   int64_t width) {
    int64_t count = job->weights->in_features;
    const float *values = (const float *)job->inputs + row * count;
    const uint16_t *halves = (const uint16_t *)job->inputs + row * count;
    const bool narrow = job->type == PW_BFLOAT16;
    union {
        uint32_t bits;
        float value;
    } largest = {0}, shifted;
    if (narrow) {
        uint16_t most = 0;
        for (int64_t i = 0; i < count; i++) {
            uint16_t magnitude = halves[i] & 0x7fff;
            most = magnitude > most ? magnitude : most;
        }
        largest.bits = (uint32_t)most << 16;
    } else {
        const uint32_t *words = (const uint32_t *)values;
        for (int64_t i = 0; i < count; i++) {
            uint32_t magnitude = words[i] & 0x7fffffff;
            largest.bits = magnitude > largest.bits ? magnitude : largest.bits;
        }
    }
    const float scale = largest.value / 127.0f;
    const float inverse = largest.value < 1e-30f ? 0 : 127.0f / largest.value;
    if (narrow) {
        for (int64_t i = 0; i < count; i++) {
            shifted.value = NAME(widen)(halves[i]) * inverse + 12582912.0f;
            out[i] = (uint8_t)(shifted.bits + 128);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            shifted.value = values[i] * inverse + 12582912.0f;
            out[i] = (uint8_t)(shifted.bits + 128);
        }
    }
    memset(out + count, 128, (size_t)(width - count));
    return scale;
}

PW_UNUSED TARGET static void NAME(prepare_floats)(const pw_linear_job *job, char *operand, int64_t first,
                                        int64_t last) {
    for (int64_t row = first; row < last; row++) {
        char *out = operand + row * job->operand_stride;
        NAME(widen_row)(job, row, (float *)out, job->operand_stride / (int64_t)sizeof(float));
    }
}

PW_UNUSED TARGET static void NAME(prepare_halves)(const pw_linear_job *job, char *operand, int64_t first,
                                        int64_t last) {
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

PW_UNUSED TARGET static void NAME(prepare_bytes)(const pw_linear_job *job, char *operand, int64_t first,
                                       int64_t last) {
    for (int64_t row = first; row < last; row++) {
        uint8_t *out = (uint8_t *)operand + row * job->operand_stride;
        job->row_scales[row] = NAME(quantize)(job, row, out, job->operand_stride);
    }
}

/* Turns the sums of some rows and strips into outputs: scales them back, adds the bias, rounds. The
 * sums are float32, or int32 of quantized rows; a row of them is `stride` long. */
static inline __attribute__((always_inline)) void NAME(finish)(
    const pw_linear_job *job, const void *sums, int64_t stride, const bool integers, int64_t row,
    int64_t rows, int64_t strip, int64_t strips) {
    const pw_linear_weights *weights = job->weights;
    const int64_t width = weights->out_features, column = strip * PW_STRIP;
    const int64_t count = width - column < strips * PW_STRIP ? width - column : strips * PW_STRIP;
    float line[TILE_STRIPS * PW_STRIP];
    uint16_t halves[TILE_STRIPS * PW_STRIP];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t s = 0; s < strips * PW_STRIP; s += PW_STRIP) {
            const float *floats = (const float *)sums + r * stride + s;
            const int32_t *whole = (const int32_t *)sums + r * stride + s;
            for (int64_t c = 0; c < PW_STRIP; c++) {
                line[s + c] = integers ? (float)(whole[c] - weights->zeros[column + s + c]) *
                                             job->row_scales[row + r]
                                       : floats[c];
            }
            for (int64_t c = 0; weights->scales && c < PW_STRIP; c++) {
                line[s + c] *= weights->scales[column + s + c];
            }
            for (int64_t c = 0; weights->bias && c < PW_STRIP; c++) {
                line[s + c] += weights->bias[column + s + c];
            }
            for (int64_t c = 0; c < PW_STRIP; c++) {
                halves[s + c] = NAME(narrow)(line[s + c]);
            }
        }
        const int64_t start = (row + r) * width + column;
        if (job->type == PW_FLOAT32) {
            memcpy((float *)job->outputs + start, line, (size_t)count * sizeof(float));
        } else {
            memcpy((uint16_t *)job->outputs + start, halves, (size_t)count * sizeof(uint16_t));
        }
    }
}
