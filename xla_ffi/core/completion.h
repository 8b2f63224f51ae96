// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What a rank waits for: a one-shot continuation that runs the rest of its device's program.
#ifndef STRATA_CORE_COMPLETION_H_
#define STRATA_CORE_COMPLETION_H_

#include <string>
#include <utility>

namespace strata::core {

enum class FailureCode { kInvalidArgument, kDeadlineExceeded, kCancelled, kInternal };

struct Failure {
  FailureCode code;
  std::string message;
};

// Move-only. Run() must be called exactly once on every path: XLA waits for ever for a future that
// nobody completes.
class Completion {
 public:
  // `run` takes ownership of `context`; `failure` is null on success.
  using Fn = void (*)(void* context, const Failure* failure);

  Completion() = default;
  Completion(Fn run, void* context) : run_(run), context_(context) {}
  Completion(Completion&& other) noexcept
      : run_(std::exchange(other.run_, nullptr)), context_(other.context_) {}
  Completion& operator=(Completion&& other) noexcept {
    run_ = std::exchange(other.run_, nullptr);
    context_ = other.context_;
    return *this;
  }

  explicit operator bool() const { return run_ != nullptr; }

  void Run(const Failure* failure) { std::exchange(run_, nullptr)(context_, failure); }

 private:
  Fn run_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace strata::core

#endif  // STRATA_CORE_COMPLETION_H_
