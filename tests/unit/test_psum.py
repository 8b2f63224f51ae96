# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-reduce by shape, size, axis, group and mesh, and its determinism, against the oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import one_process
import strata_jax
from one_process import normal, psum
from strata_jax import reference

# Elements of float32. One unit of work is 128 KiB, and more than 256 KiB is shared among threads:
# 65,536 elements are the last size done by one thread.
SIZES = (0, 1, 2, 7, 63, 64, 65, 1025, 32_768, 65_536, 65_537, 300_007, 2_100_003)


def setUpModule() -> None:
    one_process.ensure_fabric()


class SizesTest(parameterized.TestCase):
    @parameterized.product(size=SIZES, num_devices=(1, 2, 3, 4, 8))
    def test_sizes(self, size, num_devices):
        if size * num_devices > 4_300_000:
            size = 524_287  # several streamed units, in less time
        shards = list(normal(num_devices, size))
        got = one_process.run(psum, shards)
        one_process.assert_same_bits(got, reference.all_reduce("sum", shards))

    @parameterized.parameters(((),), ((0, 3),), ((3, 0),), ((5, 7, 3),), ((1, 1, 1, 9),))
    def test_shapes(self, shape):
        shards = list(normal(4, *shape))
        got = one_process.run(psum, shards)
        one_process.assert_same_bits(got, reference.all_reduce("sum", shards))

    def test_odd_sizes_of_packed_and_narrow_types_in_several_units(self):
        rng = np.random.default_rng(3)
        for dtype, size in ((ml_dtypes.int4, 1_200_001), (np.int8, 600_011), (np.float16, 400_003)):
            shards = list(rng.integers(-4, 4, (3, size)).astype(dtype))
            got = one_process.run(psum, shards)
            one_process.assert_same_bits(got, reference.all_reduce("sum", shards))

    def test_layouts_that_are_not_the_default(self):
        shards = list(normal(4, 5, 7, 300))

        def transposed(v):
            return jnp.transpose(psum(jnp.transpose(v, (2, 0, 1)) * 2), (1, 2, 0))

        def column_of_dot(v):
            w = v[0] @ v[1].T  # its layout is the dot's choice
            return psum(w.T) + psum(w).T

        for f, local in ((transposed, lambda s: s * 2), (column_of_dot, None)):
            got = one_process.run(f, shards)
            one_process.assert_alike(got)
            if local is not None:
                want = reference.all_reduce("sum", [local(s) for s in shards])
                one_process.assert_same_bits(got, want)
            else:
                want = reference.all_reduce("sum", [(s[0] @ s[1].T).T for s in shards])
                np.testing.assert_allclose(got[0], 2 * want[0], rtol=1e-4, atol=1e-4)

    def test_slices_that_xla_may_alias(self):
        # Operands that are views into a larger buffer start at any multiple of 4 bytes.
        shards = list(normal(4, 1000))
        got = one_process.run(lambda v: psum(v[1:998]), shards)
        one_process.assert_same_bits(got, reference.all_reduce("sum", [s[1:998] for s in shards]))

    def test_operand_is_not_written(self):
        shards = list(normal(4, 100_000))
        got = one_process.run(lambda v: psum(v) * 0 + v, shards)
        one_process.assert_same_bits(got, shards)


class DeterminismTest(parameterized.TestCase):
    @parameterized.product(num_devices=(2, 3, 4, 8), size=(1000, 400_000))
    def test_20_runs_of_one_program_and_of_fresh_ones(self, num_devices, size):
        # Cancelling terms make any other order visible.
        x = normal(num_devices, size) * np.logspace(-3, 6, num_devices)[:, None].astype(np.float32)
        want = reference.all_reduce("sum", list(x))
        mesh = one_process.devices_mesh(num_devices)
        f = one_process.sharded(psum, mesh)
        for _ in range(20):
            one_process.assert_same_bits(one_process.per_device(f(x)), want)
        again = one_process.sharded(lambda v: psum(v) + 0, mesh)
        one_process.assert_same_bits(one_process.per_device(again(x)), want)

    def test_order_is_that_of_the_ranks_not_of_the_devices(self):
        devices = [jax.devices()[i] for i in (5, 2, 7, 0)]
        shards = [np.full(9, v, np.float32) for v in (1e8, 1.0, -1e8, 1.0)]
        got = one_process.run(psum, shards, Mesh(np.array(devices), ("x",)))
        one_process.assert_same_bits(got, [np.full(9, 1.0, np.float32)] * 4)

    def test_nan_and_infinities(self):
        rows = [[np.inf, np.inf, np.nan, 1e38], [1.0, -np.inf, 1.0, 1e38], [2.0, 0.0, 2.0, 3e38]]
        shards = list(np.array(rows, np.float32))
        got = one_process.run(psum, shards)
        one_process.assert_alike(got)
        np.testing.assert_array_equal(got[0], reference.all_reduce("sum", shards)[0])


class PytreesTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16")
    def test_100_small_arrays_make_few_operations(self, dtype):
        tree = {f"w{i}": normal(4, 10 + i, seed=i).astype(np.dtype(dtype)) for i in range(100)}
        f = one_process.sharded(psum, one_process.devices_mesh(4))
        with one_process.counters() as moved:
            got = jax.block_until_ready(f(tree))
        for name, array in tree.items():
            want = reference.all_reduce("sum", list(array))
            one_process.assert_same_bits(one_process.per_device(got[name]), want)
        self.assertLessEqual(moved["all_reduce.operations"], 4)
        self.assertEqual(moved["all_reduce.buffers"], 100)

    def test_mixed_dtypes_sizes_and_empty_trees(self):
        tree = (
            normal(4, 0),
            [normal(4, 3, 2), np.arange(8, dtype=np.int32).reshape(4, 2)],
            {"scalar": normal(4), "flag": np.array([True, False, True, True]), "none": None},
            normal(4, 400_000),
        )
        got = one_process.sharded(psum, one_process.devices_mesh(4))(tree)
        for g, t in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
            t = t.astype(np.int32) if t.dtype == bool else t
            one_process.assert_same_bits(
                one_process.per_device(g), reference.all_reduce("sum", list(t))
            )
        empty = one_process.sharded(lambda _: psum({}), one_process.devices_mesh(2))
        self.assertEqual(empty(normal(2, 1)), {})

    def test_psum_of_python_numbers_is_the_size_of_the_axis(self):
        got = one_process.run(lambda v: v * 0 + psum(1) + psum(2.5), list(normal(4, 3)))
        np.testing.assert_array_equal(np.stack(got), np.full((4, 3), 14, np.float32))


