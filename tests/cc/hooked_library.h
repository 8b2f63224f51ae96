// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What the test calls in hooked_library.cc, by dlsym.
#ifndef STRATA_TESTS_CC_HOOKED_LIBRARY_H_
#define STRATA_TESTS_CC_HOOKED_LIBRARY_H_

#include <stddef.h>

enum HookedWay { kByCall, kByData };  // realloc: by an address taken in code, or by data

using HookedAllocateFn = int(void** out, size_t alignment, size_t num_bytes);
using HookedFreeFn = void(void* pointer, int way);
using HookedReallocFn = void*(void* pointer, size_t num_bytes, int way);

#endif  // STRATA_TESTS_CC_HOOKED_LIBRARY_H_
