# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""While JAX lowers a program: its module is marked, and what XLA would spoil is kept."""
