# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Eight CPU devices in one process, and JAX's strict rules, for all tests of this folder."""

import eight_devices  # noqa: F401
