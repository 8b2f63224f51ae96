# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The all-reduces. Each is the JAX collective of the same name, on the fabric after init()."""

from __future__ import annotations

from typing import cast

import jax

from strata_jax import fabric
from strata_jax.collectives.types import AxisIndexGroups, AxisName, T


def psum(x: T, axis_name: AxisName, *, axis_index_groups: AxisIndexGroups = None) -> T:
    """Sum over all devices along a mapped axis.

    With 2 devices that hold [1., 2.] and [10., 20.], both get [11., 22.]. Sums are made in rank
    order, in float32 for 16-bit and 8-bit floats and rounded once, so all devices get the same
    bits, in every run.

    Collective: every device of a group must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` inputs are read and outputs written in place; `stats()`
    counts the bytes, and each collective that stayed native with its reason.

    Differentiable (the gradient is that of `jax.lax.psum`), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any shape and numeric dtype: `f32[...]`; bool is
            summed as int32.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        axis_index_groups: a partition of the axis, e.g. `[[0, 1], [2, 3]]`: sums are made within
            each group. None: one group.

    Returns:
        Array(s) of the same shape as `x`.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.

    Example:
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((jax.device_count(),), ("i",),
        ...                      axis_types=(jax.sharding.AxisType.Auto,))
        >>> sum_all = jax.jit(jax.shard_map(lambda v: psum(v, "i"), mesh=mesh,
        ...                                 in_specs=P("i"), out_specs=P()))
        >>> bool(sum_all(jax.numpy.ones(jax.device_count()))[0] == jax.device_count())
        True
    """
    fabric.note_use("psum")
    return cast(T, jax.lax.psum(x, axis_name, axis_index_groups=axis_index_groups))


def pmean(x: T, axis_name: AxisName, *, axis_index_groups: AxisIndexGroups = None) -> T:
    """Mean over all devices along a mapped axis: `psum` divided by the number of devices.

    Collective, zero-copy, arguments, errors and gradients as `psum`.

    Args:
        x: an array or a pytree of arrays, of any shape and numeric dtype.
        axis_name: name of a mapped axis, or a tuple of names.
        axis_index_groups: a partition of the axis; None for one group.

    Returns:
        Array(s) of the same shape as `x`; integers become floats.
    """
    fabric.note_use("pmean")
    return cast(T, jax.lax.pmean(x, axis_name, axis_index_groups=axis_index_groups))


def pmax(x: T, axis_name: AxisName, *, axis_index_groups: AxisIndexGroups = None) -> T:
    """Maximum over all devices along a mapped axis, element by element.

    As `jnp.maximum` folded in rank order: NaN wins, and 0. is above -0. Collective, zero-copy and
    errors as `psum`. Not differentiable, as `jax.lax.pmax`: `jax.grad` raises
    NotImplementedError; take the gradient of an `all_gather` and a local maximum instead.

    Args:
        x: an array or a pytree of arrays, of any shape and any dtype but complex.
        axis_name: name of a mapped axis, or a tuple of names.
        axis_index_groups: a partition of the axis; None for one group.

    Returns:
        Array(s) of the same shape and dtype as `x`.
    """
    fabric.note_use("pmax")
    return cast(T, jax.lax.pmax(x, axis_name, axis_index_groups=axis_index_groups))


def pmin(x: T, axis_name: AxisName, *, axis_index_groups: AxisIndexGroups = None) -> T:
    """Minimum over all devices along a mapped axis, element by element; as `pmax`.

    Args:
        x: an array or a pytree of arrays, of any shape and any dtype but complex.
        axis_name: name of a mapped axis, or a tuple of names.
        axis_index_groups: a partition of the axis; None for one group.

    Returns:
        Array(s) of the same shape and dtype as `x`.
    """
    fabric.note_use("pmin")
    return cast(T, jax.lax.pmin(x, axis_name, axis_index_groups=axis_index_groups))
