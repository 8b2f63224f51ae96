// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/kernels.h"

#include <atomic>
#include <cstring>

namespace strata::core {
namespace {

// Best first.
constexpr const KernelSet* kSets[] = {
#if defined(__x86_64__)
    &avx512::kKernels,
    &avx2::kKernels,
#endif
    &baseline::kKernels,
};

// Written by SelectKernels at init, read by every reduction; the sets themselves are constants.
std::atomic<const KernelSet*> chosen{nullptr};

}  // namespace

const KernelSet& Kernels() {
  const KernelSet* set = chosen.load(std::memory_order_relaxed);
  if (set == nullptr) {
    SelectKernels("");
    set = chosen.load(std::memory_order_relaxed);
  }
  return *set;
}

bool SelectKernels(const char* name) {
  for (const KernelSet* set : kSets) {
    if ((name[0] == '\0' || std::strcmp(name, set->name) == 0) && set->supported()) {
      chosen.store(set, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace strata::core
