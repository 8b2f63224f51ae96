# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Oracles of the collectives that move arrays and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from strata_jax.reference import ranks
from strata_jax.reference.ranks import Array, Groups


def all_gather(
    shards: Sequence[Array], axis: int = 0, tiled: bool = False, groups: Groups | None = None
) -> list[Array]:
    """Joins the arrays of all ranks.

    Two ranks that hold [1, 2] and [3, 4] both get [[1, 2], [3, 4]]; with `tiled=True`
    [1, 2, 3, 4]; with `axis=1` [[1, 3], [2, 4]].

    Args:
        shards: one array a rank, all of one shape and dtype.
        axis: dimension of the result along which they are joined; may be negative.
        tiled: False to stack along a new dimension, True to concatenate along an existing one.
        groups: a partition of the ranks into groups of one size; a result holds the arrays of its
            group, in the order of the group's list. None for one group of all.

    Returns:
        One new array a rank.

    Raises:
        ValueError: `shards` differ or are none, `groups` are no partition or differ in size, the
            result has no dimension `axis`.

    Example:
        >>> all_gather([np.array([1, 2]), np.array([3, 4])], axis=1)[0].tolist()
        [[1, 3], [2, 4]]
    """
    arrays = ranks.alike("all_gather", shards)
    groups = ranks.partition("all_gather", len(arrays), groups, same_size=True)
    num_dims = arrays[0].ndim + (0 if tiled else 1)
    axis = ranks.dimension("all_gather", "axis", axis, num_dims)
    results = list(arrays)
    for group in groups:
        members = [arrays[rank] for rank in group]
        joined = np.concatenate(members, axis) if tiled else np.stack(members, axis)
        for rank in group:
            results[rank] = joined.copy()
    return results


def all_to_all(
    shards: Sequence[Array],
    split_axis: int,
    concat_axis: int,
    tiled: bool = False,
    groups: Groups | None = None,
) -> list[Array]:
    """Cuts each rank's array along one dimension, and joins the parts of all along another.

    With two ranks that hold [[1, 2], [3, 4]] and [[5, 6], [7, 8]], `split_axis=0` and
    `concat_axis=0`, the first gets [[1, 2], [5, 6]], the second [[3, 4], [7, 8]].

    Args:
        shards: one array a rank, all of one shape and dtype.
        split_axis: the dimension that is cut; part i goes to the i-th rank of the group. May be
            negative.
        concat_axis: the dimension of the result along which parts are joined, in the order of
            their senders. May be negative.
        tiled: False where `split_axis` has one element a rank: it is dropped, and a new dimension
            inserted at `concat_axis`. True to cut and concatenate existing dimensions.
        groups: a partition of the ranks into groups of one size; None for one group of all.

    Returns:
        One new array a rank.

    Raises:
        ValueError: `shards` differ or are none, `groups` are no partition or differ in size, the
            arrays have no such dimensions, or `split_axis` cannot be cut in equal parts.

    Example:
        >>> a, b = np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])
        >>> [y.tolist() for y in all_to_all([a, b], 0, 0, tiled=True)]
        [[1, 2, 5, 6], [3, 4, 7, 8]]
    """
    arrays = ranks.alike("all_to_all", shards)
    groups = ranks.partition("all_to_all", len(arrays), groups, same_size=True)
    split_axis = ranks.dimension("all_to_all", "split_axis", split_axis, arrays[0].ndim)
    concat_axis = ranks.dimension("all_to_all", "concat_axis", concat_axis, arrays[0].ndim)
    results = list(arrays)
    for group in groups:
        sent = [
            ranks.cut("all_to_all", arrays[rank], split_axis, len(group), tiled=tiled)
            for rank in group
        ]
        for index, rank in enumerate(group):
            received = [parts[index] for parts in sent]
            join = np.concatenate if tiled else np.stack
            results[rank] = join(received, axis=concat_axis)
    return results


def ppermute(shards: Sequence[Array], pairs: Iterable[tuple[int, int]]) -> list[Array]:
    """Sends each rank's array to one other.

    Two ranks that hold 1 and 2 get 2 and 1 with `pairs=[(0, 1), (1, 0)]`, and 0 and 1 with
    `pairs=[(0, 1)]`: a rank that is nobody's destination gets zeros.

    Args:
        shards: one array a rank, all of one shape and dtype.
        pairs: (source, destination); no two have the same source, or the same destination.

    Returns:
        One new array a rank.

    Raises:
        ValueError: `shards` differ or are none, or `pairs` name a rank twice or one that is not.

    Example:
        >>> [int(y) for y in ppermute([np.array(1), np.array(2), np.array(3)], [(0, 1), (1, 2)])]
        [0, 1, 2]
    """
    arrays = ranks.alike("ppermute", shards)
    pairs = list(pairs)
    for index, which in ((0, "source"), (1, "destination")):
        named = [pair[index] for pair in pairs]
        if len(set(named)) != len(named) or not set(named) <= set(range(len(arrays))):
            raise ValueError(
                f"ppermute: pairs are {pairs}, but each {which} must be a rank from 0 to "
                f"{len(arrays) - 1} and occur once; remove the pairs that repeat one"
            )
    results = [np.zeros_like(array) for array in arrays]
    for source, destination in pairs:
        results[destination] = arrays[source].copy()
    return results


