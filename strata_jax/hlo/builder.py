# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Puts several instructions of a computation in the place of one collective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strata_jax.hlo import schema
from strata_jax.hlo.bind import clear_call
from strata_jax.hlo.blocks import Block
from strata_jax.hlo.find import Call
from strata_jax.hlo.graph import Graph
from strata_jax.hlo.groups import Groups
from strata_jax.hlo.operations import Operation


class Builder:
    """Adds instructions to a computation that take the place of one."""

    def __init__(self, replaced: Call, unused_name: Callable[[str], str]) -> None:
        self.graph: Graph = replaced.graph
        self.added: list[int] = []
        self._replaced = replaced
        self._unused_name = unused_name

    def add(
        self, opcode: str, shapes: Sequence[Any], operands: Iterable[int], *, native: bool = False
    ) -> int:
        """Add an instruction and return its local id.

        Args:
            opcode: what it is.
            shapes: of its results; several make it a tuple.
            operands: local ids.
            native: keep what makes the instruction replaced a collective.
        """
        new = schema.HloInstructionProto()
        new.CopyFrom(self._replaced.instruction)  # for its metadata
        if not native:
            clear_call(new)
        new.opcode, new.name, new.id = opcode, self._unused_name(opcode), self.graph.new_id()
        new.operand_ids[:] = [self.graph.nodes[i].id for i in operands]
        _set_shape(new, shapes)
        self.added.append(self.graph.append(new))
        return self.added[-1]

    def parts(self, local: int) -> list[int]:
        """Return the results of an instruction as instructions."""
        shape = self.graph.nodes[local].shape
        if shape.element_type != schema.TUPLE:
            return [local]
        parts = []
        for index, part in enumerate(shape.tuple_shapes):
            parts.append(self.add("get-tuple-element", [part], [local]))
            self.graph.nodes[parts[-1]].tuple_index = index
        return parts

    def call(
        self,
        operation: Operation,
        groups: Groups,
        operands: Sequence[int],
        shapes: Sequence[Any],
        blocks: Sequence[Block],
    ) -> Call:
        """Add one that will be a call."""
        local = self.add(operation.opcode, shapes, operands)
        kind = self._replaced.kind if operation.reduces else 0
        return dataclasses.replace(
            self._replaced,
            local=local,
            operation=operation,
            groups=groups,
            kind=kind,
            blocks=tuple(blocks),
            problem="",
        )

    def flat(self, local: int) -> int:
        """Return an array in one dimension, in the order of its memory."""
        shape = self.graph.nodes[local].shape
        return self.add("bitcast", [flat_shape(shape)], [local])

    def end_of(self, local: int, start: int) -> int:
        """Return the elements of a flat array from `start` on."""
        shape = self.graph.nodes[local].shape
        count = shape.dimensions[0]
        end = self.add("slice", [flat_shape(shape, count - start)], [local])
        self.graph.nodes[end].slice_dimensions.add(start=start, limit=count, stride=1)
        return end

    def with_end(self, local: int, end: int) -> int:
        """Return a flat array with other elements at its end, which XLA writes in place."""
        shape = self.graph.nodes[local].shape
        start = shape.dimensions[0] - self.graph.nodes[end].shape.dimensions[0]
        scalar = schema.ShapeProto(element_type=schema.S64, layout={})
        index = self.add("constant", [scalar], [])
        self.graph.nodes[index].literal.shape.CopyFrom(scalar)
        self.graph.nodes[index].literal.s64s.append(start)
        return self.add("dynamic-update-slice", [shape], [local, end, index])

    def replace_by(self, results: Sequence[int]) -> None:
        """Let the instruction replaced be these arrays, in its own shapes; it keeps its users."""
        instruction, shapes = self._replaced.instruction, self._replaced.shapes
        is_tuple = instruction.shape.element_type == schema.TUPLE
        if is_tuple:
            pairs = zip(shapes, results, strict=True)
            results = [self.add("bitcast", [shape], [result]) for shape, result in pairs]
        clear_call(instruction)
        instruction.opcode = "tuple" if is_tuple else "bitcast"
        instruction.operand_ids[:] = [self.graph.nodes[i].id for i in results]
        self.graph.reread(self._replaced.local)


def _set_shape(instruction: Any, shapes: Sequence[Any]) -> None:
    shape = schema.ShapeProto()
    if len(shapes) == 1:
        shape.CopyFrom(shapes[0])
    else:
        shape.element_type = schema.TUPLE
        shape.tuple_shapes.extend(shapes)
    instruction.shape.CopyFrom(shape)


def flat_shape(shape: Any, count: int | None = None) -> Any:
    """Return the shape of `count` elements in one dimension, by default of all there are."""
    flat = schema.ShapeProto()
    flat.CopyFrom(shape)  # for what else its layout says
    flat.dimensions[:] = [math.prod(shape.dimensions) if count is None else count]
    flat.is_dynamic_dimension[:] = [False]
    flat.layout.minor_to_major[:] = [0]
    return flat
