# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How calls complete: lanes beside what blocks, inline where little work follows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import hlo_programs as programs
from strata_jax.hlo import cost, schema

_INLINE, _LANE = cost.INLINE, cost.LANE


def _psum(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "i")


def _heavy(x: jax.Array) -> jax.Array:
    square = jnp.broadcast_to(x[:, :1], (256, 256)) + 1
    return x + (jnp.sin(square) @ square)[:1, :1]


def _light(x: jax.Array) -> jax.Array:
    return x * 2 + 1


def _loop(body: Any, x: jax.Array, length: int = 5) -> jax.Array:
    return jax.lax.fori_loop(0, length, lambda _, v: body(v), x)


def _finishes(function: Any, *args: Any, **options: Any) -> list[int]:
    """Return how the calls of a program complete, in the order of the module."""
    jitted = programs.sharded(function, **{"check_vma": False, **options})
    result = programs.hook()(programs.capture(jitted, *(args or (programs.ones(),))))
    calls = programs.calls(programs.parse(result))
    return [programs.attributes_of(call)["finish"] for call in calls]


class FinishTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("nothing_follows", lambda x: _psum(_heavy(x)), [_INLINE]),
        ("little_follows", lambda x: _light(_psum(x)), [_INLINE]),
        ("much_follows", lambda x: _heavy(_psum(x)), [_LANE]),
        ("much_after_the_next_call", lambda x: _heavy(_psum(_light(_psum(x)))), [_INLINE, _LANE]),
        ("much_before_the_next_call", lambda x: _psum(_heavy(_psum(x))), [_LANE, _INLINE]),
        ("loop_of_little", lambda x: _loop(lambda v: _psum(_light(v)), x), [_INLINE]),
        # The work before a call follows the call of the iteration before.
        ("loop_of_much", lambda x: _loop(lambda v: _psum(_heavy(v)), x), [_LANE]),
        ("much_after_a_loop", lambda x: _heavy(_loop(_psum, x)), [_LANE]),
        ("much_after_two_loops", lambda x: _heavy(_loop(lambda v: _loop(_psum, v), x)), [_LANE]),
        (
            "loop_with_a_call_after_it",
            lambda x: _heavy(_psum(_loop(lambda v: _psum(_light(v)), x))),
            [_INLINE, _LANE],
        ),
        # The module lists the loop's body first.
        (
            "much_at_the_start_of_a_loop",
            lambda x: _loop(lambda v: _psum(_heavy(v)), _psum(x)),
            [_LANE, _LANE],
        ),
        ("loop_without_calls_follows", lambda x: _loop(_heavy, _psum(x)), [_LANE]),
        (
            "branch",
            lambda x: _heavy(jax.lax.cond(x.sum() > 0, lambda v: _psum(v) + 1, lambda v: v * 2, x)),
            [_LANE],
        ),
        (
            "sort",
            lambda x: jnp.sort(jnp.arange(512.0)[::-1] * _psum(x)[0, 0]),
            [_LANE],
        ),
    )
    def test_work(self, function: Any, expected: list[int]) -> None:
        self.assertEqual(_finishes(function), expected)

    def test_loop_that_takes_rows_does_not_pay_for_the_array(self) -> None:
        rows = programs.ones(8 * 512, 256)

        def function(all_rows: jax.Array) -> jax.Array:
            step = lambda v, row: (jax.lax.psum(v + row, "i"), None)  # noqa: E731
            return jax.lax.scan(step, jnp.zeros(256), all_rows)[0][None]

        self.assertEqual(_finishes(function, rows), [_INLINE])

    def test_loop_that_writes_rows_does_not_pay_for_the_array(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            def step(v: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
                v = jax.lax.psum(v, "i")
                return v, v * 2

            return jax.lax.scan(step, x, None, length=2000)[1]

        self.assertEqual(_finishes(function, programs.ones(8, 256)), [_INLINE])

    def test_group_of_one_is_never_serialised(self) -> None:
        groups = [[k] for k in range(8)]
        function = lambda x: _heavy(programs.lowered_all_reduce(x, groups=groups))  # noqa: E731
        self.assertEqual(_finishes(function), [_INLINE])

    def test_small_group_beside_a_large_one(self) -> None:
        """Work that is too much for 8 ranks in turn is little for 2."""
        pairs = [[2 * k, 2 * k + 1] for k in range(4)]

        def function(x: jax.Array) -> Any:
            both = programs.lowered_all_reduce(x, groups=pairs), programs.lowered_all_reduce(x)
            return [jnp.sort(y * 2 + k) for k, y in enumerate(both)]

        finishes = _finishes(function, programs.ones(8, 256))
        self.assertEqual(sorted(finishes), [_INLINE, _LANE])

    def test_many_small_pieces_of_work_add_up_for_a_small_group(self) -> None:
        pairs = [[2 * k, 2 * k + 1] for k in range(4)]

        def function(x: jax.Array) -> Any:
            pair = programs.lowered_all_reduce(x, groups=pairs)
            pieces = [jnp.sort(jnp.roll(pair, k) * 2 + k) for k in range(12)]
            return pieces, programs.lowered_all_reduce(x * 3)

        finishes = _finishes(function, programs.ones(8, 128))
        self.assertEqual(finishes, [_LANE, _LANE])

    def test_lapack_computes(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            return jnp.linalg.qr(_psum(x.reshape(4, 4)))[0].reshape(1, 16)

        self.assertEqual(_finishes(function), [_INLINE])

    def test_host_callback_blocks(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(np.sin, shape, _psum(x))

        self.assertEqual(_finishes(function), [_LANE])

    @parameterized.parameters(
        ("lapack_sgeqrf_ffi", False),
        ("TopK", False),
        ("__onednn$matmul", False),
        ("xla_ffi_python_cpu_callback", True),
        ("xla_ffi_partitioned_python_cpu_callback", True),
        ("mpi_allreduce", True),
        ("", True),
    )
    def test_targets(self, target: str, blocks: bool) -> None:
        self.assertEqual(cost.may_block(target), blocks)


class ArithmeticTest(absltest.TestCase):
    def _shape(self, *dimensions: int) -> Any:
        f32 = schema.PRIMITIVE_TYPES["F32"][0]
        return schema.ShapeProto(element_type=f32, dimensions=dimensions)

    def _instruction(self, *dimensions: int) -> Any:
        return schema.HloInstructionProto(shape=self._shape(*dimensions))

    def test_dot(self) -> None:
        dot = self._instruction(3, 7)
        dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
        us = cost._arithmetic_us("dot", dot, [self._instruction(3, 5), self._instruction(5, 7)])
        self.assertAlmostEqual(us, 2 * 3 * 7 * 5 / cost._DOT_FLOPS_PER_US)

    def test_convolution(self) -> None:
        convolution = self._instruction(2, 8, 8, 16)
        convolution.convolution_dimension_numbers.kernel_output_feature_dimension = 3
        kernel = self._instruction(3, 3, 4, 16)
        us = cost._arithmetic_us(
            "convolution", convolution, [self._instruction(2, 8, 8, 4), kernel]
        )
        self.assertAlmostEqual(us, 2 * (2 * 8 * 8 * 16) * (3 * 3 * 4) / cost._DOT_FLOPS_PER_US)

    def test_tuples(self) -> None:
        sort = schema.HloInstructionProto()
        sort.shape.element_type = schema.TUPLE
        sort.shape.tuple_shapes.extend([self._shape(64), self._shape(64)])
        one = cost._arithmetic_us("sort", self._instruction(128), [])
        self.assertAlmostEqual(cost._arithmetic_us("sort", sort, []), one)

    def test_cheap(self) -> None:
        self.assertEqual(cost._arithmetic_us("add", self._instruction(64), []), 0.0)


if __name__ == "__main__":
    absltest.main()
