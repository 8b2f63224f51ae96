# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Where elements lie in memory: views and blocks, against numpy arrays of addresses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized

from strata_jax.hlo import blocks, pairs, schema, views

_F32 = schema.PRIMITIVE_TYPES["F32"][0]


def _shape(dimensions: Sequence[int], layout: Sequence[int]) -> Any:
    shape = schema.ShapeProto(element_type=_F32, dimensions=dimensions)
    shape.layout.minor_to_major.extend(layout)
    return shape


def _layout(rng: random.Random, rank: int) -> list[int]:
    return rng.sample(range(rank), rank)


def _addresses(shape: Any) -> np.ndarray:
    """Return for each element of an array in its own buffer the place in memory."""
    major_to_minor = list(reversed(shape.layout.minor_to_major))
    memory = np.arange(int(np.prod(shape.dimensions))).reshape(
        [shape.dimensions[i] for i in major_to_minor]
    )
    return memory.transpose(np.argsort(major_to_minor))


def _in_memory_order(array: np.ndarray, shape: Any) -> np.ndarray:
    return array.transpose(list(reversed(shape.layout.minor_to_major))).reshape(-1)


def _from_memory_order(flat: np.ndarray, shape: Any) -> np.ndarray:
    major_to_minor = list(reversed(shape.layout.minor_to_major))
    sizes = [shape.dimensions[i] for i in major_to_minor]
    return flat.reshape(sizes).transpose(np.argsort(major_to_minor))


def _factors(rng: random.Random, number: int) -> list[int]:
    """Split a number into factors."""
    result = []
    while number > 1:
        factor = rng.choice([f for f in range(2, number + 1) if number % f == 0])
        result.append(factor)
        number //= factor
    return result + [1] * rng.randrange(2)


