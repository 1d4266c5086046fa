/* Storing keys and values in the blocks of the KV memory. */
#ifndef PW_CACHE_H
#define PW_CACHE_H

#include "processor/cpu.h"

/* Strides count bytes. */
typedef struct {
    const char *key, *value; /* [num_tokens, num_kv_heads, head], heads whole; no value: NULL */
    char *kv;                /* [num_blocks, 2, num_kv_heads, block_size, head], or quantized rows */
    const int64_t *slots;    /* [num_tokens] */
    int64_t key_token, key_head, value_token, value_head;
    int64_t kv_block, kv_value, kv_head, kv_token;
    int64_t num_tokens, num_kv_heads, block_size;
    int64_t head_dim;
    int64_t type;         /* pw_type of key and value */
    int64_t is_quantized; /* kv: see kernels/kv_format.py */
} pw_cache_write;

PW_EXPORT void pw_write_kv(const pw_cache_write *call);

#endif
