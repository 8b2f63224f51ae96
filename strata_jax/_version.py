# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The version, once."""

__version__ = "0.1.0"
