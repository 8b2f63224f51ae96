# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Faults of CPU collectives that users reported in public.

Those of collectives that move data are in test_public_reports_moves.py. Numbers are issues of
jax-ml/jax unless a repository is named. Each is a sample of a kind, so it is tested over the
operations, dtypes, groups and numbers of devices that it can touch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from jax.experimental import io_callback
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import one_process
import strata_jax
from one_process import normal, psum
from strata_jax import reference

OPS = {"sum": strata_jax.psum, "max": strata_jax.pmax, "min": strata_jax.pmin}


def setUpModule() -> None:
    one_process.ensure_fabric()


class ValuesTest(parameterized.TestCase):
    @parameterized.product(
        dtype=["float16", "bfloat16", "float32", "float8_e5m2", "float8_e4m3fn"],
        kind=["max", "min"],
        num_devices=(2, 4, 8),
    )
    def test_21820_extremes_of_negatives_and_infinities(self, dtype, kind, num_devices):
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        values = [-1.0, 1.0, 0.0, -3.0]
        if dtype.name != "float8_e4m3fn":
            values += [-np.inf, np.inf]
        shards = [np.array(values, np.float32).astype(dtype)] * num_devices
        got = one_process.run(lambda v: OPS[kind](v, "x"), shards)
        one_process.assert_same_bits(got, shards)

    @parameterized.parameters(2, 4, 8)
    def test_3123_3150_bools_are_counted(self, num_devices):
        shards = [np.array([i != 1, True, False]) for i in range(num_devices)]
        got = one_process.run(psum, shards)
        want = np.array([num_devices - 1, num_devices, 0], np.int32)
        one_process.assert_same_bits(got, [want] * num_devices)

    def test_6022_x64_does_not_widen(self):
        one_process.in_subprocess(
            """
            jax.config.update("jax_enable_x64", True)
            strata_jax.init()
            for n in (2, 4):
                for dtype in (np.float32, np.int32, np.int8, np.float16, np.complex64):
                    x = np.ones(n, dtype)
                    for f in (psum, lambda v: psum(v[0])[None]):
                        y = sharded(f, n)(x)
                        assert y.dtype == dtype and complex(y[n - 1]) == n, (y.dtype, y)
                    y = jax.pmap(lambda v: psum(dtype(1)) + v * 0, axis_name="x")(x)
                    assert y.dtype == dtype and complex(y[0]) == n, (y.dtype, y)
            """
        )

    @parameterized.parameters(2, 4, 8)
    def test_f16_sums_are_rounded_once(self, num_devices):
        shards = [np.full(40, 2049 + i, np.float16) for i in range(num_devices)]
        shards[-1][:] = 3
        got = one_process.run(psum, shards)
        exact = sum(np.float32(s[0]) for s in shards)
        one_process.assert_same_bits(got, [np.full(40, exact, np.float16)] * num_devices)


class GroupsTest(parameterized.TestCase):
    @parameterized.parameters("sum", "max", "min")
    def test_15903_results_follow_the_order_of_the_mesh(self, kind):
        rng = np.random.default_rng(0)
        for _ in range(3):
            order = rng.permutation(8)
            mesh = Mesh(np.array(jax.devices())[order].reshape(4, 2), ("x", "y"))
            x = normal(8, 10)
            for axis, groups in (
                ("x", [[0, 2, 4, 6], [1, 3, 5, 7]]),
                ("y", [[0, 1], [2, 3], [4, 5], [6, 7]]),
            ):
                got = one_process.run(lambda v, a=axis: OPS[kind](v, a), list(x), mesh)
                want = reference.all_reduce(kind, list(x), groups)
                one_process.assert_same_bits(got, want)

    @parameterized.parameters("sum", "max", "min")
    def test_19709_axis_index_groups(self, kind):
        x = np.arange(32).reshape(4, 8).astype(np.int32)
        groups = [[0, 2], [1, 3]]
        got = one_process.run(lambda v: OPS[kind](v, "x", axis_index_groups=groups), list(x))
        fold = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        even, odd = fold(x[0], x[2]), fold(x[1], x[3])
        one_process.assert_same_bits(got, [even, odd, even, odd])

    @parameterized.parameters(2, 4, 8)
    def test_24721_15780_axis_index_inside_cond(self, num_devices):
        def f(v):
            index = jax.lax.axis_index("x")
            taken = jax.lax.cond(v[0] > 0, lambda: index, lambda: index + 100)
            inside = jax.lax.cond(v[1] > 0, lambda: psum(index), lambda: psum(index) + 100)
            return psum(taken), inside

        x = np.ones((num_devices, 2), np.float32)
        got = one_process.sharded(f, one_process.devices_mesh(num_devices))(x)
        want = num_devices * (num_devices - 1) // 2
        for result in got:
            np.testing.assert_array_equal(np.asarray(result), np.full(num_devices, want))


