/* Recurrent layers in the vectors of one instruction set, which has been included before. */
#include <math.h>
#include <string.h>

#include "processor/arithmetic.h"
#include "processor/scratch.h"
#include "processor/vector_math.template.h"
#include "recurrent/recurrent.h"

/* Tokens that go through a state together, so that it is read and written once for all of them:
 * what they give each other is added on the side. */
#define QUAD 4

/* Pairs of two tokens of a quad, `late` not before `early`; without those of one twice. */
#define PAIR(late, early) ((late) * ((late) + 1) / 2 + (early))
#define STRICT_PAIR(late, early) ((late) * ((late)-1) / 2 + (early))

#include "delta.template.h"
#include "scan.template.h"

#define T f32
#include "convolve.template.h"
#define T f32
#include "delta_typed.template.h"
#define T f32
#include "scan_typed.template.h"
#define T bf16
#include "convolve.template.h"
#define T bf16
#include "delta_typed.template.h"
#define T bf16
#include "scan_typed.template.h"

const pw_recurrent_code CAT(pw_recurrent_, ISA) = {
    .convolve = {convolve_f32, convolve_bf16},
    .delta = {delta_f32, delta_bf16},
    .scan = {scan_f32, scan_bf16},
};
