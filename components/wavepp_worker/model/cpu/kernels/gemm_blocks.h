// How the products of gemm.h go through tokens, inputs and outputs, for kernels of vectors of any width.
//
// A panel is two vectors of outputs: of one layer, or one of a gate and one of what it is multiplied with. A block of
// tokens and a panel are multiplied at a time, and the second-level cache keeps the panel's packed weights (gemm_weights.h)
// until all tokens are.
//
// A Kernel says how, and has
//
//   Number, Input, Packed      types: of weights and answers, of tokens' numbers as they are multiplied, of packed weights
//   Mode                       what a thread has one of while it multiplies
//   OUTPUTS, BLOCK_TOKENS      outputs of a vector; most tokens of a block
//   SLICE_TOKENS               most tokens that go through all weights before more of them do
//   STEP, MOST_STEPS           inputs that are multiplied together; most of these at a time: beyond, sums wait in memory
//   void pack_weights(const Number *rows, int64_t in, int64_t steps, Packed *to)
//                              OUTPUTS weight rows of `in` numbers as [step][OUTPUTS]; only of weights not packed before
//   FETCHES_AHEAD              whether add() fetches what it is given as `ahead`
//   void add<TOKENS, VECTORS>(const Input *x, int64_t stride, const Packed *const *weights, int64_t steps, float *sums,
//                             const Ahead &ahead)
//                              sums [token][panel] += x, whose tokens are `stride` apart, times each vector's packed weights
//   void copy_inputs(const Number *x, int64_t in, Input *to)
//   void store(const float *sums, int64_t tokens, const Number *bias, Number *y, int64_t stride)
//   void store_gated(const float *sums, int64_t tokens, const Number *gate_bias, const Number *up_bias, Number *y,
//                    int64_t stride)
//                              a vector of answers for each token of a block, of their sums; a bias may be null
//
// Only pointers and integers cross between this file and a Kernel. What is here is compiled without the Kernel's
// instruction set, so that to hand over a vector would be another calling convention.

#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "gemm_weights.h"
#include "product.h"
#include "scratch.h"

namespace {

constexpr int64_t FEWEST_OF_SLICE = 64;         // tokens of a slice: each packs the weights anew
constexpr int64_t ALL_TOKENS = 1 << 30;         // SLICE_TOKENS of a kernel that needs no slices
constexpr int64_t PAGE = 4096;                  // bytes: rows so far apart push each other out of the first-level cache,
constexpr int64_t OUTPUTS_WORTH_A_COPY = 256;   // so that from so many outputs on it pays to copy them apart
constexpr int64_t MOST_COPIED_ALONE = 1 << 19;  // numbers: a team of threads is slow to meet on a busy machine
constexpr int64_t FEW_TOKENS = 64;              // of so few with packed weights, a thread takes its share at once

// One layer: the last panel may have one vector alone. IS_PACKED: its weights are, before.
template <typename Kernel, bool IS_PACKED = false>
struct Plain {
  using T = typename Kernel::Number;
  static constexpr int64_t OUTPUTS = Kernel::OUTPUTS;
  static constexpr bool PACKED = IS_PACKED;
  Weights<T> weights;

  static int64_t panels(int64_t out) { return (out + PANEL<Kernel> - 1) / PANEL<Kernel>; }
  static int vectors(int64_t panel, int64_t out) { return out - panel * PANEL<Kernel> > OUTPUTS ? 2 : 1; }
  const T *weight_rows(int64_t panel, int vector, int64_t in) const {
    return weights.weight + (panel * PANEL<Kernel> + vector * OUTPUTS) * in;
  }
  void finish(const Product<T> &product, int64_t token, int64_t tokens, int64_t panel, const float *sums) const {
    for (int v = 0; v < vectors(panel, product.out); ++v) {
      const int64_t output = panel * PANEL<Kernel> + v * OUTPUTS;
      Kernel::store(sums + v * OUTPUTS, tokens, weights.bias ? weights.bias + output : nullptr,
                    product.y + token * product.out + output, product.out);
    }
  }
};

// A gate and what it is multiplied with: a panel has a vector of each.
template <typename Kernel, bool IS_PACKED = false>
struct Gated {
  using T = typename Kernel::Number;
  static constexpr int64_t OUTPUTS = Kernel::OUTPUTS;
  static constexpr bool PACKED = IS_PACKED;
  Weights<T> gate, up;

