/* The code for any processor. */
#define ISA plain
#define FEW 2
#define MANY 8
#define STRIP 2
#define BLOCK 4
#define PANEL 2
#include "vector_plain.h"

#include "attention_body.h"
#include "layers_body.h"
#include "sampling_body.h"
