# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The collectives: each is the JAX collective of the same name, on the fabric after init()."""
