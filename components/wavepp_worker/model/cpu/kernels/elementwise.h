// What lies between the matrix products of a layer: norms, activations, rotary embeddings, and sums.
//
// Each chain of operations is one pass over its numbers T, which are bfloat16 (as their 16 bits) or floats; computed in
// float32 and rounded where transformers' modules round.

#pragma once

#include <cstdint>

template <typename T>
struct Passes {
  using Number = T;
  // y [width]: x over its root mean square, times weight.
  void (*norm_row)(const T *x, const T *weight, int64_t width, float eps, T *y);
  // y [count] = silu(gate) * up.
  void (*silu_numbers)(const T *gate, const T *up, int64_t count, T *y);
  // sum [count] = x + y.
  void (*add_numbers)(const T *x, const T *y, int64_t count, T *sum);
  // One head, whose second half turns with its first; `to` may be `from`.
  void (*rotate)(const T *from, const T *cos, const T *sin, int64_t dim, T *to);
};

// AVX512-BF16.
Passes<uint16_t> passes_bfloat16();
// AVX2.
template <typename T>
Passes<T> passes_float();
