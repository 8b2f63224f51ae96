// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#define STRATA_ISA avx2
#include "core/kernels_impl.h"
