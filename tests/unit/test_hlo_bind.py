# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The identity of a call, and calls that the lowering wrote."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec as P

import hlo_programs as programs
from strata_jax.hlo import attributes, rewrite


class IdentityTest(parameterized.TestCase):
    def _values(self, data: bytes) -> list[dict[str, Any]]:
        module, _ = programs.rewritten(data)
        return [programs.attributes_of(call) for call in programs.calls(module)]

    @parameterized.parameters(("psum", 0), ("pmax", 2), ("pmin", 3))
    def test_kind(self, name: str, kind: int) -> None:
        (values,) = self._values(programs.captured(name))
        self.assertEqual(values["kind"], kind)

    def test_kinds_of_the_partitioner(self) -> None:
        kinds = {values["kind"] for values in self._values(programs.captured("auto"))}
        self.assertEqual(kinds, {0, 1, 2, 3, 5})

    def test_groups(self) -> None:
        (values,) = self._values(programs.captured("axis_index_groups"))
        self.assertEqual(values["groups"], [0, 3, 5, 6, 1, 2, 4, 7])
        self.assertEqual(values["group_size"], 4)

    def test_uneven_groups_are_filled_up(self) -> None:
        (values,) = self._values(programs.captured("uneven groups"))
        self.assertEqual(values["groups"], [0, 1, 2, 3, 4, 5, 7, 6, -1, -1, -1, -1])
        self.assertEqual(values["group_size"], 6)

    def test_devices_of_a_permuted_mesh(self) -> None:
        order = [3, 1, 0, 2, 7, 6, 5, 4]
        devices = np.array(jax.devices())[order]
        mesh = jax.sharding.Mesh(devices, ("i",))
        function = programs.sharded(lambda v: jax.lax.psum(v, "i"), mesh=mesh, out_specs=P())
        (values,) = self._values(programs.capture(function, programs.ones()))
        self.assertEqual(values["devices"], order)
        self.assertEqual(values["groups"], list(range(8)))

    def test_fingerprint_is_of_the_collectives_alone(self) -> None:
        data = programs.captured("psum")
        renamed = programs.parse(data)
        renamed.name = "another"
        for instruction in programs.instructions(renamed):
            instruction.name += "x"
        constant = programs.sharded(
            lambda v: jax.lax.psum(v * 3 + 1, "i"), check_vma=False, out_specs=P()
        )
        prints = set()
        for module in (
            data,
            renamed.SerializeToString(),
            programs.capture(constant, programs.ones()),
        ):
            (call,) = programs.calls(programs.rewritten(module)[0])
            prints.add(programs.attributes_of(call)["fp"])
        self.assertLen(prints, 1)

    def test_fingerprint_tells_collectives_apart(self) -> None:
        prints = set()
        for name in ("psum", "pmax", "int32", "axis_index_groups", "two axes", "tree", "loops"):
            prints.add(self._values(programs.captured(name))[0]["fp"])
        prints.add(
            self._values(programs.capture(programs.ALL["psum"][0], programs.ones(8, 17)))[0]["fp"]
        )
        self.assertLen(prints, 8)
        for fingerprint in prints:
            self.assertBetween(fingerprint, -(2**63), 2**63 - 1)

    @parameterized.parameters("plain", 'a "quote', "back\\slash", "line\nbreak\x00", "µ", "%d{}")
    def test_names_are_escaped(self, strange: str) -> None:
        module = programs.parse(programs.captured("psum"))
        module.name = strange
        rewritten, _ = programs.rewritten(module.SerializeToString())
        (call,) = programs.calls(rewritten)
        self.assertEqual(programs.attributes_of(call)["module"], strange)


