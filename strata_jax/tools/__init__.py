# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The command line `strata-jax`: bench, doctor and demo. No file of it imports JAX at import."""

from __future__ import annotations
