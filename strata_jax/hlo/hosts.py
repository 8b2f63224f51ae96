# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Splits an all-reduce over several hosts: on the fabric inside each host, XLA's own between them.

The network carries as little as it can when each rank takes a part of the array there. On hosts of
L ranks each,

    reduce-scatter  inside each host: rank i has the host's sum of part i of L
    all-reduce      between the ranks i of all hosts: XLA's, through Gloo or MPI
    all-gather      inside each host: every rank has all parts

With flat arrays no memory is moved for this: an all-reduce is the same in any layout, so a bitcast
makes them one-dimensional. Elements that L does not divide, fewer than L, and arrays too small to
be cut are reduced inside the host as they are, and go along with the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from strata_jax.hlo import schema
from strata_jax.hlo.blocks import Block
from strata_jax.hlo.builder import Builder, flat_shape
from strata_jax.hlo.find import Call, device_table, host_of
from strata_jax.hlo.graph import Graph
from strata_jax.hlo.groups import Groups
from strata_jax.hlo.operations import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

# Bytes of one rank from which an array is cut.
MIN_CUT_BYTES = 64 << 10


class Levels(NamedTuple):
    """The groups of an operation over several hosts, in two steps.

    Attributes:
        inside: for each group and host, its ranks there.
        between: for each group and position, the ranks at that position of all hosts.
    """

    inside: Groups
    between: Groups

    @property
    def num_local(self) -> int:
        """Ranks of a group on each host."""
        return len(self.inside[0])


def levels_of(groups: Groups, devices: Sequence[int], hosts: Sequence[int]) -> Levels | None:
    """Return the two steps, None where the hosts of a group do not have equally many ranks, or one.

    Args:
        groups: of partition ids, in rank order.
        devices: global device id of each partition.
        hosts: number of the host of each process of the job, by process index.
    """
    inside: list[tuple[int, ...]] = []
    between: list[tuple[int, ...]] = []
    num_hosts = set()
    for group in groups:
        members: dict[int | None, list[int]] = {}
        for partition in group:
            members.setdefault(host_of(devices[partition], hosts), []).append(partition)
        num_hosts.add(len(members))
        if None in members or len({len(ranks) for ranks in members.values()}) > 1:
            return None
        inside += map(tuple, members.values())
        between += zip(*members.values(), strict=True)
    if len(num_hosts) > 1 or len({len(ranks) for ranks in inside}) > 1 or len(inside[0]) < 2:
        return None
    return Levels(tuple(inside), tuple(between))


class Splitter:
    """Splits the all-reduces of one module.

    Args:
        module: the module.
        hosts: number of the host of each process of the job, by process index.
        unused_name: makes an instruction name that the module does not have yet.
    """

    def __init__(
        self, module: Any, hosts: Sequence[int], unused_name: Callable[[str], str]
    ) -> None:
        self._module = module
        self._devices = device_table(module) or []
        self._hosts = hosts
        self._unused_name = unused_name
        self._channel = 0  # highest that is in use, once it is known
        self._graphs: dict[int, Graph] = {}  # computations in which something was split
        self._places: dict[int, dict[int, int]] = {}  # for each, where its list should have what

    def split(self, call: Call) -> list[Call]:
        """Split a native all-reduce, in place, where that is possible and pays.

        Args:
            call: an operation over several hosts.

        Returns:
            The calls inside hosts that it has become, none where it stays as it is. The list of
            instructions is in order again after `finish`.
        """
        graph = call.graph
        levels = levels_of(call.groups, self._devices, self._hosts)
        if levels is None or not _is_suited(call):
            return []
        if graph.proto.id not in self._graphs:
            self._graphs[graph.proto.id] = graph
            self._places[graph.proto.id] = {local: i for i, local in enumerate(graph.nodes)}
        builder = Builder(call, self._unused_name)
        results, calls = self._build(builder, call, levels)
        builder.replace_by(results)
        place = self._places[graph.proto.id]
        place.update(dict.fromkeys(builder.added, place[call.local]))
        return calls

    def finish(self) -> None:
        """Put the instructions of computations in which something was split in order."""
        for computation, graph in self._graphs.items():
            graph.sort(self._places[computation])

    def _build(self, add: Builder, call: Call, levels: Levels) -> tuple[list[int], list[Call]]:
        """Add all that comes instead of the all-reduce; return its flat results, and the calls."""
        num_local = levels.num_local
        flat = [add.flat(operand) for operand in call.graph.operands(call.local)]
        shapes = [call.graph.nodes[i].shape for i in flat]
        counts = [shape.dimensions[0] for shape in shapes]
        cut = [i for i, shape in enumerate(shapes) if _is_large(shape)]
        lengths = {i: counts[i] // num_local for i in cut}
        ends = {
            i: add.end_of(flat[i], length * num_local)
            for i, length in lengths.items()
            if counts[i] % num_local
        }
        whole = {i: flat[i] for i in range(len(flat)) if i not in lengths}

        # Inside each host; the calls read an array's end, and write it, as far as it is cut.
        scatter = add.call(
            REDUCE_SCATTER,
            levels.inside,
            [flat[i] for i in cut],
            [flat_shape(shapes[i], lengths[i]) for i in cut],
            [Block((), lengths[i], in_step=lengths[i]) for i in cut],
        )
        calls, between = [scatter], add.parts(scatter.local)
        uncut = [*whole.values(), *ends.values()]
        if uncut:
            uncut_shapes = [call.graph.nodes[i].shape for i in uncut]
            blocks = [Block((), shape.dimensions[0]) for shape in uncut_shapes]
            calls.append(add.call(ALL_REDUCE, levels.inside, uncut, uncut_shapes, blocks))
            between += add.parts(calls[-1].local)

        between_shapes = [call.graph.nodes[i].shape for i in between]
        native = add.add(ALL_REDUCE.opcode, between_shapes, between, native=True)
        self._set_groups(call.graph.nodes[native], levels.between)
        reduced = add.parts(native)

        gather = add.call(
            ALL_GATHER,
            levels.inside,
            reduced[: len(cut)],
            [shapes[i] for i in cut],
            [Block((), lengths[i], out_step=lengths[i]) for i in cut],
        )
        calls.append(gather)
        results = dict(zip(cut, add.parts(gather.local), strict=True))
        uncut_results = iter(reduced[len(cut) :])
        results.update((i, next(uncut_results)) for i in whole)
        results.update((i, add.with_end(results[i], next(uncut_results))) for i in ends)
        return [results[i] for i in range(len(flat))], calls

    def _set_groups(self, native: Any, groups: Groups) -> None:
        """Give a native collective other groups, and a channel of its own."""
        if not self._channel:
            computations = self._module.computations
            self._channel = max(i.channel_id for c in computations for i in c.instructions)
        self._channel += 1
        native.channel_id = self._channel
        for field in (
            "replica_groups",
            "iota_collective_device_list",
            "mesh_axes_replica_group_list",
            "collective_device_list",
        ):
            native.ClearField(field)
        for group in groups:
            native.collective_device_list.replica_groups.add(replica_ids=group)


def _is_suited(call: Call) -> bool:
    """Say whether a collective is an all-reduce that can be split, and large enough."""
    if call.operation is not ALL_REDUCE or call.graph.has_control_edges(call.local):
        return False
    for operand, result in zip(call.operand_shapes, call.shapes, strict=True):
        if operand.layout != result.layout or schema.TYPE_BITS[operand.element_type] % 8:
            return False
    return any(map(_is_large, call.shapes))


def _is_large(shape: Any) -> bool:
    return schema.array_bytes(shape) >= MIN_CUT_BYTES
