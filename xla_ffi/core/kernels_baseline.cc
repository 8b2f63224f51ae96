// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#define STRATA_ISA baseline
#include "core/kernels_impl.h"