class AxesTest(parameterized.TestCase):
    def _run(self, op, x: np.ndarray, mesh: Mesh, **options) -> list[np.ndarray]:
        return one_process.run(op, list(x), mesh, **options)

    @parameterized.parameters(
        (("x",), "column"), (("y",), "row"), (("x", "y"), "all"), (("y", "x"), "all by y first")
    )
    def test_mesh_of_two_axes(self, axes, members):
        mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("x", "y"))
        x = normal(6, 50) * np.array([1e6, 1, -1e6, 1e-3, 3, 7e5], np.float32)[:, None]
        groups = {
            "column": [[0, 3], [1, 4], [2, 5]],
            "row": [[0, 1, 2], [3, 4, 5]],
            "all": [[0, 1, 2, 3, 4, 5]],
            "all by y first": [[0, 3, 1, 4, 2, 5]],
        }[members]
        name = axes[0] if len(axes) == 1 else axes
        got = self._run(lambda v: strata_jax.psum(v, name), x, mesh)
        if members.startswith("all"):
            # JAX may order the axes as it likes; the order is then one of the two.
            orders = ([[0, 1, 2, 3, 4, 5]], [[0, 3, 1, 4, 2, 5]])
            wants = [reference.all_reduce("sum", list(x), o) for o in orders]
            one_process.assert_alike(got)
            self.assertTrue(any(np.array_equal(got[0], want[0]) for want in wants))
        else:
            one_process.assert_same_bits(got, reference.all_reduce("sum", list(x), groups))

    def test_size_one_axes_and_three_axes(self):
        mesh = Mesh(np.array(jax.devices()).reshape(2, 1, 4), ("a", "one", "b"))
        x = normal(8, 11)
        columns = [[i, i + 4] for i in range(4)]
        for axes, groups in (
            ("one", [[i] for i in range(8)]),
            ("a", columns),
            (("one", "a"), columns),
            (("a", "one", "b"), None),
        ):
            got = self._run(lambda v, a=axes: strata_jax.psum(v, a), x, mesh)
            one_process.assert_alike(got) if groups is None else None
            want = np.stack(reference.all_reduce("sum", list(x), groups))
            np.testing.assert_allclose(np.stack(got), want, rtol=1e-5, atol=1e-6)

    def test_permuted_devices_follow_the_mesh(self):
        # Public report 15903.
        order = np.array(jax.devices())[[3, 1, 7, 5, 0, 2, 6, 4]]
        mesh = Mesh(order.reshape(2, 4), ("x", "y"))
        x = normal(8, 33)
        got = self._run(lambda v: strata_jax.psum(v, "y"), x, mesh)
        groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
        one_process.assert_same_bits(got, reference.all_reduce("sum", list(x), groups))
        got = self._run(lambda v: strata_jax.pmax(v, "x"), x, mesh)
        groups = [[i, i + 4] for i in range(4)]
        one_process.assert_same_bits(got, reference.all_reduce("max", list(x), groups))

    @parameterized.parameters(
        ([[0, 1, 2, 3], [4, 5, 6, 7]],),
        ([[0, 2, 4, 6], [1, 3, 5, 7]],),
        ([[7, 0], [3, 4], [1, 2], [6, 5]],),
        ([[i] for i in range(8)],),
        ([list(range(7, -1, -1))],),
    )
    def test_axis_index_groups(self, groups):
        x = normal(8, 21) * np.logspace(-2, 5, 8)[:, None].astype(np.float32)
        mesh = one_process.devices_mesh(8)
        for kind in ("sum", "max", "min"):
            op = {"sum": strata_jax.psum, "max": strata_jax.pmax, "min": strata_jax.pmin}[kind]
            got = self._run(lambda v, o=op: o(v, "x", axis_index_groups=groups), x, mesh)
            one_process.assert_same_bits(got, reference.all_reduce(kind, list(x), groups))
        got = self._run(lambda v: strata_jax.pmean(v, "x", axis_index_groups=groups), x, mesh)
        total = np.stack(reference.all_reduce("sum", list(x), groups))
        np.testing.assert_allclose(np.stack(got), total / len(groups[0]), rtol=1e-6)

    @parameterized.parameters("float32", "bfloat16")
    def test_uneven_groups(self, dtype):
        groups = [[0, 3, 5], [1], [7, 2, 4, 6]]
        x = np.asarray(jnp.asarray(normal(8, 21), dtype))
        mesh = one_process.devices_mesh(8)
        got = self._run(lambda v: strata_jax.psum(v, "x", axis_index_groups=groups), x, mesh)
        one_process.assert_same_bits(got, reference.all_reduce("sum", list(x), groups))

    def test_wrong_groups_and_axes_raise_as_in_jax(self):
        x = list(normal(4, 3))
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            one_process.run(lambda v: strata_jax.psum(v, "nope"), x)
        for op in (strata_jax.psum, strata_jax.pmean, strata_jax.pmax, strata_jax.pmin):
            with self.assertRaisesRegex(NameError, "unbound axis name"):
                op(jnp.ones(3), "x")
        with self.assertRaisesRegex(Exception, "axis_index_groups"):
            one_process.run(
                lambda v: strata_jax.psum(v, "x", axis_index_groups=[[0, 1], [1, 2]]), x
            )


class ReplicationTest(parameterized.TestCase):
    """`check_vma` and the specs by which results are declared replicated."""

    @parameterized.product(check_vma=(True, False), dtype=("float32", "bfloat16"))
    def test_replicated_result(self, check_vma, dtype):
        x = jnp.asarray(normal(4, 6), dtype)
        mesh = one_process.devices_mesh(4)
        f = jax.jit(
            jax.shard_map(psum, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=check_vma)
        )
        got = f(x)
        want = reference.all_reduce("sum", list(np.asarray(x)[:, None]))[0]
        for shard in got.addressable_shards:
            one_process.assert_same_bits([np.asarray(shard.data)], [want])

    def test_a_result_that_varies_is_refused_as_by_jax(self):
        f = jax.shard_map(
            lambda v: v, mesh=one_process.devices_mesh(4), in_specs=P("x"), out_specs=P()
        )
        with self.assertRaises(ValueError):
            jax.jit(f)(normal(4, 6))

    def test_explicit_axes(self):
        mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
        x = jax.device_put(normal(4, 6), NamedSharding(mesh, P("x")))
        with jax.set_mesh(mesh):
            f = jax.jit(jax.shard_map(psum, in_specs=P("x"), out_specs=P()))
            got = f(x)
        want = reference.all_reduce("sum", list(np.asarray(x)[:, None]))[0]
        one_process.assert_same_bits([np.asarray(got)], [want])


if __name__ == "__main__":
    absltest.main()
