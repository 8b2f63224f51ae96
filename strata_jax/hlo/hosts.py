# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Splits collectives over several hosts: on the fabric inside each host, XLA's own between them.

Where a group has L ranks on each of its hosts, the ranks at position i of all hosts form a group
between hosts, which deals with part i of L:

    all-reduce       our reduce-scatter, XLA's all-reduce of a part, our all-gather
    reduce-scatter   our reduce-scatter, XLA's reduce-scatter of a part
    all-gather       XLA's all-gather of a rank's array, our all-gather

Between two hosts this sends the least that there is, whatever the order of the ranks. Sums are in
rank order inside a host, then as XLA adds between hosts: the same bits on all ranks.

No memory is moved for this. The parts are of arrays in one dimension, which bitcasts make of them.
What L does not divide, the last elements of a large array or a small one as a whole, is reduced
inside the host as it is, and goes between hosts along with the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strata_jax.hlo import schema
from strata_jax.hlo.blocks import Block, make_block, minor_to_major
from strata_jax.hlo.builder import Builder, flat_shape
from strata_jax.hlo.find import Call, device_table
from strata_jax.hlo.graph import Graph
from strata_jax.hlo.levels import Levels, levels_of
from strata_jax.hlo.operations import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, native_axes

# Bytes that an operation has to have, the larger of its operands and results; and from which an
# array is cut though elements are left over, for which ranks wait once more. Gloo over all ranks
# sends 1.5 times as much between two hosts of 2 ranks in a row, 3 times where they alternate. On a
# 2-core machine that stood for both hosts that made 1.3 to 2 times the time from 16 KiB on, and at
# 1 KiB about the same.
MIN_BYTES = 16 << 10

# Flat results of what comes instead of a collective, and the calls among it.
_Built = tuple[list[int], list[Call]]


