# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Merging small independent calls, and the graph of a computation that it works on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import hlo_programs as programs
from strata_jax.hlo import combine, schema
from strata_jax.hlo.counters import Counters
from strata_jax.hlo.graph import Graph

_HALVES = ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]])
_ours = programs.lowered_all_reduce


def _rewrite(function: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
    counters = Counters()
    jitted = programs.sharded(function, check_vma=False)
    result = programs.hook(counters=counters)(programs.capture(jitted, *args))
    programs.text(result)
    return programs.parse(result), counters.snapshot()


def _num_buffers(module: Any) -> list[int]:
    return [len(call.shape.tuple_shapes) or 1 for call in programs.calls(module)]


class CombineTest(parameterized.TestCase):
    def test_many_become_one(self) -> None:
        def function(x: jax.Array) -> Any:
            return [_ours(x * k) for k in range(12)]

        module, counts = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [12])
        self.assertEqual((counts["lowered"], counts["calls"]), (12, 1))
        (call,) = programs.calls(module)
        self.assertLen(call.operand_ids, 13)  # the last is partition-id
        self.assertFalse(call.constrain_layout or call.operand_shapes_with_layout)

    def test_each_part_is_the_result_it_was(self) -> None:
        def function(x: jax.Array) -> Any:
            return _ours(x * 2), _ours(jnp.sin(x).astype(np.int32)), _ours(x[:, :3])

        jitted = programs.sharded(function, check_vma=False)
        data = programs.capture(jitted, programs.ones())
        before = {i.name: i for i in programs.calls(programs.parse(data))}
        module = programs.parse(programs.hook()(data))
        (call,) = programs.calls(module)
        parts = [i for i in programs.instructions(module) if i.opcode == "get-tuple-element"]
        self.assertEqual({part.name for part in parts}, set(before))
        for part in parts:
            old = before[part.name]
            self.assertEqual((part.id, part.shape), (old.id, old.shape))
            self.assertEqual(list(part.operand_ids), [call.id])
            self.assertEqual(call.shape.tuple_shapes[part.tuple_index], old.shape)
            self.assertFalse(part.custom_call_target or part.backend_config)

    @parameterized.named_parameters(
        ("lowered", lambda x: [_ours(x * k) for k in range(5)]),
        (
            "native_of_other_types",
            lambda x: [
                jax.lax.psum((x * k).astype(t), "i")
                for k, t in enumerate((np.float32, np.int32, np.float16))
            ],
        ),
        ("both", lambda x: (_ours(x.astype(jnp.bfloat16)), jax.lax.psum(x, "i"))),
        ("levels", lambda x: _ours(_ours(x) + _ours(x * 2)) + _ours(x * 3)),
        ("kinds", lambda x: (_ours(x), _ours(x * 2), _ours(x, kind=2), _ours(x * 3, kind=2))),
    )
    def test_xla_accepts_it(self, function: Any) -> None:
        jitted = programs.sharded(function, check_vma=False)
        complaint = programs.compile_rewritten(jitted, programs.ones())
        if complaint:
            self.assertIn("strata_all_reduce", complaint)
            self.assertNotIn("RET_CHECK", complaint)

    def test_types_may_differ_and_native_ones_join(self) -> None:
        def function(x: jax.Array) -> Any:
            return _ours(x.astype(jnp.bfloat16)), jax.lax.psum(x, "i"), _ours(x.astype(np.int8))

        module, counts = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [3])
        self.assertEqual((counts["lowered"], counts["native"]), (2, 1))

    def test_what_depends_on_each_other_stays_apart(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            for _ in range(4):
                x = _ours(jnp.sin(x))
            return x

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [1] * 4)

    def test_by_level_of_dependency(self) -> None:
        def function(x: jax.Array) -> Any:
            a, b = _ours(x * 2), _ours(x * 3)
            c, d = _ours(a + 1), _ours(b + 1)
            return c, d, _ours(x * 4)

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [3, 2])

    def test_other_kinds_and_groups_stay_apart(self) -> None:
        def function(x: jax.Array) -> Any:
            return [
                _ours(x * k, kind=kind, groups=groups)
                for k in range(2)
                for kind in (0, 2)
                for groups in _HALVES
            ]

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [2] * 4)
        values = [programs.attributes_of(call) for call in programs.calls(module)]
        self.assertLen({(v["kind"], tuple(v["groups"])) for v in values}, 4)

    def test_large_ones_stay_apart(self) -> None:
        limit = combine.MAX_CALL_BYTES // 4

        def function(x: jax.Array) -> Any:
            small, large = jnp.broadcast_to(x[0, 0], limit), jnp.broadcast_to(x[0, 0], limit + 1)
            return _ours(large), _ours(large * 2), _ours(small), _ours(small * 2)

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(sorted(_num_buffers(module)), [1, 1, 2])

    def test_sum_of_bytes_is_bounded(self) -> None:
        elements = combine.MAX_CALL_BYTES // 4
        most = combine.MAX_MERGED_BYTES // combine.MAX_CALL_BYTES

        def function(x: jax.Array) -> Any:
            big = jnp.broadcast_to(x[0, 0], elements)
            return [_ours(big * k) for k in range(2 * most + 1)]

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(sorted(_num_buffers(module)), [1, most, most])

    def test_computations_stay_apart(self) -> None:
        def function(x: jax.Array) -> Any:
            inside = jax.lax.fori_loop(0, 3, lambda _, v: _ours(v) + _ours(v * 2), x)
            return inside, _ours(x * 5), _ours(x * 6)

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(_num_buffers(module), [2, 2])
        homes = {
            computation.id
            for computation in module.computations
            for i in computation.instructions
            if i.opcode == "custom-call"
        }
        self.assertLen(homes, 2)

    def test_variadic_native_ones_stay_as_they_are(self) -> None:
        def function(x: jax.Array) -> Any:
            return [jax.lax.psum(x * k, "i") for k in range(3)] + [_ours(x * 7), _ours(x * 8)]

        module, _ = _rewrite(function, programs.ones())
        self.assertEqual(sorted(_num_buffers(module)), [2, 3])

    def test_control_predecessors_move_to_the_merged_call(self) -> None:
        jitted = programs.sharded(lambda x: (_ours(x * 2), _ours(x * 3)), check_vma=False)
        data = programs.parse(programs.capture(jitted, programs.ones()))
        first, second = programs.calls(data)
        before_second = second.operand_ids[0]
        first.control_predecessor_ids.append(before_second)
        entry = data.computations[-1]
        place = {i.id: n for n, i in enumerate(entry.instructions)}
        if place[before_second] > place[first.id]:  # a list has to be in order
            first.control_predecessor_ids[:] = []
            second.control_predecessor_ids.append(first.operand_ids[0])
        module = programs.parse(programs.hook()(data.SerializeToString()))
        (call,) = programs.calls(module)
        self.assertLen(call.control_predecessor_ids, 1)

    def test_one_that_waits_for_another_by_control_stays_apart(self) -> None:
        jitted = programs.sharded(lambda x: (_ours(x * 2), _ours(x * 3)), check_vma=False)
        data = programs.parse(programs.capture(jitted, programs.ones()))
        first, second = programs.calls(data)
        second.control_predecessor_ids.append(first.id)
        module = programs.parse(programs.hook()(data.SerializeToString()))
        self.assertEqual(_num_buffers(module), [1, 1])

    @parameterized.parameters(range(8))
    def test_random_programs_stay_in_order(self, seed: int) -> None:
        draw = random.Random(seed)

        def function(x: jax.Array) -> Any:
            values = [x, x * 2]
            for _ in range(40):
                a, b = draw.choice(values), draw.choice(values)
                choice = draw.random()
                if choice < 0.4:
                    values.append(_ours(a, kind=draw.choice((0, 2))))
                elif choice < 0.5:
                    values.append(jnp.sort(a, axis=1))
                else:
                    values.append(a + jnp.sin(b))
            return values[-20:]

        jitted = programs.sharded(function, check_vma=False)
        data = programs.capture(jitted, programs.ones())
        module = programs.parse(programs.hook()(data))
        old = programs.parse(data)
        self.assertLess(len(programs.calls(module)), len(programs.calls(old)))
        self.assertEqual(sum(_num_buffers(module)), len(programs.calls(old)), "a buffer was lost")
        for computation in module.computations:
            seen: set[int] = set()
            for instruction in computation.instructions:
                self.assertContainsSubset(instruction.operand_ids, seen)
                seen.add(instruction.id)
        operations = [programs.attributes_of(call)["op"] for call in programs.calls(module)]
        self.assertEqual(operations, list(range(len(operations))))
        self.assertEqual(programs.hook()(data), module.SerializeToString())