class Chain:
    """Random moves of an array, as instructions and as what numpy makes of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        sizes = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(1, 4))]
        shape = _shape(sizes, _layout(rng, len(sizes)))
        self.nodes = {0: schema.HloInstructionProto(opcode="parameter", id=0, shape=shape)}
        self.array = _addresses(shape)

    def _add(self, opcode: str, shape: Any, **fields: Any) -> None:
        number = len(self.nodes)
        self.nodes[number] = schema.HloInstructionProto(
            opcode=opcode, id=number, shape=shape, operand_ids=[number - 1], **fields
        )

    def step(self) -> None:
        """Append one move."""
        rng, last = self.rng, self.nodes[len(self.nodes) - 1].shape
        sizes, rank = list(last.dimensions), len(last.dimensions)
        opcode = rng.choice(["bitcast", "copy", "reshape", "slice", "transpose"])
        if opcode == "copy":
            self._add(opcode, _shape(sizes, _layout(rng, rank)))
        elif opcode == "transpose":
            order = _layout(rng, rank)
            self.array = self.array.transpose(order)
            self._add(
                opcode, _shape([sizes[i] for i in order], _layout(rng, rank)), dimensions=order
            )
        elif opcode == "slice":
            starts = [rng.randrange(size) for size in sizes]
            limits = [rng.randrange(a, size) + 1 for a, size in zip(starts, sizes, strict=True)]
            steps = [rng.randrange(1, 3) for _ in sizes]
            self.array = self.array[tuple(map(slice, starts, limits, steps))]
            parts = [
                {"start": a, "limit": b, "stride": c}
                for a, b, c in zip(starts, limits, steps, strict=True)
            ]
            shape = _shape(self.array.shape, last.layout.minor_to_major)
            self._add(opcode, shape, slice_dimensions=parts)
        else:
            new = _factors(rng, self.array.size) or [1]
            shape = _shape(new, _layout(rng, len(new)))
            if opcode == "reshape":
                self.array = self.array.reshape(new)
            else:
                self.array = _from_memory_order(_in_memory_order(self.array, last), shape)
            self._add(opcode, shape)


class ViewTest(parameterized.TestCase):
    def test_random_chains_of_moves(self) -> None:
        rng = random.Random(3)
        found = 0
        for _ in range(1200):
            chain = Chain(rng)
            for _ in range(rng.randrange(1, 5)):
                chain.step()
            last = len(chain.nodes) - 1
            begin = views.whole(0, chain.nodes[0].shape)
            view = views._along(chain.nodes, last, 0, begin)
            if view is None:  # no constant strides
                continue
            found += 1
            index = np.indices(chain.array.shape)
            steps = np.array(view.strides).reshape(-1, *[1] * chain.array.ndim)
            np.testing.assert_array_equal(
                view.offset + (index * steps).sum(0), chain.array, err_msg=str(chain.nodes)
            )
        self.assertGreater(found, 600)

    def test_a_sum_is_no_view(self) -> None:
        chain = Chain(random.Random(1))
        chain._add("negate", chain.nodes[0].shape)
        view = views.view_of(chain.nodes, 1, {})
        self.assertEqual(view, views.whole(1, chain.nodes[1].shape))

    @parameterized.parameters(("BF16", "F32", True), ("F32", "BF16", False), ("S8", "F32", False))
    def test_conversions(self, before: str, after: str, is_view: bool) -> None:
        chain = Chain(random.Random(1))
        chain.nodes[0].shape.element_type = schema.PRIMITIVE_TYPES[before][0]
        shape = schema.ShapeProto()
        shape.CopyFrom(chain.nodes[0].shape)
        shape.element_type = schema.PRIMITIVE_TYPES[after][0]
        chain._add("convert", shape)
        view = views.view_of(chain.nodes, 1, {})
        self.assertEqual(view.source == 0, is_view)


def _piece(array: np.ndarray, axis: int | None, rank: int, num_ranks: int) -> np.ndarray:
    return array if axis is None else np.split(array, num_ranks, axis)[rank]


class BlockTest(parameterized.TestCase):
    def _places(self, block: blocks.Block) -> tuple[np.ndarray, np.ndarray]:
        """Return for each element of a block, in the order of the loops, where it is."""
        loops = [*block.loops, blocks.Loop(block.run, 1, 1)]
        index = np.indices([loop.trips for loop in loops]).reshape(len(loops), -1)
        return tuple(
            (index * np.array([loop[side] for loop in loops])[:, None]).sum(0) for side in (1, 2)
        )

    @parameterized.parameters((None, 0), (1, None), (0, 2), (2, 2), (None, None), (1, 0))
    def test_every_layout(self, in_axis: int | None, out_axis: int | None) -> None:
        rng = random.Random(7)
        for _ in range(60):
            ranks = rng.choice([1, 2, 3])
            sizes = [rng.choice([1, 2, 3, 5]) for _ in range(3)]
            in_sizes, out_sizes = list(sizes), list(sizes)
            if in_axis is not None:
                in_sizes[in_axis] *= ranks
            if out_axis is not None:
                out_sizes[out_axis] *= ranks
            in_shape = _shape(in_sizes, _layout(rng, 3))
            out_shape = _shape(out_sizes, _layout(rng, 3))
            block = blocks.block_of(in_shape, out_shape, in_axis, out_axis, ranks)
            self.assertEqual(block.num_elements, np.prod(sizes))
            reads, writes = self._places(block)
            operand, result = _addresses(in_shape), _addresses(out_shape)
            for rank in range(ranks):
                # The pairs of places are those of the elements of equal index.
                expected = sorted(
                    zip(
                        _piece(operand, in_axis, rank, ranks).flat,
                        _piece(result, out_axis, rank, ranks).flat,
                        strict=True,
                    )
                )
                actual = sorted(
                    zip(
                        reads + (rank * block.in_step if in_axis is not None else 0),
                        writes + (rank * block.out_step if out_axis is not None else 0),
                        strict=True,
                    )
                )
                self.assertEqual(actual, expected)

    def test_rows_are_as_long_as_they_can_be(self) -> None:
        rows = _shape([4, 6], [1, 0])
        gathered = _shape([8, 6], [1, 0])
        block = blocks.block_of(rows, gathered, None, 0, 2)
        self.assertEqual(block, blocks.Block((), 24, 0, 24))
        wide = _shape([4, 12], [1, 0])
        block = blocks.block_of(rows, wide, None, 1, 2)
        self.assertEqual(block, blocks.Block((blocks.Loop(4, 6, 12),), 6, 0, 6))

    def test_empty(self) -> None:
        shape = _shape([0, 6], [1, 0])
        self.assertEqual(blocks.block_of(shape, shape, None, None, 2).num_elements, 0)

    def test_shapes_that_do_not_fit(self) -> None:
        with self.assertRaisesRegex(ValueError, "is not the result"):
            blocks.block_of(_shape([4], [0]), _shape([9], [0]), None, 0, 2)
        with self.assertRaisesRegex(ValueError, "is not the result"):
            blocks.block_of(_shape([5], [0]), _shape([2], [0]), 0, None, 2)


class PairsTest(parameterized.TestCase):
    @parameterized.parameters(
        ([(0, 1), (1, 2)], ((0, 1, 2), (3,)), ((-1, 0, 1), (-1,))),
        ([(3, 0), (0, 3), (1, 1)], ((0, 3), (1,), (2,)), ((1, 0), (0,), (-1,))),
        ([], ((0,), (1,), (2,), (3,)), ((-1,),) * 4),
        ([(0, 3), (1, 0), (2, 1), (3, 2)], ((0, 1, 2, 3),), ((1, 2, 3, 0),)),
    )
    def test_groups_and_sources(self, chosen: Any, groups: Any, sources: Any) -> None:
        self.assertEqual(pairs.permute_groups(chosen, 4), (groups, sources))

    @parameterized.parameters(([(0, 1), (2, 1)],), ([(0, 1), (0, 2)],), ([(0, 4)],))
    def test_bad_pairs(self, chosen: Any) -> None:
        with self.assertRaises(ValueError):
            pairs.permute_groups(chosen, 4)


if __name__ == "__main__":
    absltest.main()
