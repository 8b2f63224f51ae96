// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#ifndef STRATA_HANDLERS_ALL_REDUCE_H_
#define STRATA_HANDLERS_ALL_REDUCE_H_

namespace strata::handlers {

// XLA_FFI_Handler functions and the type of their state, for registration from Python.
void* AllReduceInstantiate();
void* AllReduceExecute();
void* CollectiveTypeId();
void* CollectiveTypeInfo();

}  // namespace strata::handlers

#endif  // STRATA_HANDLERS_ALL_REDUCE_H_
