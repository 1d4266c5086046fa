/* The code for any processor. */
#define ISA plain
#define FEW 2
#define MANY 8
#define STRIP 2
#define BLOCK 4
#define PANEL 2
#include "processor/vector_plain.h"

#include "attention/body.template.h"
#include "layers/body.template.h"
#include "sampling/body.template.h"
