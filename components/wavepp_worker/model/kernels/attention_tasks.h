// Causal attention of the chunks of one wave over the paged KV pool of one layer, cut into tasks.
//
// Keys and values are read where they lie, through the block tables; nothing of a prefix is copied but the tile at hand.
// As in FlashAttention-2 (Dao, 2023, algorithm 1): a task is some rows of queries of one key head; tiles of keys pass by,
// and each row keeps its maximum, its sum and its output so far. Rows are (token, query head of the group), so that all
// query heads that share a key head share its tile.

#pragma once

#include <cstdint>

constexpr int ATTENTION_ROWS = 6;       // of a register tile
constexpr int ATTENTION_AMX_ROWS = 32;  // of two of AMX
constexpr int64_t ATTENTION_TASK_ROWS = 252;  // most rows of a task, which share the packing
constexpr int64_t ATTENTION_AMX_TASK_ROWS = 1024;  // the same where rows take less time, and packing a larger part of it

// One layer's tensors, of numbers T: bfloat16 (as its 16 bits) or float.
template <typename T>
struct AttentionLayer {
  const T *query;
  int64_t query_token, query_head;  // strides in elements
  const T *keys, *values;
  const int64_t *tables;
  int64_t block, heads, groups, dim, value_dim;
  float scale;     // on the scores, which are powers of 2
  int64_t window;  // tokens that a token sees, itself included; 0 for all
  T *out;
};

struct AttentionTask {
  int64_t start;    // tokens of the request before the chunk
  int64_t first;    // of the task's tokens, counted from the chunk's first
  int64_t tokens;   // of the task
  int64_t packed;   // where the chunk begins in the wave
  int64_t table;    // where the request's block table begins
  int64_t group;    // key head
  int64_t last() const { return start + first + tokens - 1; }
};

// Where a request's keys and values of one head are in the pools.
template <typename T>
struct AttentionRows {
  const AttentionLayer<T> &layer;
  const int64_t *table;
  int64_t group;
  int64_t at(int64_t key) const { return table[key / layer.block] * layer.block + key % layer.block; }
  const T *key(int64_t key) const { return layer.keys + (at(key) * layer.groups + group) * layer.dim; }
  const T *value(int64_t key) const { return layer.values + (at(key) * layer.groups + group) * layer.value_dim; }
};

// Computes a task: attention_amx.cpp (AMX), attention_bfloat16.cpp (AVX512-BF16), attention_float.cpp (AVX2; either
// kind of numbers).
void attend_amx(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
void attend_bfloat16(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
template <typename T>
void attend_in_float(const AttentionLayer<T> &layer, const AttentionTask &task);