class LargeTest(parameterized.TestCase):
    """XLA must not run a large program of one device a process on the thread that calls it."""

    def _rewritten(self, num_elements: int, processes: int) -> list[str]:
        data = programs.capture(programs.ALL["psum"][0], programs.ones(8, num_elements))
        module = programs.parse(data)
        for i, column in enumerate(module.device_assignment.computation_devices):
            column.replica_device_ids[:] = [(i * processes // 8) << 11 | i]
        rewritten, _ = programs.rewritten(module.SerializeToString(), hosts=(0,) * processes)
        (call,) = programs.calls(rewritten)
        nodes = {i.id: i for i in programs.instructions(rewritten)}
        partition = nodes[call.operand_ids[-1]]
        names = [partition.opcode]
        while partition.operand_ids:
            partition = nodes[partition.operand_ids[0]]
            names.append(partition.opcode)
        return names

    def test_has_flops_between_processes(self) -> None:
        self.assertEqual(self._rewritten(1 << 19, 2), ["or", "broadcast", "partition-id"])

    @parameterized.parameters((1 << 18, 2), (1 << 19, 1))
    def test_has_none_otherwise(self, num_elements: int, processes: int) -> None:
        self.assertEqual(self._rewritten(num_elements, processes), ["partition-id"])


class LoweredTest(parameterized.TestCase):
    """Calls that our lowering wrote."""

    def _capture(self, **options: Any) -> bytes:
        function = programs.sharded(
            lambda v: programs.lowered_all_reduce(v, **options), check_vma=False
        )
        return programs.capture(function, programs.ones(dtype=jnp.bfloat16))

    def test_gets_its_identity(self) -> None:
        module, counts = programs.rewritten(
            self._capture(kind=2, groups=[[0, 2, 4, 6], [1, 3, 5, 7]])
        )
        (call,) = programs.calls(module)
        values = programs.attributes_of(call)
        self.assertEqual((values["kind"], values["group_size"], values["op"]), (2, 4, 0))
        self.assertEqual(values["groups"], [0, 2, 4, 6, 1, 3, 5, 7])
        self.assertEqual((counts["lowered"], counts["native"]), (1, 0))

    def test_xla_accepts_it(self) -> None:
        function = programs.sharded(programs.lowered_all_reduce, check_vma=False)
        complaint = programs.compile_rewritten(function, programs.ones(dtype=jnp.bfloat16))
        self.assertIn("strata_all_reduce", complaint or "strata_all_reduce")
        self.assertNotIn("RET_CHECK", complaint)

    @parameterized.parameters(
        ("dense<[1, 0, 3, 2]> : tensor<4xi64>", 2, ((1, 0), (3, 2))),
        ("array<i64: 1, 0, 3, 2>", 2, ((1, 0), (3, 2))),
        ("array<i64: 1, 0, 3, -1>", 2, ((1, 0), (3,))),
        ("dense<5> : tensor<1xi64>", 1, ((5,),)),
        ('dense<"0x01000000000000000000000000000000"> : tensor<2xi64>', 2, ((1, 0),)),
    )
    def test_forms_of_groups(self, groups: str, group_size: int, expected: Any) -> None:
        text = (
            f"{{group_size = {group_size} : i64, groups = {groups}, in_axis = 1 : i64, "
            f"kind = 3 : i64, out_axis = -1 : i64}}"
        )
        self.assertEqual(attributes.decode(text.encode()), (3, expected, 1, None))

    @parameterized.parameters(
        "{group_size = 2 : i64, kind = 0 : i64}",
        "{group_size = 2 : i64, groups = array<i64: 0, 1, 2>, kind = 0 : i64}",
        "{groups = array<i64: 0, 1>, kind = 0 : i64}",
        "{group_size = 2 : i64, groups = array<i64: 0, 1>, kind = 0 : i32}",
    )
    def test_what_cannot_be_read(self, text: str) -> None:
        with self.assertRaises(ValueError):
            attributes.decode(text.encode())

    def test_groups_of_many_devices(self) -> None:
        # MLIR prints an array of more than 100 elements in hexadecimal.
        data = self._capture(groups=[list(range(200))])
        self.assertIn(b'dense<"0x', data)
        module, counts = programs.rewritten(data)
        (call,) = programs.calls(module)
        self.assertIn("groups", programs.attributes_of(call)["error"])
        self.assertEqual(counts["failed"], 1)

    def test_that_crosses_hosts_fails_with_a_text(self) -> None:
        module, counts = programs.rewritten(self._capture(), hosts=())
        (call,) = programs.calls(module)
        values = programs.attributes_of(call)
        self.assertEqual(list(values), ["error"])
        self.assertIn("crosses hosts", values["error"])
        self.assertIn(call.name, values["error"])
        self.assertEqual((counts["failed"], counts["calls"], counts["lowered"]), (1, 0, 0))

    def test_in_a_shared_computation_fails_with_a_text(self) -> None:
        function = programs.sharded(
            lambda v: jax.lax.cond(
                v.sum() > 0, programs.lowered_all_reduce, lambda u: u + jax.lax.pmax(u, "i"), v
            ),
            check_vma=False,
        )
        module = programs.parse(programs.capture(function, programs.ones()))
        for instruction in programs.instructions(module):
            if instruction.opcode == "conditional":
                called = instruction.called_computation_ids
                holder = next(c for c in called if programs.calls(programs.only(module, c)))
                called[:] = [holder] * 2
        rewritten, counts = programs.rewritten(module.SerializeToString())
        (call,) = programs.calls(rewritten)
        self.assertIn(rewrite.SHARED_COMPUTATION, programs.attributes_of(call)["error"])
        self.assertEqual(counts["left"], {rewrite.SHARED_COMPUTATION: 1})


if __name__ == "__main__":
    absltest.main()
