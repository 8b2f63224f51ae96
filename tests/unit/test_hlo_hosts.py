# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Collectives over several hosts: what the compile hook splits, into what, and with which results.

The 8 devices of this process stand for processes of 4 devices each, or fewer: their global ids are
read with another boundary between process and local index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import hlo_programs as programs
import one_process
import strata_jax
from strata_jax import _compat, reference
from strata_jax.hlo import find, hosts, rewrite
from strata_jax.hlo.counters import Counters
from strata_jax.hlo.levels import Levels, levels_of

_TRANSFORM = "strata_jax_test_hosts"
_TWO = (0, 1)  # two processes, on two hosts
_ALTERNATING = ((0, 4, 1, 5), (2, 6, 3, 7))


def setUpModule() -> None:
    one_process.ensure_fabric()


def _devices_of(num_devices: int) -> Any:
    """Let so many devices be those of a process."""
    return mock.patch.object(find, "PROCESS_SHIFT", num_devices.bit_length() - 1)


def _rewritten(
    data: bytes, table: Sequence[int] = _TWO, num_devices: int = 4, **options: Any
) -> tuple[Any, dict[str, Any]]:
    with _devices_of(num_devices):
        return programs.rewritten(data, hosts=table, **options)


def _run(
    op: Callable[[Any], Any],
    x: Any,
    table: Sequence[int] = _TWO,
    num_devices: int = 4,
) -> tuple[Any, dict[str, Any]]:
    """Run `op` of each device's part of `x`; return what the devices got, and the counters.

    Our calls then run inside "hosts", and XLA's collectives between them.
    """
    counters = Counters()
    hook = programs.hook(hosts=table, counters=counters)
    function = one_process.sharded(op, one_process.devices_mesh(8, "i"))
    with strata_jax.disabled():
        lowered = function.lower(x)
    jax.clear_caches()
    _compat.register_hlo_transform(_TRANSFORM, lambda data: hook(programs.with_mark(data)))
    try:
        with _devices_of(num_devices):
            compiled = lowered.compile()
    finally:
        _compat.clear_hlo_transform(_TRANSFORM)
    result = jax.tree.map(one_process.per_device, jax.block_until_ready(compiled(x)))
    return result, counters.snapshot()