class GradientsTest(parameterized.TestCase):
    @parameterized.product(num_devices=(2, 4, 8), op=["psum", "pmean"])
    def test_3970_no_factor_of_the_number_of_devices(self, num_devices, op):
        x = normal(num_devices, 5)
        reduce = getattr(strata_jax, op)
        loss = jax.shard_map(
            lambda v: reduce(jnp.sum(v**3), "x"),
            mesh=one_process.devices_mesh(num_devices),
            in_specs=P("x"),
            out_specs=P(),
        )
        want = 3 * x**2 / (num_devices if op == "pmean" else 1)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), want, rtol=1e-5)

    @parameterized.parameters(True, False)
    def test_16303_linear_transpose(self, check_vma):
        x = normal(4, 5)
        f = jax.shard_map(
            lambda v: psum(v * 2),
            mesh=one_process.devices_mesh(4),
            in_specs=P("x"),
            out_specs=P(),
            check_vma=check_vma,
        )
        transposed = jax.linear_transpose(f, x)
        ct = normal(1, 5, seed=1)
        self.assertNotIn("token", str(jax.make_jaxpr(transposed)(ct)))
        (got,) = jax.jit(transposed)(ct)
        np.testing.assert_allclose(got, np.tile(2 * ct, (4, 1)), rtol=1e-6)


class HangsTest(parameterized.TestCase):
    @parameterized.parameters(2, 4, 8)
    def test_14_12701_independent_collectives(self, num_devices):
        x = normal(num_devices, 40)
        f = one_process.sharded(
            lambda v: (psum(jnp.sin(v)), strata_jax.pmax(jnp.cos(v), "x"), psum(v[:3])),
            one_process.devices_mesh(num_devices),
        )
        want = (np.sin(x).sum(0), np.cos(x).max(0), x[:, :3].sum(0))
        for i in range(1000):
            got = f(x)
            if i % 100 == 0:
                for g, w in zip(got, want, strict=True):
                    np.testing.assert_allclose(
                        one_process.per_device(g)[-1], w, rtol=1e-4, atol=1e-5
                    )
            elif i % 20 == 0:
                jax.block_until_ready(got)
        jax.block_until_ready(got)

    def test_5065_6896_10000_dispatches_without_waiting(self):
        one_process.in_subprocess(
            """
            def resident():
                return int(open("/proc/self/statm").read().split()[1]) * 4096
            strata_jax.init()
            x = np.random.default_rng(0).standard_normal((4, 5000)).astype(np.float32)
            placed = jax.device_put(x, NamedSharding(devices_mesh(2), P("x")))
            f = sharded(psum, 2)
            for _ in range(1000):
                y = f(placed)
            check(y, x, 2)
            before = resident()
            for i in range(10_000):
                y = f(placed)
                if i % 1000 == 0:
                    assert resident() < before + (200 << 20), (before, resident())
            check(y, x, 2)
            assert operations() == 11_000, operations()
            assert strata_jax.stats()["pending"] == 0
            assert resident() < before + (50 << 20), (before, resident())
            """
        )

    @parameterized.parameters(1, 2, 4)
    def test_25671_ordered_io_callback(self, num_devices):
        # JAX orders callbacks of one device only; on several each device's own are unordered.
        seen: list[int] = []

        def note(turn):
            seen.append(int(turn))

        def f(v, turn):
            io_callback(note, None, turn[0], ordered=num_devices == 1)
            return psum(v)

        g = one_process.sharded(f, one_process.devices_mesh(num_devices))
        x = normal(num_devices, 30)
        want = reference.all_reduce("sum", list(x))
        for turn in range(50):
            got = g(x, np.full((num_devices, 1), turn, np.int32))
            one_process.assert_same_bits(one_process.per_device(got), want)
        jax.effects_barrier()
        self.assertEqual(sorted(seen), sorted(list(range(50)) * num_devices))
        if num_devices == 1:
            self.assertEqual(seen, list(range(50)))

    @parameterized.product(kind=["sum", "max", "min"], num_devices=(2, 8))
    def test_11620_unused_result(self, kind, num_devices):
        def f(v):
            OPS[kind](v * 3, "x")
            return v + 1

        x = normal(num_devices, 30)
        for _ in range(5):
            got = one_process.run(f, list(x))
        np.testing.assert_array_equal(np.stack(got), x + 1)

    @parameterized.parameters("float32", "bfloat16")
    def test_netket_1479_654_different_sizes(self, dtype):
        x = normal(4, 100_000).astype(np.dtype(dtype))
        f = one_process.sharded(
            lambda v: (psum(v[:3]), psum(v), psum(v[:70_000])), one_process.devices_mesh(4)
        )
        for _ in range(20):
            for g, size in zip(f(x), (3, 100_000, 70_000), strict=True):
                want = reference.all_reduce("sum", list(x[:, :size]))
                one_process.assert_same_bits(one_process.per_device(g), want)

    @parameterized.parameters(2, 4, 8)
    def test_mpi4jax_2_order_that_could_be_swapped(self, num_devices):
        n = num_devices
        right = [(i, (i + 1) % n) for i in range(n)]
        left = [(i, (i - 1) % n) for i in range(n)]

        def f(v):
            a = jax.lax.ppermute(v, "x", right)
            b = psum(v)
            c = jax.lax.ppermute(v * 2, "x", left)
            d = strata_jax.pmax(v, "x")
            e = jax.lax.ppermute(b + a, "x", right)
            return a, b, c, d, e + psum(c)

        x = normal(n, 20)
        a, b, c = np.roll(x, 1, 0), np.broadcast_to(x.sum(0), x.shape), np.roll(x * 2, -1, 0)
        d = np.broadcast_to(x.max(0), x.shape)
        want = (a, b, c, d, np.roll(b + a, 1, 0) + c.sum(0))
        g = one_process.sharded(f, one_process.devices_mesh(n))
        for _ in range(100):
            got = jax.block_until_ready(g(x))
        for result, w in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(result), w, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    absltest.main()
