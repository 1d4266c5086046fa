/* The code for any processor. */
#define ISA plain
#include "processor/vector_plain.h"

#include "adapters/body.template.h"
#include "attention/body.template.h"
#include "layers/body.template.h"
#include "recurrent/body.template.h"
#include "sampling/body.template.h"
