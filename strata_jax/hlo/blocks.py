# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How the block that one rank sends another lies in memory, in an operand and in a result.

Handlers see buffers without their layouts, so everything that depends on them is decided here:
`Block` is what xla_ffi/core/operation.h has under that name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Loop(NamedTuple):
    """A loop over rows of a block; strides are in elements."""

    trips: int
    in_stride: int
    out_stride: int


class Block(NamedTuple):
    """Rows of `run` contiguous elements, in `loops` around them, the outermost first.

    Attributes:
        loops: the loops.
        run: elements of a row.
        in_step: elements from the block of one rank to that of the next in the operand; 0 where the
            whole operand is the block.
        out_step: the same in the result.
    """

    loops: tuple[Loop, ...]
    run: int
    in_step: int = 0
    out_step: int = 0

    @property
    def num_elements(self) -> int:
        """Elements of all rows."""
        return self.run * math.prod(loop.trips for loop in self.loops)


def strides(shape: Any) -> list[int]:
    """Return for each dimension of an array how many elements lie between its neighbours."""
    result, stride = [0] * len(shape.dimensions), 1
    for dimension in minor_to_major(shape):
        result[dimension] = stride
        stride *= shape.dimensions[dimension]
    return result


def minor_to_major(shape: Any) -> Sequence[int]:
    """Return the dimensions in the order of memory, the contiguous one first."""
    order: Sequence[int] = shape.layout.minor_to_major
    return order or range(len(shape.dimensions) - 1, -1, -1)


def make_block(
    counts: Sequence[int],
    in_strides: Sequence[int],
    out_strides: Sequence[int],
    in_step: int = 0,
    out_step: int = 0,
) -> Block:
    """Return the block of `counts` elements along each dimension, with as few loops as possible."""
    if 0 in counts:
        return Block((), 0, 0, 0)
    dims = [Loop(*dim) for dim in zip(counts, in_strides, out_strides, strict=True) if dim[0] > 1]
    # In the order of the result's memory, so that stores are sequential.
    dims.sort(key=lambda dim: (dim.out_stride, dim.in_stride), reverse=True)
    loops: list[Loop] = []
    for dim in dims:
        if loops:
            outer = loops[-1]
            if (outer.in_stride, outer.out_stride) == (
                dim.trips * dim.in_stride,
                dim.trips * dim.out_stride,
            ):
                loops[-1] = Loop(outer.trips * dim.trips, dim.in_stride, dim.out_stride)
                continue
        loops.append(dim)
    run = 1
    if loops and loops[-1].in_stride == loops[-1].out_stride == 1:
        run = loops.pop().trips
    return Block(tuple(loops), run, in_step, out_step)


def cut_block(
    counts: Sequence[int],
    in_strides: Sequence[int],
    out_strides: Sequence[int],
    in_axis: int | None,
    out_axis: int | None,
) -> Block:
    """Return the block of `counts` elements along each dimension; for the axes see `block_of`."""
    return make_block(
        counts,
        in_strides,
        out_strides,
        0 if in_axis is None else counts[in_axis] * in_strides[in_axis],
        0 if out_axis is None else counts[out_axis] * out_strides[out_axis],
    )


def block_counts(in_shape: Any, in_axis: int | None, group_size: int) -> tuple[int, ...]:
    """Return the elements of a block along each dimension; see `block_of`."""
    return tuple(
        count // group_size if dimension == in_axis else count
        for dimension, count in enumerate(in_shape.dimensions)
    )


def block_of(
    in_shape: Any, out_shape: Any, in_axis: int | None, out_axis: int | None, group_size: int
) -> Block:
    """Return the block of an operation on arrays.

    Args:
        in_shape: shape of the operand.
        out_shape: shape of the result.
        in_axis: dimension of the operand that is cut into one block a rank, None if it is not.
        out_axis: dimension of the result that is joined of one block a rank, None if it is not.
        group_size: number of ranks.

    Raises:
        ValueError: the shapes are not those of such an operation.
    """
    counts, results = block_counts(in_shape, in_axis, group_size), list(out_shape.dimensions)
    expected = list(counts)
    if out_axis is not None:
        expected[out_axis] *= group_size
    if expected != results or (
        in_axis is not None and counts[in_axis] * group_size != in_shape.dimensions[in_axis]
    ):
        raise ValueError(
            f"operand {list(in_shape.dimensions)} cut along {in_axis} for {group_size} ranks and "
            f"joined along {out_axis} is not the result {results}"
        )
    return cut_block(counts, strides(in_shape), strides(out_shape), in_axis, out_axis)
