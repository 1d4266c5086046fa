/* Matrix tiles (AMX): eight registers of 16 rows of 64 bytes.
 *
 * The instructions are written out: the compiler must know that they read memory, which GCC 12's
 * intrinsics do not tell it, and older compilers have none. A tile is named by a literal number.
 * Whoever configures a thread's tiles releases them: until then the system saves 8 KiB whenever it
 * switches to another thread. */
#ifndef PW_TILES_H
#define PW_TILES_H

#include <stdint.h>

#ifndef TILE_LOAD
/* Rows of a tile, `stride` bytes apart in memory. */
#define TILE_LOAD(tile, base, stride)                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_STORE(tile, base, stride)                                                         \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"((int64_t)(stride)) \
                     : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
/* sum[i][j] += a[i][k] * b[k][j], where i are rows, j words, and k pairs of bfloat16: two that lie
 * side by side in a row of `a`, and in a word of `b`. */
#define TILE_DOT_BF16(sum, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)
/* The same with k four bytes, without a sign in `a`, with one in `b`. */
#define TILE_DOT_U8S8(sum, a, b) \
    __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define TILE_RELEASE() __asm__ volatile("tilerelease" ::)
#endif

/* As the processor reads it: 64 bytes, and a fault unless all that is reserved is 0. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "the processor reads 64 bytes");

/* Give each tile its number of rows, up to 16, of 64 bytes; a tile of 0 rows may not be used. */
static inline void configure_tiles(const uint8_t rows[8]) {
    tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = rows[tile];
        config.row_bytes[tile] = rows[tile] ? 64 : 0;
    }
    TILE_CONFIGURE(config);
}

#endif
