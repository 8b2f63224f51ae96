# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Reduce-scatter against the oracle, bit by bit."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import cases
import one_process
import strata_jax
from cases import Case
from one_process import normal
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


def case(shards, *, name="x", ranks=None, groups=None, of=lambda v: v, axis=0, tiled=False) -> Case:
    """Returns a psum_scatter of `of(shard)`; `ranks` are the groups that the oracle is to use."""

    def op(v):
        return strata_jax.psum_scatter(
            of(v), name, scatter_dimension=axis, axis_index_groups=groups, tiled=tiled
        )

    operands = [of(s) for s in shards]
    return Case(op, shards, reference.reduce_scatter("sum", operands, axis, tiled, ranks or groups))


def finite(dtype: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Returns arrays whose sums are no NaN, the bits of which are nobody's."""
    if dtype in cases.FLOAT8S:
        return list(normal(*shape).astype(cases.dtype_of(dtype)))
    return list(cases.values(cases.dtype_of(dtype), shape))


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dtypes(self, num_devices):
        found = {}
        for i, dtype in enumerate(cases.DTYPES):
            if dtype != "bool":
                shards = finite(dtype, (num_devices, 3, num_devices, 5))
                found[dtype] = case(shards, axis=1, tiled=(i + num_devices) % 2 == 0)
        cases.check(found, x64=True)

    def test_bool_has_no_sum_as_in_jax(self):
        with self.assertRaisesRegex(TypeError, "bool"):
            one_process.run(lambda v: strata_jax.psum_scatter(v, "x"), [np.ones((2, 3), bool)] * 2)

    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dimensions(self, num_devices):
        n = num_devices
        shards = list(normal(n, n, n, n))
        found = {f"untiled {a}": case(shards, axis=a) for a in range(-3, 3)}
        for a in range(-3, 3):  # negative ones: public report 11194
            shape = [2, 3, 5]
            shape[a] *= n
            found[f"tiled {a}"] = case(list(normal(n, *shape)), axis=a, tiled=True)
        cases.check(found)

    @parameterized.parameters(1, 3, 8)
    def test_sizes_and_shapes(self, num_devices):
        n = num_devices
        shapes = [(n,), (0, n), (n, 0), (1, n, 1), *((size, n) for size in cases.SIZES)]
        found = {}
        for shape in shapes:
            shards, axis = list(normal(n, *shape)), shape.index(n)
            found[f"{shape}"] = case(shards, axis=axis)
            found[f"{shape} tiled"] = case(shards, axis=axis, tiled=True)
        found["rows"] = case(list(normal(n, 2 * n, 65)), tiled=True)
        cases.check(found)

    @parameterized.parameters(
        ("int8", 3, 600_011), ("int4", 3, 300_001), ("float16", 2, 90_001), ("float32", 8, 70_003)
    )
    def test_large_and_unaligned(self, dtype, num_devices, size):
        n = num_devices
        shards = finite(dtype, (n, n * size))
        columns = [s.reshape(size, n) for s in shards]
        cases.check(
            {
                "all": case(shards, tiled=True),
                "inner": case(shards, of=lambda v: v[1 : 1 - n], tiled=True),
                "columns": case(columns, axis=1),
                "rows": case([c.T for c in columns]),
            }
        )

    def test_operands_inside_larger_arrays(self):
        shards = list(normal(4, 30, 40))
        parts = {
            "tail": (lambda v: v[2:], 0),
            "row": (lambda v: v[7], 0),
            "odd": (lambda v: v[3:, 1:37], 1),
            "steps": (lambda v: v[::2, ::5], 1),
            "transposed": (lambda v: v.T, 0),
            "reversed": (lambda v: v[:28][::-1], 0),
        }
        cases.check({n: case(shards, of=of, axis=a, tiled=True) for n, (of, a) in parts.items()})

    @parameterized.parameters(0, 1, 2)
    def test_layouts(self, axis):
        cases.check_layouts(
            lambda v: strata_jax.psum_scatter(v, "x", scatter_dimension=axis, tiled=True),
            lambda shards: reference.reduce_scatter("sum", shards, axis, True),
            normal(4, 4, 8, 12),
        )

    def test_sums_are_made_in_rank_order_and_rounded_once(self):
        big = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
        shards = [np.full((4, 9), v, np.float32) for v in big]
        half = [np.full((4, 9), v, np.float16) for v in (2049.0, 2050.0, 1.0, 3.0)]
        found = {"float32": case(shards), "float16": case(half)}
        np.testing.assert_array_equal(found["float32"].want[0], np.ones(9, np.float32))
        exact = np.float16(sum(np.float32(h[0, 0]) for h in half))
        np.testing.assert_array_equal(found["float16"].want[0], np.full(9, exact))
        for _ in range(20):
            cases.check(found)


class AxesTest(parameterized.TestCase):
    def test_axis_index_groups(self):
        found = {}
        for i, groups in enumerate(cases.GROUPS):
            n = len(groups[0]) if groups else 8
            found[f"{i}"] = case(list(normal(8, 3, n)), groups=groups, axis=1)
            found[f"{i} tiled"] = case(list(normal(8, 2 * n, 3)), groups=groups, tiled=True)
        cases.check(found)

    @parameterized.parameters("2x3", "2x1x4", "2x2x2 permuted", "4x2 permuted")
    def test_meshes(self, mesh):
        # Public report 15903: the order is that of the mesh.
        mesh = cases.meshes()[mesh]
        found = {}
        for axes in cases.axes_of(mesh):
            ranks = cases.groups_of(mesh, axes)
            n = len(ranks[0])
            shards = list(cases.integral(mesh.size, 3, 2 * n))
            found[f"{axes}"] = case(shards, name=axes, ranks=ranks, axis=1, tiled=True)
        cases.check(found, mesh)


def scatter(v):
    return strata_jax.psum_scatter(v, "x", scatter_dimension=1, tiled=True)


def scattered(shards):
    return reference.reduce_scatter("sum", shards, 1, True)


class ProgramsTest(parameterized.TestCase):
    @parameterized.parameters(1, 4)
    def test_programs(self, num_devices):
        cases.check_programs(scatter, scattered, cases.integral(num_devices, 2, 2 * num_devices))

    def test_pmap_and_the_axis_of_vmap(self):
        cases.check_mapped_axes(scatter, scattered, cases.integral(4, 2, 8))
        cases.check_mapped_axes(
            lambda v: strata_jax.psum_scatter(v, "x"),
            lambda shards: reference.reduce_scatter("sum", shards),
            cases.integral(4, 4, 3),
        )

    def test_donated_operand(self):
        cases.check_donation(scatter, scattered, cases.integral(4, 2, 400))


class GradientsTest(parameterized.TestCase):
    @parameterized.product(num_devices=(1, 3), tiled=(False, True))
    def test_derivatives(self, num_devices, tiled):
        cases.check_linear(
            lambda v: strata_jax.psum_scatter(v, "x", scatter_dimension=1, tiled=tiled),
            lambda shards: reference.reduce_scatter("sum", shards, 1, tiled),
            lambda cts: reference.all_gather(cts, 1, tiled),
            cases.integral(num_devices, 2, num_devices),
        )

    def test_derivatives_in_groups(self):
        groups = [[0, 2], [3, 1]]
        cases.check_linear(
            lambda v: strata_jax.psum_scatter(v, "x", axis_index_groups=groups),
            lambda shards: reference.reduce_scatter("sum", shards, groups=groups),
            lambda cts: reference.all_gather(cts, groups=groups),
            cases.integral(4, 2, 3),
        )


class ArgumentsTest(parameterized.TestCase):
    def test_wrong_arguments_raise_as_in_jax(self):
        x = list(normal(4, 6))

        def raises(error, message, name="x", **options):
            with self.assertRaisesRegex(error, message):
                one_process.run(lambda v: strata_jax.psum_scatter(v, name, **options), x)

        raises(NameError, "unbound axis name", name="nope")
        raises(ValueError, "6 must match shard count 4")
        raises(ValueError, "6 must be divisible by shard_count 4", tiled=True)
        raises((IndexError, ValueError), "out of (range|bounds)", scatter_dimension=1)
        raises(Exception, "axis_index_groups", axis_index_groups=[[0, 1], [1, 2]], tiled=True)
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            strata_jax.psum_scatter(jnp.ones(3), "x")


class OneOperationTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, False, "float32"), (1, False, "bfloat16"), (1, True, "float32"), (2, True, "int8")
    )
    def test_counters_and_program(self, axis, tiled, dtype):
        cases.check_one_operation(
            "reduce_scatter",
            lambda v: strata_jax.psum_scatter(v, "x", scatter_dimension=axis, tiled=tiled),
            lambda shards: reference.reduce_scatter("sum", shards, axis, tiled),
            normal(4, 4, 4, 4).astype(cases.dtype_of(dtype)),
        )


if __name__ == "__main__":
    absltest.main()
