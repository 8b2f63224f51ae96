# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The groups of an operation over several hosts: those inside hosts, and those between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata_jax.hlo.find import host_of
from strata_jax.hlo.groups import Groups


class Levels(NamedTuple):
    """The groups of an operation over several hosts, in two steps.

    Attributes:
        inside: for each group and host, its ranks there.
        between: for each group and position, the ranks at that position of all hosts.
        host_major: True where all ranks of a host come before those of the next, False where all
            of a position do, None where the ranks are in another order.
    """

    inside: Groups
    between: Groups
    host_major: bool | None

    @property
    def num_local(self) -> int:
        """Ranks of a group on each host."""
        return len(self.inside[0])

    @property
    def num_hosts(self) -> int:
        """Hosts of a group."""
        return len(self.between[0])


def levels_of(groups: Groups, devices: Sequence[int], hosts: Sequence[int]) -> Levels | None:
    """Return the two steps, None where the hosts of a group do not have equally many ranks, or one.

    Args:
        groups: of partition ids, in rank order.
        devices: global device id of each partition.
        hosts: number of the host of each process of the job, by process index.
    """
    inside: list[tuple[int, ...]] = []
    between: list[tuple[int, ...]] = []
    for group in groups:
        members: dict[int | None, list[int]] = {}
        for partition in group:
            members.setdefault(host_of(devices[partition], hosts), []).append(partition)
        if None in members or len({len(ranks) for ranks in members.values()}) > 1:
            return None
        inside += map(tuple, members.values())
        between += zip(*members.values(), strict=True)
    if len(set(map(len, inside))) > 1 or len(set(map(len, between))) > 1 or len(inside[0]) < 2:
        return None
    ranks = [partition for group in groups for partition in group]
    host_major = None
    for levels in (inside, between):
        if [partition for level in levels for partition in level] == ranks:
            host_major = levels is inside
    return Levels(tuple(inside), tuple(between), host_major)
