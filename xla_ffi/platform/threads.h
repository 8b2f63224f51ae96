// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Threads as this library needs them: they run XLA's programs and sums, and live as long as the
// process.
#ifndef STRATA_PLATFORM_THREADS_H_
#define STRATA_PLATFORM_THREADS_H_

#include <cstdint>
#include <functional>

namespace strata::platform {

// Starts a detached thread with an 8 MiB stack (the rest of a program may run on it), all signals
// blocked (they belong to the application's threads) and the floating point mode of XLA's threads.
// `name` has at most 15 characters. Aborts the process when no thread can be had, as std::thread
// in a noexcept place does: there is nobody to report to.
void StartThread(const char* name, std::function<void()> body);

// Not that of the parent in a forked child.
int64_t ProcessId();

// Cores this process may run on, at least 1.
int NumCores();

// Sets flush-to-zero, denormals-are-zero and round-to-nearest for its scope, as XLA's threads have
// them: bits of a sum must not depend on the thread that computes it.
class ScopedFpMode {
 public:
  ScopedFpMode();
  ~ScopedFpMode();
  ScopedFpMode(const ScopedFpMode&) = delete;
  ScopedFpMode& operator=(const ScopedFpMode&) = delete;

 private:
  unsigned long saved_;
};

}  // namespace strata::platform

#endif  // STRATA_PLATFORM_THREADS_H_
