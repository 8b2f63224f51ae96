# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-gather against the oracle, bit by bit."""

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


def case(shards, *, name="x", ranks=None, groups=None, of=lambda v: v, **options) -> Case:
    """Returns an all-gather of `of(shard)`; `ranks` are the groups that the oracle is to use."""
    return Case(
        lambda v: strata_jax.all_gather(of(v), name, axis_index_groups=groups, **options),
        shards,
        reference.all_gather([of(s) for s in shards], groups=ranks or groups, **options),
    )


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dtypes(self, num_devices):
        found = {}
        for i, dtype in enumerate(cases.DTYPES):
            shards = list(cases.values(cases.dtype_of(dtype), (num_devices, 3, 5)))
            found[dtype] = case(shards, axis=1, tiled=(i + num_devices) % 2 == 0)
        cases.check(found, x64=True)

    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_axes(self, num_devices):
        shards = list(normal(num_devices, 2, 3, 5))
        tiled = {f"tiled {a}": case(shards, axis=a, tiled=True) for a in range(-3, 3)}
        untiled = {f"untiled {a}": case(shards, axis=a) for a in range(-4, 4)}
        cases.check(tiled | untiled)

    @parameterized.parameters(1, 3, 8)
    def test_sizes_and_shapes(self, num_devices):
        shapes = [(), (0, 3), (3, 0), (1, 1, 1, 9), *((size,) for size in cases.SIZES)]
        found = {}
        for shape in shapes:
            shards = list(normal(num_devices, *shape))
            found[f"{shape}"] = case(shards, axis=-1)
            if any(shape):  # JAX concatenates no empty dimensions
                axis = max(range(len(shape)), key=shape.__getitem__)
                found[f"{shape} tiled"] = case(shards, axis=axis, tiled=True)
        cases.check(found)

    @parameterized.parameters(("int8", 600_011), ("int4", 300_001), ("float32", 100_003))
    def test_large_and_unaligned(self, dtype, size):
        shards = list(cases.values(cases.dtype_of(dtype), (3, size)))
        columns = [s[: size // 7 * 7].reshape(7, -1) for s in shards]
        cases.check(
            {
                "all": case(shards, tiled=True),
                "inner": case(shards, of=lambda v: v[1:-2]),
                "columns": case(columns, axis=1, tiled=True),
            }
        )

    def test_operands_inside_larger_arrays(self):
        shards = list(normal(4, 30, 40))
        found = {n: case(shards, of=of, axis=-1, tiled=True) for n, of in cases.PARTS.items()}
        cases.check(found | {f"{n} untiled": case(shards, of=of) for n, of in cases.PARTS.items()})

    @parameterized.parameters(0, 1, 2)
    def test_layouts(self, axis):
        cases.check_layouts(
            lambda v: strata_jax.all_gather(v, "x", axis=axis, tiled=True),
            lambda shards: reference.all_gather(shards, axis, True),
            normal(4, 3, 5, 7),
        )


class AxesTest(parameterized.TestCase):
    def test_axis_index_groups(self):
        # One program in which the same ranks meet in different groups.
        shards = list(normal(8, 3, 5))
        found = {}
        for i, groups in enumerate(cases.GROUPS):
            found[f"{i}"] = case(shards, groups=groups)
            found[f"{i} tiled"] = case(shards, groups=groups, axis=-1, tiled=True)
        cases.check(found)

    @parameterized.parameters("2x3", "2x1x4", "2x2x2 permuted", "4x2 permuted")
    def test_meshes(self, mesh):
        # Public report 15903: the order is that of the mesh.
        mesh = cases.meshes()[mesh]
        shards = list(normal(mesh.size, 3, 5))
        found = {}
        for axes in cases.axes_of(mesh):
            ranks = cases.groups_of(mesh, axes)
            found[f"{axes}"] = case(shards, name=axes, ranks=ranks, axis=1)
            found[f"{axes} tiled"] = case(shards, name=axes, ranks=ranks, tiled=True)
        cases.check(found, mesh)


def gather(v):
    return strata_jax.all_gather(v, "x", axis=1, tiled=True)


def gathered(shards):
    return reference.all_gather(shards, 1, True)


class ProgramsTest(parameterized.TestCase):
    @parameterized.parameters(1, 4)
    def test_programs(self, num_devices):
        cases.check_programs(gather, gathered, cases.integral(num_devices, 2, 3))

    def test_pmap_and_the_axis_of_vmap(self):
        cases.check_mapped_axes(gather, gathered, normal(4, 2, 3))
        cases.check_mapped_axes(
            lambda v: strata_jax.all_gather(v, "x"), reference.all_gather, normal(4, 2, 3)
        )

    def test_donated_operand(self):
        cases.check_donation(gather, gathered, normal(4, 2, 300))

    def test_tiled_equals_untiled_under_vmap(self):
        # Public report 8221.
        def f(v):
            tiled = jax.vmap(lambda a: strata_jax.all_gather(a, "x", tiled=True))(v)
            untiled = jax.vmap(lambda a: strata_jax.all_gather(a, "x"))(v)
            return tiled, untiled.reshape(tiled.shape)

        tiled, untiled = one_process.sharded(f, one_process.devices_mesh(4))(normal(4, 5, 3, 2))
        one_process.assert_same_bits([np.asarray(tiled)], [np.asarray(untiled)])

    def test_replicated_result(self):
        x = normal(8, 3)
        f = one_process.on_mesh(lambda v: strata_jax.all_gather(v, "x", tiled=True, to="invarying"))
        one_process.assert_same_bits([np.asarray(jax.jit(f)(x))], [x])


class GradientsTest(parameterized.TestCase):
    @parameterized.product(num_devices=(1, 3), options=({"axis": 1}, {"axis": -1, "tiled": True}))
    def test_derivatives(self, num_devices, options):
        tiled = options.get("tiled", False)
        cases.check_linear(
            lambda v: strata_jax.all_gather(v, "x", **options),
            lambda shards: reference.all_gather(shards, **options),
            lambda cts: reference.reduce_scatter("sum", cts, options["axis"], tiled),
            cases.integral(num_devices, 2, 3),
        )

    def test_derivatives_in_groups(self):
        groups = [[0, 2], [3, 1]]
        cases.check_linear(
            lambda v: strata_jax.all_gather(v, "x", axis_index_groups=groups),
            lambda shards: reference.all_gather(shards, groups=groups),
            lambda cts: reference.reduce_scatter("sum", cts, groups=groups),
            cases.integral(4, 2, 3),
        )


class ArgumentsTest(parameterized.TestCase):
    def test_wrong_arguments_raise_as_in_jax(self):
        x = list(normal(4, 3))

        def raises(error, message, name="x", **options):
            with self.assertRaisesRegex(error, message):
                one_process.run(lambda v: strata_jax.all_gather(v, name, **options), x)

        raises(NameError, "unbound axis name", name="nope")
        raises(ValueError, "out of bounds", axis=2)
        raises(ValueError, "out of bounds", axis=1, tiled=True)
        raises(ValueError, "to", to="nowhere")
        raises(Exception, "axis_index_groups", axis_index_groups=[[0, 1], [1, 2]])
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            strata_jax.all_gather(jnp.ones(3), "x")


class OneOperationTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, False, "float32"), (1, False, "bfloat16"), (1, True, "float32"), (2, True, "int8")
    )
    def test_counters_and_program(self, axis, tiled, dtype):
        cases.check_one_operation(
            "all_gather",
            lambda v: strata_jax.all_gather(v, "x", axis=axis, tiled=tiled),
            lambda shards: reference.all_gather(shards, axis, tiled),
            normal(4, 5, 7, 9).astype(cases.dtype_of(dtype)),
        )


if __name__ == "__main__":
    absltest.main()
