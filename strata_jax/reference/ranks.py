# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What the oracles share: checks of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Groups = Sequence[Sequence[int]]


def alike(name: str, shards: Sequence[Array]) -> list[Array]:
    """Returns the arrays of all ranks, of one shape and dtype.

    Args:
        name: of the operation, for the message.
        shards: one array a rank.

    Raises:
        ValueError: they differ or are none.
    """
    arrays = [np.asarray(shard) for shard in shards]
    found = {(array.shape, array.dtype) for array in arrays}
    if len(found) != 1:
        raise ValueError(
            f"{name}: shards have {len(found)} different shapes or dtypes, but must have one; "
            f"pass one array for each rank, all alike"
        )
    return arrays


def partition(
    name: str, num_ranks: int, groups: Groups | None, *, same_size: bool = False
) -> Groups:
    """Returns the groups in which ranks meet; one of all for None.

    Args:
        name: of the operation, for the message.
        num_ranks: ranks are 0 to `num_ranks - 1`.
        groups: lists of ranks, or None.
        same_size: whether all groups must be of one size.

    Raises:
        ValueError: `groups` do not hold each rank once, or differ in size.
    """
    if groups is None:
        return [range(num_ranks)]
    shown = [list(group) for group in groups]
    if sorted(rank for group in groups for rank in group) != list(range(num_ranks)):
        raise ValueError(
            f"{name}: groups are {shown}, but must hold each rank from 0 to {num_ranks - 1} once; "
            f"add the missing ranks, also those that are alone"
        )
    if same_size and len({len(group) for group in groups}) != 1:
        raise ValueError(
            f"{name}: groups are {shown}, of different sizes, but must be of one size, because all "
            f"ranks have one shape of result; cut the ranks into equal groups"
        )
    return groups


def dimension(name: str, argument: str, value: int, num_dims: int) -> int:
    """Returns a dimension counted from the front.

    Args:
        name: of the operation, for the message.
        argument: its argument, for the message.
        value: negative ones count from the end.
        num_dims: of the array.

    Raises:
        ValueError: the array has no such dimension.
    """
    if not -num_dims <= value < num_dims:
        raise ValueError(
            f"{name}: {argument} is {value}, but the array has {num_dims} dimensions; pass one "
            f"from {-num_dims} to {num_dims - 1}"
        )
    return value % num_dims


def cut(name: str, array: Array, axis: int, num_parts: int, *, tiled: bool) -> list[Array]:
    """Cuts an array into equal parts along a dimension.

    Args:
        name: of the operation, for the message.
        array: of any shape.
        axis: the dimension, from the front.
        num_parts: one for each rank of a group.
        tiled: False where the parts lose the dimension, which must then be `num_parts`.

    Raises:
        ValueError: the dimension cannot be cut so.
    """
    found = array.shape[axis]
    if found % num_parts if tiled else found != num_parts:
        must = "a multiple of" if tiled else "equal to"
        raise ValueError(
            f"{name}: dimension {axis} is {found}, but must be {must} the {num_parts} ranks of a "
            f"group; pad the array{'' if tiled else ', or pass tiled=True'}"
        )
    parts = np.split(array, num_parts, axis)
    return parts if tiled else [part.squeeze(axis) for part in parts]
