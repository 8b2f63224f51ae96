# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""XLA's copies and conversions around native collectives, taken away."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_programs as programs
from strata_jax.hlo import absorb, schema
from strata_jax.hlo.graph import Graph


class PromotionTest(absltest.TestCase):
    def _check(self, function: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
        module, counts = programs.rewritten(programs.capture(function, *args))
        complaint = programs.compile_rewritten(function, *args)
        self.assertIn("No FFI handler", complaint or "No FFI handler")
        return module, counts

    def test_one_buffer(self) -> None:
        function, args = programs.ALL["bfloat16"]
        module, counts = self._check(function, *args)
        (call,) = programs.calls(module)
        self.assertEqual(counts["absorbed"], 1)
        self.assertEqual(call.shape.element_type, programs.TYPES["BF16"])
        entry = module.computations[-1]
        self.assertEqual(
            [i.opcode for i in entry.instructions],
            ["partition-id", "parameter", "fusion", "custom-call"],
        )
        self.assertEqual(entry.root_id, call.id)

    def test_only_the_buffers_whose_converts_stand_alone(self) -> None:
        x = programs.ones(dtype=jnp.bfloat16)
        function = programs.sharded(
            lambda a, b, c: jax.lax.psum((a * 2, b, c), "i"), check_vma=False
        )
        module, counts = self._check(function, x, x, x)
        (call,) = programs.calls(module)
        self.assertEqual(counts["absorbed"], 2)
        types = sorted(shape.element_type for shape in call.shape.tuple_shapes)
        self.assertEqual(
            types, sorted([programs.TYPES["F32"], programs.TYPES["BF16"], programs.TYPES["BF16"]])
        )
        parts = [i for i in programs.instructions(module) if i.opcode == "get-tuple-element"]
        for part in parts:
            self.assertEqual(part.shape, call.shape.tuple_shapes[part.tuple_index])

    def test_a_wide_result_that_is_used_keeps_its_type(self) -> None:
        def function(v: jax.Array) -> Any:
            wide = jax.lax.psum(v.astype(np.float32), "i")
            return wide.astype(jnp.bfloat16), wide

        module, counts = self._check(
            programs.sharded(function, check_vma=False), programs.ones(dtype=jnp.bfloat16)
        )
        self.assertEqual(counts["absorbed"], 0)
        self.assertEqual(programs.calls(module)[0].shape.element_type, programs.TYPES["F32"])

    def test_operand_and_result_of_different_narrow_types_stay_wide(self) -> None:
        function = programs.sharded(
            lambda v: jax.lax.psum(v.astype(np.float32), "i").astype(jnp.bfloat16),
            check_vma=False,
        )
        _, counts = self._check(function, programs.ones(dtype=np.float16))
        self.assertEqual(counts["absorbed"], 0)

    def test_float16_that_the_program_widens_itself(self) -> None:
        function = programs.sharded(
            lambda v: jax.lax.psum(v.astype(np.float32), "i").astype(np.float16),
            check_vma=False,
        )
        module, counts = self._check(function, programs.ones(dtype=np.float16))
        self.assertEqual(counts["absorbed"], 1)
        self.assertEqual(programs.calls(module)[0].shape.element_type, programs.TYPES["F16"])

    def test_a_part_that_is_taken_twice_keeps_its_type(self) -> None:
        x = programs.ones(dtype=jnp.bfloat16)
        function = programs.sharded(lambda a, b: jax.lax.psum((a, b), "i"), check_vma=False)
        module = programs.parse(programs.capture(function, x, x))
        entry = module.computations[-1]
        part = next(i for i in entry.instructions if i.opcode == "get-tuple-element")
        again = schema.HloInstructionProto()
        again.CopyFrom(part)
        again.name, again.id = "again", entry.id << 32 | 999
        # Before the part whose convert stands alone, which is thus the last that is looked at.
        entry.instructions.insert(list(entry.instructions).index(part), again)
        _, counts = programs.rewritten(module.SerializeToString())
        self.assertEqual(counts["absorbed"], 1)

    def test_float32_is_not_narrowed_to_what_was_never_converted(self) -> None:
        function = programs.sharded(
            lambda v: jax.lax.psum(v, "i").astype(jnp.bfloat16), check_vma=False
        )
        module, counts = self._check(function, programs.ones())
        self.assertEqual(counts["absorbed"], 0)
        self.assertEqual(programs.calls(module)[0].shape.element_type, programs.TYPES["F32"])


class MovesTest(parameterized.TestCase):
    """Programs of plain jit, whose collectives the partitioner writes."""

    def _resharded(self, before: Any, after: Any, dtype: Any = np.float32, **options: Any) -> Any:
        function = jax.jit(
            options.pop("f", lambda v: v),
            in_shardings=NamedSharding(programs.mesh(), before),
            out_shardings=NamedSharding(programs.mesh(), after),
            **options,
        )
        data = programs.capture(function, programs.ones(64, 64, dtype=dtype))
        module, counts = programs.rewritten(data)
        complaint = programs.compile_rewritten(function, programs.ones(64, 64, dtype=dtype))
        self.assertIn("No FFI handler", complaint or "No FFI handler")
        return module, counts["absorbed"]

    def _entry(self, module: Any) -> list[str]:
        (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
        return [i.opcode for i in entry.instructions]

    def test_all_gather_of_the_minor_axis_has_no_transposes(self) -> None:
        module, absorbed = self._resharded(P(None, "i"), P())
        self.assertEqual(absorbed, 1)
        opcodes = self._entry(module)
        # XLA's own copies are dead now, and deleted after the hook.
        (call,) = programs.calls(module)
        self.assertEqual(list(call.shape.layout.minor_to_major), [1, 0])
        self.assertLessEqual(opcodes.count("fusion") + opcodes.count("copy"), 1)
        self.assertEqual(programs.attributes_of(call)["loops"], [64, 8, 64])
        self.assertEqual(programs.attributes_of(call)["runs"], [8])

    def test_all_gather_of_bfloat16_stays_narrow(self) -> None:
        module, absorbed = self._resharded(P("i"), P(), jnp.bfloat16)
        self.assertEqual(absorbed, 1)
        (call,) = programs.calls(module)
        self.assertEqual(call.shape.element_type, programs.TYPES["BF16"])

    @parameterized.parameters((P("i"), P(None, "i")), (P(None, "i"), P("i")))
    def test_all_to_all_without_slices_and_concatenate(self, before: Any, after: Any) -> None:
        module, absorbed = self._resharded(before, after, f=lambda v: v * 2)
        self.assertEqual(absorbed, 1)
        (call,) = programs.calls(module)
        self.assertNotEqual(call.shape.element_type, schema.TUPLE)
        self.assertLen(call.operand_ids, 2)  # the array and the partition id
        self.assertNotIn("concatenate", [i.opcode for i in programs.instructions(module)])
        self.assertEqual(programs.attributes_of(call)["is_tuple"], 0)

    def test_a_donated_argument_is_not_read_later_than_xla_thought(self) -> None:
        module, absorbed = self._resharded(
            P(None, "i"), P(None, "i"), f=_gathered_times_itself, donate_argnums=0
        )
        self.assertTrue(module.input_output_alias.SerializeToString())
        (call,) = programs.calls(module)
        operand = call.operand_ids[0] & 0xFFFFFFFF
        (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
        opcodes = {i.id & 0xFFFFFFFF: i.opcode for i in entry.instructions}
        self.assertNotEqual(opcodes[operand], "parameter")
        del absorbed

    def test_the_state_of_a_loop_is_neither_read_later_nor_written_earlier(self) -> None:
        rows, columns = (NamedSharding(programs.mesh(), spec) for spec in (P("i"), P(None, "i")))

        def turn(_: int, v: jax.Array) -> jax.Array:
            v = jax.lax.with_sharding_constraint(v, columns)
            return jax.lax.with_sharding_constraint(v, rows)

        module, _ = self._resharded(P("i"), P("i"), f=lambda v: jax.lax.fori_loop(0, 3, turn, v))
        for computation in module.computations:
            nodes = {i.id & 0xFFFFFFFF: i for i in computation.instructions}
            for instruction in computation.instructions:
                if instruction.opcode == "custom-call":
                    operand = nodes[instruction.operand_ids[0] & 0xFFFFFFFF]
                    self.assertNotIn(operand.opcode, ("parameter", "get-tuple-element"))


class GraphTest(absltest.TestCase):
    def test_a_new_instruction_never_has_the_id_of_one_that_is_being_removed(self) -> None:
        computation = schema.HloModuleProto().computations.add(id=1, root_id=0)
        for i, inputs in enumerate(([], [0])):
            computation.instructions.add(opcode="copy", id=1 << 32 | i, operand_ids=inputs)
        graph = Graph(computation)
        graph.remove(1)
        new = schema.HloInstructionProto(opcode="negate", id=graph.new_id(), operand_ids=[0])
        graph.append(new)
        graph.commit()
        self.assertEqual([i.opcode for i in computation.instructions], ["copy", "negate"])


class PlacesTest(parameterized.TestCase):
    """Which arrays may be read later, or written earlier, than XLA planned."""

    def _places(self, *, entry: bool = True, aliases: bool = False) -> Any:
        module = schema.HloModuleProto(entry_computation_id=1 if entry else 2)
        if aliases:
            module.input_output_alias.ParseFromString(b"\x0a\x00")
        opcodes = ["parameter", "dot", "copy", "negate", "tuple"]
        computation = module.computations.add(id=1, root_id=4)
        for i, (opcode, inputs) in enumerate(zip(opcodes, ([], [0], [1], [1], [2]), strict=True)):
            computation.instructions.add(opcode=opcode, id=i, operand_ids=inputs)
        return absorb._Places(module, Graph(computation))

    @parameterized.parameters((True, False, True), (True, True, False), (False, False, False))
    def test_a_parameter(self, entry: bool, aliases: bool, may: bool) -> None:
        places = self._places(entry=entry, aliases=aliases)
        self.assertEqual(places.may_read_later(0, [1]), may)

    def test_other_readers_may_update_in_place(self) -> None:
        self.assertFalse(self._places().may_read_later(1, [2]))
        self.assertTrue(self._places().may_read_later(1, [2, 3]))

    @parameterized.parameters((True, False, True), (True, True, False), (False, False, False))
    def test_what_a_computation_returns(self, entry: bool, aliases: bool, may: bool) -> None:
        places = self._places(entry=entry, aliases=aliases)
        self.assertEqual(places.may_write_earlier(2), may)
        self.assertEqual(places.may_write_earlier(4), may)
        self.assertTrue(places.may_write_earlier(3))


def _gathered_times_itself(v: jax.Array) -> jax.Array:
    whole = jax.lax.with_sharding_constraint(v, NamedSharding(programs.mesh(), P()))
    return v + whole.sum()


if __name__ == "__main__":
    absltest.main()