def pbroadcast(shards: Sequence[Array], source: int, groups: Groups | None = None) -> list[Array]:
    """Gives all ranks the array of one.

    With two ranks that hold 1 and 2, and `source=1`, both get 2.

    Args:
        shards: one array a rank, all of one shape and dtype.
        source: index of the sender in its group's list.
        groups: a partition of the ranks; None for one group of all.

    Returns:
        One new array a rank.

    Raises:
        ValueError: `shards` differ or are none, `groups` are no partition, or a group has no rank
            of index `source`.

    Example:
        >>> [int(y) for y in pbroadcast([np.array(1), np.array(2)], 1)]
        [2, 2]
    """
    arrays = ranks.alike("pbroadcast", shards)
    results = list(arrays)
    for group in ranks.partition("pbroadcast", len(arrays), groups):
        if not 0 <= source < len(group):
            raise ValueError(
                f"pbroadcast: source is {source}, but a group has {len(group)} ranks; pass "
                f"one from 0 to {len(group) - 1}"
            )
        for rank in group:
            results[rank] = arrays[group[source]].copy()
    return results


def ragged_all_to_all(
    operands: Sequence[Array],
    outputs: Sequence[Array],
    input_offsets: Sequence[Array],
    send_sizes: Sequence[Array],
    output_offsets: Sequence[Array],
    recv_sizes: Sequence[Array],
    groups: Groups | None = None,
) -> list[Array]:
    """Sends slices of rows to every rank, and writes what is received into the outputs.

    Rank s sends `operand[input_offsets[r] : input_offsets[r] + send_sizes[r]]` to rank r, which
    finds these rows in its result from row `output_offsets[r]` of rank **s** on. With offsets of
    length k n in a group of n ranks, those of index r k to r k + k - 1 go to rank r. Two ranks:

        operand  output     input_offsets  send_sizes  output_offsets  recv_sizes  result
        [1 2 2]  [0 0 0 0]  [0 1]          [1 2]       [0 0]           [1 1]       [1 3 0 0]
        [3 4 0]  [0 0 0 0]  [0 1]          [1 1]       [1 2]           [2 1]       [2 2 4 0]

    Rows outside either buffer are not moved. Of several writes to one row that of the highest rank
    counts (by its place in the group's list), of one rank that of the last slice.

    Args:
        operands: one array a rank, all of one shape and dtype.
        outputs: the same, of the operands' dtype and row shape.
        input_offsets: integers, one a slice: its first row in the operand.
        send_sizes: its number of rows.
        output_offsets: row of the receiver's result at which it begins.
        recv_sizes: rows that are received; not looked at, the senders' `send_sizes` count.
        groups: a partition of the ranks into groups of one size; None for one group of all.

    Returns:
        One new array a rank, of the shape of `outputs`.

    Raises:
        ValueError: arrays of one kind differ, `groups` are no partition or differ in size, or the
            number of slices is no multiple of a group's ranks.

    Example:
        >>> ids = [np.array([0, 1])] * 2
        >>> ones = [np.array([1, 1])] * 2
        >>> y = ragged_all_to_all([np.array([1, 2]), np.array([3, 4])], [np.zeros(2, int)] * 2,
        ...                       ids, ones, [np.array([0, 0]), np.array([1, 1])], ones)
        >>> [result.tolist() for result in y]
        [[1, 3], [2, 4]]
    """
    name = "ragged_all_to_all"
    operands = ranks.alike(name, operands)
    results = [output.copy() for output in ranks.alike(name, outputs)]
    ids = [ranks.alike(name, kind) for kind in (input_offsets, send_sizes, output_offsets)]
    ranks.alike(name, recv_sizes)
    for group in ranks.partition(name, len(operands), groups, same_size=True):
        num_slices, rest = divmod(ids[0][0].size, len(group))
        if rest:
            raise ValueError(
                f"{name}: there are {ids[0][0].size} offsets, but their number must be a multiple "
                f"of the {len(group)} ranks of a group; pass slices of size 0 where none is to go"
            )
        for source in group:
            in_rows, sizes, out_rows = (kind[source].tolist() for kind in ids)
            for index in range(ids[0][0].size):
                operand, result = operands[source], results[group[index // num_slices]]
                of, to = in_rows[index], out_rows[index]
                first = max(0, -of, -to)
                last = min(sizes[index], len(operand) - of, len(result) - to)
                if first < last:
                    result[to + first : to + last] = operand[of + first : of + last]
    return results
