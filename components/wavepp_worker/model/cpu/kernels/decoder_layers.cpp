// Decoder layers like Llama's in one call, so that Python takes no time between their kernels, and a thread's rows stay in
// its core's cache from one to the next.

#include "calls.h"
#include "gemm.h"
#include "scratch.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <vector>

// Must have the fields of fused_decoder_layers.py.
struct Linear {
  const void *weight, *bias;  // no bias: null
  int64_t packed, in, out;    // packed: the weights are (product.h)
};

struct DecoderLayer {
  const void *attention_norm, *mlp_norm;
  const void *query_norm, *key_norm;  // of each head; null where there are none
  Linear query, key, value, output, gate, up, down;
  int64_t head_dim, window;  // no window: 0
  double norm_eps, head_norm_eps, scale;
};

// Where attention finds the requests of a wave: their block tables, where each begins, tokens before, tokens.
struct Spans {
  const int64_t *tables, *table_at, *starts, *lengths;
  int64_t chunks;
};

// What all layers compute for: cos and sin [tokens, dim]; slots [tokens] are rows of the pools.
struct Wave {
  int64_t tokens;
  const void *cos, *sin;
  const int64_t *slots;
  Spans all;
  // The tokens that a trimmed layer answers for, each the last of its request, [wanted_count].
  const int64_t *wanted;
  int64_t wanted_count;
  Spans wanted_spans;
  int64_t block, threads, narrow;
};

static_assert(sizeof(DecoderLayer) == 44 * 8 && sizeof(Wave) == 19 * 8, "as of fused_decoder_layers.py");

namespace {

constexpr int64_t MOST_ROWS = 256;  // of a slice: what a layer computes of them stays in the second-level cache
// A slice reads all weights of a layer. It has so many rows at least, or half of it where these are light: with so many
// numbers they stay in that cache, too.
constexpr int64_t FEWEST_ROWS = 128;
constexpr int64_t LIGHT_WEIGHTS = 1024 * 1024;
constexpr int64_t ROUND_ROWS = 32;  // that are multiplied together

// Memory for what a layer computes in between, in parts, in a buffer of the thread's.
class Workspace {
 public:
  Workspace(int64_t number_bytes, int64_t numbers) : Workspace(number_bytes, numbers, of_thread()) {}
  Workspace(int64_t number_bytes, int64_t numbers, std::vector<char> &kept) : bytes_(number_bytes) {
    next_ = scratch(kept, number_bytes * numbers);
    end_ = next_ + number_bytes * numbers;
  }
  void *take(int64_t numbers) {
    void *part = next_;
    next_ += bytes_ * numbers;
    if (next_ > end_) std::abort();
    return part;
  }

 private:
  static std::vector<char> &of_thread() {
    static thread_local std::vector<char> kept;
    return kept;
  }

  int64_t bytes_;
  char *next_, *end_;
};

// `count` rows of `width` numbers of `number_bytes` each, by their places.
void *gather(const void *rows, const int64_t *places, int64_t count, int64_t width, int64_t number_bytes, void *to) {
  const int64_t bytes = width * number_bytes;
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(static_cast<char *>(to) + i * bytes, static_cast<const char *>(rows) + places[i] * bytes, bytes);
  return to;
}

// Calls `part(first, count, threads)` for all rows, from `first` on: for each slice of them in one thread, or for all at
// once in all threads.
template <typename Part>
void for_slices(int64_t rows, int64_t slices, int64_t threads, const Part &part) {
  if (slices <= 1) return part(int64_t{0}, rows, threads);
  const auto start = [&](int64_t i) {
    return std::min(rows, (rows * i / slices + ROUND_ROWS - 1) / ROUND_ROWS * ROUND_ROWS);
  };
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t i = 0; i < slices; ++i) part(start(i), start(i + 1) - start(i), int64_t{1});
}

