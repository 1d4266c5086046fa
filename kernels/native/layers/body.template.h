/* The small operations in the vectors of one instruction set, which has been included before. */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "processor/vector_math.template.h"

#define T f32
#include "norm_rotary_gate.template.h"
#define T bf16
#include "norm_rotary_gate.template.h"
#define T f16
#include "norm_rotary_gate.template.h"

const pw_layers_code CAT(pw_layers_, ISA) = {
    .norm = {norm_f32, norm_bf16, norm_f16},
    .rotate = {rotate_f32, rotate_bf16, rotate_f16},
    .gate = {gate_f32, gate_bf16, gate_f16},
    .store = {store_f32, store_bf16, store_f16},
};
