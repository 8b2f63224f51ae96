# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Collectives over several hosts: what the compile hook splits, and into what.

The 8 devices of this process stand for processes of 4 devices each, or fewer: their global ids are
read with another boundary between process and local index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import hlo_programs as programs
from strata_jax.hlo import find, hosts, rewrite
from strata_jax.hlo.levels import Levels, levels_of

_TWO = (0, 1)  # two processes, on two hosts


def _rewritten(
    data: bytes, table: Sequence[int] = _TWO, num_devices: int = 4, **options: Any
) -> tuple[Any, dict[str, Any]]:
    with programs.devices_of(num_devices):
        return programs.rewritten(data, hosts=table, **options)


def _native(module: Any) -> list[Any]:
    opcodes = ("all-reduce", "all-gather", "reduce-scatter")
    return [i for i in programs.instructions(module) if i.opcode in opcodes]


def _groups_of(instruction: Any) -> tuple[tuple[int, ...], ...]:
    listed = instruction.collective_device_list.replica_groups
    return tuple(tuple(group.replica_ids) for group in listed)


def _psum_module(*shape: int, **options: Any) -> bytes:
    function = programs.sharded(lambda v: jax.lax.psum(v, "i", **options), check_vma=False)
    return programs.capture(function, programs.ones(8, *shape))


class LevelsTest(parameterized.TestCase):
    @parameterized.parameters(
        ([range(4)], ((0, 1), (2, 3)), ((0, 2), (1, 3)), True),
        ([(0, 2, 1, 3)], ((0, 1), (2, 3)), ((0, 2), (1, 3)), False),
        ([(3, 1, 0, 2)], ((3, 2), (1, 0)), ((3, 1), (2, 0)), None),
        (
            [(4, 5, 0, 1), (2, 3, 6, 7)],
            ((4, 5), (0, 1), (2, 3), (6, 7)),
            ((4, 0), (5, 1), (2, 6), (3, 7)),
            True,
        ),
    )
    def test_groups(self, groups: Any, inside: Any, between: Any, host_major: bool | None) -> None:
        table = [i << find.PROCESS_SHIFT for i in range(8)]  # a process each
        found = levels_of(groups, table, hosts=(0, 0, 1, 1, 1, 1, 0, 0))
        self.assertEqual(found, Levels(inside, between, host_major))

    def test_three_hosts(self) -> None:
        table = [i << find.PROCESS_SHIFT for i in range(6)]
        found = levels_of([range(6)], table, hosts=(0, 1, 2, 0, 1, 2))
        self.assertEqual(found, Levels(((0, 3), (1, 4), (2, 5)), ((0, 1, 2), (3, 4, 5)), False))

    @parameterized.parameters(
        ([range(4)], (0, 0, 0, 1)),  # 3 ranks and 1
        ([range(4)], (0, 1, 2, 3)),  # 1 rank each
        ([range(4)], (0, 0, 1)),  # a process that is not of the job
        ([range(4), (4, 5)], (0, 0, 1, 1, 0, 1)),  # 2 ranks each and 1
        ([range(4), (4, 5)], (0, 0, 1, 1, 0, 0)),  # 2 hosts and 1
    )
    def test_what_has_no_two_levels(self, groups: Any, table: Sequence[int]) -> None:
        devices = [i << find.PROCESS_SHIFT for i in range(6)]
        self.assertIsNone(levels_of(groups, devices, table))


