# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""One all-reduce over two devices through the compiled module; a test of any way to build it."""

from __future__ import annotations

import os

import jax
import numpy as np

import strata_jax


def main() -> None:
    """Sums over two devices, and looks that the sum went through strata_jax."""
    bazel_runfiles = os.environ.get("TEST_SRCDIR", "")
    if not strata_jax.__file__.startswith(bazel_runfiles):
        raise SystemExit(f"expected the package that Bazel built, found {strata_jax.__file__}")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    strata_jax.init()
    x = np.arange(2 * 50_000, dtype=np.float32).reshape(2, -1)
    y = jax.pmap(lambda v: strata_jax.psum(v, "i"), axis_name="i")(x)
    np.testing.assert_array_equal(y, np.broadcast_to(x.sum(0), x.shape))
    counters = strata_jax.stats()["all_reduce"]
    if counters["operations"] != 1:
        raise SystemExit(f"expected one operation on the fabric, found {counters}")
    print(f"strata_jax {strata_jax.__version__} from {strata_jax.__file__}: {counters}")


if __name__ == "__main__":
    main()
