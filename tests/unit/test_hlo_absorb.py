# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""XLA's conversions around an all-reduce of a narrow float, undone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

import hlo_programs as programs
from strata_jax.hlo import schema


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


if __name__ == "__main__":
    absltest.main()
