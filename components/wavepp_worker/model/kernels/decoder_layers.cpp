// Decoder layers like Llama's in one call, so that Python takes no time between their kernels.

#include "calls.h"
#include "gemm.h"
#include "scratch.h"

#if defined(__x86_64__)

#include <cstdlib>
#include <cstring>
#include <vector>

// Must have the fields of fused_decoder_layers.py.
struct Linear {
  const void *weight, *bias;  // no bias: null
  int64_t packed, in, out;    // packed: the weights are, for tiles
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

// Memory for what a layer computes in between, in parts.
class Workspace {
 public:
  Workspace(int64_t number_bytes, int64_t numbers) : bytes_(number_bytes) {
    static thread_local std::vector<char> kept;
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

// hidden [tokens, query.in] and out [rows, query.in], which may be one; rows are the tokens, of a trimmed layer the wanted
// ones: of the others it computes keys and values alone.
void compute(const DecoderLayer *layer, const Wave &wave, bool trimmed, void *keys, void *values, const void *hidden,
             void *out) {
  const int64_t tokens = wave.tokens, threads = wave.threads, narrow = wave.narrow, number_bytes = narrow ? 2 : 4;
  const int64_t width = layer->query.in, dim = layer->head_dim, inner = layer->gate.out;
  const int64_t queries = layer->query.out, keyed = layer->key.out;
  const int64_t heads = queries / dim, groups = keyed / dim;
  const int64_t rows = trimmed ? wave.wanted_count : tokens;
  const bool packed = layer->gate.packed && layer->up.packed, as_pair = packed || gemm_takes(rows, width, inner, narrow);
  const int64_t unpaired = as_pair ? 0 : inner + layer->up.out, gathered = trimmed ? 2 * width + 2 * dim : 0;
  Workspace memory(number_bytes, tokens * (width + keyed + layer->value.out) +
                                   rows * (width + 2 * queries + inner + unpaired + gathered));
  void *normed = memory.take(tokens * width), *residual = memory.take(rows * width);
  void *query = memory.take(rows * queries), *attended = memory.take(rows * queries);
  void *key = memory.take(tokens * keyed), *value = memory.take(tokens * layer->value.out);
  void *active = memory.take(rows * inner);
  const auto project = [&](const Linear &linear, const void *x, int64_t count, void *y) {
    wavepp_linear(x, linear.weight, linear.bias, linear.packed, count, linear.in, linear.out, y, threads, narrow);
  };
  wavepp_rms_norm(hidden, layer->attention_norm, tokens, width, layer->norm_eps, normed, threads, narrow);
  project(layer->key, normed, tokens, key);
  project(layer->value, normed, tokens, value);
  const void *asking = normed, *cos = wave.cos, *sin = wave.sin;
  if (trimmed) {
    const auto of_wanted = [&](const void *all, int64_t numbers) {
      return gather(all, wave.wanted, rows, numbers, number_bytes, memory.take(rows * numbers));
    };
    asking = of_wanted(normed, width);
    hidden = of_wanted(hidden, width);
    cos = of_wanted(cos, dim);
    sin = of_wanted(sin, dim);
  }
  if (rows) project(layer->query, asking, rows, query);
  if (layer->query_norm) {
    // A row is read before it is written.
    wavepp_rms_norm(query, layer->query_norm, rows * heads, dim, layer->head_norm_eps, query, threads, narrow);
    wavepp_rms_norm(key, layer->key_norm, tokens * groups, dim, layer->head_norm_eps, key, threads, narrow);
  }
  if (trimmed) {
    wavepp_rotate_store(query, key, value, wave.cos, wave.sin, wave.slots, tokens, 0, groups, dim, dim, keys, values,
                        threads, narrow);
    if (!rows) return;
    wavepp_rotate_store(query, key, value, cos, sin, wave.slots, rows, heads, 0, dim, 0, keys, values, threads, narrow);
  } else {
    wavepp_rotate_store(query, key, value, cos, sin, wave.slots, tokens, heads, groups, dim, dim, keys, values, threads,
                        narrow);
  }
  const Spans &spans = trimmed ? wave.wanted_spans : wave.all;
  wavepp_paged_attention(query, queries, dim, keys, values, spans.tables, spans.table_at, spans.starts, spans.lengths,
                         spans.chunks, wave.block, heads, groups, dim, dim, layer->scale, layer->window, attended,
                         threads, narrow);
  project(layer->output, attended, rows, normed);
  wavepp_add(hidden, normed, rows, width, residual, threads, narrow);
  wavepp_rms_norm(residual, layer->mlp_norm, rows, width, layer->norm_eps, normed, threads, narrow);
  if (as_pair) {
    wavepp_gated_linear(normed, layer->gate.weight, layer->gate.bias, layer->up.weight, layer->up.bias, packed, rows,
                        width, inner, active, threads, narrow);
  } else {
    void *gate = memory.take(rows * inner), *up = memory.take(rows * layer->up.out);
    project(layer->gate, normed, rows, gate);
    project(layer->up, normed, rows, up);
    wavepp_silu_times(gate, up, rows, inner, active, threads, narrow);
  }
  project(layer->down, active, rows, normed);
  wavepp_add(residual, normed, rows, width, out, threads, narrow);
}

}  // namespace

// `count` layers, one after the other, each with its own pools. hidden [tokens, query.in], out the same; where the last
// of them is trimmed, its answer is wanted_out [wanted_count, query.in], else that is null.
extern "C" void wavepp_decoder_layers(const DecoderLayer *layers, void *const *keys, void *const *values, int64_t count,
                                      const Wave *wave, const void *hidden, void *out, void *wanted_out) {
  const int64_t whole = wanted_out ? count - 1 : count;
  for (int64_t i = 0; i < whole; ++i) compute(layers + i, *wave, false, keys[i], values[i], i ? out : hidden, out);
  if (wanted_out)
    compute(layers + whole, *wave, true, keys[whole], values[whole], whole ? out : hidden, wanted_out);
}

#endif
