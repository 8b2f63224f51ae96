// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#ifndef STRATA_CORE_COPY_BANDWIDTH_H_
#define STRATA_CORE_COPY_BANDWIDTH_H_

#include <cstddef>

namespace strata::core {

// Bytes per second that `num_threads` threads copy together with stores past the caches, each
// between buffers of its own of `num_bytes` bytes; the best of `repeat` rounds. This is the ceiling
// that collectives are measured against. 0 when memory for the buffers cannot be had.
double CopyBandwidth(size_t num_bytes, int num_threads, int repeat);

}  // namespace strata::core

#endif  // STRATA_CORE_COPY_BANDWIDTH_H_