  static int64_t panels(int64_t out) { return out / OUTPUTS; }
  static int vectors(int64_t, int64_t) { return 2; }
  const T *weight_rows(int64_t panel, int vector, int64_t in) const {
    return (vector ? up : gate).weight + panel * OUTPUTS * in;
  }
  void finish(const Product<T> &product, int64_t token, int64_t tokens, int64_t panel, const float *sums) const {
    const int64_t output = panel * OUTPUTS;
    Kernel::store_gated(sums, tokens, gate.bias ? gate.bias + output : nullptr, up.bias ? up.bias + output : nullptr,
                        product.y + token * product.out + output, product.out);
  }
};

template <typename Kernel>
using Add = void (*)(const typename Kernel::Input *, int64_t, const typename Kernel::Packed *const *, int64_t, float *,
                     const Ahead &);

// Kernel::add() for a block of 1, 2, ... tokens.
template <typename Kernel, int VECTORS, int... TOKENS>
constexpr std::array<Add<Kernel>, sizeof...(TOKENS)> by_tokens(std::integer_sequence<int, TOKENS...>) {
  return {Kernel::template add<TOKENS + 1, VECTORS>...};
}

// Tokens from `token` to `end` of panels from `panel` to `panel_end`. x begins with the first of these, and its tokens
// are `stride` apart.
template <typename Kernel, typename Layers>
void multiply(const Product<typename Kernel::Number> &product, const Layers &layers, const typename Kernel::Input *x,
              int64_t stride, int64_t token, int64_t end, int64_t panel, int64_t panel_end) {
  constexpr int64_t STEP = Kernel::STEP;
  constexpr auto ALL = std::make_integer_sequence<int, Kernel::BLOCK_TOKENS>();
  static constexpr auto ADD_ONE = by_tokens<Kernel, 1>(ALL), ADD_TWO = by_tokens<Kernel, 2>(ALL);
  using Source = std::conditional_t<Layers::PACKED, PackedBefore<Kernel, Layers>, PackedInTurn<Kernel, Layers>>;
  // Not on the stack, which threads may have little of.
  static thread_local std::vector<float> summed;
  const int64_t steps = product.in / STEP, parts = (steps + Kernel::MOST_STEPS - 1) / Kernel::MOST_STEPS;
  const int64_t most = (steps + parts - 1) / parts;  // steps of a part
  const int64_t together = Source::together(most);
  const int64_t tokens = end - token, blocks = (tokens + Kernel::BLOCK_TOKENS - 1) / Kernel::BLOCK_TOKENS;
  // Sums that wait for no other part may lie where those of the block before lay.
  const int64_t kept_blocks = parts > 1 ? blocks : 1, block_sums = Kernel::BLOCK_TOKENS * PANEL<Kernel>;
  float *sums = scratch(summed, kept_blocks * together * block_sums);
  Source weights(layers, product);
  for (; panel < panel_end; panel += together) {
    const int64_t group = std::min(together, panel_end - panel);
    for (int64_t number = 0; number < parts; ++number) {
      const int64_t first = number * most;
      const Part part{first, std::min(most, steps - first), number == parts - 1};
      weights.begin(panel, group, part);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t from = token + tokens * block / blocks, many = token + tokens * (block + 1) / blocks - from;
        for (int64_t p = 0; p < group; ++p) {
          float *own = sums + ((parts > 1 ? block : 0) * together + p) * block_sums;
          if (!number) std::memset(own, 0, many * PANEL<Kernel> * sizeof(float));
          const typename Kernel::Packed *vectors[] = {weights.vector(p, 0), weights.vector(p, 1)};
          const auto &add = layers.vectors(panel + p, product.out) == 2 ? ADD_TWO : ADD_ONE;
          const Ahead ahead = Kernel::FETCHES_AHEAD ? weights.ahead(p, block, blocks) : Ahead{};
          add[many - 1](x + (from - token) * stride + STEP * first, stride, vectors, part.count, own, ahead);
          if (part.last) layers.finish(product, from, many, panel + p, own);
        }
      }
    }
  }
}