// A layer in one wave.
struct LayerInWave {
  const DecoderLayer &layer;
  const Wave &wave;
  const int64_t number_bytes = wave.narrow ? 2 : 4, width = layer.query.in, dim = layer.head_dim;
  const int64_t queries = layer.query.out, keyed = layer.key.out, inner = layer.gate.out;
  const int64_t heads = queries / dim, groups = keyed / dim;
  const bool packed = all_packed();

  bool all_packed() const {
    const Linear *const linears[] = {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down};
    return std::all_of(std::begin(linears), std::end(linears), [](const Linear *linear) { return linear->packed; });
  }

  // Into how many slices rows are cut: as many for each thread, or one. Weights that are not packed would be packed again
  // for each.
  int64_t slices(int64_t rows) const {
    const int64_t weights = 2 * width * (queries + keyed) + 3 * width * inner;
    const int64_t fewest = weights <= LIGHT_WEIGHTS ? FEWEST_ROWS / 2 : FEWEST_ROWS;
    if (!packed || rows < wave.threads * fewest) return 1;
    const int64_t rounds = (rows + wave.threads * MOST_ROWS - 1) / (wave.threads * MOST_ROWS);
    return rounds * wave.threads;
  }

  template <typename T>
  T *row(T *rows, int64_t at, int64_t numbers) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return static_cast<Byte *>(rows) + at * numbers * number_bytes;
  }
  void project(const Linear &linear, const void *x, int64_t count, void *y, int64_t threads) const {
    wavepp_linear(x, linear.weight, linear.bias, linear.packed, count, linear.in, linear.out, y, threads, wave.narrow);
  }
  void norm(const void *x, const void *weight, int64_t rows, void *y, int64_t threads) const {
    wavepp_rms_norm(x, weight, rows, width, layer.norm_eps, y, threads, wave.narrow);
  }
  void norm_heads(void *x, const void *weight, int64_t rows, int64_t threads) const {
    // A row is read before it is written.
    if (weight) wavepp_rms_norm(x, weight, rows, dim, layer.head_norm_eps, x, threads, wave.narrow);
  }

  // From hidden [tokens, width] keys and values in their pools and, if they are asked for, query [tokens, queries].
  void project_and_store(const void *hidden, void *query, void *keys, void *values) const {
    for_slices(wave.tokens, slices(wave.tokens), wave.threads, [&](int64_t first, int64_t rows, int64_t threads) {
      Workspace memory(number_bytes, rows * (width + keyed + layer.value.out));
      void *normed = memory.take(rows * width), *key = memory.take(rows * keyed);
      void *value = memory.take(rows * layer.value.out);
      norm(row(hidden, first, width), layer.attention_norm, rows, normed, threads);
      project(layer.key, normed, rows, key, threads);
      project(layer.value, normed, rows, value, threads);
      norm_heads(key, layer.key_norm, rows * groups, threads);
      void *own = query ? row(query, first, queries) : nullptr;
      if (query) {
        project(layer.query, normed, rows, own, threads);
        norm_heads(own, layer.query_norm, rows * heads, threads);
      }
      wavepp_rotate_store(own, key, value, row(wave.cos, first, dim), row(wave.sin, first, dim), wave.slots + first, rows,
                          query ? heads : 0, groups, dim, dim, keys, values, threads, wave.narrow);
    });
  }

  // Query [rows, queries] of hidden [rows, width], with their own cos and sin.
  void project_queries(const void *hidden, const void *cos, const void *sin, int64_t rows, void *query) const {
    Workspace memory(number_bytes, rows * width);
    void *normed = memory.take(rows * width);
    norm(hidden, layer.attention_norm, rows, normed, wave.threads);
    project(layer.query, normed, rows, query, wave.threads);
    norm_heads(query, layer.query_norm, rows * heads, wave.threads);
    wavepp_rotate_store(query, nullptr, nullptr, cos, sin, wave.slots, rows, heads, 0, dim, 0, nullptr, nullptr,
                        wave.threads, wave.narrow);
  }

  void attend(const Spans &spans, const void *query, const void *keys, const void *values, void *attended) const {
    wavepp_paged_attention(query, queries, dim, keys, values, spans.tables, spans.table_at, spans.starts, spans.lengths,
                           spans.chunks, wave.block, heads, groups, dim, dim, layer.scale, layer.window, attended,
                           wave.threads, wave.narrow);
  }

  // out [rows, width] of hidden [rows, width], which it may be, and of what attention gave them.
  void output_and_mlp(const void *hidden, const void *attended, int64_t all, void *out) const {
    for_slices(all, slices(all), wave.threads, [&](int64_t first, int64_t rows, int64_t threads) {
      const bool both_packed = layer.gate.packed && layer.up.packed;
      const bool neither = !layer.gate.packed && !layer.up.packed;
      const bool as_pair = both_packed || (neither && gemm_takes(rows, width, inner, wave.narrow));
      Workspace memory(number_bytes, rows * (2 * width + inner + (as_pair ? 0 : inner + layer.up.out)));
      void *projected = memory.take(rows * width), *residual = memory.take(rows * width);
      void *active = memory.take(rows * inner);
      project(layer.output, row(attended, first, queries), rows, projected, threads);
      wavepp_add(row(hidden, first, width), projected, rows, width, residual, threads, wave.narrow);
      void *normed = projected;
      norm(residual, layer.mlp_norm, rows, normed, threads);
      if (as_pair) {
        wavepp_gated_linear(normed, layer.gate.weight, layer.gate.bias, layer.up.weight, layer.up.bias, both_packed, rows,
                            width, inner, active, threads, wave.narrow);
      } else {
        void *gate = memory.take(rows * inner), *up = memory.take(rows * layer.up.out);
        project(layer.gate, normed, rows, gate, threads);
        project(layer.up, normed, rows, up, threads);
        wavepp_silu_times(gate, up, rows, inner, active, threads, wave.narrow);
      }
      project(layer.down, active, rows, projected, threads);
      wavepp_add(residual, projected, rows, width, row(out, first, width), threads, wave.narrow);
    });
  }
};

