// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What arena.cc and arena_pages.cc share.
#ifndef STRATA_CORE_ARENA_INTERNAL_H_
#define STRATA_CORE_ARENA_INTERNAL_H_

#include <mutex>

#include "core/arena.h"

namespace strata::core {

// Holds an arena's mutex. Between BeforeFork and AfterFork the forking thread has it already, and
// other libraries' fork handlers, which run in between on that thread, may allocate and free.
class Arena::Lock {
 public:
  explicit Lock(const Arena& arena);

  static thread_local Arena* forking_arena;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace strata::core

#endif  // STRATA_CORE_ARENA_INTERNAL_H_
