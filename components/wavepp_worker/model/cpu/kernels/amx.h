// Intel's AMX, which multiplies tiles of bfloat16: C [16 rows][16 floats] += A [16 rows][16 pairs] B [16 pairs][16],
// where B has, row by row, the pair of numbers of each column.

#pragma once

#include <immintrin.h>

#include <cstdint>

// Older compilers do not know the instructions, or not by these names.
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
#define WAVEPP_KNOWS_AMX 1

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

namespace {

constexpr int64_t TILE = 16;           // rows of a tile; words of a row
constexpr int64_t TILE_NUMBERS = 32;   // of bfloat16 of a row

// A barrier for the compiler, which does not know what the instructions read: what was written before, at `of` and
// elsewhere, is in memory.
inline void visible_to_tiles(const void *of) { __asm__ volatile("" ::"r"(of) : "memory"); }

// What a thread's eight tiles are, as the instruction reads it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void load() const {
    visible_to_tiles(this);
    _tile_loadconfig(this);
  }
};

// The configuration of a thread's eight tiles, for as long as this lives: 0 to 3 are sums, 4 and 5 of A, 6 and 7 of B.
// Sums 0 and 1 are of tile 4's rows, 2 and 3 of tile 5's.
class TileConfiguration {
 public:
  // Rows of tiles 4 and 5, at least 1.
  TileConfiguration(int64_t rows_of_4, int64_t rows_of_5) { set(rows_of_4, rows_of_5); }
  // Also sees to it that no later thread of this core has to keep them, and that torch's products set their own.
  ~TileConfiguration() { _tile_release(); }
  TileConfiguration(const TileConfiguration &) = delete;

  void set(int64_t rows_of_4, int64_t rows_of_5) {
    // Loading clears all tiles, and is slow.
    if (rows_of_4 == rows_of_4_ && rows_of_5 == rows_of_5_) return;
    rows_of_4_ = rows_of_4, rows_of_5_ = rows_of_5;
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.row_bytes[tile] = 64;
      shapes.rows[tile] = static_cast<uint8_t>(tile > 5 ? TILE : tile < 2 || tile == 4 ? rows_of_4 : rows_of_5);
    }
    shapes.load();
  }

 private:
  int64_t rows_of_4_ = 0, rows_of_5_ = 0;
};

}  // namespace

#pragma GCC pop_options

#endif
