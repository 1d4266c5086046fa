/* Matrix tiles (AMX) in plain C, to be included before a source that uses them (`tiles.h`): so that
 * what a machine with tiles computes is tested on every machine, and that it would not fault there.
 * After the operations in Intel's manual (Software Developer's Manual, volume 2). */
#ifndef TILE_EMULATOR_H
#define TILE_EMULATOR_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[8], more_reserved[8];
    uint8_t rows[8], last_reserved[8];
} emulated_config;

static _Thread_local emulated_config emulated_shape; /* all 0: not configured */
static _Thread_local uint8_t emulated_tiles[8][16][64];

/* What the processor answers with a fault. */
#define emulated_demand(condition)                                                             \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: a processor would fault: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

static inline void emulated_configure(const void *config) {
    static const uint8_t zeros[16];
    memcpy(&emulated_shape, config, sizeof emulated_shape);
    emulated_demand(emulated_shape.palette == 1 && emulated_shape.start_row == 0);
    emulated_demand(!memcmp(emulated_shape.reserved, zeros, 14));
    emulated_demand(!memcmp(emulated_shape.more_reserved, zeros, 16));
    emulated_demand(!memcmp(emulated_shape.last_reserved, zeros, 8));
    for (int tile = 0; tile < 8; tile++) {
        emulated_demand(emulated_shape.rows[tile] <= 16 && emulated_shape.row_bytes[tile] <= 64);
        emulated_demand(!emulated_shape.rows[tile] == !emulated_shape.row_bytes[tile]);
    }
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void emulated_release(void) { memset(&emulated_shape, 0, sizeof emulated_shape); }

static inline void emulated_check(int tile) {
    emulated_demand(emulated_shape.palette == 1);
    emulated_demand(0 <= tile && tile < 8 && emulated_shape.rows[tile]);
    emulated_demand(emulated_shape.row_bytes[tile] % 4 == 0);
}

static inline void emulated_zero(int tile) {
    emulated_check(tile);
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
    emulated_check(tile);
    for (int row = 0; row < emulated_shape.rows[tile]; row++) {
        memcpy((char *)base + row * stride, emulated_tiles[tile][row],
               emulated_shape.row_bytes[tile]);
    }
}

static inline void emulated_check_product(int sum, int a, int b) {
    emulated_check(sum), emulated_check(a), emulated_check(b);
    emulated_demand(sum != a && sum != b && a != b);
    emulated_demand(emulated_shape.rows[sum] == emulated_shape.rows[a]);
    emulated_demand(emulated_shape.row_bytes[sum] == emulated_shape.row_bytes[b]);
    emulated_demand(emulated_shape.row_bytes[a] == 4 * emulated_shape.rows[b]);
}

static inline float emulated_flush(float value) {
    return value < 0x1p-126f && value > -0x1p-126f ? 0 : value;
}

/* A tile of bfloat16 as float32, what is subnormal as 0. */
static inline void emulated_widen(int tile, float wide[16][32]) {
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 32; column++) {
            uint32_t bits = 0;
            memcpy((char *)&bits + 2, emulated_tiles[tile][row] + 2 * column, 2);
            memcpy(&wide[row][column], &bits, sizeof bits);
            wide[row][column] = emulated_flush(wide[row][column]);
        }
    }
}

/* The first ones of all pairs are summed apart from the second ones. */
static inline void emulated_dot_bf16(int sum, int a, int b) {
    float left[16][32], right[16][32];
    emulated_check_product(sum, a, b);
    emulated_widen(a, left), emulated_widen(b, right);
    for (int row = 0; row < emulated_shape.rows[sum]; row++) {
        float parts[32] = {0}, totals[16];
        for (int pair = 0; pair < emulated_shape.rows[b]; pair++) {
            for (int column = 0; column < 32; column++) {
                parts[column] += left[row][2 * pair + column % 2] * right[pair][column];
            }
        }
        memcpy(totals, emulated_tiles[sum][row], sizeof totals);
        for (int column = 0; column < 16; column++) {
            totals[column] = emulated_flush(emulated_flush(totals[column]) +
                                            emulated_flush(parts[2 * column] + parts[2 * column + 1]));
        }
        memcpy(emulated_tiles[sum][row], totals, emulated_shape.row_bytes[sum]);
    }
}

static inline void emulated_dot_u8s8(int sum, int a, int b) {
    emulated_check_product(sum, a, b);
    for (int row = 0; row < emulated_shape.rows[sum]; row++) {
        for (int column = 0; column < emulated_shape.row_bytes[sum] / 4; column++) {
            int32_t total;
            memcpy(&total, emulated_tiles[sum][row] + 4 * column, 4);
            for (int word = 0; word < emulated_shape.rows[b]; word++) {
                for (int byte = 0; byte < 4; byte++) {
                    total += (int32_t)emulated_tiles[a][row][4 * word + byte] *
                             (int8_t)emulated_tiles[b][word][4 * column + byte];
                }
            }
            memcpy(emulated_tiles[sum][row] + 4 * column, &total, 4);
        }
    }
}

#define TILE_CONFIGURE(config) emulated_configure(&(config))
#define TILE_RELEASE emulated_release
#define TILE_ZERO emulated_zero
#define TILE_LOAD emulated_load
#define TILE_STORE emulated_store
#define TILE_DOT_BF16 emulated_dot_bf16
#define TILE_DOT_U8S8 emulated_dot_u8s8

#endif