class Splitter:
    """Splits the collectives of one module.

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
        self._builders = {
            ALL_REDUCE.name: self._all_reduce,
            ALL_GATHER.name: self._all_gather,
            REDUCE_SCATTER.name: self._reduce_scatter,
        }
        self._graphs: dict[int, Graph] = {}  # computations in which something was split
        self._places: dict[int, dict[int, int]] = {}  # for each, where its list should have what

    def split(self, call: Call) -> list[Call]:
        """Split a native collective, in place, where that is possible and pays.

        Args:
            call: an operation over several hosts.

        Returns:
            The calls inside hosts that it has become, none where it stays as it is. The list of
            instructions is in order again after `finish`.
        """
        graph = call.graph
        levels = levels_of(call.groups, self._devices, self._hosts)
        build = self._builders.get(call.operation.name)
        if levels is None or build is None or not _is_suited(call, levels):
            return []
        if graph.proto.id not in self._graphs:
            self._graphs[graph.proto.id] = graph
            self._places[graph.proto.id] = {local: i for i, local in enumerate(graph.nodes)}
        builder = Builder(call, self._unused_name)
        results, calls = build(builder, call, levels)
        builder.replace_by(results)
        place = self._places[graph.proto.id]
        place.update(dict.fromkeys(builder.added, place[call.local]))
        return calls

    def finish(self) -> None:
        """Put the instructions of computations in which something was split in order."""
        for computation, graph in self._graphs.items():
            graph.sort(self._places[computation])

    def _all_reduce(self, add: Builder, call: Call, levels: Levels) -> _Built:
        num_local = levels.num_local
        flat = [add.flat(operand) for operand in call.graph.operands(call.local)]
        shapes = [call.graph.nodes[i].shape for i in flat]
        counts = [shape.dimensions[0] for shape in shapes]
        cut = [i for i, shape in enumerate(shapes) if _is_cut(shape, num_local)]
        lengths = {i: counts[i] // num_local for i in cut}
        ends = {
            i: add.end_of(flat[i], length * num_local)
            for i, length in lengths.items()
            if counts[i] % num_local
        }
        whole = {i: flat[i] for i in range(len(flat)) if i not in lengths}

        # The calls leave out what is not cut at the end of an array.
        calls: list[Call] = []
        between: list[int] = []
        if cut:
            scatter = add.call(
                REDUCE_SCATTER,
                levels.inside,
                [flat[i] for i in cut],
                [flat_shape(shapes[i], lengths[i]) for i in cut],
                [Block((), lengths[i], in_step=lengths[i]) for i in cut],
            )
            calls.append(scatter)
            between += add.parts(scatter.local)
        uncut = [*whole.values(), *ends.values()]
        if uncut:
            uncut_shapes = [call.graph.nodes[i].shape for i in uncut]
            blocks = [Block((), shape.dimensions[0]) for shape in uncut_shapes]
            calls.append(add.call(ALL_REDUCE, levels.inside, uncut, uncut_shapes, blocks))
            between += add.parts(calls[-1].local)

        between_shapes = [call.graph.nodes[i].shape for i in between]
        reduced = self._between(add, call, levels, between, between_shapes)
        results: dict[int, int] = {}
        if cut:
            gather = add.call(
                ALL_GATHER,
                levels.inside,
                reduced[: len(cut)],
                [shapes[i] for i in cut],
                [Block((), lengths[i], out_step=lengths[i]) for i in cut],
            )
            calls.append(gather)
            results.update(zip(cut, add.parts(gather.local), strict=True))
        uncut_results = iter(reduced[len(cut) :])
        results.update((i, next(uncut_results)) for i in whole)
        results.update((i, add.with_end(results[i], next(uncut_results))) for i in ends)
        return [results[i] for i in range(len(flat))], calls

    def _all_gather(self, add: Builder, call: Call, levels: Levels) -> _Built:
        flat = [add.flat(operand) for operand in call.graph.operands(call.local)]
        shapes = [call.graph.nodes[i].shape for i in flat]
        counts = [shape.dimensions[0] for shape in shapes]
        pairs = list(zip(shapes, counts, strict=True))
        between_shapes = [flat_shape(shape, n * levels.num_hosts) for shape, n in pairs]
        inside = add.call(
            ALL_GATHER,
            levels.inside,
            self._between(add, call, levels, flat, between_shapes),
            [flat_shape(shape, n * levels.num_hosts * levels.num_local) for shape, n in pairs],
            [_block(levels, n, gathers=True) for n in counts],
        )
        return add.parts(inside.local), [inside]

    def _reduce_scatter(self, add: Builder, call: Call, levels: Levels) -> _Built:
        flat = [add.flat(operand) for operand in call.graph.operands(call.local)]
        shapes = [call.graph.nodes[i].shape for i in flat]
        num_ranks = levels.num_hosts * levels.num_local
        counts = [shape.dimensions[0] // num_ranks for shape in shapes]
        pairs = list(zip(shapes, counts, strict=True))
        inside = add.call(
            REDUCE_SCATTER,
            levels.inside,
            flat,
            [flat_shape(shape, n * levels.num_hosts) for shape, n in pairs],
            [_block(levels, n, gathers=False) for n in counts],
        )
        between_shapes = [flat_shape(shape, n) for shape, n in pairs]
        return self._between(add, call, levels, add.parts(inside.local), between_shapes), [inside]

    def _between(
        self,
        add: Builder,
        call: Call,
        levels: Levels,
        operands: Sequence[int],
        shapes: Sequence[Any],
    ) -> list[int]:
        """Add the native collective between hosts; return its results."""
        local = add.add(call.operation.opcode, shapes, operands, native=True)
        native = call.graph.nodes[local]
        if native.dimensions:
            native.dimensions[:] = [0]
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
        for group in levels.between:
            native.collective_device_list.replica_groups.add(replica_ids=group)
        return add.parts(local)


def _block(levels: Levels, count: int, *, gathers: bool) -> Block:
    """Return the block of a rank: `count` elements for each host.

    They are side by side in one array, and each where its rank has its place in the other.
    """
    if levels.host_major:
        host, position = levels.num_local * count, count
    else:
        host, position = count, levels.num_hosts * count
    counts, apart, together = (levels.num_hosts, count), (host, 1), (count, 1)
    if gathers:
        return make_block(counts, together, apart, out_step=position)
    return make_block(counts, apart, together, in_step=position)


def _is_suited(call: Call, levels: Levels) -> bool:
    """Say whether a collective can be split, and is large enough."""
    if call.graph.has_control_edges(call.local):
        return False
    pairs = list(zip(call.operand_shapes, call.shapes, strict=True))
    for operand, result in pairs:
        if operand.layout != result.layout or schema.TYPE_BITS[operand.element_type] % 8:
            return False
    if sum(max(map(schema.array_bytes, pair)) for pair in pairs) < MIN_BYTES:
        return False
    if call.operation is ALL_REDUCE:
        return True
    (axis,) = (i for i in native_axes(call.operation, call.instruction) if i is not None)
    return levels.host_major is not None and all(
        _is_major(axis, max(pair, key=schema.array_bytes)) for pair in pairs
    )


def _is_cut(shape: Any, num_local: int) -> bool:
    return shape.dimensions[0] % num_local == 0 or schema.array_bytes(shape) >= MIN_BYTES


def _is_major(axis: int, shape: Any) -> bool:
    """Say whether steps along an axis are the longest in memory."""
    order = list(minor_to_major(shape))
    return all(shape.dimensions[i] == 1 for i in order[order.index(axis) + 1 :])
