// Where the products of gemm_blocks.h find packed weights: a part of their inputs, and a group of panels, at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "product.h"
#include "scratch.h"

namespace {

constexpr int64_t PANEL_VECTORS = 2;
constexpr int64_t PACKED_WORDS = 32 * 1024;  // weights that are packed at a time: 128 KiB of a second-level cache

template <typename Kernel>
constexpr int64_t PANEL = PANEL_VECTORS * Kernel::OUTPUTS;

// The weights that are read next, for memory to have something to do while those at hand are multiplied: at each step a
// cache line of each vector, those of OUTPUTS rows in turn. With strides of 0, it is the same line at all steps.
struct Ahead {
  const char *vectors[PANEL_VECTORS];
  int64_t row_bytes, line_bytes;  // from row to row, and from one line of each to the next
};

// Steps of a layer's inputs.
struct Part {
  int64_t first, count;
  bool last;
};

// Weights that lie as in the checkpoint: a group is packed, and all blocks of tokens are multiplied with it.
template <typename Kernel, typename Layers>
class PackedInTurn {
 public:
  using Number = typename Kernel::Number;
  using Packed = typename Kernel::Packed;

  PackedInTurn(const Layers &layers, const Product<Number> &product) : layers_(layers), product_(product) {
    // Not on the stack, which threads may have little of.
    static thread_local std::vector<Packed> packed;
    room_ = scratch(packed, PACKED_WORDS);
  }

  // Panels of a group, if parts have so many steps at most.
  static int64_t together(int64_t most) { return std::max(int64_t{1}, PACKED_WORDS / (most * PANEL<Kernel>)); }

  void begin(int64_t panel, int64_t group, const Part &part) {
    panel_ = panel, group_ = group, part_ = part;
    for (int64_t p = 0; p < group; ++p)
      for (int v = 0, vectors = layers_.vectors(panel + p, product_.out); v < vectors; ++v)
        Kernel::pack_weights(layers_.weight_rows(panel + p, v, product_.in) + Kernel::STEP * part.first, product_.in,
                             part.count, room_ + offset(p, v));
  }

  const Packed *vector(int64_t p, int v) const { return room_ + offset(p, v); }

  // What add() fetches for one of `blocks` blocks of tokens. Past the last row a fetch does no harm.
  Ahead ahead(int64_t p, int64_t block, int64_t) const {
    if (block) return {{reinterpret_cast<const char *>(room_), reinterpret_cast<const char *>(room_)}, 0, 0};
    Ahead next{};
    for (int v = 0; v < PANEL_VECTORS; ++v)
      next.vectors[v] = reinterpret_cast<const char *>(
          layers_.weight_rows(panel_ + p + (part_.last ? group_ : 0), v, product_.in) +
          (part_.last ? 0 : Kernel::STEP * (part_.first + part_.count)));
    // Whole rows follow each other, and are fetched as they lie: memory is faster so.
    const bool whole = part_.last && !part_.first;
    next.row_bytes = whole ? LINE : product_.in * sizeof(Number);
    next.line_bytes = whole ? LINE * Kernel::OUTPUTS : LINE;
    return next;
  }

 private:
  int64_t offset(int64_t p, int v) const { return (p * PANEL_VECTORS + v) * part_.count * Kernel::OUTPUTS; }

  const Layers &layers_;
  const Product<Number> &product_;
  Packed *room_;
  int64_t panel_ = 0, group_ = 0;
  Part part_{};
};

// Weights that are packed once and for all, each vector of outputs [step][OUTPUTS] where its rows would begin.
template <typename Kernel, typename Layers>
class PackedBefore {
 public:
  using Number = typename Kernel::Number;
  using Packed = typename Kernel::Packed;

  PackedBefore(const Layers &layers, const Product<Number> &product) : layers_(layers), product_(product) {}

  static int64_t together(int64_t) { return 1; }

  void begin(int64_t panel, int64_t, const Part &part) { panel_ = panel, part_ = part; }

  const Packed *vector(int64_t, int v) const { return steps(panel_, v, part_.first); }

  // Each block fetches its share of the next panel, which another thread may be the one to read.
  Ahead ahead(int64_t, int64_t block, int64_t blocks) const {
    const int64_t sharers = std::min(blocks, LINE);
    const bool shares = block < sharers;
    const int64_t bytes = shares ? (LINE + sharers - 1) / sharers : 0;  // of a step
    Ahead next{};
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      const Packed *from = !shares ? vector(0, v) : part_.last ? steps(panel_ + 1, v, 0)
                                                               : steps(panel_, v, part_.first + part_.count);
      next.vectors[v] = reinterpret_cast<const char *>(from) + (shares ? block * part_.count * LINE / sharers : 0);
    }
    next.row_bytes = bytes;
    next.line_bytes = bytes * Kernel::OUTPUTS;
    return next;
  }

 private:
  const Packed *steps(int64_t panel, int v, int64_t first) const {
    const Number *all = layers_.weight_rows(panel, v, product_.in);
    return reinterpret_cast<const Packed *>(all) + first * Kernel::OUTPUTS;
  }

  const Layers &layers_;
  const Product<Number> &product_;
  int64_t panel_ = 0;
  Part part_{};
};

}  // namespace
