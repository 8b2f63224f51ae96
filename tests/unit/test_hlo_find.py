# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Which collectives stay native, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl.testing import absltest, parameterized

import hlo_programs as programs
from strata_jax.hlo import operations, rewrite


def _edited(data: bytes, edit: Callable[[Any], None]) -> bytes:
    """Return the module with its all-reduces edited."""
    module = programs.parse(data)
    for instruction in programs.instructions(module):
        if instruction.opcode == "all-reduce":
            edit(instruction)
    return module.SerializeToString()


class LeftTest(parameterized.TestCase):
    """What stays native, and why."""

    def _reasons(self, data: bytes, **options: Any) -> dict[str, int]:
        module, counts = programs.rewritten(data, **options)
        if module is not None:
            self.assertIn("all-reduce", [i.opcode for i in programs.instructions(module)])
        self.assertEqual(counts["native"], 0)
        return counts["left"]

    @parameterized.parameters("channel_id", "use_global_device_ids")
    def test_cross_replica(self, field: str) -> None:
        data = _edited(programs.captured("psum"), lambda i: i.ClearField(field))
        self.assertEqual(self._reasons(data), {"cross-replica": 1})

    def test_replicas(self) -> None:
        module = programs.parse(programs.captured("psum"))
        module.device_assignment.replica_count = 2
        self.assertEqual(self._reasons(module.SerializeToString()), {"cross-replica": 1})

    def test_no_device_assignment(self) -> None:
        module = programs.parse(programs.captured("psum"))
        module.ClearField("device_assignment")
        self.assertEqual(self._reasons(module.SerializeToString()), {"cross-replica": 1})

    def test_crosses_hosts(self) -> None:
        self.assertEqual(self._reasons(programs.captured("psum"), hosts=()), {"crosses hosts": 1})
        module = programs.parse(programs.captured("psum"))
        module.device_assignment.computation_devices[5].replica_device_ids[:] = [2048]
        data = module.SerializeToString()
        self.assertEqual(self._reasons(data), {"crosses hosts": 1})
        self.assertEqual(self._reasons(data, hosts=(0, 1)), {"crosses hosts": 1})
        self.assertEqual(programs.rewritten(data, hosts=(0, 0))[1]["left"], {})

    @parameterized.parameters(([0, 8],), ([0, -1],), ([0, 1, 1],))
    def test_groups_of_wrong_partitions(self, ids: list[int]) -> None:
        def edit(instruction: Any) -> None:
            instruction.ClearField("mesh_axes_replica_group_list")
            del instruction.collective_device_list.replica_groups[:]
            instruction.collective_device_list.replica_groups.add(replica_ids=ids)

        self.assertEqual(self._reasons(_edited(programs.captured("psum"), edit)), {"groups": 1})

    def test_dynamic_shape(self) -> None:
        data = _edited(
            programs.captured("psum"), lambda i: i.shape.is_dynamic_dimension.__setitem__(0, True)
        )
        self.assertEqual(self._reasons(data), {"dynamic shape": 1})

    @parameterized.parameters(
        ("F4E2M1FN", "add", "dtype F4E2M1FN"),
        ("F8E8M0FNU", "maximum", "dtype F8E8M0FNU"),
        ("F32", "and", "dtype F32 in a bitwise reduction"),
        ("C64", "xor", "dtype C64 in a bitwise reduction"),
        ("C64", "maximum", "dtype C64 in a maximum or minimum"),
        ("C128", "minimum", "dtype C128 in a maximum or minimum"),
    )
    def test_dtype(self, name: str, reducer: str, reason: str) -> None:
        self.assertEqual(self._reasons(_with_type(name, reducer)), {reason: 1})

    @parameterized.parameters("subtract", "select", "convert")
    def test_reducer(self, opcode: str) -> None:
        self.assertEqual(self._reasons(_with_type("F32", opcode)), {"reducer": 1})

    def test_reducer_of_more_than_two_parameters(self) -> None:
        module = programs.parse(programs.captured("psum"))
        for instruction in programs.instructions(module):
            if instruction.opcode == "add":
                instruction.operand_ids[1] = instruction.operand_ids[0]
        self.assertEqual(self._reasons(module.SerializeToString()), {"reducer": 1})

    def test_reducer_with_swapped_parameters(self) -> None:
        module = programs.parse(programs.captured("psum"))
        for instruction in programs.instructions(module):
            if instruction.opcode == "add":
                instruction.operand_ids.reverse()
        self.assertIsNotNone(programs.rewritten(module.SerializeToString())[0])

    @parameterized.parameters(
        *("PRED", "S2", "S4", "S8", "S16", "S32", "S64", "U2", "U4", "U8", "U16", "U32", "U64"),
        *("F16", "BF16", "F32", "F64", "C64", "C128"),
        *("F8E5M2", "F8E4M3FN", "F8E4M3B11FNUZ", "F8E4M3FNUZ", "F8E5M2FNUZ", "F8E4M3", "F8E3M4"),
    )
    def test_known_types(self, name: str) -> None:
        module, counts = programs.rewritten(_with_type(name, "add"))
        self.assertEqual(counts["left"], {})
        self.assertEqual(programs.calls(module)[0].shape.element_type, programs.TYPES[name])

    @parameterized.parameters("and", "or", "xor")
    def test_bitwise(self, opcode: str) -> None:
        for name in ("PRED", "S32", "U8"):
            (call,) = programs.calls(programs.rewritten(_with_type(name, opcode))[0])
            self.assertEqual(programs.attributes_of(call)["kind"], operations.KINDS[opcode])

    def test_beside_a_native_collective_no_thread_runs_another_devices_program(self) -> None:
        module = programs.parse(programs.captured("many"))
        native = next(i for i in programs.instructions(module) if i.opcode == "all-reduce")
        native.ClearField("channel_id")
        module, counts = programs.rewritten(module.SerializeToString())
        self.assertEqual(counts["left"], {"cross-replica": 1})
        self.assertEqual(set(counts["finish"]), {"lane"})
        self.assertIn("all-reduce", [i.opcode for i in programs.instructions(module)])

    def test_asynchronous_pairs(self) -> None:
        module = programs.parse(programs.captured("psum"))
        for instruction in programs.instructions(module):
            if instruction.opcode == "all-reduce":
                instruction.opcode = "all-reduce-start"
        self.assertEqual(
            programs.rewritten(module.SerializeToString())[1]["left"],
            {"all-reduce-start: asynchronous": 1},
        )

    def test_computation_with_two_callers(self) -> None:
        module = programs.parse(programs.captured("loops"))
        for instruction in programs.instructions(module):
            if instruction.opcode == "conditional":
                called = instruction.called_computation_ids
                called[1] = called[0]
        self.assertEqual(self._reasons(module.SerializeToString()), {rewrite.SHARED_COMPUTATION: 4})

    def test_loop_whose_body_is_entered_twice(self) -> None:
        module = programs.parse(programs.captured("loops"))
        loop = next(i for i in programs.instructions(module) if i.opcode == "while")
        entry = next(c for c in module.computations if c.id == module.entry_computation_id)
        entry.instructions.add(
            name="again",
            opcode="call",
            id=entry.id << 32 | 999,
            called_computation_ids=loop.called_computation_ids[:1],
        )
        self.assertEqual(self._reasons(module.SerializeToString()), {rewrite.SHARED_COMPUTATION: 4})


def _with_type(name: str, reducer: str) -> bytes:
    """Return psum's module with another element type and reducer; only our hook reads it."""
    module = programs.parse(programs.captured("psum"))
    for instruction in programs.instructions(module):
        if instruction.opcode == "add":
            instruction.opcode = reducer
        instruction.shape.element_type = programs.TYPES[name]
    return module.SerializeToString()


if __name__ == "__main__":
    absltest.main()
