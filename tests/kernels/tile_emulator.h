/* Matrix tiles (AMX) in plain C, to be included before a source that uses the intrinsics: so that
 * what a machine with tiles computes is tested on every machine. */
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} emulated_config;

static _Thread_local emulated_config emulated_shape;
static _Thread_local uint8_t emulated_tiles[8][16][64];

/* What the processor answers with a fault. */
static inline void emulated_demand(int condition) {
    if (!condition) {
        abort();
    }
}

static inline void emulated_loadconfig(const void *config) {
    memcpy(&emulated_shape, config, sizeof emulated_shape);
    emulated_demand(emulated_shape.palette == 1);
    for (int tile = 0; tile < 8; tile++) {
        emulated_demand(emulated_shape.rows[tile] <= 16 && emulated_shape.row_bytes[tile] <= 64);
        emulated_demand(!emulated_shape.rows[tile] == !emulated_shape.row_bytes[tile]);
    }
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void emulated_release(void) {
    memset(&emulated_shape, 0, sizeof emulated_shape);
}

static inline void emulated_zero(int tile) {
    emulated_demand(emulated_shape.rows[tile]);
    memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
}

static inline void emulated_load(int tile, const void *base, int64_t stride) {
    emulated_zero(tile);
    for (int row = 0; row < emulated_shape.rows[tile]; row++) {
        memcpy(emulated_tiles[tile][row], (const char *)base + row * stride,
               emulated_shape.row_bytes[tile]);
    }
}

static inline void emulated_store(int tile, void *base, int64_t stride) {
    emulated_demand(emulated_shape.rows[tile]);
    for (int row = 0; row < emulated_shape.rows[tile]; row++) {
        memcpy((char *)base + row * stride, emulated_tiles[tile][row],
               emulated_shape.row_bytes[tile]);
    }
}

static inline void emulated_check_product(int sum, int left, int right) {
    emulated_demand(emulated_shape.rows[sum] && emulated_shape.rows[sum] == emulated_shape.rows[left]);
    emulated_demand(emulated_shape.row_bytes[sum] == emulated_shape.row_bytes[right]);
    emulated_demand(emulated_shape.row_bytes[left] == 4 * emulated_shape.rows[right]);
}

static inline float emulated_half(int tile, int row, int column) {
    uint16_t half;
    memcpy(&half, emulated_tiles[tile][row] + 2 * column, 2);
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)half << 16};
    return wide.value;
}

static inline void emulated_dpbf16ps(int sum, int left, int right) {
    emulated_check_product(sum, left, right);
    for (int row = 0; row < emulated_shape.rows[sum]; row++) {
        for (int column = 0; column < emulated_shape.row_bytes[sum] / 4; column++) {
            float total;
            memcpy(&total, emulated_tiles[sum][row] + 4 * column, 4);
            for (int pair = 0; pair < emulated_shape.rows[right]; pair++) {
                for (int half = 0; half < 2; half++) {
                    total += emulated_half(left, row, 2 * pair + half) *
                             emulated_half(right, pair, 2 * column + half);
                }
            }
            memcpy(emulated_tiles[sum][row] + 4 * column, &total, 4);
        }
    }
}

static inline void emulated_dpbusd(int sum, int left, int right) {
    emulated_check_product(sum, left, right);
    for (int row = 0; row < emulated_shape.rows[sum]; row++) {
        for (int column = 0; column < emulated_shape.row_bytes[sum] / 4; column++) {
            int32_t total;
            memcpy(&total, emulated_tiles[sum][row] + 4 * column, 4);
            for (int word = 0; word < emulated_shape.rows[right]; word++) {
                for (int byte = 0; byte < 4; byte++) {
                    total += (int32_t)emulated_tiles[left][row][4 * word + byte] *
                             (int8_t)emulated_tiles[right][word][4 * column + byte];
                }
            }
            memcpy(emulated_tiles[sum][row] + 4 * column, &total, 4);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbf16ps emulated_dpbf16ps
#define _tile_dpbusd emulated_dpbusd

/* The processor has tiles, and the system lets the process use them. */
#define __get_cpuid_count(leaf, subleaf, eax, ebx, ecx, edx) ((void)(eax), *(edx) = ~0u, 1)
#define syscall(...) 0L
