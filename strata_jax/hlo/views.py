# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Where each element of an array lies in the memory of another one it is a plain view of.

Slices, transposes, reshapes and copies to another layout only move elements. What a chain of them
does to one array is a view: an offset and, for each dimension, a stride in the memory of the array
it starts from. A collective can then read, or write, there itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from strata_jax.hlo import schema
from strata_jax.hlo.blocks import minor_to_major, strides
from strata_jax.hlo.graph import LOCAL_MASK

# Opcodes that a view can go through: a conversion only to a type that holds every value.
_MOVES = frozenset("bitcast convert copy reshape slice transpose".split())

_NUMBERS = {name: number for name, (number, _) in schema.PRIMITIVE_TYPES.items()}
_FLOATS8 = (
    *("F8E5M2", "F8E4M3FN", "F8E4M3B11FNUZ", "F8E4M3FNUZ"),
    *("F8E5M2FNUZ", "F8E4M3", "F8E3M4"),
)
# Type that XLA:CPU moves or reduces instead of others -> those others, which it holds exactly.
WIDENED: dict[int, frozenset[int]] = {
    _NUMBERS[wide]: frozenset(_NUMBERS[name] for name in narrow)
    for wide, narrow in {
        "F32": ("BF16", "F16"),
        "F16": _FLOATS8,
        "S8": ("S2", "S4"),
        "U8": ("U2", "U4"),
    }.items()
}


@dataclasses.dataclass(frozen=True)
class View:
    """An array as a view of another.

    Attributes:
        source: local id of the array it is a view of.
        dimensions: its size along each dimension.
        strides: for each, how many elements of the source's memory lie between neighbours; 0 where
            there are none.
        offset: where in the source's memory its first element is.
        element_type: of the source; that of the view may be one that it was widened to.
    """

    source: int
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    element_type: int

    def __post_init__(self) -> None:
        steps = zip(self.dimensions, self.strides, strict=True)
        object.__setattr__(self, "strides", tuple(s if size > 1 else 0 for size, s in steps))


def whole(source: int, shape: Any) -> View:
    """Return an array as a view of itself."""
    return View(source, tuple(shape.dimensions), tuple(strides(shape)), 0, shape.element_type)


def _regroup(
    counts: Sequence[int], steps: Sequence[int], wanted: Sequence[int]
) -> list[int] | None:
    """Return the strides of the same elements in dimensions of other sizes, major to minor.

    Args:
        counts: sizes of the dimensions, major to minor.
        steps: stride of each.
        wanted: sizes of the new dimensions, major to minor, with the same product.

    Returns:
        A stride for each of `wanted`; None where they are at no constant distance.
    """
    merged: list[tuple[int, int]] = []  # minor to major
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        if count == 1:
            continue
        if merged and step == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * count, merged[-1][1])
        else:
            merged.append((count, step))
    result: list[int] = []
    for size in reversed(wanted):
        if size == 1:
            result.append(0)
            continue
        if not merged:
            return None
        count, step = merged.pop(0)
        if count % size:
            return None
        result.append(step)
        if count > size:
            merged.insert(0, (count // size, step * size))
    return None if merged else result[::-1]


def _apply(view: View, instruction: Any, operand: Any) -> View | None:
    """Return the view that one instruction makes of a view, None where it is none."""
    shape, opcode = instruction.shape, instruction.opcode
    if opcode not in _MOVES or 0 in shape.dimensions:
        return None
    if opcode == "convert":
        narrow = operand.shape.element_type
        return view if narrow in WIDENED.get(shape.element_type, ()) else None
    if opcode == "copy":
        return view
    if opcode == "transpose":
        return dataclasses.replace(
            view,
            dimensions=tuple(shape.dimensions),
            strides=tuple(view.strides[i] for i in instruction.dimensions),
        )
    if opcode == "slice":
        offset, steps = view.offset, []
        for part, stride in zip(instruction.slice_dimensions, view.strides, strict=True):
            offset += part.start * stride
            steps.append(stride * part.stride)
        return dataclasses.replace(
            view, dimensions=tuple(shape.dimensions), strides=tuple(steps), offset=offset
        )
    # A bitcast keeps the order of elements in memory, a reshape that of the logical array.
    if shape.element_type != operand.shape.element_type:
        return None
    before = list(range(len(operand.shape.dimensions)))
    after = list(range(len(shape.dimensions)))
    if opcode == "bitcast":
        before = list(reversed(minor_to_major(operand.shape)))
        after = list(reversed(minor_to_major(shape)))
    regrouped = _regroup(
        [view.dimensions[i] for i in before],
        [view.strides[i] for i in before],
        [shape.dimensions[i] for i in after],
    )
    if regrouped is None:
        return None
    steps = [0] * len(after)
    for i, step in zip(after, regrouped, strict=True):
        steps[i] = step
    return dataclasses.replace(view, dimensions=tuple(shape.dimensions), strides=tuple(steps))


def _along(nodes: Mapping[int, Any], local: int, start: int, begin: View) -> View | None:
    """Return instruction `local` as a view, if it is one of what `begin` says `start` is."""
    chain = []
    while local != start:
        instruction = nodes[local]
        if instruction.opcode not in _MOVES or len(instruction.operand_ids) != 1:
            return None
        chain.append(instruction)
        local = instruction.operand_ids[0] & LOCAL_MASK
    view: View | None = begin
    for instruction in reversed(chain):
        operand = nodes[instruction.operand_ids[0] & LOCAL_MASK]
        view = view and _apply(view, instruction, operand)
    return view


def view_of(nodes: Mapping[int, Any], local: int, computations: Mapping[int, Any]) -> View:
    """Return an instruction as a view of the operand of a move or of a fusion of moves, or itself.

    Args:
        nodes: the instructions of its computation by local id.
        local: the instruction.
        computations: all computations of the module by id.
    """
    instruction = nodes[local]
    itself = whole(local, instruction.shape)
    if len(instruction.operand_ids) != 1:
        return itself
    source = instruction.operand_ids[0] & LOCAL_MASK
    begin = whole(source, nodes[source].shape)
    if instruction.opcode != "fusion":
        found = _along(nodes, local, source, begin) if instruction.opcode in _MOVES else None
        return found or itself
    fused = computations[instruction.called_computation_ids[0]]
    inside = {i.id & LOCAL_MASK: i for i in fused.instructions}
    (parameter,) = (i for i, node in inside.items() if node.opcode == "parameter")
    begin = dataclasses.replace(begin, source=parameter)
    found = _along(inside, fused.root_id & LOCAL_MASK, parameter, begin)
    return dataclasses.replace(found, source=source) if found else itself
