/* Products of rows with panels, for the scores and the sums of many rows.
 *
 * Everything is counted in words of 4 bytes: a float32, or a pair of bfloat16. A row lies in one
 * piece. Columns lie in panels of PANEL vectors (the last one may have fewer), a panel word by word:
 * panel[word][column], so that a product reads one vector after the other. BLOCK rows times a panel
 * is what the registers hold. */

#define PANEL_WIDTH (PANEL * LANES)

#ifdef BF16_TILES
#include "processor/tiles.h"
#define ROUNDED_ROWS 16 /* rows that a product may read, and write, beyond its last */
#else
#define ROUNDED_ROWS BLOCK
#endif

/* sum + a * b, by pairs where words are. */
PW_INLINE vf dot_words(vf sum, const float *a, vf b, int way) {
#ifdef BF16_PAIRS
    if (way == PW_BY_WORDS) {
        return _mm512_dpbf16_ps(sum, (__m512bh)v_set(*a), (__m512bh)b);
    }
#else
    (void)way;
#endif
    return v_fma(v_set(*a), b, sum);
}

/* c[BLOCK rows][vectors] = a times one panel. */
PW_INLINE void multiply_block(const float *a, int64_t a_row, const float *panel, int64_t words,
                              int vectors, int way, float *c, int64_t c_row) {
    vf sums[BLOCK][PANEL] = {{{0}}};
    for (int64_t word = 0; word < words; word++) {
        vf columns[PANEL];
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            columns[v] = v_load_f32(panel + (word * vectors + v) * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK; i++) {
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                sums[i][v] = dot_words(sums[i][v], a + i * a_row + word, columns[v], way);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < BLOCK; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            v_store_f32(c + i * c_row + v * LANES, sums[i][v]);
        }
    }
}

PW_INLINE void multiply_rows(const float *a, int64_t a_row, int64_t rows, const float *panel,
                             int64_t words, int vectors, int way, float *c, int64_t c_row) {
    for (int64_t i = 0; i < rows; i += BLOCK) {
        multiply_block(a + i * a_row, a_row, panel, words, vectors, way, c + i * c_row, c_row);
    }
}

#ifdef BF16_TILES
/* The same by tiles: 16 rows times up to two vectors; `words` is a multiple of 16. */
PW_INLINE void multiply_tiles(const float *a, int64_t a_row, int64_t rows, const float *panel,
                              int64_t words, int vectors, float *c, int64_t c_row) {
    const int64_t panel_row = vectors * LANES;
    for (int64_t i = 0; i < rows; i += 16) {
        for (int v = 0; v < vectors; v += 2) {
            const bool two = v + 1 < vectors;
            TILE_ZERO(0);
            TILE_ZERO(1);
            for (int64_t word = 0; word < words; word += 16) {
                TILE_LOAD(2, a + i * a_row + word, a_row * 4);
                TILE_LOAD(3, panel + word * panel_row + v * LANES, panel_row * 4);
                TILE_DOT_BF16(0, 2, 3);
                if (two) {
                    TILE_LOAD(4, panel + word * panel_row + (v + 1) * LANES, panel_row * 4);
                    TILE_DOT_BF16(1, 2, 4);
                }
            }
            TILE_STORE(0, c + i * c_row + v * LANES, c_row * 4);
            if (two) {
                TILE_STORE(1, c + i * c_row + (v + 1) * LANES, c_row * 4);
            }
        }
    }
}
#endif

/* c[row][column] = the sum over `words` of a[row][word] * panels[word][column], for a number of
 * columns that is a multiple of LANES. A panel has `panel_words` words, of which those from `first`
 * on are multiplied. Rows are rounded up to ROUNDED_ROWS: what lies there in `a` may be anything, and
 * in `c` becomes so. */
PW_INLINE void multiply(const float *a, int64_t a_row, int64_t rows, const float *panels,
                        int64_t panel_words, int64_t first, int64_t words, int64_t columns, int way,
                        float *c, int64_t c_row) {
    for (int64_t column = 0; column < columns; column += PANEL_WIDTH) {
        const int64_t left = columns - column;
        const int vectors = left < PANEL_WIDTH ? (int)(left / LANES) : PANEL;
        const float *panel = panels + column * panel_words + first * vectors * LANES;
#ifdef BF16_TILES
        if (way == PW_BY_TILES) {
            multiply_tiles(a, a_row, rows, panel, words, vectors, c + column, c_row);
            continue;
        }
#endif
        switch (vectors) {
#define PW_CASE(n)                                                                      \
    case n:                                                                             \
        multiply_rows(a, a_row, rows, panel, words, n, way, c + column, c_row);         \
        break;
            PW_CASE(1)
#if PANEL > 2
            PW_CASE(2)
            PW_CASE(3)
#endif
        default: multiply_rows(a, a_row, rows, panel, words, PANEL, way, c + column, c_row); break;
#undef PW_CASE
        }
    }
}
