/* Storing keys and values: as many small copies as a step has tokens, heads and layers. */
#include "cache.h"

#include "layers.h"

void pw_write_kv(const pw_cache_write *call) {
    void (*store)(const void *, int64_t, bool, char *) = PW_CODE(pw_layers)->store[call->type];
    for (int64_t token = 0; token < call->num_tokens; token++) {
        const int64_t slot = call->slots[token];
        char *target = call->kv + slot / call->block_size * call->kv_block +
                       slot % call->block_size * call->kv_token;
        const char *key = call->key + token * call->key_token;
        for (int64_t h = 0; h < call->num_kv_heads; h++) {
            char *head = target + h * call->kv_head;
            store(key + h * call->key_head, call->head_dim, call->is_quantized, head);
            if (call->value) {
                const char *value = call->value + token * call->value_token + h * call->value_head;
                store(value, call->head_dim, call->is_quantized, head + call->kv_value);
            }
        }
    }
}