// The calling thread's memory for `count` copied inputs.
template <typename Input>
Input *copies(int64_t count) {
  static thread_local std::vector<Input> kept;
  return scratch(kept, count);
}

template <typename Kernel, typename Layers>
void multiply_all(const Product<typename Kernel::Number> &product, const Layers &layers, int threads) {
  using Input = typename Kernel::Input;
  constexpr bool AS_THEY_ARE = std::is_same_v<typename Kernel::Number, Input>;
  constexpr bool BY_SLICE = Kernel::SLICE_TOKENS < ALL_TOKENS;
  static_assert(AS_THEY_ARE || BY_SLICE, "other inputs than the numbers are made by the slice");
  const bool far_apart = product.in * sizeof(Input) % PAGE == 0;
  const bool copied = !AS_THEY_ARE || (far_apart && product.out >= OUTPUTS_WORTH_A_COPY);
  const int64_t stride = product.in + (copied && far_apart ? LINE / sizeof(Input) : 0);
  const Input *x = nullptr;
  if constexpr (AS_THEY_ARE) x = product.x;
  if (copied && !BY_SLICE) {
    Input *all = copies<Input>(product.tokens * stride);
    const bool alone = threads <= 1 || product.tokens * product.in <= MOST_COPIED_ALONE;
#pragma omp parallel for schedule(static) num_threads(threads) if (!alone)
    for (int64_t token = 0; token < product.tokens; ++token)
      Kernel::copy_inputs(product.x + token * product.in, product.in, all + token * stride);
    x = all;
  }
  const int64_t panels = layers.panels(product.out);
  // Panels alone may not be enough for all threads, or not as many for each.
  int64_t slices = 1 + (product.tokens - 1) / Kernel::SLICE_TOKENS;
  while (panels * slices % threads && panels * slices < 8 * threads && product.tokens >= (slices + 1) * FEWEST_OF_SLICE)
    ++slices;
  const int64_t all = panels * slices;
  std::atomic<int64_t> untaken{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    [[maybe_unused]] const typename Kernel::Mode mode{};
    // Guided self-scheduling: at a time, a thread takes its share of half of what is left. One that has to leave its core
    // to others for a while takes less, and keeps nobody waiting for long.
    const int64_t team = omp_get_num_threads();
    const bool few = Layers::PACKED && product.tokens <= FEW_TOKENS;
    int64_t copied_slice = -1;
    for (int64_t at = 0, end = 0;;) {
      if (at == end) {
        at = untaken.load(std::memory_order_relaxed);
        do {
          const int64_t share = few || team == 1 ? (all + team - 1) / team : (all - at) / (2 * team);
          end = std::min(all, at + std::max(int64_t{1}, share));
        } while (!untaken.compare_exchange_weak(at, end, std::memory_order_relaxed));
        if (at >= all) break;
      }
      const int64_t slice = at / panels, panel = at % panels, panel_end = std::min(panels, panel + end - at);
      const int64_t token = product.tokens * slice / slices, token_end = product.tokens * (slice + 1) / slices;
      const Input *inputs;
      if (copied && BY_SLICE) {
        // Each thread makes its own: those of a slice of few inputs stay in its cache.
        Input *some = copies<Input>((token_end - token) * stride);
        if (slice != copied_slice)
          for (int64_t i = token; i < token_end; ++i)
            Kernel::copy_inputs(product.x + i * product.in, product.in, some + (i - token) * stride);
        copied_slice = slice;
        inputs = some;
      } else {
        inputs = x + token * stride;
      }
      multiply<Kernel>(product, layers, inputs, stride, token, token_end, panel, panel_end);
      at += panel_end - panel;
    }
  }
}

}  // namespace