class SplitTest(parameterized.TestCase):
    """What is in the module afterwards."""

    def test_all_reduce(self) -> None:
        module, counts = _rewritten(_psum_module(1 << 12))
        self.assertEqual((counts["split"], counts["native"], counts["calls"]), (1, 0, 2))
        self.assertEqual(counts["left"], {})
        scatter, gather = programs.calls(module)
        self.assertEqual(scatter.custom_call_target, "strata_reduce_scatter")
        self.assertEqual(gather.custom_call_target, "strata_all_gather")
        for call in (scatter, gather):
            values = programs.attributes_of(call)
            self.assertEqual(values["group_size"], 4)
            self.assertEqual(values["groups"], list(range(8)))
            self.assertEqual(values["runs"], [1 << 10])
        self.assertEqual(programs.attributes_of(scatter)["in_steps"], [1 << 10])
        self.assertEqual(programs.attributes_of(gather)["out_steps"], [1 << 10])
        (native,) = _native(module)
        self.assertEqual(list(native.shape.dimensions), [1 << 10])
        self.assertEqual(_groups_of(native), ((0, 4), (1, 5), (2, 6), (3, 7)))
        self.assertTrue(native.use_global_device_ids)
        self.assertLen(native.called_computation_ids, 1)
        self.assertEqual(list(native.operand_ids), [scatter.id])

    def test_the_replaced_instruction_keeps_name_and_shape(self) -> None:
        data = _psum_module(1 << 12)
        (before,) = _native(programs.parse(data))
        module, _ = _rewritten(data)
        (after,) = (i for i in programs.instructions(module) if i.name == before.name)
        self.assertEqual(after.opcode, "bitcast")
        self.assertEqual((after.id, after.shape), (before.id, before.shape))

    def test_channels_are_not_shared(self) -> None:
        def function(v: Any) -> Any:
            return jax.lax.psum(v, "i"), jax.lax.pmax(v, "i"), jax.lax.ppermute(v, "i", [(0, 7)])

        function = programs.sharded(function, check_vma=False)
        module, counts = _rewritten(programs.capture(function, programs.ones(8, 1 << 12)))
        self.assertEqual(counts["split"], 2)
        self.assertEqual(counts["left"], {"crosses hosts": 1})
        channels = [i.channel_id for i in programs.instructions(module) if i.channel_id]
        self.assertLen(set(channels), 3)

    def test_no_thread_runs_another_devices_program(self) -> None:
        _, counts = _rewritten(_psum_module(1 << 12))
        self.assertEqual(counts["finish"], {"lane": 2})

    def test_what_is_not_divisible(self) -> None:
        module, counts = _rewritten(_psum_module((1 << 12) + 3))
        self.assertEqual(counts["calls"], 3)
        (native,) = _native(module)
        self.assertEqual([s.dimensions[0] for s in native.shape.tuple_shapes], [1 << 10, 3])

    def test_several_arrays(self) -> None:
        function = programs.sharded(lambda *v: jax.lax.psum(v, "i"), check_vma=False)
        arrays = [programs.ones(8, n) for n in (3, 1 << 12, 4, (1 << 12) + 1)]
        module, counts = _rewritten(programs.capture(function, *arrays))
        self.assertEqual(counts["split"], 1)
        scatter, reduce, gather = programs.calls(module)
        self.assertEqual(programs.attributes_of(scatter)["runs"], [1 << 10, 1, 1 << 10])
        self.assertEqual(programs.attributes_of(reduce)["runs"], [3, 1])
        self.assertEqual(programs.attributes_of(gather)["runs"], [1 << 10, 1, 1 << 10])
        (native,) = _native(module)
        sizes = [s.dimensions[0] for s in native.shape.tuple_shapes]
        self.assertEqual(sizes, [1 << 10, 1, 1 << 10, 3, 1])

    def test_only_arrays_too_small_to_cut(self) -> None:
        function = programs.sharded(lambda *v: jax.lax.psum(v, "i"), check_vma=False)
        data = programs.capture(function, *[programs.ones(8, n) for n in (3, 5)])
        with mock.patch.object(hosts, "MIN_BYTES", 32):
            module, counts = _rewritten(data)
        self.assertEqual((counts["split"], counts["calls"]), (1, 1))
        (call,) = programs.calls(module)
        self.assertEqual(call.custom_call_target, "strata_all_reduce")

    @parameterized.parameters(
        (lambda v: jax.lax.all_gather(v, "i"), (1 << 9,), "all-gather"),
        (lambda v: jax.lax.psum_scatter(v, "i", tiled=True), (1 << 12,), "reduce-scatter"),
    )
    def test_other_operations(self, op: Any, shape: tuple[int, ...], opcode: str) -> None:
        function = programs.sharded(lambda v: op(v[0]), check_vma=False)
        module, counts = _rewritten(programs.capture(function, programs.ones(8, *shape)))
        self.assertEqual((counts["split"], counts["calls"]), (1, 1))
        (native,), (call,) = _native(module), programs.calls(module)
        self.assertEqual(native.opcode, opcode)
        self.assertEqual(list(native.dimensions), [0])
        self.assertEqual(call.custom_call_target, f"strata_{opcode.replace('-', '_')}")
        self.assertEqual(programs.attributes_of(call)["num_loops"], [1])

    def test_one_of_two_levels_of_a_mesh(self) -> None:
        def function(v: Any) -> Any:
            return jax.lax.psum(v, "i") + jax.lax.psum(v * 2, "j")

        options = {"mesh": programs.mesh(2, 4), "in_specs": jax.P(("i", "j")), "check_vma": False}
        function = programs.sharded(function, out_specs=jax.P(("i", "j")), **options)
        data = programs.capture(function, programs.ones(8, 1 << 12))
        _, counts = _rewritten(data)  # axis i is between hosts, j inside
        self.assertEqual((counts["split"], counts["native"]), (0, 1))
        self.assertEqual(counts["left"], {"crosses hosts": 1})
        _, counts = _rewritten(data, (0, 1, 0, 1), num_devices=2)  # j over both
        self.assertEqual((counts["split"], counts["native"]), (1, 1))

    def test_strict(self) -> None:
        _, counts = _rewritten(_psum_module(1 << 12), strict=True)
        self.assertEqual(counts["failed"], 0)


