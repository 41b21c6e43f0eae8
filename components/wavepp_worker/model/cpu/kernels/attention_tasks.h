// Causal attention of the chunks of one wave over the paged KV pool of one layer, cut into tasks.
//
// Keys and values are read where they lie, through the block tables; nothing of a prefix is copied but the tile at hand.
// As in FlashAttention-2 (Dao, 2023, algorithm 1): a task is some rows of queries of one key head; tiles of keys pass by,
// and each row keeps its maximum, its sum and its output so far. Rows are (token, query head of the group), so that all
// query heads that share a key head share its tile.

#pragma once

#include <algorithm>
#include <cstdint>

constexpr int ATTENTION_ROWS = 6;       // of a register tile
constexpr int ATTENTION_AMX_ROWS = 32;  // of two of AMX
constexpr int64_t ATTENTION_TASK_ROWS = 252;  // most rows of a task, which share the packing
constexpr int64_t ATTENTION_FEW_ROWS = 16;  // at most, of one key head, for which keys are not packed by AMX; 8 by AVX512-BF16
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
  int64_t group;    // its first key head
  int64_t groups;   // key heads: more than one only where few rows look at each
  int64_t last() const { return start + first + tokens - 1; }
};

// Where some of a request's keys and values are in the pools: those of a tile, and some ahead.
template <typename T, int64_t ROOM>
struct AttentionRows {
  const AttentionLayer<T> &layer;
  const int64_t *table;
  int64_t group;  // of whose keys and values
  int64_t count = 0;
  int64_t at[ROOM];

  AttentionRows(const AttentionLayer<T> &layer, const AttentionTask &task)
      : layer(layer), table(layer.tables + task.table), group(task.group) {}

  // From now on, those from token `first` to `last`, or as many as there is room for: block by block, as two divisions for
  // each take long.
  void find(int64_t first, int64_t last) {
    count = std::min(ROOM, last + 1 - first);
    int64_t block = first / layer.block, from = first % layer.block;
    for (int64_t found = 0; found < count; ++block, from = 0) {
      const int64_t some = std::min(count - found, layer.block - from), row = table[block] * layer.block + from;
      for (int64_t i = 0; i < some; ++i) at[found++] = (row + i) * layer.groups;
    }
  }
  const T *key(int64_t number) const { return layer.keys + (at[number] + group) * layer.dim; }
  const T *value(int64_t number) const { return layer.values + (at[number] + group) * layer.value_dim; }
};

// Computes a task: attention_amx.cpp (AMX), attention_bfloat16.cpp (AVX512-BF16) and, of few rows, files named so with `_few`;
// attention_float.cpp (AVX2; either kind of numbers).
void attend_amx(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
bool attends_few_by_amx(const AttentionLayer<uint16_t> &layer, int64_t tokens);
void attend_few_by_amx(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
bool attends_few_by_bfloat16(const AttentionLayer<uint16_t> &layer, int64_t tokens);
void attend_few_by_bfloat16(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
void attend_bfloat16(const AttentionLayer<uint16_t> &layer, const AttentionTask &task);
template <typename T>
void attend_in_float(const AttentionLayer<T> &layer, const AttentionTask &task);
