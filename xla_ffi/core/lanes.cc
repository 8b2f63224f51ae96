// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/lanes.h"

#include <chrono>
#include <map>

#include "platform/threads.h"

namespace strata::core {
namespace {

// How long a shared worker looks for work before it sleeps. Waking a sleeper costs 5 to 50 us on
// the virtual machines this was measured on; a program that reduces again within that time keeps
// its workers awake. A spinning worker yields its core, so it holds up nobody.
constexpr int kSharedSpinUs = 50;

std::atomic<int> num_workers{0};  // 0: the number of cores

}  // namespace

void WorkQueue::Push(Completion completion, std::shared_ptr<const Failure> failure) {
  bool wake = false;
  int start = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    items_.push_back({std::move(completion), std::move(failure)});
    size_.store(static_cast<int>(items_.size()), std::memory_order_release);
    wake = num_sleeping_ > 0;
    if (!started_) {
      started_ = true;
      start = num_threads_;
    }
  }
  if (wake) wake_.notify_one();
  for (int i = 0; i < start; ++i) platform::StartThread(name_, [this] { Work(); });
}

bool WorkQueue::TryPop(int leave, Item* item) {
  std::lock_guard<std::mutex> lock(mu_);
  if (static_cast<int>(items_.size()) <= leave) return false;
  *item = std::move(items_.front());
  items_.pop_front();
  size_.store(static_cast<int>(items_.size()), std::memory_order_release);
  return true;
}

void WorkQueue::Help(int leave) {
  Item item;
  while (size_.load(std::memory_order_acquire) > leave && TryPop(leave, &item)) {
    item.completion.Run(item.failure.get());
  }
}

void WorkQueue::Work() {
  for (;;) {
    Help(0);
    if (spin_us_ > 0) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
      for (int step = 0; size_.load(std::memory_order_acquire) == 0; ++step) {
        platform::SpinPause(step);
        if (step % 16 == 0 && std::chrono::steady_clock::now() > end) break;
      }
      if (size_.load(std::memory_order_acquire) > 0) continue;
    }
    std::unique_lock<std::mutex> lock(mu_);
    ++num_sleeping_;
    wake_.wait(lock, [this] { return !items_.empty(); });
    --num_sleeping_;
  }
}

WorkQueue& LaneOf(int64_t device) {
  // Leaked: lanes run until the process ends.
  static std::mutex& mu = *new std::mutex;  // guards lanes
  static auto& lanes = *new std::map<int64_t, std::unique_ptr<WorkQueue>>;
  std::lock_guard<std::mutex> lock(mu);
  auto& lane = lanes[device];
  if (lane == nullptr) lane = std::make_unique<WorkQueue>("strata-lane", 1, 0);
  return *lane;
}

WorkQueue& SharedWorkers() {
  static WorkQueue& workers = *new WorkQueue("strata-worker", NumWorkers(), kSharedSpinUs);
  return workers;
}

int NumWorkers() {
  const int wanted = num_workers.load(std::memory_order_relaxed);
  static const int cores = platform::NumCores();
  return wanted > 0 ? wanted : cores;
}

void SetNumWorkers(int count) { num_workers.store(count, std::memory_order_relaxed); }

}  // namespace strata::core
