# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Takes away the conversions that XLA puts around an all-reduce of a narrow float.

XLA's CPU compiler reduces bf16 in f32: convert, all-reduce, convert back. A Strata call sums narrow
floats in f32 and rounds once, which gives the same value from half the bytes. Only converts that
stand alone are undone; XLA merges most with their neighbours, and those stay.
"""

from __future__ import annotations

from typing import Any

from strata_jax.hlo import schema
from strata_jax.hlo.find import Call
from strata_jax.hlo.graph import Graph

_NUMBERS = {name: number for name, (number, _) in schema.PRIMITIVE_TYPES.items()}

# Type that is reduced -> types that may be reduced in its place. f8 is promoted to f16.
_NARROWER: dict[int, frozenset[int]] = {
    _NUMBERS["F32"]: frozenset(_NUMBERS[name] for name in ("BF16", "F16")),
    _NUMBERS["F16"]: frozenset(
        _NUMBERS[name]
        for name in (
            *("F8E5M2", "F8E4M3FN", "F8E4M3B11FNUZ", "F8E4M3FNUZ"),
            *("F8E5M2FNUZ", "F8E4M3", "F8E3M4"),
        )
    ),
}


def _is_convert(graph: Graph, local: int, computations: dict[int, Any]) -> bool:
    """Say whether an instruction converts its one operand and does nothing else."""
    opcode = graph.opcodes[local]
    if opcode == "fusion":
        fused = computations[graph.nodes[local].called_computation_ids[0]].instructions
        return len(fused) == 2 and [i.opcode for i in fused] == ["parameter", "convert"]
    return opcode == "convert"


def _result(call: Call, index: int) -> int | None:
    """Return the instruction that is the buffer `index` of the call and nothing else, if any."""
    if call.instruction.shape.element_type != schema.TUPLE:
        return call.local
    found = None
    for user in call.graph.users[call.local]:
        if call.graph.opcodes[user] != "get-tuple-element":
            return None
        if call.graph.nodes[user].tuple_index == index:
            if found is not None:
                return None
            found = user
    return found


def _unpromote_buffer(call: Call, index: int, computations: dict[int, Any]) -> bool:
    graph = call.graph
    shape = call.shapes[index]
    narrower = _NARROWER.get(shape.element_type)
    result = _result(call, index)
    if not narrower or result is None or graph.root == call.local:
        return False
    before = graph.operands(call.local)[index]
    after = graph.only_user(result)
    if after is None or not _is_convert(graph, before, computations):
        return False
    if not _is_convert(graph, after, computations) or graph.has_control_edges(after):
        return False
    source = graph.operands(before)[0]
    wanted = graph.nodes[after].shape
    given = graph.nodes[source].shape
    if wanted.element_type not in narrower or given != wanted or given.layout != shape.layout:
        return False
    graph.set_operand(call.local, index, source)
    shape.element_type = wanted.element_type
    graph.nodes[result].shape.element_type = wanted.element_type
    # Removed here, because XLA verifies the types of dead instructions too.
    graph.replace_uses(after, result)
    graph.remove(after)
    return True


def unpromote(call: Call, computations: dict[int, Any]) -> int:
    """Undo the promotion of a native all-reduce and return for how many of its buffers."""
    return sum(_unpromote_buffer(call, i, computations) for i in range(len(call.shapes)))
