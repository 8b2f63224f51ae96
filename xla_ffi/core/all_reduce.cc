// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/all_reduce.h"

#include <algorithm>

#include "platform/threads.h"

namespace strata::core {
namespace {

// Bytes of one rank's buffer in a unit. Small enough that two cores end at the same time, large
// enough that claiming (about 0.1 us) is lost in it.
constexpr int64_t kUnitBytes = 128 << 10;

// Results of all ranks together from which stores bypass the caches: the last-level cache would
// not hold them until they are read, and a cached store reads the line first.
constexpr int64_t kStreamBytes = 8 << 20;

// Written at init, read by every large operation; orders nothing.
std::atomic<int> num_threads_wanted{0};

}  // namespace

int NumThreads() {
  const int wanted = num_threads_wanted.load(std::memory_order_relaxed);
  static const int cores = platform::NumCores();
  return wanted > 0 ? wanted : cores;
}

void SetNumThreads(int num_threads) {
  num_threads_wanted.store(num_threads, std::memory_order_relaxed);
}

void AllReduceWork::Clear(int num_ranks) {
  num_ranks_ = num_ranks;
  num_bytes_ = num_units_ = 0;
  buffers_.clear();
  starts_.clear();
  next_.store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
}

void AllReduceWork::Add(const Buffer& buffer) {
  buffers_.push_back(buffer);
  starts_.push_back(num_bytes_);
  num_bytes_ += (buffer.num_elements * buffer.bit_width + 7) / 8;
}

void AllReduceWork::Plan() {
  num_units_ = (num_bytes_ + kUnitBytes - 1) / kUnitBytes;
  stream_ = num_bytes_ * num_ranks_ >= kStreamBytes;
}

bool AllReduceWork::Run() {
  platform::ScopedFpMode fp_mode;
  int64_t num_done = 0;
  for (;;) {
    const int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= num_units_) break;
    RunUnit(unit);
    ++num_done;
  }
  if (num_done == 0) return num_units_ == 0;
  return done_.fetch_add(num_done, std::memory_order_acq_rel) + num_done == num_units_;
}

void AllReduceWork::RunUnit(int64_t unit) const {
  const int64_t begin = unit * kUnitBytes, end = std::min(begin + kUnitBytes, num_bytes_);
  size_t index = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
  for (; index < buffers_.size() && starts_[index] < end; ++index) {
    const Buffer& buffer = buffers_[index];
    // A boundary inside a buffer is moved down to a multiple of 64 elements, by the same rule for
    // the unit that ends and the one that begins there.
    auto element_at = [&](int64_t byte) -> int64_t {
      if (byte <= starts_[index]) return 0;
      const int64_t element = (byte - starts_[index]) * 8 / buffer.bit_width;
      return element >= buffer.num_elements ? buffer.num_elements : element / 64 * 64;
    };
    const int64_t first = element_at(begin), last = element_at(end);
    if (first < last) buffer.reduce(buffer.in, buffer.out, num_ranks_, first, last, stream_);
  }
}

}  // namespace strata::core
