// How the products of gemm.h go through tokens, inputs and outputs, for kernels of any instructions.
//
// A panel is two vectors of outputs: of one layer, or one of a gate and one of what it is multiplied with. Weights lie in
// memory as in the checkpoint; those of some panels are turned, for the second-level cache to keep them while all tokens
// are multiplied with them, some tokens and a panel at a time.
//
// A Kernel says how, and has
//
//   Number, Factor, Word       what weights and answers are, tokens' numbers as they are multiplied, and turned weights
//   SIDE, MOST_ROWS            outputs of a vector; tokens at a time
//   MOST_OF_SLICE              tokens that go through all weights before more of them do
//   STEP, MOST_STEPS           inputs that are multiplied together; so many of these at a time: beyond, sums wait in memory
//   turn()                     weight rows as [step][SIDE rows]
//   add_products()             sums [rows][panel] += products
//   factors()                  a token's numbers as factors
//   store(), store_gated()     a vector of answers for each of some tokens, of their sums
//
// No vector goes from here to there or back: these templates are compiled for any CPU.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gemm.h"

namespace {

constexpr int64_t VECTORS = 2;             // of a panel
constexpr int64_t TILE_WORDS = 32 * 1024;  // turned weights: 128 KiB of a second-level cache
constexpr int64_t FEWEST_OF_SLICE = 64;    // tokens of a slice: each turns the weights anew
constexpr int64_t ALL_TOKENS = 1 << 30;    // of a slice: no more than threads need
// Rows so far apart push each other out of the first-level cache, and are copied apart where so many outputs outweigh it;
// so few numbers by one thread, as a team is slow to meet on a busy machine.
constexpr int64_t LINE = 64, PAGE = 4096, FEWEST_OUTPUTS = 256, MOST_COPIED_ALONE = 512 * 1024;

// One layer: the last panel may have one vector alone.
template <typename Kernel>
struct Plain {
  using T = typename Kernel::Number;
  static constexpr int64_t SIDE = Kernel::SIDE, PANEL = VECTORS * SIDE;
  Weights<T> weights;

  static int64_t panels(int64_t out) { return (out + PANEL - 1) / PANEL; }
  static int vectors(int64_t panel, int64_t out) { return out - panel * PANEL > SIDE ? 2 : 1; }
  const T *rows(int64_t panel, int vector, int64_t in) const {
    return weights.weight + (panel * PANEL + vector * SIDE) * in;
  }
  void finish(const Product<T> &product, int64_t token, int64_t rows, int64_t panel, const float *sums) const {
    for (int v = 0; v < vectors(panel, product.out); ++v) {
      const int64_t output = panel * PANEL + v * SIDE;
      Kernel::store(sums + v * SIDE, rows, weights.bias ? weights.bias + output : nullptr,
                    product.y + token * product.out + output, product.out);
    }
  }
};

// A gate and what it is multiplied with: a panel has a vector of each.
template <typename Kernel>
struct Gated {
  using T = typename Kernel::Number;
  static constexpr int64_t SIDE = Kernel::SIDE, PANEL = VECTORS * SIDE;
  Weights<T> gate, up;

