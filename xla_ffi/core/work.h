// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The bytes that one operation moves: a list of transfers, cut into units that any thread may take.
#ifndef STRATA_CORE_WORK_H_
#define STRATA_CORE_WORK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/kernels.h"

namespace strata::core {

// Threads that work on one large operation, the number of cores unless set (0: cores again).
int NumThreads();
void SetNumThreads(int num_threads);

// A loop over rows, or over groups of them; strides are in elements.
struct Loop {
  int64_t count, in_stride, out_stride;
};

// Rows of `run` elements that are contiguous in operand and result, in loops around them.
struct Rows {
  std::vector<Loop> loops;  // outermost first
  int64_t run = 0;
  int64_t num_elements = 0;               // of all rows
  int64_t in_extent = 0, out_extent = 0;  // elements from the first one's start to the last's end

  // Sums up; false if counts or strides are negative.
  bool Measure();
};
Rows OneRow(int64_t num_elements);

// Elements of some operands that are combined, and stored to some results. With one operand it is
// a copy, and with none zeros are stored.
struct Transfer {
  ReduceFn reduce = nullptr;  // may be null unless there are several operands
  int bit_width = 8;
  int num_in = 0, num_out = 0;
  const void* const* in = nullptr;  // the arrays must outlive the work, as must the rows
  void* const* out = nullptr;
  int64_t in_offset = 0, out_offset = 0;  // elements, the same in all operands, in all results
  const Rows* rows = nullptr;             // null: one row of `num_elements`
  int64_t num_elements = 0;               // set by Add() where there are rows
  bool is_whole = false;                  // fills its results: a last byte may be half used
};

// Who takes part in a piece of work: units claimed so far, and units done. May lie in memory that
// processes share.
struct WorkCounters {
  // A claim needs no order, the units are independent.
  alignas(64) std::atomic<int64_t> next{0};
  // The last one's increment orders all stores before the completion.
  alignas(64) std::atomic<int64_t> done{0};
};

class Work {
 public:
  // Starts anew. Nobody may be in Run() of the work before.
  void Clear();
  // Results whose pointer is null are left out: somebody else writes them.
  void Add(Transfer transfer);
  // To be called once after the last Add().
  void Plan();

  int64_t num_units() const { return num_units_; }
  int64_t moved_bytes() const { return moved_bytes_; }      // read or written, whichever is more
  int64_t written_bytes() const { return written_bytes_; }  // to all results

  // Does units until none is left to claim. True for the one caller that finished the last one.
  bool Run() { return Run(counters_, nullptr); }
  // With counters that others, who planned the same work, share; stops early once `closed` is set.
  bool Run(WorkCounters& counters, const std::atomic<uint32_t>* closed);

 private:
  void RunUnit(int64_t unit) const;
  void RunRows(const Transfer& transfer, int64_t first, int64_t last) const;
  void RunBits(const Transfer& transfer) const;

  std::vector<Transfer> transfers_;
  std::vector<int64_t> starts_;  // byte of the work at which each transfer starts
  int64_t num_bytes_ = 0, num_units_ = 0, moved_bytes_ = 0, written_bytes_ = 0;
  bool stream_ = false;
  bool whole_bytes_ = true;              // else rows of packed elements begin inside bytes
  std::deque<std::vector<void*>> kept_;  // results of transfers of which some were left out
  WorkCounters counters_;
};

}  // namespace strata::core

#endif  // STRATA_CORE_WORK_H_
