# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Permutations and broadcast: every device gets the array of one other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import jax

from strata_jax import fabric
from strata_jax.collectives.types import AxisName, T


def ppermute(x: T, axis_name: AxisName, perm: Iterable[tuple[int, int]]) -> T:
    """Send each device's array to one other device along a mapped axis.

    With 3 devices that hold 1, 2, 3 and `perm=[(0, 1), (1, 2)]`, they get 0, 1, 2: a device that is
    nobody's destination gets zeros.

    Collective: every device that a chain of pairs connects must call it. If one does not, the
    others fail after `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` each array is copied once, from operand to result.
    `stats()["collective_permute"]` counts the bytes.

    Differentiable (the gradient is the inverse permutation), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any shape and dtype: `f32[...]`.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        perm: pairs (source index, destination index); no two have the same source, or the same
            destination.

    Returns:
        Array(s) of the same shape and dtype as `x`.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: two pairs have one source or one destination.
    """
    fabric.note_use("ppermute")
    pairs = [(source, destination) for source, destination in perm]
    return cast(T, jax.lax.ppermute(x, axis_name, pairs))


def pshuffle(x: T, axis_name: AxisName, perm: Sequence[int]) -> T:
    """Let each device get the array of the device that `perm` names.

    With 3 devices that hold 1, 2, 3 and `perm=[2, 0, 1]`, they get 3, 1, 2. A `ppermute` with
    another way to write the permutation; collective, zero-copy, gradients and errors as there.

    Args:
        x: an array, or a pytree of arrays, of any shape and dtype.
        axis_name: name of a mapped axis, or a tuple of names.
        perm: for each index of the axis the index whose array it gets; each occurs once.

    Returns:
        Array(s) of the same shape and dtype as `x`.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: `perm` is no permutation.
    """
    fabric.note_use("pshuffle")
    return cast(T, jax.lax.pshuffle(x, axis_name, perm))


def pbroadcast(x: T, axis_name: AxisName, source: int) -> T:
    """Let all devices along a mapped axis get the array of one of them.

    With 3 devices that hold 1, 2, 3 and `source=1`, all get 2.

    XLA's CPU compiler has no such operation: without `strata_jax.init()` this cannot be compiled.

    Collective: every device of the axis must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: after `strata_jax.init()` the array is read once and written to all results.
    `stats()["collective_broadcast"]` counts the bytes.

    Differentiable (the gradient is a sum that the source alone gets), and maps under `vmap`.

    Args:
        x: an array, or a pytree of arrays, of any shape and dtype: `f32[...]`.
        axis_name: name of a mapped axis (of `shard_map`, `pmap` or `vmap`), or a tuple of names.
        source: index along the axis of the device whose array all get.

    Returns:
        Array(s) of the same shape and dtype as `x`.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        IndexError: `source` is no index of the axis.
    """
    fabric.note_use("pbroadcast")
    return cast(T, jax.lax.pbroadcast(x, axis_name, source))
