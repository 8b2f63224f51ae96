# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Replica groups of a collective, in every form that HLO can write them.

A group is a list of logical partition ids. Its order is the order of the ranks, which decides the
order of a sum, so it is kept as XLA would list it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Groups = tuple[tuple[int, ...], ...]


def _frozen(groups: Any) -> Groups:
    return tuple(tuple(int(i) for i in group) for group in groups)


def _from_iota(iota: Any) -> Groups:
    """`[2,4]<=[4,2]T(1,0)`: the ids counted up in one shape, transposed, cut into equal groups."""
    ids = np.arange(int(np.prod(iota.iota_reshape_dims))).reshape(iota.iota_reshape_dims)
    if iota.iota_transpose_perm:
        ids = ids.transpose(iota.iota_transpose_perm)
    return _frozen(ids.reshape(iota.num_replica_groups, iota.num_devices_per_group))


def _mesh_devices(mesh: Any, num_devices: int) -> np.ndarray:
    """The partition ids of a mesh in row-major order of its axes."""
    if mesh.device_ids:
        return np.array(mesh.device_ids)
    ids = np.arange(num_devices)
    if mesh.HasField("iota_transform"):
        transform = mesh.iota_transform
        ids = ids.reshape(transform.reshape_dims).transpose(transform.transpose_perm)
    return ids.reshape(-1)


def _split_axes(
    sizes: Sequence[int], references: Sequence[tuple[int, int, int]]
) -> tuple[list[int], list[int]]:
    """Cut mesh axes at the sub-axes that are referred to.

    A sub-axis (pre_size, size) of an axis of n devices is the middle of pre_size x size x rest.

    Args:
        sizes: size of each mesh axis.
        references: (axis, pre_size, size) in the order in which the collective lists them.

    Returns:
        The sizes of the finer axes, and which of them the references are, in their order.
    """
    finer: list[int] = []
    chosen = [-1] * len(references)
    for axis, full in enumerate(sizes):
        done = 1
        own = [
            (pre, size, order)
            for order, (of_axis, pre, size) in enumerate(references)
            if of_axis == axis
        ]
        for pre, size, order in sorted(own):
            if pre > done:
                finer.append(pre // done)
            chosen[order] = len(finer)
            finer.append(size)
            done = pre * size
        if full > done:
            finer.append(full // done)
    return finer, chosen


def _from_mesh_axes(mesh_axes: Any) -> Groups:
    """`mesh['a'=2,'b'=4] {'b','a'}`: one group for each place on the axes that are not listed."""
    sizes = [axis.size for axis in mesh_axes.mesh.axes]
    references = []
    for reference in mesh_axes.axes:
        axis = reference.mesh_axis_index
        if reference.HasField("sub_axis_info"):
            sub_axis = reference.sub_axis_info
            references.append((axis, sub_axis.pre_size, sub_axis.size))
        else:
            references.append((axis, 1, sizes[axis]))
    finer, inner = _split_axes(sizes, references)
    outer = [axis for axis in range(len(finer)) if axis not in inner]
    group_size = int(np.prod([finer[axis] for axis in inner], dtype=np.int64))
    ids = _mesh_devices(mesh_axes.mesh, int(np.prod(sizes, dtype=np.int64)))
    return _frozen(ids.reshape(finer).transpose(outer + inner).reshape(-1, group_size))


def _from_list(device_list: Any) -> Groups:
    return _frozen(group.replica_ids for group in device_list.replica_groups)


_READERS = {
    "mesh_axes_replica_group_list": _from_mesh_axes,
    "iota_collective_device_list": _from_iota,
    "collective_device_list": _from_list,
}

# Form and content of a list -> its groups.
GroupCache = dict[tuple[str, bytes], Groups]


def replica_groups(
    instruction: Any, num_partitions: int, cache: GroupCache | None = None
) -> Groups:
    """Return the groups of a collective whose ids are partition ids.

    Args:
        instruction: an HloInstructionProto with `use_global_device_ids`, in a module of 1 replica.
        num_partitions: number of partitions; an instruction without any list means all of them.
        cache: where to look up, and keep, the groups of a list that was read before.

    Returns:
        Groups in their order, each a tuple of partition ids in rank order.

    Raises:
        ValueError: the lists contradict themselves (numpy's message says how).
    """
    for form, read in _READERS.items():
        if instruction.HasField(form):
            listed = getattr(instruction, form)
            key = (form, listed.SerializeToString())
            groups = cache.get(key) if cache else None
            if groups is None:
                groups = read(listed)
                if cache is not None:
                    cache[key] = groups
            if groups:
                return groups
    if instruction.replica_groups:  # field 49, the deprecated place of the plain list
        return _from_list(instruction)
    return (tuple(range(num_partitions)),)
