// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The work of one all-reduce: cut into units that any thread may take.
#ifndef STRATA_CORE_ALL_REDUCE_H_
#define STRATA_CORE_ALL_REDUCE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/kernels.h"

namespace strata::core {

// Threads that work on one large operation, the number of cores unless set (0: cores again).
int NumThreads();
void SetNumThreads(int num_threads);

// Every element of every buffer, reduced over all ranks in rank order and stored to all of them.
// The buffers count as one run of bytes, so that many small ones are as cheap as one large one.
class AllReduceWork {
 public:
  // One buffer: pointers of all ranks.
  struct Buffer {
    ReduceFn reduce;
    int bit_width;
    int64_t num_elements;
    const void* const* in;
    void* const* out;
  };

  // Starts anew. Nobody may be in Run() of the work before.
  void Clear(int num_ranks);
  // The pointers' arrays must outlive the work.
  void Add(const Buffer& buffer);
  // To be called once after the last Add().
  void Plan();

  int64_t num_units() const { return num_units_; }
  int64_t num_bytes() const { return num_bytes_; }  // of one rank

  // Does units until none is left to claim. True for the one caller that finished the last one.
  bool Run();

 private:
  void RunUnit(int64_t unit) const;

  int num_ranks_ = 0;
  int64_t num_bytes_ = 0, num_units_ = 0;
  bool stream_ = false;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> starts_;  // byte at which each buffer starts
  // Units claimed so far; a claim needs no order, the units are independent.
  std::atomic<int64_t> next_{0};
  // Units done; the last one's increment orders all stores before the completion.
  std::atomic<int64_t> done_{0};
};

}  // namespace strata::core

#endif  // STRATA_CORE_ALL_REDUCE_H_
