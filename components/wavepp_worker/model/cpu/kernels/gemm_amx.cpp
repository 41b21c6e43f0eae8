// The products of gemm.h where the CPU multiplies tiles of bfloat16 (amx.h).
//
// 32 tokens and a panel at a time: the four tiles of sums, two of tokens' numbers and two of weights are all there are.
// Weights come packed (product.h), so that each vector of 16 outputs lies where its 16 rows would.

#if defined(__x86_64__)

#include "amx.h"

#include "gemm.h"

#ifdef WAVEPP_KNOWS_AMX

#include "gemm_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")

namespace {

constexpr int64_t BLOCK_TOKENS = 2 * TILE;
constexpr int64_t BLOCK_SUMS = BLOCK_TOKENS * SUMS;
constexpr int64_t MOST_DEPTH = 288;   // inputs of a part: 32 tokens' numbers and a panel's weights stay in the first-level cache
constexpr int64_t MOST_DEPTH_OF_FEW = 4096;  // the same of one block alone, which reads its weights best as they lie
constexpr int64_t MOST_TOKENS = 256;  // of a task
constexpr int64_t MOST_PANELS = 16;   // of a task: the weights of a part stay in the second-level cache
constexpr int64_t TASKS_EACH = 4;     // of a thread, if there is enough to do, as others may take its core for a while
constexpr int64_t CONFLICT = 2048;    // bytes: of 32 rows so far apart not all fit the first-level cache,
constexpr int64_t PANELS_WORTH_A_COPY = 4;  // so that with so many panels it pays to copy them

using OneLayer = Plain<Bfloat16Answers>;
using GateAndUp = Gated<Bfloat16Answers>;

// Numbers of up to 32 tokens, from the first input on.
struct Block {
  const uint16_t *x;
  int64_t row, step;  // numbers from token to token, and from 32 inputs to the next 32
};

// A panel's weights, and what is fetched meanwhile, or null.
struct PanelWeights {
  const uint16_t *vectors[PANEL_VECTORS], *next[PANEL_VECTORS];
};

inline void fetch_tile(const uint16_t *from) {
  for (int64_t line = 0; line < TILE; ++line)
    _mm_prefetch(reinterpret_cast<const char *>(from + line * TILE_NUMBERS), _MM_HINT_T1);
}

// sums [32][panel] = or, if not `first`, += x . weights, of `depth` inputs. BOTH: there are more than 16 tokens. WIDE: the
// panel has two vectors.
template <bool BOTH, bool WIDE>
void add(const Block &block, const PanelWeights &weights, int64_t depth, bool first, float *sums) {
  constexpr int64_t SUMS_BYTES = SUMS * sizeof(float), WEIGHTS_BYTES = TILE_NUMBERS * sizeof(uint16_t);
  const int64_t x_bytes = block.row * sizeof(uint16_t);
  float *below = sums + TILE * SUMS;
  if (first) {
    _tile_zero(0);
    if (WIDE) _tile_zero(1);
    if (BOTH) _tile_zero(2);
    if (BOTH && WIDE) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, SUMS_BYTES);
    if (WIDE) _tile_loadd(1, sums + LANES, SUMS_BYTES);
    if (BOTH) _tile_loadd(2, below, SUMS_BYTES);
    if (BOTH && WIDE) _tile_loadd(3, below + LANES, SUMS_BYTES);
  }
  const uint16_t *x = block.x;
  for (int64_t at = 0; at < depth; at += TILE_NUMBERS, x += block.step) {
    if (weights.next[0]) {
      fetch_tile(weights.next[0] + at * TILE);
      if (WIDE) fetch_tile(weights.next[1] + at * TILE);
    }
    _tile_loadd(4, x, x_bytes);
    if (BOTH) _tile_loadd(5, x + TILE * block.row, x_bytes);
    _tile_loadd(6, weights.vectors[0] + at * TILE, WEIGHTS_BYTES);
    if (WIDE) _tile_loadd(7, weights.vectors[1] + at * TILE, WEIGHTS_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    if (BOTH) _tile_dpbf16ps(2, 5, 6);
    if (WIDE) _tile_dpbf16ps(1, 4, 7);
    if (BOTH && WIDE) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, SUMS_BYTES);
  if (WIDE) _tile_stored(1, sums + LANES, SUMS_BYTES);
  if (BOTH) _tile_stored(2, below, SUMS_BYTES);
  if (BOTH && WIDE) _tile_stored(3, below + LANES, SUMS_BYTES);
}

// A block of `depth` inputs with all tokens of a tile next to each other.
Block copied(const Block &block, int64_t tokens, int64_t depth, uint16_t *to) {
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t at = 0; at < depth; at += TILE_NUMBERS)
      _mm512_store_si512(to + at * BLOCK_TOKENS + token * TILE_NUMBERS,
                         _mm512_loadu_si512(block.x + token * block.row + at));
  return {to, TILE_NUMBERS, BLOCK_TOKENS * TILE_NUMBERS};
}

int64_t pieces(int64_t of, int64_t most) { return (of + most - 1) / most; }

