/* Both ends of a product with weights in groups: groups of inputs, each in int8 with a scale of its
 * own, and the way through the strips. A template like walk.template.h, which it includes. */
#include "walk.template.h"

/* One group of float32 inputs in int8: the largest magnitude becomes 127. The sum is that of what the
 * whole numbers stand for, so that a product errs by no more than its inputs do. */
PW_INLINE TARGET void NAME(quantize_group)(const float *values, pw_input_group *out) {
    float most = 0;
    for (int i = 0; i < PW_GROUP; i++) {
        const float magnitude = values[i] < 0 ? -values[i] : values[i];
        most = magnitude > most ? magnitude : most;
    }
    const float inverse = most < 1e-30f ? 0 : 127.0f / most;
    int32_t sum = 0;
    for (int i = 0; i < PW_GROUP; i++) {
        union {
            float value;
            int32_t bits;
        } shifted = {.value = values[i] * inverse + 12582912.0f}; /* rounds, as in rows.template.h */
        const int8_t whole = (int8_t)shifted.bits;
        out->values[i] = whole;
        sum += whole;
    }
    out->scale = most / 127.0f;
    out->sum = out->scale * (float)sum;
}

TARGET static void NAME(prepare_groups)(const pw_linear_job *job, char *operand, float *spare,
                                        int64_t first, int64_t last) {
    (void)spare;
    const int64_t num_groups = job->weights->words / pw_group_lines(job->weights->type);
    float block[PW_BLOCK] __attribute__((aligned(64)));
    for (int64_t row = first; row < last; row++) {
        pw_input_group *out = (pw_input_group *)(operand + row * job->operand_stride);
        for (int64_t g = 0; g < num_groups; g += PW_BLOCK / PW_GROUP) {
            NAME(read_block)(job, row, g * PW_GROUP, block);
            for (int64_t i = 0; i < PW_BLOCK / PW_GROUP; i++) {
                NAME(quantize_group)(block + i * PW_GROUP, out + g + i);
            }
        }
    }
}

TARGET static void NAME(compute)(const pw_linear_job *job, int64_t first, int64_t last,
                                 const uint32_t *after) {
    NAME(walk)(job, first, last, after, false);
}

static const pw_linear_kernel NAME(kernel) = {
    PW_INT8_GROUPS, 16 * sizeof(pw_input_group) / PW_GROUP, TILE_STRIPS, NAME(prepare_groups),
    NAME(compute)};
