# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Which collectives of a module can run on the fabric, and why the others cannot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from strata_jax.hlo import attributes, schema
from strata_jax.hlo.blocks import Block, block_counts, block_of, minor_to_major
from strata_jax.hlo.graph import LOCAL_MASK, Graph
from strata_jax.hlo.groups import GroupCache, Groups, replica_groups
from strata_jax.hlo.operations import (
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    KINDS,
    RAGGED_ALL_TO_ALL,
    Operation,
    native_axes,
)
from strata_jax.hlo.pairs import permute_groups

_ORDERING = (KINDS["maximum"], KINDS["minimum"])
_BITWISE = (KINDS["and"], KINDS["or"], KINDS["xor"])

_COMPLEX = frozenset(schema.PRIMITIVE_TYPES[name][0] for name in ("C64", "C128"))
_BITS = frozenset(
    schema.PRIMITIVE_TYPES[name][0]
    for name in ("PRED", *(f"{sign}{bits}" for sign in "SU" for bits in (2, 4, 8, 16, 32, 64)))
)
_FLOATS = frozenset(
    schema.PRIMITIVE_TYPES[name][0]
    for name in (
        *("F16", "BF16", "F32", "F64"),
        *("F8E5M2", "F8E4M3FN", "F8E4M3B11FNUZ", "F8E4M3FNUZ", "F8E5M2FNUZ", "F8E4M3", "F8E3M4"),
    )
)
# What can be reduced, and what can be moved.
ELEMENT_TYPES: frozenset[int] = _BITS | _FLOATS | _COMPLEX
MOVED_TYPES: frozenset[int] = ELEMENT_TYPES | {
    schema.PRIMITIVE_TYPES[name][0] for name in ("F4E2M1FN", "F8E8M0FNU")
}

CROSSES_HOSTS = "crosses hosts"

# CPU device ids are process_index << 11 | local index (xla/pjrt/cpu/cpu_topology.cc).
PROCESS_SHIFT = 11


