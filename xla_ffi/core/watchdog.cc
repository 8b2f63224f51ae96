// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "core/alloc_hook.h"
#include "core/collective.h"
#include "core/fabric.h"
#include "platform/threads.h"

namespace strata::core {
namespace {

constexpr double kTicksPerSecond = 4;
// Age at which an interrupt fails an operation: one that is about to complete is left alone.
constexpr uint32_t kInterruptedTicks = 4;

// Written by the watchdog's thread alone, read by arriving ranks; orders nothing.
std::atomic<uint32_t> now{1};
// Written by Start and LimitDeadline, read by the watchdog's thread at each tick.
std::atomic<uint32_t> warn_ticks{80}, fail_ticks{160}, across_ticks{7200};
// When SIGINT came, 0 when not lately. Written by the thread that reads signals and, to clear it,
// by the watchdog's; a signal lost between the two is as if it had come a moment earlier.
std::atomic<uint32_t> interrupted_tick{0};
std::atomic<bool> started{false};

uint32_t ToTicks(double seconds) {
  const double ticks = std::clamp(seconds * kTicksPerSecond, 1.0, 1e9);
  return static_cast<uint32_t>(ticks);
}

std::string Seconds(uint32_t ticks) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", ticks / kTicksPerSecond);
  return text;
}

void Tick() {
  const uint32_t tick = now.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint32_t warn = warn_ticks.load(std::memory_order_relaxed);
  const uint32_t fail = fail_ticks.load(std::memory_order_relaxed);
  const uint32_t across_fail = across_ticks.load(std::memory_order_relaxed);
  if (tick % static_cast<uint32_t>(kTicksPerSecond) == 0) {
    if (Arena* arena = AllocatorArena()) arena->Tick(tick / kTicksPerSecond);
  }
  if (Fabric* fabric = TheFabric()) {
    // What waits for a record is looked at by the engine.
    if (fabric->Sweep()) fabric->Ring(uint64_t{1} << fabric->slot());
  }
  std::vector<std::string> lines;
  ReportOpenUses(tick - warn, &lines);
  for (const std::string& line : lines) {
    // Standard error, not Python's logging: the thread that holds the interpreter's lock may be
    // the one that waits.
    std::fprintf(stderr, "strata_jax: %s for %s already\n", line.c_str(), Seconds(warn).c_str());
  }
  const auto since = [tick](uint32_t first_tick) {
    return static_cast<int32_t>(tick - first_tick);
  };
  if (const uint32_t interrupted = interrupted_tick.load(std::memory_order_relaxed)) {
    // What was open when the signal came, as soon as it is old enough.
    const uint32_t old_enough = tick - kInterruptedTicks;
    const bool all_old = static_cast<int32_t>(old_enough - interrupted) >= 0;
    const uint32_t latest = all_old ? interrupted : old_enough;
    FailOpenUses(
        [latest](uint32_t first, bool) { return static_cast<int32_t>(latest - first) >= 0; },
        FailureCode::kCancelled,
        [](const std::string& who, bool) { return who + "; given up: interrupted (SIGINT)"; });
    if (all_old) interrupted_tick.store(0, std::memory_order_relaxed);
  }
  const auto limit = [fail, across_fail](bool across) { return across ? across_fail : fail; };
  FailOpenUses(
      [&](uint32_t first, bool across) {
        return since(first) >= static_cast<int32_t>(limit(across));
      },
      FailureCode::kDeadlineExceeded,
      [&](const std::string& who, bool across) {
        return who + "; given up after " + Seconds(limit(across)) +
               ". The program there raised, or is slower than the deadline: look for an earlier "
               "error, or give init(timeout_s=...) or STRATA_TIMEOUT_S more seconds";
      });
}

}  // namespace

void Watchdog::Start(double warn_s, double fail_s, double fail_across_s) {
  warn_ticks.store(ToTicks(warn_s), std::memory_order_relaxed);
  fail_ticks.store(ToTicks(fail_s), std::memory_order_relaxed);
  across_ticks.store(ToTicks(fail_across_s), std::memory_order_relaxed);
  if (started.exchange(true)) return;
  platform::StartThread("strata-watchdog", [] {
    using Clock = std::chrono::steady_clock;
    const auto period = std::chrono::milliseconds(static_cast<int>(1000 / kTicksPerSecond));
    for (auto next = Clock::now() + period;; next += period) {
      std::this_thread::sleep_until(next);
      Tick();
      // After a stop (SIGSTOP, a suspended machine) time goes on from now: nobody could come.
      next = std::max(next, Clock::now() - period);
    }
  });
}

uint32_t Watchdog::Now() { return now.load(std::memory_order_relaxed); }

void Watchdog::LimitDeadline(double fail_s) {
  const uint32_t limit = ToTicks(fail_s);
  if (fail_ticks.load(std::memory_order_relaxed) > limit) {
    fail_ticks.store(limit, std::memory_order_relaxed);
  }
}

void Watchdog::WatchInterrupts(int read_fd, int forward_fd) {
  platform::StartThread("strata-signals", [read_fd, forward_fd] {
    for (;;) {
      unsigned char number;
      const ssize_t count = read(read_fd, &number, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count != 1) break;
      if (forward_fd >= 0 && write(forward_fd, &number, 1) < 0) {
        // The reader is gone or full; Python ignores that too.
      }
      if (number == SIGINT) interrupted_tick.store(Now(), std::memory_order_relaxed);
    }
    close(read_fd);
  });
}

}  // namespace strata::core