// hidden [tokens, width] and out [rows, width], which may be one; rows are the tokens, of a trimmed layer the wanted ones:
// of the others it computes keys and values alone.
void compute(const LayerInWave &own, bool trimmed, void *keys, void *values, const void *hidden, void *out) {
  // Of its own, as the thread's is its slices'.
  static thread_local std::vector<char> kept;
  const Wave &wave = own.wave;
  const int64_t rows = trimmed ? wave.wanted_count : wave.tokens, width = own.width, dim = own.dim;
  Workspace memory(own.number_bytes, rows * (2 * own.queries + (trimmed ? width + 2 * dim : 0)), kept);
  void *query = memory.take(rows * own.queries), *attended = memory.take(rows * own.queries);
  own.project_and_store(hidden, trimmed ? nullptr : query, keys, values);
  if (!rows) return;
  if (trimmed) {
    const auto of_wanted = [&](const void *all, int64_t numbers) {
      return gather(all, wave.wanted, rows, numbers, own.number_bytes, memory.take(rows * numbers));
    };
    hidden = of_wanted(hidden, width);
    own.project_queries(hidden, of_wanted(wave.cos, dim), of_wanted(wave.sin, dim), rows, query);
  }
  own.attend(trimmed ? wave.wanted_spans : wave.all, query, keys, values, attended);
  own.output_and_mlp(hidden, attended, rows, out);
}

}  // namespace

// `count` layers, one after the other, each with its own pools. hidden [tokens, query.in], out the same; where the last
// of them is trimmed, its answer is wanted_out [wanted_count, query.in], else that is null.
extern "C" void wavepp_decoder_layers(const DecoderLayer *layers, void *const *keys, void *const *values, int64_t count,
                                      const Wave *wave, const void *hidden, void *out, void *wanted_out) {
  const int64_t whole = wanted_out ? count - 1 : count;
  for (int64_t i = 0; i < whole; ++i) compute({layers[i], *wave}, false, keys[i], values[i], i ? out : hidden, out);
  if (wanted_out)
    compute({layers[whole], *wave}, true, keys[whole], values[whole], whole ? out : hidden, wanted_out);
}

#endif
