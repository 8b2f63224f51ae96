# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Oracles of the collectives that compute: all-reduce and reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from strata_jax.reference import ranks
from strata_jax.reference.ranks import Array, Groups

KINDS = ("sum", "product", "max", "min", "and", "or", "xor")

# Reduced as float32 and rounded once at the end.
_NARROW_FLOATS = frozenset(
    np.dtype(dtype)
    for dtype in (
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float4_e2m1fn,
        ml_dtypes.float8_e3m4,
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
    )
)
# Reduced as int8 and cut to their bits at the end.
_NARROW_INTEGERS = frozenset(
    np.dtype(dtype) for dtype in (ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.uint4)
)
_BITWISE = ("and", "or", "xor")


def all_reduce(kind: str, shards: Sequence[Array], groups: Groups | None = None) -> list[Array]:
    """Reduces the arrays of all ranks, element by element.

    With `kind="sum"` and two ranks that hold [1., 2.] and [10., 20.], both get [11., 22.].

    The fold goes in rank order: ((x_0 + x_1) + x_2) + ...; the order is that of the group's list.

    * float16, bfloat16, the 8-bit and the 4-bit floats are folded in float32 and rounded once.
    * Integers wrap. Those of 2 and 4 bits are folded as int8 and cut to their bits at the end.
    * Sums and products treat denormal float32 and float64 numbers as zeros, going in and coming
      out, as XLA's threads do. A group of one rank keeps them: nothing is computed.
    * Maximum and minimum: NaN wins, of several that of the lowest rank; -0. is below 0.
    * bool: a sum is an or, a product is an and. (`psum` turns bool into int32 before it sums.)

    Args:
        kind: one of "sum", "product", "max", "min", "and", "or", "xor".
        shards: one array a rank, all of one shape and dtype.
        groups: a partition of the ranks, e.g. `[[0, 2], [1]]`, each reduced on its own; None for
            one group of all.

    Returns:
        One new array a rank, of the same shape and dtype.

    Raises:
        ValueError: `kind` is unknown, `shards` differ or are none, `groups` are no partition.
        TypeError: the dtype has no such reduction.

    Example:
        >>> all_reduce("max", [np.array([1, 5]), np.array([3, 2])])[0].tolist()
        [3, 5]
    """
    if kind not in KINDS:
        raise ValueError(f"all_reduce: kind is {kind!r}, but must be one of {', '.join(KINDS)}")
    arrays = ranks.alike("all_reduce", shards)
    groups = ranks.partition("all_reduce", len(arrays), groups)
    results: list[Array] = list(arrays)
    for group in groups:
        reduced = _fold(kind, [arrays[rank] for rank in group])
        for rank in group:
            results[rank] = reduced.copy()
    return results


def reduce_scatter(
    kind: str,
    shards: Sequence[Array],
    dimension: int = 0,
    tiled: bool = False,
    groups: Groups | None = None,
) -> list[Array]:
    """Reduces the arrays of all ranks, each keeping one part.

    With `kind="sum"` and two ranks that hold [1., 2.] and [10., 20.], the first gets 11., the
    second 22.; with `tiled=True` [11.] and [22.].

    The fold is that of `all_reduce`, in the order of the group's list; the i-th rank of the list
    keeps part i.

    Args:
        kind: one of "sum", "product", "max", "min", "and", "or", "xor".
        shards: one array a rank, all of one shape and dtype.
        dimension: the dimension that is cut in parts; may be negative.
        tiled: False where it has one element a rank and is dropped, True to keep it.
        groups: a partition of the ranks into groups of one size; None for one group of all.

    Returns:
        One new array a rank.

    Raises:
        ValueError: `kind` is unknown, `shards` differ or are none, `groups` are no partition or
            differ in size, or the dimension cannot be cut in equal parts.
        TypeError: the dtype has no such reduction.

    Example:
        >>> [int(y) for y in reduce_scatter("sum", [np.array([1, 2]), np.array([10, 20])])]
        [11, 22]
    """
    name = "reduce_scatter"
    results = all_reduce(kind, shards, groups)
    axis = ranks.dimension(name, "dimension", dimension, results[0].ndim)
    for group in ranks.partition(name, len(results), groups, same_size=True):
        parts = ranks.cut(name, results[group[0]], axis, len(group), tiled=tiled)
        for rank, part in zip(group, parts, strict=True):
            results[rank] = part.copy()
    return results


def _fold(kind: str, arrays: Sequence[Array]) -> Array:
    dtype = arrays[0].dtype
    narrow = dtype in _NARROW_FLOATS or dtype in _NARROW_INTEGERS
    is_float = dtype in _NARROW_FLOATS or np.issubdtype(dtype, np.inexact)
    if kind in _BITWISE and is_float:
        raise TypeError(f"all_reduce: {kind} of {dtype}; bitwise reductions need integers or bool")
    if kind in ("max", "min") and np.issubdtype(dtype, np.complexfloating):
        raise TypeError(f"all_reduce: {kind} of {dtype}; complex numbers have no order")
    if len(arrays) == 1:
        return arrays[0]
    if dtype in _NARROW_FLOATS:
        arrays = [array.astype(np.float32) for array in arrays]
    elif dtype in _NARROW_INTEGERS:
        arrays = [array.astype(np.int8) for array in arrays]
    combine = _operation(kind, arrays[0].dtype)
    with np.errstate(all="ignore"):
        result = arrays[0]
        for array in arrays[1:]:
            result = combine(result, array)
        if dtype in _NARROW_INTEGERS:
            # Through the bits: a conversion of numbers out of range is not defined.
            bits = 2 if dtype in (ml_dtypes.int2, ml_dtypes.uint2) else 4
            result = result.view(np.uint8) & np.uint8((1 << bits) - 1)
            if dtype in (ml_dtypes.int2, ml_dtypes.int4):
                result = (result << np.uint8(8 - bits)).view(np.int8) >> np.int8(8 - bits)
        return result.astype(dtype) if narrow else result


def _operation(kind: str, dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    if kind in ("max", "min"):
        return lambda a, b: _extreme(kind, a, b)
    if dtype == np.bool_:
        kind = {"sum": "or", "product": "and"}.get(kind, kind)
    plain: dict[str, Callable[[Array, Array], Array]] = {
        "sum": np.add,
        "product": np.multiply,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    operation = plain[kind]
    if not np.issubdtype(dtype, np.inexact):
        return operation
    return lambda a, b: _flush(np.asarray(operation(_flush(a), _flush(b))))


def _flush(array: Array) -> Array:
    """Returns denormal numbers as zeros of the same sign."""
    if np.issubdtype(array.dtype, np.complexfloating):
        parts = np.ascontiguousarray(array).reshape(-1).view(array.real.dtype)
        return _flush(parts).view(array.dtype).reshape(array.shape)
    zero = np.copysign(np.zeros_like(array), array)
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, zero, array)


def _extreme(kind: str, a: Array, b: Array) -> Array:
    if not np.issubdtype(a.dtype, np.floating):
        return np.asarray(np.maximum(a, b) if kind == "max" else np.minimum(a, b))
    if kind == "max":
        takes_a = (a > b) | ((a == b) & ~np.signbit(a))
    else:
        takes_a = (a < b) | ((a == b) & np.signbit(a))
    return np.where(np.isnan(a), a, np.where(np.isnan(b), b, np.where(takes_a, a, b)))
