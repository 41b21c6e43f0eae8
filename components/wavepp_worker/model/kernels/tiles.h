// Matrix products of tiles of bfloat16 (Intel's AMX): C [16 rows][16 floats] += A [16 rows][16 pairs] B [16 pairs][16],
// where B has, row by row, the pair of numbers of each column.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Older compilers do not know the instructions, or not by these names.
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
#define WAVEPP_HAS_TILES 1

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

namespace {

constexpr int64_t TILE = 16;           // rows of a tile; words of a row
constexpr int64_t TILE_NUMBERS = 32;   // of bfloat16 of a row

// What was written before, at `of` and elsewhere, has to be in memory: the compiler does not know what the instructions read.
inline void written(const void *of) { __asm__ volatile("" ::"r"(of) : "memory"); }

// What a thread's eight tiles are, for as long as this lives: 0 to 3 are sums, 4 and 5 are of A, 6 and 7 of B. The first
// two of each row of sums belong to tile 4, the others to tile 5.
class TileShapes {
 public:
  // Rows of tiles 4 and 5, at least 1.
  TileShapes(int64_t low_rows, int64_t high_rows) { set(low_rows, high_rows); }
  // Also sees to it that no later thread of this core has to keep them, and that torch's products set their own.
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes &) = delete;

  void set(int64_t low_rows, int64_t high_rows) {
    if (low_rows == low_rows_ && high_rows == high_rows_) return;
    low_rows_ = low_rows, high_rows_ = high_rows;
    alignas(64) struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.row_bytes[tile] = 64;
      shapes.rows[tile] = static_cast<uint8_t>(tile > 5 ? TILE : tile < 2 || tile == 4 ? low_rows : high_rows);
    }
    written(&shapes);
    _tile_loadconfig(&shapes);
  }

 private:
  int64_t low_rows_ = 0, high_rows_ = 0;
};

}  // namespace

#pragma GCC pop_options

#endif
