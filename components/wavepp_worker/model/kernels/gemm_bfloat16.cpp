// The products of gemm.h where the CPU has AVX512-BF16.
//
// A panel is two vectors of outputs: 32 of one layer, or 16 of a gate and the same 16 of what it is multiplied with.
// Weights lie in memory as in the checkpoint; those of some panels are turned, for the second-level cache to keep them
// while all tokens are multiplied with them, 14 tokens and a panel at a time: 28 sums, 2 vectors of weights and a pair of a
// token's numbers are 31 of 32 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "instructions.h"
#include "transpose.h"
#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t SIDE = 16;               // weight rows, which are outputs, of a vector
constexpr int64_t VECTORS = 2;            // of a panel
constexpr int64_t PANEL = VECTORS * SIDE;  // sums of a token
constexpr int64_t MOST_ROWS = 14;          // tokens at a time
constexpr int64_t MOST_PAIRS = 512;        // of inputs at a time: beyond, sums wait in memory
constexpr int64_t TILE_WORDS = 32 * 1024;  // turned weights: 128 KiB of a second-level cache of 1 MiB and more
constexpr int64_t FEWEST = 7;              // tokens for which turning weights is worth it
constexpr int64_t FEWEST_OF_SLICE = 64;    // of a slice: each turns the weights anew
// Rows so far apart push each other out of the first-level cache, and are copied apart where so many outputs outweigh it;
// so few numbers by one thread, as a team is slow to meet on a busy machine.
constexpr int64_t PAGE = 4096, FEWEST_OUTPUTS = 256, MOST_COPIED_ALONE = 512 * 1024;

// `count` pairs of 16 weight rows as [pair][16 rows], `step` words from one pair to the next. Each row is read a cache
// line at a time: rows of a power of two would push each other out of the cache.
void turn(const uint16_t *weight, int64_t in, int64_t count, uint32_t *tile, int64_t step) {
  for (int64_t at = 0; at < count; at += SIDE) {
    const int64_t rest = std::min(SIDE, count - at);
    const auto some = static_cast<__mmask16>((1u << rest) - 1);
    __m512i rows[SIDE];
    for (int n = 0; n < SIDE; ++n) {
      const uint16_t *row = weight + n * in + 2 * at;
      // Past the last row a prefetch does no harm.
      _mm_prefetch(reinterpret_cast<const char *>(row + SIDE * in), _MM_HINT_T1);
      rows[n] = _mm512_maskz_loadu_epi32(some, row);
    }
    transpose(rows);
    for (int64_t i = 0; i < rest; ++i) _mm512_store_si512(tile + (at + i) * step, rows[i]);
  }
}

// sums [M tokens, V vectors] += `count` pairs of x, whose rows are `stride` apart, times the weights [pair][V][16].
template <int M, int V>
void add_products(const uint16_t *x, int64_t stride, const uint32_t *tile, int64_t count, float *sums) {
  __m512 sum[M][V];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[m][v] = _mm512_load_ps(sums + m * PANEL + v * SIDE);
  for (int64_t pair = 0; pair < count; ++pair) {
    __m512bh weights[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
      weights[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(tile + (pair * V + v) * SIDE));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int numbers;
      std::memcpy(&numbers, x + m * stride + 2 * pair, sizeof numbers);
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(numbers));
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], weights[v], row);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) _mm512_store_ps(sums + m * PANEL + v * SIDE, sum[m][v]);
}

using AddProducts = void (*)(const uint16_t *, int64_t, const uint32_t *, int64_t, float *);

template <int V, int... M>
constexpr std::array<AddProducts, sizeof...(M)> by_rows(std::integer_sequence<int, M...>) {
  return {add_products<M + 1, V>...};
}

constexpr auto OF_ONE = by_rows<1>(std::make_integer_sequence<int, MOST_ROWS>());
constexpr auto OF_TWO = by_rows<2>(std::make_integer_sequence<int, MOST_ROWS>());

inline __m512 bias_of(const Weights &weights, int64_t output) {
  return weights.bias ? load(ALL, weights.bias + output) : _mm512_setzero_ps();
}

// One layer: panels of 32 outputs, the last perhaps of 16.
struct Plain {
  Weights weights;

  static int64_t panels(int64_t out) { return (out + PANEL - 1) / PANEL; }
  static int vectors(int64_t panel, int64_t out) { return out - panel * PANEL > SIDE ? 2 : 1; }
  const uint16_t *rows(int64_t panel, int vector, int64_t in) const {
    return weights.weight + (panel * PANEL + vector * SIDE) * in;
  }
  void finish(const Product &product, int64_t token, int64_t rows, int64_t panel, const float *sums) const {
    const int64_t output = panel * PANEL;
    for (int v = 0; v < vectors(panel, product.out); ++v) {
      const __m512 bias = bias_of(weights, output + v * SIDE);
      for (int64_t m = 0; m < rows; ++m)
        store(ALL, product.y + (token + m) * product.out + output + v * SIDE,
              _mm512_add_ps(_mm512_load_ps(sums + m * PANEL + v * SIDE), bias));
    }
  }
};

// A gate and what it is multiplied with: panels of 16 outputs of each.
struct Gated {
  Weights gate, up;