def _computation(edges: Sequence[Sequence[int]], controls: dict[int, Sequence[int]] | None = None):
    """Return a computation; node k + 1 has the operands edges[k]."""
    proto = schema.HloModuleProto().computations.add(id=4, root_id=4 << 32 | len(edges))
    for local, operands in enumerate(edges, start=1):
        proto.instructions.add(
            id=4 << 32 | local,
            opcode="add" if operands else "parameter",
            name=f"n{local}",
            operand_ids=[4 << 32 | i for i in operands],
            control_predecessor_ids=[4 << 32 | i for i in (controls or {}).get(local, ())],
        )
    return proto


class GraphTest(absltest.TestCase):
    def test_users(self) -> None:
        graph = Graph(_computation([[], [1], [1, 2], [3, 3]]))
        self.assertEqual(graph.users, {1: [2, 3], 2: [3], 3: [4], 4: []})
        self.assertEqual(graph.only_user(3), 4)
        self.assertIsNone(graph.only_user(1))
        self.assertIsNone(graph.only_user(4))  # the root leaves the computation
        self.assertEqual(graph.operands(4), [3, 3])

    def test_control_edges(self) -> None:
        graph = Graph(_computation([[], [1], [2], [3]], {4: [2]}))
        self.assertEqual(graph.users[2], [3, 4])
        self.assertEqual(graph.operands(4), [3])
        self.assertEqual(
            [graph.has_control_edges(n) for n in (1, 2, 3, 4)], [False, True, False, True]
        )

    def test_depths(self) -> None:
        graph = Graph(_computation([[], [1], [1], [2], [3, 4], [1]], {6: [4]}))
        self.assertEqual(graph.depths({2, 4, 6}), {1: 0, 2: 1, 3: 0, 4: 2, 5: 2, 6: 3})

    def test_replace_and_remove(self) -> None:
        proto = _computation([[], [1], [2], [3, 3, 1]])
        graph = Graph(proto)
        graph.replace_uses(3, 1)
        graph.remove(3)
        graph.commit()
        self.assertEqual([i.id & 0xFF for i in proto.instructions], [1, 2, 4])
        self.assertEqual([i & 0xFF for i in proto.instructions[2].operand_ids], [1, 1, 1])
        self.assertEqual(graph.users, {1: [2, 4], 2: [], 4: []})

    def test_replace_the_root(self) -> None:
        proto = _computation([[], [1], [2]])
        graph = Graph(proto)
        graph.replace_uses(3, 2)
        self.assertEqual((proto.root_id, graph.root), (4 << 32 | 2, 2))

    def test_sort_is_stable(self) -> None:
        proto = _computation([[], [1], [1], [1], [2, 4]])
        graph = Graph(proto)
        graph.sort({1: 0, 2: 5, 3: 2, 4: 6, 5: 1})
        self.assertEqual([i.name for i in proto.instructions], ["n1", "n3", "n2", "n4", "n5"])
        self.assertEqual(list(graph.nodes), [1, 3, 2, 4, 5])

    def test_sort_refuses_a_cycle(self) -> None:
        graph = Graph(_computation([[], [1], [2]]))
        graph.set_operand(2, 0, 3)
        with self.assertRaisesRegex(ValueError, "cycle"):
            graph.sort({1: 0, 2: 1, 3: 2})

    def test_new_id(self) -> None:
        graph = Graph(_computation([[], [1]]))
        self.assertEqual(graph.new_id(), 4 << 32 | 3)


if __name__ == "__main__":
    absltest.main()
