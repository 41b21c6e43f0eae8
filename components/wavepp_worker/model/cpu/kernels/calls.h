// The kernels that Python calls, declared for decoder_layers.cpp, which is made of the others.
//
// `narrow`: all numbers are bfloat16, else floats. All tensors are without gaps.

#pragma once

#include <cstdint>

extern "C" {

// linear.cpp
void wavepp_linear(const void *x, const void *weight, const void *bias, int64_t packed, int64_t tokens, int64_t in,
                   int64_t out, void *y, int64_t threads, int64_t narrow);
void wavepp_gated_linear(const void *x, const void *gate, const void *gate_bias, const void *up, const void *up_bias,
                         int64_t packed, int64_t tokens, int64_t in, int64_t out, void *y, int64_t threads, int64_t narrow);

// elementwise.cpp
void wavepp_rms_norm(const void *x, const void *weight, int64_t rows, int64_t width, double eps, void *y,
                     int64_t threads, int64_t narrow);
void wavepp_silu_times(const void *gate, const void *up, int64_t rows, int64_t width, void *y, int64_t threads,
                       int64_t narrow);
void wavepp_rotate_store(void *query, const void *key, const void *value, const void *cos, const void *sin,
                         const int64_t *slots, int64_t tokens, int64_t heads, int64_t groups, int64_t dim,
                         int64_t value_dim, void *keys, void *values, int64_t threads, int64_t narrow);
void wavepp_add(const void *x, const void *y, int64_t rows, int64_t width, void *sum, int64_t threads, int64_t narrow);

// paged_attention.cpp
void wavepp_paged_attention(const void *query, int64_t query_token, int64_t query_head, const void *keys,
                            const void *values, const int64_t *tables, const int64_t *table_at, const int64_t *starts,
                            const int64_t *lengths, int64_t chunks, int64_t block, int64_t heads, int64_t groups,
                            int64_t dim, int64_t value_dim, double scale, int64_t window, void *out, int64_t threads,
                            int64_t narrow);
}
