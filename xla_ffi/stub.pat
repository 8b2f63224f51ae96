# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
# What nanobind's stub generator cannot see.
strata_jax._core.FFI_API_VERSION$:
    FFI_API_VERSION: tuple[int, int]
strata_jax._core.MAX_PROCESSES$:
    MAX_PROCESSES: int
