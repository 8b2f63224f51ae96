// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Where continuations run when not on the thread of the rank that came last.
//
// A lane is one thread for one local device and does nothing but run that device's continuations:
// one that blocks (a native collective, a callback) holds up nobody else. The shared workers are as
// many threads as cores and take continuations of any device: fewer hand-overs, but only for
// programs in which nothing blocks.
#ifndef STRATA_CORE_LANES_H_
#define STRATA_CORE_LANES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "core/completion.h"

namespace strata::core {

// Threads that take continuations from one queue. Started at the first Push, never ended.
class WorkQueue {
 public:
  // Workers look at the queue for `spin_us` microseconds before they sleep.
  WorkQueue(const char* name, int num_threads, int spin_us)
      : name_(name), num_threads_(num_threads), spin_us_(spin_us) {}

  void Push(Completion completion, std::shared_ptr<const Failure> failure);

  // Runs queued continuations on the calling thread while more than `leave` of them wait.
  void Help(int leave);

 private:
  struct Item {
    Completion completion;
    std::shared_ptr<const Failure> failure;
  };

  bool TryPop(int leave, Item* item);
  void Work();

  const char* const name_;
  const int num_threads_;
  const int spin_us_;
  std::mutex mu_;  // guards all below; continuations run outside it
  std::condition_variable wake_;
  std::deque<Item> items_;
  bool started_ = false;
  int num_sleeping_ = 0;
  // Items in the queue, for a look without the lock; written under it.
  std::atomic<int> size_{0};
};

// The lane of a device (its global id). Made at the first call, never destroyed.
WorkQueue& LaneOf(int64_t device);

// The workers of all devices. SetNumWorkers (0: the number of cores) counts before first use only.
WorkQueue& SharedWorkers();
int NumWorkers();
void SetNumWorkers(int num_workers);

}  // namespace strata::core

#endif  // STRATA_CORE_LANES_H_
