/* Spreads the small operations over the threads, where there is enough to do. */
#include "layers.h"

/* Elements that are worth a thread's while: some 10 us of each operation. */
#define NORM_SHARE 65536
#define ROTATION_SHARE 32768
#define GATE_SHARE 16384

static int num_parts(int64_t num_tokens, int64_t width, int64_t share) {
    const int64_t worth = num_tokens * width / share;
    const int64_t threads = pw_threads(), shared = worth < num_tokens ? worth : num_tokens;
    const int64_t parts = shared < 2 * threads ? shared : 2 * threads;
    return threads == 1 || parts < 1 ? 1 : (int)parts;
}

#define DEFINE_PART(operation, call_type)                                                  \
    static void operation##_part(void *context, int part, int parts) {                      \
        const call_type *call = context;                                                    \
        PW_CODE(pw_layers)->operation[call->type](call, call->num_tokens * part / parts,    \
                                                  call->num_tokens * (part + 1) / parts);   \
    }
DEFINE_PART(norm, pw_norm)
DEFINE_PART(rotate, pw_rotation)
DEFINE_PART(gate, pw_gating)

void pw_add_rms_norm(const pw_norm *call) {
    pw_parallel(norm_part, (void *)call, num_parts(call->num_tokens, call->dim, NORM_SHARE));
}

void pw_rotate_and_write(const pw_rotation *call) {
    const int64_t width = (call->num_heads + 2 * call->num_kv_heads) * call->head_dim;
    pw_parallel(rotate_part, (void *)call, num_parts(call->num_tokens, width, ROTATION_SHARE));
}

void pw_gate(const pw_gating *call) {
    pw_parallel(gate_part, (void *)call, num_parts(call->num_tokens, call->inter, GATE_SHARE));
}
