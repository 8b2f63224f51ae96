// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Where continuations run when not on the thread of the rank that came last.
//
// A lane is one thread for one local device and does nothing but run that device's continuations:
// one that blocks (a native collective, a callback) holds up nobody else.
#ifndef STRATA_CORE_LANES_H_
#define STRATA_CORE_LANES_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "core/completion.h"

namespace strata::core {

// Its thread starts at the first Push and never ends.
class Lane {
 public:
  void Push(Completion completion, std::shared_ptr<const Failure> failure);

 private:
  struct Item {
    Completion completion;
    std::shared_ptr<const Failure> failure;
  };

  void Work();

  std::mutex mu_;  // guards all below; continuations run outside it
  std::condition_variable wake_;
  std::deque<Item> items_;
  bool started_ = false;
};

// The lane of a device (its global id). Made at the first call, never destroyed.
Lane& LaneOf(int64_t device);

}  // namespace strata::core

#endif  // STRATA_CORE_LANES_H_
