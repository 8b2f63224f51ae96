// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Sees to it that nobody waits for ever: one thread that reports an operation whose ranks are
// missing after a while, and fails it at the deadline.
#ifndef STRATA_CORE_WATCHDOG_H_
#define STRATA_CORE_WATCHDOG_H_

#include <cstdint>

namespace strata::core {

class Watchdog {
 public:
  // Starts the thread at the first call; later calls change the times. Seconds, counted from the
  // arrival of an operation's first rank; `fail_across_s` for those with ranks in other processes.
  static void Start(double warn_s, double fail_s, double fail_across_s);

  // The clock of deadlines, in quarters of a second: read on every first arrival, so it is a
  // counter that the watchdog's thread advances.
  static uint32_t Now();

  // From now on the deadline among devices of this process is at most this many seconds: it is
  // about to end. Other processes may well be on their way.
  static void LimitDeadline(double fail_s);

  // Reads signal numbers, a byte each, that Python's wake-up descriptor delivers to `read_fd`. On
  // SIGINT fails what is open then, once it has waited for a second: the interpreter's main thread
  // may be waiting for just that, and sees no signal until then. Every byte is passed on to
  // `forward_fd` unless that is -1. Takes `read_fd` over; ends when its other end is closed.
  static void WatchInterrupts(int read_fd, int forward_fd);
};

}  // namespace strata::core

#endif  // STRATA_CORE_WATCHDOG_H_