def _whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return small whole numbers, whose sums are exact in any order, for 8 devices."""
    return np.random.default_rng(0).integers(-9, 9, (8, *shape)).astype(dtype)


def _native(module: Any) -> list[Any]:
    opcodes = ("all-reduce", "all-gather", "reduce-scatter")
    return [i for i in programs.instructions(module) if i.opcode in opcodes]


def _groups_of(instruction: Any) -> tuple[tuple[int, ...], ...]:
    listed = instruction.collective_device_list.replica_groups
    return tuple(tuple(group.replica_ids) for group in listed)


@contextlib.contextmanager
def _smallest(num_bytes: int) -> Iterator[None]:
    with mock.patch.object(hosts, "MIN_BYTES", num_bytes):
        yield


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
        with _smallest(32):
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


class RunTest(parameterized.TestCase):
    """The results of what was split."""

    @parameterized.product(shape=((1 << 12,), (4099,), (33, 7, 19)), kind=("sum", "max", "min"))
    def test_all_reduce(self, shape: tuple[int, ...], kind: str) -> None:
        op = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}[kind]
        x = _whole(*shape)
        found, counts = _run(lambda v: op(v, "i"), x)
        self.assertEqual(counts["split"], 1)
        one_process.assert_same_bits(found, reference.all_reduce(kind, list(x)))

    @parameterized.parameters("int8", "uint8", "int32", "float64", "complex64", "bool", "bfloat16")
    def test_types(self, dtype: str) -> None:
        with jax.enable_x64(True), _smallest(1024):
            x = (_whole(1031) % 3).astype(jnp.dtype(dtype))
            op = jax.lax.pmax if dtype == "bool" else jax.lax.psum
            found, counts = _run(lambda v: op(v, "i"), x)
        self.assertEqual(counts["split"], 1)
        one_process.assert_same_bits(
            found, reference.all_reduce("max" if dtype == "bool" else "sum", list(x))
        )

    def test_all_devices_have_the_same_bits(self) -> None:
        found, _ = _run(lambda v: jax.lax.psum(v, "i"), one_process.normal(8, 10_007))
        one_process.assert_alike(found)

    def test_several_arrays(self) -> None:
        x = _whole(4099)
        sizes = (0, 1, 5, 8, 1000, 4096, 4099)
        found, counts = _run(lambda v: jax.lax.psum([v[:n] for n in sizes], "i"), x)
        self.assertGreaterEqual(counts["split"], 1)
        for n, parts in zip(sizes, found, strict=True):
            one_process.assert_same_bits(parts, reference.all_reduce("sum", list(x[:, :n])))

    @parameterized.product(
        table=((0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0, 1, 1, 1, 1)),
        axis=(0, 1),
    )
    def test_hosts_of_several_processes(self, table: Sequence[int], axis: int) -> None:
        x = _whole(16, 32)
        num_devices = 8 // len(table)
        with _smallest(256):
            found, counts = _run(
                lambda v: (
                    jax.lax.psum(v, "i"),
                    jax.lax.all_gather(v, "i", axis=axis, tiled=True),
                    jax.lax.psum_scatter(v, "i", scatter_dimension=axis, tiled=True),
                ),
                x,
                table,
                num_devices,
            )
        alternating_pairs = table == (0, 1, 0, 1)  # of devices: neither order
        self.assertEqual(counts["split"], 1 if alternating_pairs else 3)
        total, gathered, scattered = found
        one_process.assert_same_bits(total, reference.all_reduce("sum", list(x)))
        one_process.assert_same_bits(gathered, reference.all_gather(list(x), axis, tiled=True))
        one_process.assert_same_bits(
            scattered, reference.reduce_scatter("sum", list(x), axis, tiled=True)
        )

    @parameterized.parameters(
        (((0, 1, 4, 5), (2, 3, 6, 7)),), (((4, 5, 1, 0), (7, 6, 2, 3)),), (_ALTERNATING,)
    )
    def test_groups(self, groups: Any) -> None:
        x = _whole(4, 64)
        with _smallest(256):
            found, counts = _run(
                lambda v: (
                    jax.lax.psum(v, "i", axis_index_groups=groups),
                    jax.lax.all_gather(v, "i", axis_index_groups=groups),
                    jax.lax.psum_scatter(v, "i", axis_index_groups=groups),
                ),
                x,
            )
        self.assertEqual(counts["split"], 3)
        total, gathered, scattered = found
        one_process.assert_same_bits(total, reference.all_reduce("sum", list(x), groups))
        one_process.assert_same_bits(gathered, reference.all_gather(list(x), groups=groups))
        one_process.assert_same_bits(
            scattered, reference.reduce_scatter("sum", list(x), groups=groups)
        )

    def test_in_loops_and_branches(self) -> None:
        def op(v: Any) -> Any:
            v = jax.lax.fori_loop(0, 3, lambda _, u: jax.lax.psum(u, "i") / 8, v)
            return jax.lax.cond(
                jax.lax.psum(v[0], "i") > 0,
                lambda u: jax.lax.psum(u + 1, "i"),
                lambda u: jax.lax.pmax(u - 1, "i"),
                v,
            )

        x = 8 * np.abs(_whole(4099)) + 8
        found, counts = _run(op, x)
        self.assertEqual((counts["split"], counts["left"]), (3, {"crosses hosts": 1}))
        one_process.assert_same_bits(found, [8 * (x.sum(0) / 8 + 1)] * 8)

    def test_many_at_once(self) -> None:
        x = _whole(4099)
        found, counts = _run(
            lambda v: [jax.lax.psum(v * k, "i") for k in range(1, 5)] + [jax.lax.pmax(v, "i")], x
        )
        self.assertGreaterEqual(counts["split"], 2)
        for k, parts in enumerate(found[:4], 1):
            one_process.assert_same_bits(parts, [k * x.sum(0)] * 8)
        one_process.assert_same_bits(found[4], [x.max(0)] * 8)


class HookTest(absltest.TestCase):
    def test_same_input_same_output(self) -> None:
        data = _psum_module(4099)
        with _devices_of(4):
            first, second = (programs.hook(hosts=_TWO)(data) for _ in range(2))
        self.assertEqual(first, second)
        self.assertIn("dynamic-update-slice", programs.text(first))

    def test_a_split_module_is_done(self) -> None:
        with _devices_of(4):
            result = programs.hook(hosts=_TWO)(_psum_module(4099))
            self.assertIsNone(programs.hook(hosts=_TWO)(result))

    def test_a_program_that_donates_stays(self) -> None:
        module, counts = _rewritten(programs.with_mark(_psum_module(4099), "donates"))
        self.assertIsNone(module)
        self.assertEqual(counts["left"], {rewrite.DONATION: 1})


if __name__ == "__main__":
    absltest.main()
