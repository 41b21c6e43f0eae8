// The products of gemm.h where the CPU has AVX512-BF16.
//
// 14 tokens and a panel at a time: 28 sums, 2 vectors of weights and a pair of a token's numbers are 31 of 32 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "gemm_bfloat16.h"
#include "instructions.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

// sums [M tokens, V vectors] += `count` pairs of x, whose tokens are `stride` apart, times weights [V][pair][16].
template <int M, int V>
void add(const uint16_t *x, int64_t stride, const uint32_t *const *packed, int64_t count, float *sums,
         const Ahead &ahead) {
  __m512 sum[M][V];
  load_sums(sums, sum);
  for (int64_t pair = 0; pair < count; ++pair) {
    fetch<V>(ahead, pair);
    __m512bh weights[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
      weights[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed[v] + pair * LANES));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int numbers;
      std::memcpy(&numbers, x + m * stride + 2 * pair, sizeof numbers);
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(numbers));
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], weights[v], row);
    }
  }
  store_sums(sum, sums);
}

struct VectorKernel : Bfloat16Pairs {
  using Input = uint16_t;
  struct Mode {};
  static constexpr int64_t BLOCK_TOKENS = 14, MOST_STEPS = 512, SLICE_TOKENS = ALL_TOKENS;

  template <int TOKENS, int VECTORS>
  static constexpr Add<VectorKernel> add = ::add<TOKENS, VECTORS>;

  static void copy_inputs(const uint16_t *x, int64_t in, uint16_t *to) { std::memcpy(to, x, in * sizeof(uint16_t)); }
};

}  // namespace

void gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, bool packed, int threads) {
  if (multiplies_floats_faster()) return gemm_widened(product, weights, packed, threads);
  if (packed) return multiply_all<VectorKernel>(product, Plain<VectorKernel, true>{weights}, threads);
  multiply_all<VectorKernel>(product, Plain<VectorKernel>{weights}, threads);
}

void gated_gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                         bool packed, int threads) {
  if (multiplies_floats_faster()) return gated_gemm_widened(product, gate, up, packed, threads);
  if (packed) return multiply_all<VectorKernel>(product, Gated<VectorKernel, true>{gate, up}, threads);
  multiply_all<VectorKernel>(product, Gated<VectorKernel>{gate, up}, threads);
}

#pragma GCC pop_options

#endif