  static int64_t panels(int64_t out) { return out / SIDE; }
  static int vectors(int64_t, int64_t) { return 2; }
  const T *rows(int64_t panel, int vector, int64_t in) const {
    return (vector ? up : gate).weight + panel * SIDE * in;
  }
  void finish(const Product<T> &product, int64_t token, int64_t rows, int64_t panel, const float *sums) const {
    const int64_t output = panel * SIDE;
    Kernel::store_gated(sums, rows, gate.bias ? gate.bias + output : nullptr, up.bias ? up.bias + output : nullptr,
                        product.y + token * product.out + output, product.out);
  }
};

// Memory that a thread keeps for the next product.
template <typename T>
T *kept(std::vector<T> &memory, int64_t count) {
  constexpr int64_t OF_LINE = LINE / sizeof(T);
  if (static_cast<int64_t>(memory.size()) < count + OF_LINE) {
    std::vector<T>().swap(memory);
    memory.resize(count + OF_LINE);
  }
  return memory.data() + (OF_LINE - reinterpret_cast<uintptr_t>(memory.data()) / sizeof(T) % OF_LINE) % OF_LINE;
}

// Tokens from `token` to `end` of panels from `panel` to `last`. x begins with the first of these; its rows are `stride` apart.
template <typename Kernel, typename Layers>
void multiply(const Product<typename Kernel::Number> &product, const Layers &layers, const typename Kernel::Factor *x,
              int64_t stride, int64_t token, int64_t end, int64_t panel, int64_t last) {
  constexpr int64_t SIDE = Kernel::SIDE, PANEL = VECTORS * SIDE, STEP = Kernel::STEP;
  // Not on the stack, which threads may have little of.
  static thread_local std::vector<typename Kernel::Word> turned;
  static thread_local std::vector<float> summed;
  typename Kernel::Word *tiles = kept(turned, TILE_WORDS);
  const int64_t steps = product.in / STEP, parts = (steps + Kernel::MOST_STEPS - 1) / Kernel::MOST_STEPS;
  const int64_t most = (steps + parts - 1) / parts;                            // steps of a part
  const int64_t together = std::max(int64_t{1}, TILE_WORDS / (most * PANEL));  // panels that are turned at a time
  const int64_t tokens = end - token, blocks = (tokens + Kernel::MOST_ROWS - 1) / Kernel::MOST_ROWS;
  // Sums that wait for no other part may lie where those of the block before lay.
  const int64_t kept_blocks = parts > 1 ? blocks : 1, block_sums = Kernel::MOST_ROWS * PANEL;
  float *sums = kept(summed, kept_blocks * together * block_sums);
  for (; panel < last; panel += together) {
    const int64_t group = std::min(together, last - panel);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = part * most, count = std::min(most, steps - first);
      for (int64_t p = 0; p < group; ++p)
        for (int v = 0, vectors = layers.vectors(panel + p, product.out); v < vectors; ++v)
          Kernel::turn(layers.rows(panel + p, v, product.in) + STEP * first, product.in, count,
                       tiles + p * count * PANEL + v * SIDE, vectors * SIDE);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t from = token + tokens * block / blocks, rows = token + tokens * (block + 1) / blocks - from;
        for (int64_t p = 0; p < group; ++p) {
          float *own = sums + ((parts > 1 ? block : 0) * together + p) * block_sums;
          if (!part) std::memset(own, 0, block_sums * sizeof(float));
          Kernel::add_products(rows, layers.vectors(panel + p, product.out), x + (from - token) * stride + STEP * first, stride,
                               tiles + p * count * PANEL, count, own);
          if (part == parts - 1) layers.finish(product, from, rows, panel + p, own);
        }
      }
    }
  }
}

template <typename Kernel, typename Layers>
void multiply_all(const Product<typename Kernel::Number> &product, const Layers &layers, int threads) {
  using Factor = typename Kernel::Factor;
  constexpr bool AS_THEY_ARE = std::is_same_v<typename Kernel::Number, Factor>;
  constexpr bool BY_SLICE = Kernel::MOST_OF_SLICE < ALL_TOKENS;
  static_assert(AS_THEY_ARE || BY_SLICE, "other factors than the numbers are made by the slice");
  static thread_local std::vector<Factor> copies;
  const bool far_apart = product.in * sizeof(Factor) % PAGE == 0;
  const bool copied = !AS_THEY_ARE || (far_apart && product.out >= FEWEST_OUTPUTS);
  const int64_t stride = product.in + (copied && far_apart ? LINE / sizeof(Factor) : 0);
  const Factor *x = nullptr;
  if constexpr (AS_THEY_ARE) x = product.x;
  if (copied && !BY_SLICE) {
    Factor *all = kept(copies, product.tokens * stride);
    const bool alone = threads <= 1 || product.tokens * product.in <= MOST_COPIED_ALONE;
#pragma omp parallel for schedule(static) num_threads(threads) if (!alone)
    for (int64_t token = 0; token < product.tokens; ++token)
      Kernel::factors(product.x + token * product.in, product.in, all + token * stride);
    x = all;
  }
  const int64_t panels = layers.panels(product.out);
  // Panels alone may not be enough for all threads, or not as many for each.
  int64_t slices = 1 + (product.tokens - 1) / Kernel::MOST_OF_SLICE;
  while (panels * slices % threads && panels * slices < 8 * threads && product.tokens >= (slices + 1) * FEWEST_OF_SLICE)
    ++slices;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t all = panels * slices, own = omp_get_thread_num(), team = omp_get_num_threads();
    const int64_t end = all * (own + 1) / team;
    for (int64_t at = all * own / team; at < end;) {
      const int64_t slice = at / panels, panel = at % panels, last = std::min(panels, panel + end - at);
      const int64_t token = product.tokens * slice / slices, after = product.tokens * (slice + 1) / slices;
      const Factor *factors;
      if (copied && BY_SLICE) {
        // Each thread makes its own, which stay in its cache.
        Factor *some = kept(copies, (after - token) * stride);
        for (int64_t i = token; i < after; ++i)
          Kernel::factors(product.x + i * product.in, product.in, some + (i - token) * stride);
        factors = some;
      } else {
        factors = x + token * stride;
      }
      multiply<Kernel>(product, layers, factors, stride, token, after, panel, last);
      at += last - panel;
    }
  }
}

}  // namespace