class LeftTest(parameterized.TestCase):
    """What stays native."""

    def _stays(self, data: bytes, table: Sequence[int] = _TWO, num_devices: int = 4) -> None:
        module, counts = _rewritten(data, table, num_devices)
        self.assertIsNone(module)
        self.assertEqual((counts["split"], counts["left"]), (0, {"crosses hosts": 1}))

    def test_small(self) -> None:
        self._stays(_psum_module(hosts.MIN_BYTES // 4 - 1))

    @parameterized.parameters(
        ((0, 1, 1, 1), 2),  # unlike numbers of ranks
        ((0, 1, 2, 3, 4, 5, 6, 7), 1),  # one rank on each
        ((0,), 4),  # a process that is not of the job
    )
    def test_hosts(self, table: Sequence[int], num_devices: int) -> None:
        self._stays(_psum_module(1 << 12), table, num_devices)

    def test_control_dependencies(self) -> None:
        module = programs.parse(_psum_module(1 << 12))
        (native,) = _native(module)
        before = next(i for i in programs.instructions(module) if i.opcode == "parameter")
        native.control_predecessor_ids.append(before.id)
        self._stays(module.SerializeToString())

    def test_result_in_another_layout(self) -> None:
        module = programs.parse(_psum_module(1 << 6, 1 << 6))
        (native,) = _native(module)
        native.shape.layout.minor_to_major[:] = [0, 1, 2]
        self._stays(module.SerializeToString())

    @parameterized.parameters(
        lambda v: jax.lax.all_gather(v, "i"), lambda v: jax.lax.psum_scatter(v, "i", tiled=True)
    )
    def test_ranks_in_no_order_of_hosts(self, op: Any) -> None:
        function = programs.sharded(lambda v: op(v[0]), check_vma=False)
        module = programs.parse(programs.capture(function, programs.ones(8, 1 << 12)))
        (native,) = _native(module)
        for field in ("iota_collective_device_list", "mesh_axes_replica_group_list"):
            native.ClearField(field)
        del native.collective_device_list.replica_groups[:]
        native.collective_device_list.replica_groups.add(replica_ids=[0, 4, 5, 1, 2, 6, 7, 3])
        self._stays(module.SerializeToString())

    def test_minor_axis(self) -> None:
        function = programs.sharded(lambda v: jax.lax.all_gather(v[0], "i"), check_vma=False)
        module = programs.parse(programs.capture(function, programs.ones(8, 1 << 12)))
        (native,) = _native(module)
        native.shape.layout.minor_to_major[:] = [0, 1]
        for i in programs.instructions(module):
            if i.id in native.operand_ids:
                i.shape.layout.minor_to_major[:] = [0, 1]
        self._stays(module.SerializeToString())

    def test_packed_elements(self) -> None:
        module = programs.parse(_psum_module(1 << 16))
        for instruction in programs.instructions(module):
            if instruction.shape.element_type == programs.TYPES["F32"]:
                instruction.shape.element_type = programs.TYPES["S4"]
        self._stays(module.SerializeToString())


class ErrorTest(parameterized.TestCase):
    """What XLA:CPU cannot run and the fabric cannot either."""

    @parameterized.parameters(
        ("all_gather", "collective-broadcast", "psum"),
    )
    def test_native(self, name: str, opcode: str, instead: str) -> None:
        module = programs.parse(programs.captured(name))
        (native,) = _native(module)
        native.opcode = opcode
        native.ClearField("dimensions")
        module, counts = _rewritten(module.SerializeToString())
        self.assertEqual((counts["failed"], counts["left"]), (1, {}))
        (call,) = programs.calls(module)
        text = programs.attributes_of(call)["error"]
        for part in (opcode, "over several hosts", "inside hosts", instead):
            self.assertIn(part, text)

    def test_lowered(self) -> None:
        data = programs.captured("ragged_all_to_all")
        module = programs.parse(data)
        module, counts = _rewritten(data)
        self.assertEqual(counts["failed"], 1)
        (call,) = programs.calls(module)
        self.assertIn("padded to equal sizes", programs.attributes_of(call)["error"])


class HookTest(absltest.TestCase):
    def test_same_input_same_output(self) -> None:
        data = _psum_module(4099)
        with programs.devices_of(4):
            first, second = (programs.hook(hosts=_TWO)(data) for _ in range(2))
        self.assertEqual(first, second)
        self.assertIn("dynamic-update-slice", programs.text(first))

    def test_a_split_module_is_done(self) -> None:
        with programs.devices_of(4):
            result = programs.hook(hosts=_TWO)(_psum_module(4099))
            self.assertIsNone(programs.hook(hosts=_TWO)(result))

    def test_a_program_that_donates_stays(self) -> None:
        module, counts = _rewritten(programs.with_mark(_psum_module(4099), "donates"))
        self.assertIsNone(module)
        self.assertEqual(counts["left"], {rewrite.DONATION: 1})


if __name__ == "__main__":
    absltest.main()
