# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Reduce-scatter: every device gets its part of the sum."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp

from strata_jax import fabric
from strata_jax.collectives.types import AxisIndexGroups, AxisName, T, dimension


def psum_scatter(
    x: T,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: AxisIndexGroups = None,
    tiled: bool = False,
) -> T:
    """Sum over all devices along a mapped axis, each keeping one part of the sum.

    With 2 devices that hold [1., 2.] and [10., 20.], the first gets 11., the second 22.; with
    `tiled=True` [11.] and [22.]. Sums are made as those of `psum`: in rank order, in float32 for
    16-bit and 8-bit floats and rounded once.

    Collective: every device of a group must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` each element of each array is read once, in place, and the
    sum written to its final place, whatever `scatter_dimension` is. `stats()["reduce_scatter"]`
    counts the bytes.

    Differentiable (the gradient is an `all_gather`), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any numeric dtype: `f32[d0, d1, ...]`.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        scatter_dimension: the dimension that is cut in parts, one for each device of a group.
        axis_index_groups: a partition of the axis into groups of equal size, e.g.
            `[[0, 1], [2, 3]]`: sums are made within each group. None: one group.
        tiled: False where the dimension has one element a device, which is then dropped; True to
            keep the dimension.

    Returns:
        Array(s) of the same dtype; dimension `scatter_dimension` is divided by the number of
        devices in a group (`tiled=True`) or absent (`tiled=False`).

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: the dimension cannot be cut in as many equal parts as there are devices.
    """
    fabric.note_use("psum_scatter")

    def scatter(leaf: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.psum_scatter(
            leaf,
            axis_name,
            scatter_dimension=dimension(
                "psum_scatter", "scatter_dimension", scatter_dimension, jnp.ndim(leaf)
            ),
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
        return result

    return cast(T, jax.tree.map(scatter, x))