  static int64_t panels(int64_t out) { return out / SIDE; }
  static int vectors(int64_t, int64_t) { return 2; }
  const uint16_t *rows(int64_t panel, int vector, int64_t in) const {
    return (vector ? up : gate).weight + panel * SIDE * in;
  }
  void finish(const Product &product, int64_t token, int64_t rows, int64_t panel, const float *sums) const {
    const int64_t output = panel * SIDE;
    const __m512 gate_bias = bias_of(gate, output), up_bias = bias_of(up, output);
    for (int64_t m = 0; m < rows; ++m) {
      // Rounded where the layers by themselves would be, so that a token's numbers are the same in every wave.
      const __m512 value = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * PANEL), gate_bias));
      const __m512 times = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * PANEL + SIDE), up_bias));
      store(ALL, product.y + (token + m) * product.out + output, _mm512_mul_ps(rounded(silu(value)), times));
    }
  }
};

// Memory that a thread keeps for the next product.
template <typename T>
T *kept(std::vector<T> &memory, int64_t count) {
  constexpr int64_t LINE = 64 / sizeof(T);
  if (static_cast<int64_t>(memory.size()) < count + LINE) {
    std::vector<T>().swap(memory);
    memory.resize(count + LINE);
  }
  return memory.data() + (LINE - reinterpret_cast<uintptr_t>(memory.data()) / sizeof(T) % LINE) % LINE;
}

// Tokens from `token` to `end` of panels from `panel` to `last`. Rows of x are `stride` apart.
template <typename Layers>
void multiply(const Product &product, const Layers &layers, int64_t stride, int64_t token, int64_t end, int64_t panel,
              int64_t last) {
  // Not on the stack, which threads may have little of.
  static thread_local std::vector<uint32_t> turned;
  static thread_local std::vector<float> summed;
  uint32_t *tiles = kept(turned, TILE_WORDS);
  const int64_t pairs = product.in / 2, parts = (pairs + MOST_PAIRS - 1) / MOST_PAIRS;
  const int64_t most = (pairs + parts - 1) / parts;                            // pairs of a part
  const int64_t together = std::max(int64_t{1}, TILE_WORDS / (most * PANEL));  // panels that are turned at a time
  const int64_t tokens = end - token, blocks = (tokens + MOST_ROWS - 1) / MOST_ROWS;
  // Sums that wait for no other part may lie where those of the block before lay.
  const int64_t kept_blocks = parts > 1 ? blocks : 1, block_sums = MOST_ROWS * PANEL;
  float *sums = kept(summed, kept_blocks * together * block_sums);
  for (; panel < last; panel += together) {
    const int64_t group = std::min(together, last - panel);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = part * most, count = std::min(most, pairs - first);
      for (int64_t p = 0; p < group; ++p)
        for (int v = 0, vectors = layers.vectors(panel + p, product.out); v < vectors; ++v)
          turn(layers.rows(panel + p, v, product.in) + 2 * first, product.in, count,
               tiles + p * count * PANEL + v * SIDE, vectors * SIDE);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t from = token + tokens * block / blocks, rows = token + tokens * (block + 1) / blocks - from;
        for (int64_t p = 0; p < group; ++p) {
          float *own = sums + ((parts > 1 ? block : 0) * together + p) * block_sums;
          if (!part) std::memset(own, 0, block_sums * sizeof(float));
          const auto &add = layers.vectors(panel + p, product.out) == 2 ? OF_TWO : OF_ONE;
          add[rows - 1](product.x + from * stride + 2 * first, stride, tiles + p * count * PANEL, count, own);
          if (part == parts - 1) layers.finish(product, from, rows, panel + p, own);
        }
      }
    }
  }
}

template <typename Layers>
void multiply_all(Product product, const Layers &layers, int threads) {
  static thread_local std::vector<uint16_t> spaced;
  int64_t stride = product.in;
  if (product.in * 2 % PAGE == 0 && product.out >= FEWEST_OUTPUTS) {
    stride += 32;
    uint16_t *x = kept(spaced, product.tokens * stride);
    const bool alone = threads <= 1 || product.tokens * product.in <= MOST_COPIED_ALONE;
#pragma omp parallel for schedule(static) num_threads(threads) if (!alone)
    for (int64_t token = 0; token < product.tokens; ++token)
      std::memcpy(x + token * stride, product.x + token * product.in, product.in * sizeof(uint16_t));
    product.x = x;
  }
  const int64_t panels = layers.panels(product.out);
  // Panels alone may not be enough for all threads, or not as many for each.
  int64_t slices = 1;
  while (panels * slices % threads && panels * slices < 8 * threads && product.tokens >= (slices + 1) * FEWEST_OF_SLICE)
    ++slices;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t all = panels * slices, own = omp_get_thread_num(), team = omp_get_num_threads();
    const int64_t end = all * (own + 1) / team;
    for (int64_t at = all * own / team; at < end;) {
      const int64_t slice = at / panels, panel = at % panels, last = std::min(panels, panel + end - at);
      multiply(product, layers, stride, product.tokens * slice / slices, product.tokens * (slice + 1) / slices, panel,
               last);
      at += last - panel;
    }
  }
}

}  // namespace

void gemm_bfloat16(const Product &product, const Weights &weights, int threads) {
  multiply_all(product, Plain{weights}, threads);
}

void gated_gemm_bfloat16(const Product &product, const Weights &gate, const Weights &up, int threads) {
  multiply_all(product, Gated{gate, up}, threads);
}

#pragma GCC pop_options

bool gemm_takes(int64_t tokens, int64_t in, int64_t out) {
  return tokens >= FEWEST && in % 2 == 0 && out % SIDE == 0 && has_bfloat16();
}

#endif
