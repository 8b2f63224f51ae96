# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Takes away the copies and conversions that XLA puts around collectives.

XLA's CPU compiler transposes around an all-gather whose dimension is not the major one, converts
narrow types to wider ones, and cuts and joins the arrays of an all-to-all. A Strata call reads and
writes in any layout, takes narrow types as they are, and finds its blocks itself. So it can start
from the array that a copy reads, and write what a copy writes. Only what stands alone is taken
away; XLA merges some of it with neighbours, and that stays.

Where arrays live was settled before (XLA's copy insertion): a loop's state, a donated argument or
an array that is updated in place may be overwritten once its last reader is done. A call reads
later than the copy before it did, and writes earlier than the copy after it, so it must not touch
those; `_Places` knows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strata_jax.hlo import schema
from strata_jax.hlo.blocks import Block, cut_block, make_block, strides
from strata_jax.hlo.find import Call
from strata_jax.hlo.graph import LOCAL_MASK, Graph
from strata_jax.hlo.operations import ALL_TO_ALL, RAGGED_ALL_TO_ALL
from strata_jax.hlo.views import WIDENED, View, view_of, whole

# Rows shorter than this are moved slower than by XLA's copy and a long row each.
_LEAST_RUN_BYTES = 16

_HANDS_ON = frozenset("call conditional tuple while".split())


class _Places:
    """Which arrays of a computation nobody writes, or reads, behind its back."""

    def __init__(self, module: Any, graph: Graph) -> None:
        self._graph = graph
        self._is_entry = graph.proto.id == module.entry_computation_id
        # The field is a message; any content means that some result takes an argument's memory.
        self._aliases = bool(module.input_output_alias.SerializeToString())

    def may_read_later(self, source: int, readers: Sequence[int]) -> bool:
        """Say whether `source` is unchanged until the last user of `readers` is done."""
        opcode = self._graph.opcodes[source]
        if opcode == "parameter":
            return self._is_entry and not self._aliases
        return opcode not in ("get-tuple-element", "while", "bitcast") and (
            set(self._graph.users[source]) <= set(readers) and source != self._graph.root
        )

    def may_write_earlier(self, result: int) -> bool:
        """Say whether nothing else can be in the memory of `result` before it is written."""
        if self._is_entry and not self._aliases:
            users = [u for u in self._graph.users[result] if u != self._graph.root]
        else:
            users = self._graph.users[result]
            if result == self._graph.root:
                return False
        return not any(self._graph.opcodes[user] in _HANDS_ON for user in users)


def _result(call: Call, index: int) -> int | None:
    """Return the instruction that is result `index` of the call and nothing else, if any."""
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


def _copies(graph: Graph, local: int, computations: Mapping[int, Any]) -> bool:
    """Say whether an instruction does nothing but copy its operand, to another layout or type."""
    opcode = graph.opcodes[local]
    if opcode == "fusion":
        fused = computations[graph.nodes[local].called_computation_ids[0]].instructions
        opcodes = [i.opcode for i in fused]
        return opcodes[0] == "parameter" and set(opcodes[1:]) <= {"copy", "convert"}
    return opcode in ("copy", "convert")


class _End(NamedTuple):
    """What a result may become.

    Attributes:
        shape: its shape.
        strides: in its memory, of the dimensions that the call itself gives it.
        after: the instruction that made it of the call's own result; None for that itself.
    """

    shape: Any
    strides: Sequence[int]
    after: int | None


def _end_after(
    call: Call, index: int, places: _Places, computations: Mapping[int, Any]
) -> _End | None:
    """Return what all the use of result `index` of the call makes of it by moves, if it is that."""
    graph = call.graph
    result = _result(call, index)
    if result is None or graph.root == call.local:
        return None
    after = graph.only_user(result)
    if after is None or graph.has_control_edges(after) or not places.may_write_earlier(after):
        return None
    shape = graph.nodes[after].shape
    if _copies(graph, after, computations):
        return _End(shape, strides(shape), after)
    if graph.opcodes[after] == "fusion" and len(graph.operands(after)) == 1:
        # Moves that together move nothing, such as between layouts that differ in places of 1.
        view, itself = view_of(graph.nodes, after, computations), whole(after, shape)
        own = graph.nodes[result].shape
        same_size = math.prod(own.dimensions) == math.prod(shape.dimensions)  # no slice
        if same_size and view == dataclasses.replace(itself, source=result):
            return _End(shape, strides(own), after)
    return None


def _absorb_buffer(
    call: Call, index: int, places: _Places, computations: Mapping[int, Any]
) -> bool:
    graph = call.graph
    before = graph.operands(call.local)[index]
    given, result_shape = graph.nodes[before].shape, call.shapes[index]
    view = view_of(graph.nodes, before, computations)
    # A bitcast alone costs nothing.
    readable = view.source != before and view.offset == 0 and graph.opcodes[before] != "bitcast"
    readable = readable and places.may_read_later(view.source, [before, call.local])
    plain, unchanged = whole(before, given), _End(result_shape, strides(result_shape), None)
    changed = _end_after(call, index, places, computations)

    # Both ends at once, or one of them; a type changes at both ends or at none.
    for start, end in ((view, changed), (view, unchanged), (plain, changed)):
        if end is None or (start is view and not readable):
            continue
        if start.element_type != end.shape.element_type:
            continue
        narrow = start.element_type != given.element_type
        if narrow and start.element_type not in WIDENED.get(given.element_type, ()):
            continue
        if narrow and call.operation.reduces and given.element_type in _INTEGERS:
            continue  # an overflow would wrap elsewhere
        block = cut_block(call.counts[index], start.strides, end.strides, *call.axes)
        run_bytes = block.run * schema.TYPE_BITS[start.element_type] // 8
        if run_bytes < _LEAST_RUN_BYTES and block.loops and not _as_long(call, index, block):
            continue
        _rewire(call, index, start, end)
        call.blocks = (*call.blocks[:index], block, *call.blocks[index + 1 :])
        return True
    return False


_INTEGERS = frozenset(schema.PRIMITIVE_TYPES[name][0] for name in ("S8", "U8"))


def _as_long(call: Call, index: int, block: Block) -> bool:
    """Say whether the rows are no shorter than they were."""
    return block.run >= call.blocks[index].run


def _rewire(call: Call, index: int, start: View, end: _End) -> None:
    """Let the call read from `start`, and write what `end` is."""
    graph = call.graph
    graph.set_operand(call.local, index, start.source)
    result = _result(call, index)
    if end.after is None or result is None:
        return
    for shape in {id(s): s for s in (call.shapes[index], graph.nodes[result].shape)}.values():
        shape.CopyFrom(end.shape)
    # Removed here, because XLA verifies the types of dead instructions too.
    graph.replace_uses(end.after, result)
    graph.remove(end.after)


def _only_user_of(graph: Graph, results: Sequence[int | None]) -> int | None:
    """Return the instruction that alone reads all of some instructions, each once."""
    users = {None if result is None else graph.only_user(result) for result in results}
    (user,) = users if len(users) == 1 else (None,)
    if user is None or any(graph.operands(user).count(r) != 1 for r in results if r is not None):
        return None
    return user


def _concatenate_inside(
    fused: Any, numbers: Sequence[int]
) -> tuple[Any, list[Any]] | tuple[None, None]:
    """Return what joins some parameters of a fused computation, and those, if nothing else does.

    Args:
        fused: the computation.
        numbers: numbers of the parameters in the order in which they have to be joined.
    """
    by_number = {i.parameter_number: i for i in fused.instructions if i.opcode == "parameter"}
    parameters = [by_number[number] for number in numbers]
    locals_ = [i.id & LOCAL_MASK for i in parameters]
    readers = [
        i for i in fused.instructions if any(o & LOCAL_MASK in locals_ for o in i.operand_ids)
    ]
    if len(readers) != 1 or readers[0].opcode != "concatenate":
        return None, None
    if [o & LOCAL_MASK for o in readers[0].operand_ids] != locals_:
        return None, None
    return readers[0], parameters


def _take_joined(fused: Any, concatenate: Any, parameters: Sequence[Any]) -> None:
    """Make the concatenate in a fused computation its first part's parameter, and drop the rest."""
    numbers = [parameter.parameter_number for parameter in parameters]
    gone = {parameter.id for parameter in parameters}
    joined = concatenate.id
    for index in range(len(fused.instructions) - 1, -1, -1):
        if fused.instructions[index].id in gone:
            del fused.instructions[index]
    for instruction in fused.instructions:
        if instruction.id == joined:
            instruction.opcode, instruction.parameter_number = "parameter", numbers[0]
            instruction.ClearField("operand_ids")
            instruction.ClearField("dimensions")
    for instruction in fused.instructions:
        if instruction.opcode == "parameter":
            number = instruction.parameter_number
            instruction.parameter_number -= sum(n < number for n in numbers[1:])


def _absorb_all_to_all(call: Call, places: _Places, computations: Mapping[int, Any]) -> bool:
    """Turn a tuple all-to-all, whose operands were cut and results joined, into one on arrays."""
    graph = call.graph
    pieces = graph.operands(call.local)
    views = [view_of(graph.nodes, piece, computations) for piece in pieces]
    first, given = views[0], graph.nodes[pieces[0]].shape
    step = views[1].offset - first.offset if len(views) > 1 else 0
    for i, view in enumerate(views):
        at = dataclasses.replace(first, offset=i * step)
        if view != at or view.source == pieces[i] or step < 0:
            return False
    if first.element_type != given.element_type or call.instruction.control_predecessor_ids:
        return False
    if not places.may_read_later(first.source, [*pieces, call.local]):
        return False

    results = [_result(call, i) for i in range(len(pieces))]
    user = _only_user_of(graph, results)
    if user is None or graph.root == call.local:
        return False
    node = graph.nodes[user]
    fused = parameters = None
    concatenate = node
    if node.opcode == "fusion" and node.fusion_kind != "kCustom":  # those a library compiles
        numbers = [graph.operands(user).index(result) for result in results if result is not None]
        fused = computations[node.called_computation_ids[0]]
        concatenate, parameters = _concatenate_inside(fused, numbers)
    elif node.opcode != "concatenate" or graph.operands(user) != results:
        return False
    elif graph.has_control_edges(user) or not places.may_write_earlier(user):
        return False
    if concatenate is None:
        return False

    (axis,) = concatenate.dimensions
    out_steps = strides(concatenate.shape)
    block = make_block(
        first.dimensions, first.strides, out_steps, step, given.dimensions[axis] * out_steps[axis]
    )
    call.is_tuple, call.blocks = False, (block,)
    call.instruction.shape.CopyFrom(concatenate.shape)
    call.instruction.operand_ids[:] = [graph.nodes[first.source].id]
    if fused is None or parameters is None:
        graph.replace_uses(user, call.local)
        graph.remove(user)
    else:
        node.operand_ids[numbers[0]] = call.instruction.id
        for number in sorted(numbers[1:], reverse=True):
            del node.operand_ids[number]
        graph.reread(user)
        _take_joined(fused, concatenate, parameters)
    for result in results:
        if result is not None:
            graph.remove(result)
    graph.reread(call.local)
    return True


def absorb(call: Call, module: Any, computations: Mapping[int, Any]) -> int:
    """Take away what stands alone around a collective.

    Args:
        call: the call it becomes; its operands, results and blocks change.
        module: the module.
        computations: its computations by id.

    Returns:
        The number of buffers around which something was taken away.
    """
    if call.operation is RAGGED_ALL_TO_ALL:
        return 0
    places = _Places(module, call.graph)
    if call.is_tuple:
        return int(call.operation is ALL_TO_ALL and _absorb_all_to_all(call, places, computations))
    return sum(_absorb_buffer(call, i, places, computations) for i in range(len(call.blocks)))
