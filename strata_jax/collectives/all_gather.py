# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-gather: every device gets what all hold."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from strata_jax import fabric
from strata_jax.collectives.types import AxisIndexGroups, AxisName, T, dimension


def all_gather(
    x: T,
    axis_name: AxisName,
    *,
    axis_index_groups: AxisIndexGroups = None,
    axis: int = 0,
    tiled: bool = False,
    **options: Any,
) -> T:
    """Gather the arrays of all devices along a mapped axis.

    With 2 devices that hold [1, 2] and [3, 4], both get [[1, 2], [3, 4]]; with `tiled=True`
    [1, 2, 3, 4]; with `axis=1` [[1, 3], [2, 4]].

    Collective: every device of a group must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` each array is read once, in place, and written to its final
    place in all results, whatever `axis` is. `stats()["all_gather"]` counts the bytes.

    Differentiable (the gradient is a `psum_scatter`), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any shape and dtype: `f32[d0, d1, ...]`.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        axis_index_groups: a partition of the axis into groups of equal size, e.g.
            `[[0, 1], [2, 3]]`: each device gets what its group holds, in the group's order. None:
            one group.
        axis: the dimension of the result along which the arrays are joined; may be negative.
        tiled: False to stack them along a new dimension, True to concatenate along an existing one.
        **options: others of `jax.lax.all_gather` of the installed JAX, e.g. `to="reduced"`.

    Returns:
        Array(s) of the same dtype. With n devices in a group, `tiled=False`: `x.shape` with n
        inserted at `axis`; `tiled=True`: `x.shape` with dimension `axis` n times as large.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: `axis` is no dimension of the result; a group differs in size.
    """
    fabric.note_use("all_gather")

    def gather(leaf: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.all_gather(
            leaf,
            axis_name,
            axis_index_groups=axis_index_groups,
            axis=dimension("all_gather", "axis", axis, jnp.ndim(leaf) + (not tiled)),
            tiled=tiled,
            **options,
        )
        return result

    return cast(T, jax.tree.map(gather, x))
