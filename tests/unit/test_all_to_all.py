# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-to-all against the oracle, bit by bit."""

from __future__ import annotations

import jax
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


def case(
    shards, split=0, concat=0, *, name="x", ranks=None, groups=None, of=lambda v: v, tiled=False
) -> Case:
    """Returns an all-to-all of `of(shard)`; `ranks` are the groups that the oracle is to use."""

    def op(v):
        return strata_jax.all_to_all(
            of(v), name, split, concat, axis_index_groups=groups, tiled=tiled
        )

    operands = [of(s) for s in shards]
    return Case(op, shards, reference.all_to_all(operands, split, concat, tiled, ranks or groups))


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dtypes(self, num_devices):
        found = {}
        for i, dtype in enumerate(cases.DTYPES):
            shape = (num_devices, 3, num_devices, 5)
            shards = list(cases.values(cases.dtype_of(dtype), shape))
            tiled = (i + num_devices) % 2 == 0
            found[dtype] = case(shards, 1, (i // 2) % 3, tiled=tiled)
        cases.check(found, x64=True)

    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_axes(self, num_devices):
        n = num_devices
        shards = list(normal(n, 2 * n, n, 3 * n))
        found = {}
        for split in range(3):
            for concat in range(3):
                found[f"tiled {split} {concat}"] = case(shards, split, concat, tiled=True)
        for concat in range(3):
            found[f"untiled 1 {concat}"] = case(shards, 1, concat)
        if n == 3:
            cube = list(normal(n, n, n, n))
            for split in (0, 2):
                for concat in range(3):
                    found[f"untiled {split} {concat}"] = case(cube, split, concat)
        cases.check(found)

    @parameterized.parameters(3, 4)
    def test_negative_axes_are_those_from_the_end(self, num_devices):
        # Public report 11194.
        shards = list(normal(num_devices, *[2 * num_devices] * 3))
        pairs = ((-1, 0), (0, -1), (-2, -1), (-3, -3), (-1, -2))
        found = {f"{s} {c}": case(shards, s, c, tiled=True) for s, c in pairs}
        cube = list(normal(num_devices, *[num_devices] * 3))
        cases.check(found | {f"untiled {s} {c}": case(cube, s, c) for s, c in pairs})

    @parameterized.parameters(1, 3, 8)
    def test_sizes_and_shapes(self, num_devices):
        n = num_devices
        shapes = [(n,), (n, 0), (0, n), (1, n, 1), *((size, n) for size in cases.SIZES)]
        found = {}
        for shape in shapes:
            shards, axis = list(normal(n, *shape)), shape.index(n)
            found[f"{shape}"] = case(shards, axis, 0)
            found[f"{shape} tiled"] = case(shards, axis, axis, tiled=True)
        for size in cases.SIZES[1:]:
            found[f"rows {size}"] = case(list(normal(n, n, size)), 0, 1, tiled=True)
        cases.check(found)

    @parameterized.parameters(("int8", 600_011), ("int4", 300_001), ("float32", 100_003))
    def test_large_and_unaligned(self, dtype, size):
        shards = list(cases.values(cases.dtype_of(dtype), (3, 3 * size)))
        columns = [s.reshape(size, 3) for s in shards]
        cases.check(
            {
                "all": case(shards, tiled=True),
                "inner": case(shards, of=lambda v: v[1:-2], tiled=True),
                "to columns": case([c.T for c in columns], 0, 1),
                "from columns": case(columns, 1, 0),
                "columns": case(columns, 1, 1),
            }
        )

    def test_operands_inside_larger_arrays(self):
        shards = list(normal(4, 30, 40))
        parts = {
            "tail": (lambda v: v[2:], 0),
            "row": (lambda v: v[7:8], 1),
            "odd": (lambda v: v[3:, 1:37], 1),
            "steps": (lambda v: v[::2, ::5], 1),
            "transposed": (lambda v: v.T, 0),
            "reversed": (lambda v: v[:28][::-1], 0),
        }
        found = {n: case(shards, a, 1 - a, of=of, tiled=True) for n, (of, a) in parts.items()}
        cases.check(found)

    @parameterized.parameters((0, 0), (0, 2), (1, 0), (2, 1))
    def test_layouts(self, split, concat):
        cases.check_layouts(
            lambda v: strata_jax.all_to_all(v, "x", split, concat, tiled=True),
            lambda shards: reference.all_to_all(shards, split, concat, True),
            normal(4, 4, 8, 12),
        )


class AxesTest(parameterized.TestCase):
    def test_axis_index_groups(self):
        found = {}
        for i, groups in enumerate(cases.GROUPS):
            n = len(groups[0]) if groups else 8
            shards = list(normal(8, n, 3, 2 * n))
            found[f"{i}"] = case(shards, 0, 1, groups=groups)
            found[f"{i} tiled"] = case(shards, 2, 1, groups=groups, tiled=True)
        cases.check(found)

    @parameterized.parameters("2x3", "2x1x4", "2x2x2 permuted", "4x2 permuted")
    def test_meshes(self, mesh):
        # Public report 15903: the order is that of the mesh.
        mesh = cases.meshes()[mesh]
        found = {}
        for axes in cases.axes_of(mesh):
            ranks = cases.groups_of(mesh, axes)
            shards = list(normal(mesh.size, 3, 2 * len(ranks[0])))
            found[f"{axes}"] = case(shards, 1, 0, name=axes, ranks=ranks, tiled=True)
        cases.check(found, mesh)


class ProgramsTest(parameterized.TestCase):
    @parameterized.parameters((1, 0, 1), (4, 0, 1), (4, 1, 1))
    def test_programs(self, num_devices, split, concat):
        cases.check_programs(
            lambda v: strata_jax.all_to_all(v, "x", split, concat, tiled=True),
            lambda shards: reference.all_to_all(shards, split, concat, True),
            cases.integral(num_devices, 8, 4),
        )

    @parameterized.parameters(((0, 0), False), ((0, 1), True), ((1, 0), False), ((1, 1), True))
    def test_pmap_and_the_axis_of_vmap(self, axes, tiled):
        cases.check_mapped_axes(
            lambda v: strata_jax.all_to_all(v, "x", *axes, tiled=tiled),
            lambda shards: reference.all_to_all(shards, *axes, tiled),
            normal(4, 4, 4),
        )

    def test_axis_of_vmap_beside_that_of_the_mesh(self):
        x = normal(4, 2, 8, 3)  # device, batch, ...

        def f(v):
            return jax.vmap(
                lambda a: strata_jax.all_to_all(a, ("x", "b"), 0, 1, tiled=True), axis_name="b"
            )(v)

        got = one_process.sharded(f, one_process.devices_mesh(4))(x)
        want = reference.all_to_all(list(x.reshape(8, 8, 3)), 0, 1, True)
        one_process.assert_same_bits(list(np.asarray(got).reshape(8, 1, 24)), want)

    @parameterized.parameters((0, 0), (0, 1))
    def test_donated_operand(self, split, concat):
        cases.check_donation(
            lambda v: strata_jax.all_to_all(v, "x", split, concat, tiled=True),
            lambda shards: reference.all_to_all(shards, split, concat, True),
            normal(4, 8, 100),
        )

    def test_there_and_back(self):
        def f(v):
            there = strata_jax.all_to_all(v, "x", 1, 0, tiled=True)
            return strata_jax.all_to_all(there, "x", 0, 1, tiled=True)

        shards = list(normal(8, 5, 24))
        one_process.assert_same_bits(one_process.run(f, shards), shards)


class GradientsTest(parameterized.TestCase):
    @parameterized.parameters(
        (1, 0, 1, False), (3, 0, 1, False), (3, 1, 1, True), (3, 0, 1, True), (3, 1, 0, True)
    )
    def test_derivatives(self, num_devices, split, concat, tiled):
        # Public report 15982.
        cases.check_linear(
            lambda v: strata_jax.all_to_all(v, "x", split, concat, tiled=tiled),
            lambda shards: reference.all_to_all(shards, split, concat, tiled),
            lambda cts: reference.all_to_all(cts, concat, split, tiled),
            cases.integral(num_devices, num_devices, 2 * num_devices),
        )


class ArgumentsTest(parameterized.TestCase):
    def test_wrong_arguments_raise_as_in_jax(self):
        x = list(normal(4, 6, 4))

        def raises(error, message, *axes, name="x", **options):
            with self.assertRaisesRegex(error, message):
                one_process.run(lambda v: strata_jax.all_to_all(v, name, *axes, **options), x)

        raises(NameError, "unbound axis name", 1, 0, name="nope")
        raises(ValueError, "split_axis", 0, 1)
        raises(ValueError, "divisible", 0, 1, tiled=True)
        raises((IndexError, ValueError), "out of (range|bounds)", 2, 0)
        raises((IndexError, ValueError), "out of (range|bounds)", 1, 3, tiled=True)
        raises(Exception, "axis_index_groups", 1, 0, axis_index_groups=[[0, 1], [1, 2]])
        # Public report 33123.
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            strata_jax.all_to_all(jnp.ones((4, 4)), "x", 0, 1)


class OneOperationTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, 0, True, "float32"),
        (0, 1, False, "bfloat16"),
        (1, 0, True, "float32"),
        (2, 0, False, "int8"),
        (1, 2, True, "float32"),
    )
    def test_counters_and_program(self, split, concat, tiled, dtype):
        cases.check_one_operation(
            "all_to_all",
            lambda v: strata_jax.all_to_all(v, "x", split, concat, tiled=tiled),
            lambda shards: reference.all_to_all(shards, split, concat, tiled),
            normal(4, 4, 8, 4).astype(cases.dtype_of(dtype)),
        )


if __name__ == "__main__":
    absltest.main()
