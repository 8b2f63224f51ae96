// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#ifndef STRATA_HANDLERS_COLLECTIVE_H_
#define STRATA_HANDLERS_COLLECTIVE_H_

#include <vector>

#include "core/operation.h"

namespace strata::handlers {

// A custom call target, with its XLA_FFI_Handler functions for registration from Python.
struct Target {
  const char* name;
  const core::Operation& operation;
  void* instantiate;
  void* execute;
};
const std::vector<Target>& Targets();

// The type of all targets' state.
void* CollectiveTypeId();
void* CollectiveTypeInfo();

}  // namespace strata::handlers

#endif  // STRATA_HANDLERS_COLLECTIVE_H_
