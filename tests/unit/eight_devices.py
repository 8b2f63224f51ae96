# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Importing this gives the process 8 CPU devices, and JAX's strict rules; for a conftest."""

from __future__ import annotations

import jax

# Before any backend exists, hence before any test module is imported.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
