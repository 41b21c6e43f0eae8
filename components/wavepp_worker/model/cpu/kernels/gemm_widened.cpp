// The products of gemm.h where the CPU has AVX512-BF16, but multiplies floats faster: bfloat16 as floats.
//
// 12 tokens and a panel at a time: 24 sums, 4 vectors of weights, a mask and a token's number are 30 of 32 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include "gemm_bfloat16.h"
#include "subnormals.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

// sums [M tokens, V vectors] += `count` pairs of x, whose tokens are `stride` apart, times weights [V][pair][16].
template <int M, int V>
void add(const float *x, int64_t stride, const uint32_t *const *packed, int64_t count, float *sums, const Ahead &ahead) {
  __m512 sum[M][V];
  load_sums(sums, sum);
  for (int64_t pair = 0; pair < count; ++pair) {
    fetch<V>(ahead, pair);
    __m512 weights[2][V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const __m512i both = _mm512_loadu_si512(packed[v] + pair * LANES);
      weights[0][v] = firsts(both);
      weights[1][v] = seconds(both);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512 number = _mm512_set1_ps(x[m * stride + 2 * pair + i]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[m][v] = _mm512_fmadd_ps(number, weights[i][v], sum[m][v]);
      }
  }
  store_sums(sum, sums);
}

struct WidenedKernel : Bfloat16Pairs {
  using Input = float;
  using Mode = WithoutSubnormals;
  static constexpr int64_t BLOCK_TOKENS = 12, MOST_STEPS = 256;
  // More tokens, as floats, are too much for the second-level cache.
  static constexpr int64_t SLICE_TOKENS = 256;

  template <int TOKENS, int VECTORS>
  static constexpr Add<WidenedKernel> add = ::add<TOKENS, VECTORS>;

  static void copy_inputs(const uint16_t *x, int64_t in, float *to) {
    for (int64_t at = 0; at < in; at += LANES) {
      const __mmask16 some = some_of(in - at);
      _mm512_mask_storeu_ps(to + at, some, load(some, x + at));
    }
  }
};

}  // namespace

void gemm_widened(const Product<uint16_t> &product, const Weights<uint16_t> &weights, bool packed, int threads) {
  if (packed) return multiply_all<WidenedKernel>(product, Plain<WidenedKernel, true>{weights}, threads);
  multiply_all<WidenedKernel>(product, Plain<WidenedKernel>{weights}, threads);
}

void gated_gemm_widened(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                        bool packed, int threads) {
  if (packed) return multiply_all<WidenedKernel>(product, Gated<WidenedKernel, true>{gate, up}, threads);
  multiply_all<WidenedKernel>(product, Gated<WidenedKernel>{gate, up}, threads);
}

#pragma GCC pop_options

#endif
