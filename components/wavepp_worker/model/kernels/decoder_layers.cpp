// Decoder layers like Llama's in one call, so that Python takes no time between their kernels.

#include "calls.h"
#include "gemm.h"
#include "scratch.h"

#if defined(__x86_64__)

#include <cstdlib>
#include <vector>

// Must have the fields of fused_decoder_layers.py.
struct Linear {
  const void *weight, *bias;  // no bias: null
  int64_t in, out;
};

struct DecoderLayer {
  const void *attention_norm, *mlp_norm;
  const void *query_norm, *key_norm;  // of each head; null where there are none
  Linear query, key, value, output, gate, up, down;
  int64_t head_dim, window;  // no window: 0
  double norm_eps, head_norm_eps, scale;
};

static_assert(sizeof(DecoderLayer) == 37 * 8, "as of fused_decoder_layers.py");

namespace {

// Memory for what a layer computes in between, in parts.
class Between {
 public:
  Between(int64_t number_bytes, int64_t numbers) : bytes_(number_bytes) {
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

// What they all compute for: cos and sin [tokens, dim], and as of the attention kernel where requests are in the pools.
struct Wave {
  int64_t tokens;
  const void *cos, *sin;
  const int64_t *slots, *tables, *table_at, *starts, *lengths;
  int64_t chunks, block, threads, narrow;
};

// hidden and out [tokens, query.in], which may be one.
void compute(const DecoderLayer *layer, const Wave &wave, void *keys, void *values, const void *hidden, void *out) {
  const auto [tokens, cos, sin, slots, tables, table_at, starts, lengths, chunks, block, threads, narrow] = wave;
  const int64_t width = layer->query.in, dim = layer->head_dim, inner = layer->gate.out;
  const int64_t queries = layer->query.out, keyed = layer->key.out;
  const int64_t heads = queries / dim, groups = keyed / dim;
  const bool as_pair = gemm_takes(tokens, width, inner, narrow);
  const int64_t apart = as_pair ? 0 : inner + layer->up.out;
  Between memory(narrow ? 2 : 4, tokens * (2 * width + 2 * queries + keyed + layer->value.out + inner + apart));
  void *normed = memory.take(tokens * width), *between = memory.take(tokens * width);
  void *query = memory.take(tokens * queries), *attended = memory.take(tokens * queries);
  void *key = memory.take(tokens * keyed), *value = memory.take(tokens * layer->value.out);
  void *active = memory.take(tokens * inner);
  const auto project = [&](const Linear &linear, const void *x, void *y) {
    wavepp_linear(x, linear.weight, linear.bias, wave.tokens, linear.in, linear.out, y, wave.threads, wave.narrow);
  };
  wavepp_rms_norm(hidden, layer->attention_norm, tokens, width, layer->norm_eps, normed, threads, narrow);
  project(layer->query, normed, query);
  project(layer->key, normed, key);
  project(layer->value, normed, value);
  if (layer->query_norm) {
    // A row is read before it is written.
    wavepp_rms_norm(query, layer->query_norm, tokens * heads, dim, layer->head_norm_eps, query, threads, narrow);
    wavepp_rms_norm(key, layer->key_norm, tokens * groups, dim, layer->head_norm_eps, key, threads, narrow);
  }
  wavepp_rotate_store(query, key, value, cos, sin, slots, tokens, heads, groups, dim, dim, keys, values, threads,
                      narrow);
  wavepp_paged_attention(query, queries, dim, keys, values, tables, table_at, starts, lengths, chunks, block, heads,
                         groups, dim, dim, layer->scale, layer->window, attended, threads, narrow);
  project(layer->output, attended, normed);
  wavepp_add(hidden, normed, tokens, width, between, threads, narrow);
  wavepp_rms_norm(between, layer->mlp_norm, tokens, width, layer->norm_eps, normed, threads, narrow);
  if (as_pair) {
    wavepp_gated_linear(normed, layer->gate.weight, layer->gate.bias, layer->up.weight, layer->up.bias, tokens, width,
                        inner, active, threads, narrow);
  } else {
    void *gate = memory.take(tokens * inner), *up = memory.take(tokens * layer->up.out);
    project(layer->gate, normed, gate);
    project(layer->up, normed, up);
    wavepp_silu_times(gate, up, tokens, inner, active, threads, narrow);
  }
  project(layer->down, active, normed);
  wavepp_add(between, normed, tokens, width, out, threads, narrow);
}

}  // namespace

// `count` layers, one after the other, each with its own pools. hidden and out [tokens, query.in].
extern "C" void wavepp_decoder_layers(const DecoderLayer *layers, void *const *keys, void *const *values, int64_t count,
                                      const void *hidden, int64_t tokens, const void *cos, const void *sin,
                                      const int64_t *slots, const int64_t *tables, const int64_t *table_at,
                                      const int64_t *starts, const int64_t *lengths, int64_t chunks, int64_t block,
                                      void *out, int64_t threads, int64_t narrow) {
  const Wave wave{tokens, cos, sin, slots, tables, table_at, starts, lengths, chunks, block, threads, narrow};
  for (int64_t i = 0; i < count; ++i) compute(layers + i, wave, keys[i], values[i], i ? out : hidden, out);
}

#endif
