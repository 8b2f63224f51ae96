# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-to-all: every device sends a part of its array to every other."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp

from strata_jax import fabric
from strata_jax.collectives.types import AxisIndexGroups, AxisName, T, check_bound, dimension


def all_to_all(
    x: T,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: AxisIndexGroups = None,
    tiled: bool = False,
) -> T:
    """Cut each device's array along one dimension, and join the parts of all along another.

    With 2 devices that hold [[1, 2], [3, 4]] and [[5, 6], [7, 8]], `split_axis=0` and
    `concat_axis=0`, the first gets [[1, 2], [5, 6]], the second [[3, 4], [7, 8]].

    Collective: every device of a group must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` each element goes from the operand to its place in the
    result in one copy, with no slice, transpose or concatenate around it.
    `stats()["all_to_all"]` counts the bytes.

    Differentiable (the gradient is the inverse all-to-all), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any dtype: `f32[d0, d1, ...]`.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        split_axis: the dimension that is cut in parts; part i goes to device i. May be negative.
        concat_axis: the dimension of the result along which the parts are joined, in the order of
            their senders. May be negative.
        axis_index_groups: a partition of the axis into groups of equal size, e.g.
            `[[0, 1], [2, 3]]`: each is an all-to-all of its own. None: one group.
        tiled: False where dimension `split_axis` has one element a device: it is dropped, and a new
            one inserted at `concat_axis`. True to cut and concatenate existing dimensions.

    Returns:
        Array(s) of the same dtype. With n devices in a group, `tiled=False`: `x.shape` without
        `split_axis` and with n inserted at `concat_axis`; `tiled=True`: `x.shape` with `split_axis`
        divided and `concat_axis` multiplied by n.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: dimension `split_axis` cannot be cut in as many equal parts as there are
            devices; a group differs in size.
    """
    fabric.note_use("all_to_all")
    check_bound(axis_name)

    def exchange(leaf: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.all_to_all(
            leaf,
            axis_name,
            dimension("all_to_all", "split_axis", split_axis, jnp.ndim(leaf)),
            dimension("all_to_all", "concat_axis", concat_axis, jnp.ndim(leaf)),
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
        return result

    return cast(T, jax.tree.map(exchange, x))