// Answers of a panel of two vectors, both at once.
void finish_both(const OneLayer &layer, const Product<uint16_t> &product, int64_t token, int64_t tokens, int64_t panel,
                 const float *sums) {
  const int64_t output = panel * SUMS;
  const uint16_t *bias = layer.weights.bias ? layer.weights.bias + output : nullptr;
  const __m512 low = bias_or_zero(bias), high = bias_or_zero(bias ? bias + LANES : nullptr);
  uint16_t *y = product.y + token * product.out + output;
  for (int64_t m = 0; m < tokens; ++m) {
    const __m512 first = _mm512_add_ps(_mm512_load_ps(sums + m * SUMS), low);
    const __m512 second = _mm512_add_ps(_mm512_load_ps(sums + m * SUMS + LANES), high);
    _mm512_storeu_si512(y + m * product.out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
}

void finish(const OneLayer &layer, const Product<uint16_t> &product, int64_t token, int64_t tokens, int64_t panel,
            const float *sums) {
  if (layer.vectors(panel, product.out) == PANEL_VECTORS) return finish_both(layer, product, token, tokens, panel, sums);
  layer.finish(product, token, tokens, panel, sums);
}

void finish(const GateAndUp &layers, const Product<uint16_t> &product, int64_t token, int64_t tokens, int64_t panel,
            const float *sums) {
  layers.finish(product, token, tokens, panel, sums);
}

struct Task {
  int64_t token, token_end, panel, panel_end;
};

template <typename Layers>
void multiply(const Product<uint16_t> &product, const Layers &layers, const Task &task, TileConfiguration &tiles) {
  // Not on the stack, which threads may have little of.
  static thread_local std::vector<float> summed;
  static thread_local std::vector<uint16_t> copy;
  const int64_t in = product.in, panels = task.panel_end - task.panel;
  const int64_t blocks = pieces(task.token_end - task.token, BLOCK_TOKENS);
  const int64_t deepest = blocks > 1 ? MOST_DEPTH : MOST_DEPTH_OF_FEW;
  const int64_t most = pieces(pieces(in, pieces(in, deepest)), TILE_NUMBERS) * TILE_NUMBERS;  // inputs of a part
  const bool parted = in > most, copies = in * sizeof(uint16_t) % CONFLICT == 0 && panels >= PANELS_WORTH_A_COPY;
  float *sums = scratch(summed, (parted ? blocks * panels : 1) * BLOCK_SUMS);
  uint16_t *room = scratch(copy, BLOCK_TOKENS * most);
  for (int64_t first = 0; first < in; first += most) {
    const int64_t depth = std::min(most, in - first);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t token = task.token + b * BLOCK_TOKENS, tokens = std::min(BLOCK_TOKENS, task.token_end - token);
      const bool both = tokens > TILE;
      tiles.set(std::min(tokens, TILE), both ? tokens - TILE : TILE);
      Block block{product.x + token * in + first, in, TILE_NUMBERS};
      if (copies) block = copied(block, tokens, depth, room);
      visible_to_tiles(room);
      for (int64_t panel = task.panel; panel < task.panel_end; ++panel) {
        const bool wide = layers.vectors(panel, product.out) == 2;
        PanelWeights weights{};
        for (int v = 0; v < PANEL_VECTORS; ++v) {
          weights.vectors[v] = layers.weight_rows(panel, v, in) + first * TILE;
          // Past the last a fetch does no harm.
          if (!b) weights.next[v] = layers.weight_rows(panel + 1, v, in) + first * TILE;
        }
        float *own = sums + (parted ? (b * panels + panel - task.panel) * BLOCK_SUMS : 0);
        const auto how = both ? wide ? add<true, true> : add<true, false> : wide ? add<false, true> : add<false, false>;
        how(block, weights, depth, !first, own);
        if (first + depth == in) finish(layers, product, token, tokens, panel, own);
      }
    }
  }
}

template <typename Layers>
void multiply_all(const Product<uint16_t> &product, const Layers &layers, int threads) {
  const int64_t panels = layers.panels(product.out);
  int64_t tokens = MOST_TOKENS, group = std::min(MOST_PANELS, panels);
  const auto few_tasks = [&] {
    return threads > 1 && pieces(product.tokens, tokens) * pieces(panels, group) < TASKS_EACH * threads;
  };
  while (few_tasks() && tokens > 2 * BLOCK_TOKENS) tokens /= 2;
  while (few_tasks() && group > 1) group = (group + 1) / 2;
  const int64_t slices = pieces(product.tokens, tokens), groups = pieces(panels, group);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    TileConfiguration tiles(TILE, TILE);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < slices * groups; ++i) {
      const int64_t token = i / groups * tokens, panel = i % groups * group;
      const Task task{token, std::min(product.tokens, token + tokens), panel, std::min(panels, panel + group)};
      multiply(product, layers, task, tiles);
    }
  }
}

}  // namespace

void gemm_amx(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads) {
  multiply_all(product, OneLayer{weights}, threads);
}

void gated_gemm_amx(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                    int threads) {
  multiply_all(product, GateAndUp{gate, up}, threads);
}

#pragma GCC pop_options

#else

#include <cstdlib>

void gemm_amx(const Product<uint16_t> &, const Weights<uint16_t> &, int) { std::abort(); }

void gated_gemm_amx(const Product<uint16_t> &, const Weights<uint16_t> &, const Weights<uint16_t> &, int) {
  std::abort();
}

#endif

#endif
