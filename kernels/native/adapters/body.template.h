/* Adapters in the vectors of one instruction set, which has been included before. */
#include "adapters/adapters.h"
#include "processor/arithmetic.h"
#include "processor/vector_math.template.h"

/* Rows, and ranks or vectors, whose products are summed up side by side: as many of each; of a lone row
 * more ranks. */
#define SIDE 4
#define WIDE 8

#define T f32
#include "low_rank.template.h"
#define T bf16
#include "low_rank.template.h"
#define T f16
#include "low_rank.template.h"

const pw_adapters_code CAT(pw_adapters_, ISA) = {
    .adapt = {adapt_f32, adapt_bf16, adapt_f16},
};
#undef SIDE
#undef WIDE
