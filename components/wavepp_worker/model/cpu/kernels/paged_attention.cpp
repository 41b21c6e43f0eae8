// The attention of a wave over the paged KV pool of one layer, as Python calls it: all tasks, by whatever the CPU has.

#include "attention_tasks.h"

#include "calls.h"

#if defined(__x86_64__)

#include <omp.h>

#include <algorithm>
#include <vector>

#include "instructions.h"

namespace {

constexpr int64_t TOGETHER = 1 << 17;  // products from which a team of threads, which costs microseconds, pays

template <typename T>
int64_t products(const AttentionLayer<T> &layer, const int64_t *starts, const int64_t *lengths, int64_t chunks) {
  int64_t pairs = 0;
  for (int64_t c = 0; c < chunks; ++c) pairs += lengths[c] * (starts[c] + lengths[c]);
  return pairs * layer.heads * (layer.dim + layer.value_dim);
}

// Tasks of at most `most` rows, which are computed `rows` at a time; several key heads together where `joins(tokens)`.
template <typename T, typename Joins>
std::vector<AttentionTask> tasks_of(const AttentionLayer<T> &layer, const int64_t *starts, const int64_t *lengths,
                                    const int64_t *table_at, int64_t chunks, int64_t rows, int64_t most, int threads,
                                    const Joins &joins) {
  const int64_t each = layer.heads / layer.groups;
  int64_t tokens = 0;
  for (int64_t c = 0; c < chunks; ++c) tokens += lengths[c];
  // Several tasks for each thread, as they are not equally long.
  if (threads > 1)
    most = std::clamp<int64_t>(tokens * layer.heads / (4 * threads), 4 * rows, most);
  const int64_t step = std::max<int64_t>(1, most / each);
  std::vector<AttentionTask> tasks;
  int64_t packed = 0;
  const int64_t parts = threads == 1 ? 1 : std::clamp<int64_t>(4 * threads / chunks, 1, layer.groups);
  for (int64_t c = 0; c < chunks; packed += lengths[c], ++c) {
    const int64_t together = joins(lengths[c]) ? (layer.groups + parts - 1) / parts : 1;
    for (int64_t first = 0; first < lengths[c]; first += step)
      for (int64_t group = 0; group < layer.groups; group += together)
        tasks.push_back({starts[c], first, std::min(step, lengths[c] - first), packed, table_at[c], group,
                         std::min(together, layer.groups - group)});
  }
  // The longest first, so that no thread begins one when the others are done.
  std::stable_sort(tasks.begin(), tasks.end(), [](const AttentionTask &a, const AttentionTask &b) {
    return a.last() * a.tokens * a.groups > b.last() * b.tokens * b.groups;
  });
  return tasks;
}

template <typename T>
void attend_all(const AttentionLayer<T> &layer, const std::vector<AttentionTask> &tasks, int threads,
                void (*attend_one)(const AttentionLayer<T> &, const AttentionTask &)) {
  const auto count = static_cast<int64_t>(tasks.size());
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1 && count > 1)
  for (int64_t i = 0; i < count; ++i) attend_one(layer, tasks[i]);
}

}  // namespace

// `narrow`: query, keys, values and out are bfloat16, else float.
extern "C" void wavepp_paged_attention(const void *query, int64_t query_token, int64_t query_head, const void *keys,
                                       const void *values, const int64_t *tables, const int64_t *table_at,
                                       const int64_t *starts, const int64_t *lengths, int64_t chunks, int64_t block,
                                       int64_t heads, int64_t groups, int64_t dim, int64_t value_dim, double scale,
                                       int64_t window, void *out, int64_t threads, int64_t narrow) {
  const float log2e = 1.44269504f;
  const auto run = [&](auto number, auto attend_one, int64_t rows, int64_t most_rows, auto joins) {
    using T = decltype(number);
    const AttentionLayer<T> layer{
        static_cast<const T *>(query), query_token, query_head, static_cast<const T *>(keys),
        static_cast<const T *>(values), tables, block, heads, groups, dim, value_dim,
        static_cast<float>(scale) * log2e, window, static_cast<T *>(out)};
    const int team = products(layer, starts, lengths, chunks) < TOGETHER ? 1 : static_cast<int>(threads);
    const auto joined = [&](int64_t tokens) { return joins(layer, tokens); };
    attend_all<T>(layer, tasks_of(layer, starts, lengths, table_at, chunks, rows, most_rows, team, joined), team,
                  attend_one);
  };
  const auto never = [](const auto &, int64_t) { return false; };
  if (!narrow)
    run(float{}, attend_in_float<float>, ATTENTION_ROWS, ATTENTION_TASK_ROWS, never);
  else if (has_amx())
    run(uint16_t{}, attend_amx, ATTENTION_AMX_ROWS, ATTENTION_AMX_TASK_ROWS, attends_few_by_amx);
  else if (has_bfloat16())
    run(uint16_t{}, attend_bfloat16, ATTENTION_ROWS, ATTENTION_TASK_ROWS, attends_few_by_bfloat16);
  else
    run(uint16_t{}, attend_in_float<uint16_t>, ATTENTION_ROWS, ATTENTION_TASK_ROWS, never);
}

#endif
