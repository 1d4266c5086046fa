/* Storing keys and values: as many small copies as a step has tokens, heads and layers. */
#include "cache.h"

#include <string.h>

#include "layers.h"

static void store_head(const pw_cache_write *call, const char *head, char *target) {
    if (call->is_quantized) {
        pw_quantize_head(call->type, head, call->head_dim, (pw_i8 *)target);
    } else {
        memcpy(target, head, (size_t)(call->head_dim * pw_size(call->type)));
    }
}

void pw_write_kv(const pw_cache_write *call) {
    for (int64_t token = 0; token < call->num_tokens; token++) {
        const int64_t slot = call->slots[token];
        char *target = call->kv + slot / call->block_size * call->kv_block +
                       slot % call->block_size * call->kv_token;
        const char *key = call->key + token * call->key_token;
        const char *value = call->value + token * call->value_token;
        for (int64_t h = 0; h < call->num_kv_heads; h++) {
            char *head = target + h * call->kv_head;
            store_head(call, key + h * call->key_head, head);
            store_head(call, value + h * call->value_head, head + call->kv_value);
        }
    }
}
