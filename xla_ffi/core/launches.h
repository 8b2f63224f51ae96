// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Numbers for the runs of programs that are the same in all processes.
//
// XLA's run ids are not: those of an executable count up from a hash of its optimised text, and
// that differs with paths, cores and constants. So a run is known by which executable of its
// identity it is of, in the order of their first runs, and how many runs after the first it is. A
// compilation of the same text goes on counting where the one before stopped, so the ids alone
// tell executables apart.
#ifndef STRATA_CORE_LAUNCHES_H_
#define STRATA_CORE_LAUNCHES_H_

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace strata::core {

class Launches {
 public:
  struct Number {
    uint32_t executable, run;
  };

  Number Of(int64_t run_id) {
    const uint32_t id = static_cast<uint32_t>(run_id);
    std::lock_guard<std::mutex> lock(mu_);
    for (size_t i = 0; i < executables_.size(); ++i) {
      Executable& executable = executables_[i];
      const uint32_t run = id - executable.first;
      if (run <= executable.last + kMostSkipped) {
        executable.last = std::max(executable.last, run);
        return {static_cast<uint32_t>(i), run};
      }
    }
    executables_.push_back({id, 0});
    return {static_cast<uint32_t>(executables_.size()) - 1, 0};
  }

 private:
  struct Executable {
    uint32_t first, last;  // run id of the first run, number of the latest
  };
  // Runs that may go by without an operation (in a branch that is not taken). Two executables have
  // ids this close by chance once in a million.
  static constexpr uint32_t kMostSkipped = 1 << 12;

  std::mutex mu_;
  std::vector<Executable> executables_;
};

}  // namespace strata::core

#endif  // STRATA_CORE_LAUNCHES_H_
