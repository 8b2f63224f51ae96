// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/copy_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/kernels.h"
#include "platform/memory.h"

namespace strata::core {

double CopyBandwidth(size_t num_bytes, int num_threads, int repeat) {
  using Clock = std::chrono::steady_clock;
  std::unique_ptr<platform::Region> region;
  const size_t all_bytes = 2 * num_bytes * num_threads;
  if (!platform::Region::Reserve(platform::Backing::kAnonymous, all_bytes, all_bytes, &region)
           .empty() ||
      !region->Commit(0, all_bytes).empty()) {
    return 0;
  }
  region->AdviseHugePages(true);
  std::memset(region->base(), 1, all_bytes);
  double best = 0;
  for (int round = 0; round < repeat; ++round) {
    // Threads count themselves ready and then wait for the start, so that all copy at once; both
    // orders (ready before go, go before copying) are that of the counter.
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back([&, i] {
        char* source = region->base() + 2 * num_bytes * i;
        ready.fetch_add(1);
        while (!go.load()) std::this_thread::yield();
        Kernels().stream_copy(source + num_bytes, source, num_bytes);
      });
    }
    while (ready.load() < num_threads) std::this_thread::yield();
    const auto start = Clock::now();
    go.store(true);
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, static_cast<double>(num_bytes) * num_threads / seconds.count());
  }
  return best;
}

}  // namespace strata::core
