# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The compile hook: finds the collectives of an XLA module and puts them on the fabric."""
