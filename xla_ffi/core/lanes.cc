// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/lanes.h"

#include <map>

#include "platform/threads.h"

namespace strata::core {

void Lane::Push(Completion completion, std::shared_ptr<const Failure> failure) {
  bool start = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    items_.push_back({std::move(completion), std::move(failure)});
    start = !started_;
    started_ = true;
  }
  if (start) {
    platform::StartThread("strata-lane", [this] { Work(); });
  } else {
    wake_.notify_one();
  }
}

void Lane::Work() {
  for (;;) {
    std::unique_lock<std::mutex> lock(mu_);
    wake_.wait(lock, [this] { return !items_.empty(); });
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item.completion.Run(item.failure.get());
  }
}

Lane& LaneOf(int64_t device) {
  // Leaked: lanes run until the process ends.
  static std::mutex& mu = *new std::mutex;  // guards lanes
  static auto& lanes = *new std::map<int64_t, std::unique_ptr<Lane>>;
  std::lock_guard<std::mutex> lock(mu);
  auto& lane = lanes[device];
  if (lane == nullptr) lane = std::make_unique<Lane>();
  return *lane;
}

}  // namespace strata::core
