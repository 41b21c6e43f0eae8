// What lies between the matrix products of a layer, as Python calls it: passes over rows, by whatever the CPU has.
//
// `narrow`: all numbers are bfloat16, else floats. All tensors are without gaps.

#include "elementwise.h"

#include "calls.h"

#if defined(__x86_64__)

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "instructions.h"

namespace {

constexpr int64_t TOGETHER = 32 * 1024;  // numbers from which a team of threads, which costs microseconds, pays

// Calls `rows(first, last)` for all rows, in as many threads as pay.
template <typename Rows>
void for_rows(int64_t count, int64_t width, int64_t threads, const Rows &rows) {
  const int64_t parts = count * width > TOGETHER ? std::min(threads, count) : 1;
  if (parts <= 1) return rows(int64_t{0}, count);
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(parts))
  for (int64_t part = 0; part < parts; ++part) rows(count * part / parts, count * (part + 1) / parts);
}

// Calls `with(passes)` for numbers of that kind.
template <typename With>
void for_numbers(bool narrow, const With &with) {
  if (!narrow)
    with(passes_float<float>());
  else
    with(has_bfloat16() ? passes_bfloat16() : passes_float<uint16_t>());
}

template <typename T>
const T *numbers(const void *of) {
  return static_cast<const T *>(of);
}

}  // namespace

// y [rows, width]: rows of x over their root mean square, times weight [width].
extern "C" void wavepp_rms_norm(const void *x, const void *weight, int64_t rows, int64_t width, double eps, void *y,
                                int64_t threads, int64_t narrow) {
  for_numbers(narrow, [&](const auto &passes) {
    using T = typename std::decay_t<decltype(passes)>::Number;
    for_rows(rows, width, threads, [&](int64_t first, int64_t last) {
      for (int64_t at = first * width; at < last * width; at += width)
        passes.norm_row(numbers<T>(x) + at, numbers<T>(weight), width, static_cast<float>(eps),
                        static_cast<T *>(y) + at);
    });
  });
}

// y [rows, width] = silu(gate) * up.
extern "C" void wavepp_silu_times(const void *gate, const void *up, int64_t rows, int64_t width, void *y,
                                  int64_t threads, int64_t narrow) {
  for_numbers(narrow, [&](const auto &passes) {
    using T = typename std::decay_t<decltype(passes)>::Number;
    for_rows(rows, width, threads, [&](int64_t first, int64_t last) {
      const int64_t at = first * width, count = (last - first) * width;
      passes.silu_numbers(numbers<T>(gate) + at, numbers<T>(up) + at, count, static_cast<T *>(y) + at);
    });
  });
}

// sum [rows, width] = x + y.
extern "C" void wavepp_add(const void *x, const void *y, int64_t rows, int64_t width, void *sum, int64_t threads,
                           int64_t narrow) {
  for_numbers(narrow, [&](const auto &passes) {
    using T = typename std::decay_t<decltype(passes)>::Number;
    for_rows(rows, width, threads, [&](int64_t first, int64_t last) {
      const int64_t at = first * width, count = (last - first) * width;
      passes.add_numbers(numbers<T>(x) + at, numbers<T>(y) + at, count, static_cast<T *>(sum) + at);
    });
  });
}

// Rotates query [tokens, heads, dim] where it lies; writes key [tokens, groups, dim], rotated, and value
// [tokens, groups, value_dim] to the rows `slots` [tokens] of the pools; cos and sin [tokens, dim].
extern "C" void wavepp_rotate_store(void *query, const void *key, const void *value, const void *cos, const void *sin,
                                    const int64_t *slots, int64_t tokens, int64_t heads, int64_t groups, int64_t dim,
                                    int64_t value_dim, void *keys, void *values, int64_t threads, int64_t narrow) {
  for_numbers(narrow, [&](const auto &passes) {
    using T = typename std::decay_t<decltype(passes)>::Number;
    for_rows(tokens, (heads + groups) * dim, threads, [&](int64_t first, int64_t last) {
      for (int64_t token = first; token < last; ++token) {
        const T *c = numbers<T>(cos) + token * dim, *s = numbers<T>(sin) + token * dim;
        auto *q = static_cast<T *>(query);
        for (int64_t head = token * heads; head < (token + 1) * heads; ++head)
          passes.rotate(q + head * dim, c, s, dim, q + head * dim);
        for (int64_t group = 0; group < groups; ++group)
          passes.rotate(numbers<T>(key) + (token * groups + group) * dim, c, s, dim,
                        static_cast<T *>(keys) + (slots[token] * groups + group) * dim);
        const int64_t row = groups * value_dim;
        std::memcpy(static_cast<T *>(values) + slots[token] * row, numbers<T>(value) + token * row, row * sizeof(T));
      }
    });
  });
}

#endif
