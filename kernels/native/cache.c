/* Storing keys and values: as many small copies as a step has tokens, heads and layers. */
#include "cache.h"

#include <string.h>

void pw_write_kv(const pw_cache_write *call) {
    for (int64_t token = 0; token < call->num_tokens; token++) {
        const int64_t slot = call->slots[token];
        char *target = call->kv + slot / call->block_size * call->kv_block +
                       slot % call->block_size * call->kv_token;
        const char *key = call->key + token * call->key_token;
        const char *value = call->value + token * call->value_token;
        for (int64_t h = 0; h < call->num_kv_heads; h++) {
            char *head = target + h * call->kv_head;
            memcpy(head, key + h * call->key_head, (size_t)call->head);
            memcpy(head + call->kv_value, value + h * call->value_head, (size_t)call->head);
        }
    }
}