@dataclasses.dataclass(eq=False)
class Call:
    """A collective that is, or becomes, a Strata call.

    Attributes:
        graph: the computation that holds it.
        local: local id of its instruction.
        operation: which one.
        groups: replica groups in rank order.
        lowered: True if JAX's lowering wrote the custom call, False for a native collective.
        kind: which reduction, see KINDS; 0 if none.
        blocks: one for each operand; none for ragged_all_to_all and the tuple form of all_to_all.
        counts: for each of these, the elements of the block along each dimension.
        axes: dimension along which operands are cut in blocks, and results joined of them.
        sources: of collective_permute, see pairs.py.
        is_tuple: an all_to_all whose operand i, and result i, are those of rank i.
        ragged: rows of operand, rows of output, elements of a row, of ragged_all_to_all.
        problem: why it cannot run on the fabric as it is, empty if it can. A lowered call then
            becomes an error at compile time.
    """

    graph: Graph
    local: int
    operation: Operation
    groups: Groups
    lowered: bool
    kind: int = 0
    blocks: tuple[Block, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    axes: tuple[int | None, int | None] = (None, None)
    sources: tuple[tuple[int, ...], ...] = ()
    is_tuple: bool = False
    ragged: tuple[int, ...] = ()
    problem: str = ""

    @property
    def instruction(self) -> Any:
        """The collective or custom call in the proto."""
        return self.graph.nodes[self.local]

    @property
    def shapes(self) -> Sequence[Any]:
        """Shape of each result."""
        shape = self.instruction.shape
        return shape.tuple_shapes if shape.element_type == schema.TUPLE else [shape]

    @property
    def operand_shapes(self) -> list[Any]:
        """Shape of each operand."""
        return [self.graph.nodes[i].shape for i in self.graph.operands(self.local)]

    @property
    def group_size(self) -> int:
        """Ranks of the largest group."""
        return max(map(len, self.groups))


@dataclasses.dataclass(frozen=True)
class Left:
    """A collective that stays native."""

    computation: Any
    instruction: Any
    reason: str


def device_table(module: Any) -> list[int] | None:
    """Return the global device id of each partition; None in a module that has more replicas."""
    assignment = module.device_assignment
    if assignment.replica_count != 1:
        return None
    devices = [i for column in assignment.computation_devices for i in column.replica_device_ids]
    return devices if len(devices) == assignment.computation_count else None


def reducer_kind(computation: Any) -> int | None:
    """Return the kind of a reducer that is one operation on its two parameters, else None."""
    kind, parameters, operands = None, set(), None
    root = computation.root_id & LOCAL_MASK
    for instruction in computation.instructions:
        local, opcode = instruction.id & LOCAL_MASK, instruction.opcode
        if opcode == "parameter":
            parameters.add(local)
        if local == root:
            kind = KINDS.get(opcode)
            operands = [i & LOCAL_MASK for i in instruction.operand_ids]
    two_parameters = len(parameters) == 2 and operands is not None and len(operands) == 2
    return kind if two_parameters and parameters == set(operands or ()) else None


def _dtype_problem(call: Call, element_type: int) -> str:
    name = schema.type_name(element_type)
    if not call.operation.reduces:
        return "" if element_type in MOVED_TYPES else f"dtype {name}"
    if element_type not in ELEMENT_TYPES:
        return f"dtype {name}"
    if call.kind in _BITWISE and element_type not in _BITS:
        return f"dtype {name} in a bitwise reduction"
    if call.kind in _ORDERING and element_type in _COMPLEX:
        return f"dtype {name} in a maximum or minimum"
    return ""


def host_of(device: int, hosts: Sequence[int]) -> int | None:
    """Return the number of the host that a device is on, None if it is not one of the job's.

    Args:
        device: its global id.
        hosts: number of the host of each process of the job, by process index.
    """
    process = device >> PROCESS_SHIFT
    return hosts[process] if process < len(hosts) else None


def crosses_hosts(devices: Iterable[int], hosts: Sequence[int]) -> bool:
    """Say whether devices, by global id, are on more than one host, or on an unknown one."""
    numbers = {host_of(device, hosts) for device in devices}
    return None in numbers or len(numbers) > 1


def _place_problem(groups: Groups, devices: list[int] | None, hosts: Sequence[int]) -> str:
    if devices is None:
        return "cross-replica"
    ids = [i for group in groups for i in group]
    if len(set(ids)) != len(ids) or not all(0 <= i < len(devices) for i in ids):
        return "groups"
    if any(crosses_hosts((devices[i] for i in group), hosts) for group in groups):
        return CROSSES_HOSTS
    return ""


class Finder:
    """Judges the collectives of one module."""

    def __init__(self, module: Any, computations: dict[int, Any], hosts: Sequence[int]) -> None:
        self._computations = computations
        self._devices = device_table(module)
        self._hosts = hosts
        self._kinds: dict[int, int | None] = {}  # reducer -> kind
        self._groups: GroupCache = {}  # most calls of a module have the same groups

    def native(self, graph: Graph, local: int, operation: Operation) -> Call | str:
        """Return the call that a native collective can become, or why it stays as it is.

        One over several hosts is returned too, with that as its problem: its parts may be calls.
        """
        instruction = graph.nodes[local]
        if instruction.channel_id <= 0 or self._devices is None:
            return "cross-replica"
        if operation.reduces and not instruction.use_global_device_ids:
            return "cross-replica"
        kind: int | None = 0
        if operation.reduces:
            reducer = instruction.called_computation_ids[0]
            if reducer not in self._kinds:
                self._kinds[reducer] = reducer_kind(self._computations[reducer])
            kind = self._kinds[reducer]
        if kind is None:
            return "reducer"
        call = Call(graph, local, operation, (), lowered=False, kind=kind)
        if operation is COLLECTIVE_PERMUTE:
            pairs = [(pair.source, pair.target) for pair in instruction.source_target_pairs]
            call.groups, call.sources = permute_groups(pairs, len(self._devices))
        else:
            call.groups = replica_groups(instruction, len(self._devices), self._groups)
        call.is_tuple = operation is ALL_TO_ALL and instruction.shape.element_type == schema.TUPLE
        call.problem = self._problem(call, native_axes(operation, instruction))
        return call if call.problem in ("", CROSSES_HOSTS) else call.problem

    def lowered(self, graph: Graph, local: int, operation: Operation) -> Call:
        """Return the call that the lowering wrote, with its problem if it has one."""
        written = attributes.decode(graph.nodes[local].backend_config)
        call = Call(graph, local, operation, written.groups, lowered=True, kind=written.kind)
        if operation is COLLECTIVE_PERMUTE:
            pairs = [(group[0], group[1]) for group in written.groups]
            call.groups, call.sources = permute_groups(pairs, len(self._devices or ()))
        call.problem = self._problem(call, (written.in_axis, written.out_axis))
        return call

    def _problem(self, call: Call, axes: tuple[int | None, int | None]) -> str:
        """Work out how the operands lie in memory; say what keeps the call from the fabric."""
        operands, results = call.operand_shapes, list(call.shapes)
        for shape in operands + results:
            if any(shape.is_dynamic_dimension):
                return "dynamic shape"
        for shape in operands[:1] if call.operation is RAGGED_ALL_TO_ALL else operands:
            problem = _dtype_problem(call, shape.element_type)
            if problem:
                return problem
        problem = _place_problem(call.groups, self._devices, self._hosts)
        if problem:
            return problem
        if call.operation.equal_groups and len(set(map(len, call.groups))) > 1:
            return "groups"
        if call.operation is RAGGED_ALL_TO_ALL:
            return _read_rows(call)
        if not call.is_tuple:
            call.axes = axes
            call.counts = tuple(block_counts(o, axes[0], call.group_size) for o in operands)
            call.blocks = tuple(
                block_of(operand, result, *axes, call.group_size)
                for operand, result in zip(operands, results, strict=True)
            )
        elif any(shape.layout != operands[0].layout for shape in operands + results):
            return "layout"
        return ""


def _read_rows(call: Call) -> str:
    """Set the rows of a ragged_all_to_all; say what keeps it from the fabric."""
    operand, output = call.operand_shapes[:2]
    for shape in (operand, output, *call.shapes):
        # Rows have to be contiguous, and all alike.
        if minor_to_major(shape)[-1] != 0 or shape.layout != operand.layout:
            return "layout"
    call.ragged = (
        operand.dimensions[0],
        output.dimensions[0],
        math.prod(operand.dimensions[1:]),
    )
    return ""
