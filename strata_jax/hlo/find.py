# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Which collectives of a module can run on the fabric, and why the others cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from strata_jax.hlo import attributes, schema
from strata_jax.hlo.graph import LOCAL_MASK, Graph
from strata_jax.hlo.groups import GroupCache, Groups, replica_groups

TARGET = "strata_all_reduce"

# Opcode at the root of a reducer -> `kind` of the call.
KINDS: dict[str, int] = {
    "add": 0,
    "multiply": 1,
    "maximum": 2,
    "minimum": 3,
    "and": 4,
    "or": 5,
    "xor": 6,
}
_ORDERING = (KINDS["maximum"], KINDS["minimum"])
_BITWISE = (KINDS["and"], KINDS["or"], KINDS["xor"])

# What stays native: its opcodes, each also as the asynchronous pair that other compilers make.
_NOT_YET = (
    "all-gather",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
NOT_YET: frozenset[str] = frozenset(
    [*_NOT_YET, *(f"{opcode}-start" for opcode in _NOT_YET), "all-reduce-start"]
)

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
ELEMENT_TYPES: frozenset[int] = _BITS | _FLOATS | _COMPLEX

# CPU device ids are process_index << 11 | local index (xla/pjrt/cpu/cpu_topology.cc).
_PROCESS_SHIFT = 11


@dataclasses.dataclass(eq=False)
class Call:
    """An all-reduce that is, or becomes, a Strata call.

    Attributes:
        graph: the computation that holds it.
        local: local id of its instruction.
        kind: which reduction, see KINDS.
        groups: replica groups in rank order.
        lowered: True if JAX's lowering wrote the custom call, False for a native all-reduce.
        problem: why a lowered call cannot run; it then becomes an error at compile time.
    """

    graph: Graph
    local: int
    kind: int
    groups: Groups
    lowered: bool
    problem: str = ""

    @property
    def instruction(self) -> Any:
        """The all-reduce or custom call in the proto."""
        return self.graph.nodes[self.local]

    @property
    def shapes(self) -> Sequence[Any]:
        """Shape of each buffer that is reduced."""
        shape = self.instruction.shape
        return shape.tuple_shapes if shape.element_type == schema.TUPLE else [shape]

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


def _dtype_problem(kind: int, element_type: int) -> str:
    name = schema.type_name(element_type)
    if element_type not in ELEMENT_TYPES:
        return f"dtype {name}"
    if kind in _BITWISE and element_type not in _BITS:
        return f"dtype {name} in a bitwise reduction"
    if kind in _ORDERING and element_type in _COMPLEX:
        return f"dtype {name} in a maximum or minimum"
    return ""


def _place_problem(groups: Groups, devices: list[int] | None, process_index: int) -> str:
    if devices is None:
        return "cross-replica"
    ids = [i for group in groups for i in group]
    if len(set(ids)) != len(ids) or not all(0 <= i < len(devices) for i in ids):
        return "groups"
    if any(devices[i] >> _PROCESS_SHIFT != process_index for i in ids):
        return "crosses processes"
    return ""


class Finder:
    """Judges the all-reduces of one module."""

    def __init__(self, module: Any, computations: dict[int, Any], process_index: int) -> None:
        self._computations = computations
        self._devices = device_table(module)
        self._process_index = process_index
        self._kinds: dict[int, int | None] = {}  # reducer -> kind
        self._groups: GroupCache = {}  # most calls of a module have the same groups

    def native(self, graph: Graph, local: int) -> Call | str:
        """Return the call that a native all-reduce can become, or why it stays as it is."""
        instruction = graph.nodes[local]
        if instruction.channel_id <= 0 or not instruction.use_global_device_ids:
            return "cross-replica"
        reducer = instruction.called_computation_ids[0]
        if reducer not in self._kinds:
            self._kinds[reducer] = reducer_kind(self._computations[reducer])
        kind = self._kinds[reducer]
        if kind is None:
            return "reducer"
        groups = replica_groups(instruction, len(self._devices or ()), self._groups)
        call = Call(graph, local, kind, groups, lowered=False)
        problem = self._problem(call)
        return problem or call

    def lowered(self, graph: Graph, local: int) -> Call:
        """Return the call that the lowering wrote, with its problem if it has one."""
        kind, groups = attributes.decode(graph.nodes[local].backend_config)
        call = Call(graph, local, kind, groups, lowered=True)
        call.problem = self._problem(call)
        return call

    def _problem(self, call: Call) -> str:
        for operand, shape in zip(call.graph.operands(call.local), call.shapes, strict=True):
            problem = _dtype_problem(call.kind, shape.element_type)
            if problem:
                return problem
            # The handler sees buffers as plain memory, so equal layouts are all it needs.
            if call.graph.nodes[operand].shape.layout != shape.layout:
                return "layout"
            if any(shape.is_dynamic_dimension):
                return "dynamic shape"
        return _place_problem(call.groups, self._devices, self._process_index)
