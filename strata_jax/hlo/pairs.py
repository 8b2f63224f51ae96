# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The ranks of a permutation: who has to meet, and who gets whose array."""

from __future__ import annotations

from collections.abc import Sequence

from strata_jax.hlo.groups import Groups


def permute_groups(
    pairs: Sequence[tuple[int, int]], num_partitions: int
) -> tuple[Groups, tuple[tuple[int, ...], ...]]:
    """Return groups that need not wait for each other, and their sources.

    A rank waits for those whose array it gets and for those who get its own, and so on: groups are
    what chains of pairs connect. A partition in no pair is a group of its own.

    Args:
        pairs: (source partition, target partition).
        num_partitions: partitions of the program.

    Returns:
        Groups of all partitions, and for each rank of each the rank whose array it gets, -1 for
        none.

    Raises:
        ValueError: a partition is the target, or the source, of two, or does not exist.
    """
    source_of: dict[int, int] = {}
    target_of: dict[int, int] = {}
    for source, target in pairs:
        if target in source_of or source in target_of:
            raise ValueError(f"partition {source} or {target} is in two pairs of one kind")
        if not (0 <= source < num_partitions and 0 <= target < num_partitions):
            raise ValueError(f"pair {source}, {target} in a program of {num_partitions} partitions")
        source_of[target], target_of[source] = source, target
    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for partition in range(num_partitions):
        if partition in seen:
            continue
        members, waiting = set(), [partition]
        while waiting:
            member = waiting.pop()
            if member not in members:
                members.add(member)
                waiting += [near[member] for near in (source_of, target_of) if member in near]
        groups.append(tuple(sorted(members)))
        seen |= members
    sources = tuple(
        tuple(group.index(source_of[i]) if i in source_of else -1 for i in group)
        for group in groups
    )
    return tuple(groups), sources
