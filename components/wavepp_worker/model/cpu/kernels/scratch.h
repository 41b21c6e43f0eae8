// Memory that a thread keeps from one call of a kernel to the next.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

constexpr int64_t LINE = 64;  // bytes of a cache line

// Room for `count` numbers, from the start of a cache line on, in a buffer that grows as needed. What was in it is lost.
//
// The buffer is thread_local in a function that its thread calls by itself: declared before a parallel region and used
// within, it is not freed when a thread of the region ends.
template <typename T>
T *scratch(std::vector<T> &buffer, int64_t count) {
  constexpr int64_t OF_LINE = LINE / sizeof(T);
  const auto needed = static_cast<size_t>(count + OF_LINE);
  if (buffer.size() < needed) {
    // Not both, the old and the new, at a time.
    std::vector<T>().swap(buffer);
    buffer.resize(needed);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.data()), mask = LINE - 1;
  return reinterpret_cast<T *>((address + mask) & ~mask);
}
