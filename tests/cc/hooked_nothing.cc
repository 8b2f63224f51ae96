// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// A library that imports no allocator.
extern "C" int HookedNothing() { return 0; }
