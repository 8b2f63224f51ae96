# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Programs run many times, at once and beside whatever else may block: no hang, no mix-up."""

from __future__ import annotations

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

import one_process
import strata_jax
from one_process import normal, on_mesh, psum
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


class ManyRunsTest(parameterized.TestCase):
    def test_unused_result(self):
        # Public report 11620.
        def f(v):
            psum(v * 3)
            return v + 1

        x = normal(8, 5)
        np.testing.assert_array_equal(jax.jit(on_mesh(f, 8, out_specs=P("x")))(x), x + 1)

    @parameterized.parameters(2, 4, 8)
    def test_two_independent_collectives(self, num_devices):
        # Public reports 14, 12701 and netket 1479, 654.
        x = normal(num_devices, 3000)
        f = jax.jit(
            on_mesh(
                lambda v: (psum(jnp.sort(v[0])), psum(v[0, :7] * 2)),
                num_devices,
                out_specs=(P(), P()),
            )
        )
        want = (
            reference.all_reduce("sum", list(np.sort(x)))[0],
            reference.all_reduce("sum", list(x[:, :7] * 2))[0],
        )
        for _ in range(300):
            got = f(x)
            one_process.assert_same_bits([np.asarray(g) for g in got], want)
        self.assertEqual(strata_jax.stats()["pending"], 0)

    # Not on all 8 devices: with more than 32 programs in flight on all of them jax 0.10.2 has no
    # thread left to run one, also without us.
    @parameterized.parameters(2, 4)
    def test_1000_dispatches_without_waiting(self, num_devices):
        x = normal(num_devices, 600)
        mesh = one_process.devices_mesh(num_devices)
        f = one_process.sharded(lambda v: psum(v) * jnp.float32(0.5) + 1, mesh)
        one_process.per_device(f(x))
        results = [f(x) for _ in range(1000)]
        want = [s * np.float32(0.5) + 1 for s in reference.all_reduce("sum", list(x))]
        for result in (results[0], results[500], results[-1]):
            np.testing.assert_allclose(np.stack(one_process.per_device(result)), want, rtol=1e-6)
        jax.block_until_ready(results)
        self.assertEqual(strata_jax.stats()["pending"], 0)

    @parameterized.parameters(2, 4)
    def test_a_chain_of_dispatches_without_waiting(self, num_devices):
        x = normal(num_devices, 600)
        f = one_process.sharded(
            lambda v: psum(v) / num_devices + 1, one_process.devices_mesh(num_devices)
        )
        y = x
        for _ in range(300):
            y = f(y)
        got = one_process.per_device(y)
        one_process.assert_alike(got)
        np.testing.assert_allclose(got[0], x.mean(0) + 300, rtol=1e-4)

    @parameterized.parameters(2, 8)
    def test_beside_native_collectives(self, num_devices):
        n = num_devices
        ring = [(i, (i + 1) % n) for i in range(n)]

        def f(v):
            for k in range(3):
                b = psum(jnp.sort(jnp.sin(v * k)))
                c = jax.lax.ppermute(jnp.cos(v), "x", ring)
                d = jax.lax.all_gather(v * 2, "x").sum(0)
                e = jax.lax.psum_scatter(v, "x", tiled=True)
                h = psum(jnp.cos(v))
                v = jnp.tanh(b + c + d + jnp.sum(e) + h)
            return v

        x = normal(n, 64 * n)
        want = x
        for k in range(3):
            v = want
            e = v.sum(0).reshape(n, -1).sum(1)[:, None]
            want = np.tanh(
                np.sort(np.sin(v * np.float32(k))).sum(0)
                + np.roll(np.cos(v), 1, 0)
                + (v * 2).sum(0)
                + e
                + np.cos(v).sum(0)
            )
        g = one_process.sharded(f, one_process.devices_mesh(n))
        native = ("collective_permute", "reduce_scatter")
        with one_process.counters() as moved, one_process.kept_native(*native):
            for _ in range(50):
                got = np.stack(one_process.per_device(g(x)))
                np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)
        self.assertGreaterEqual(moved["all_reduce.operations"], 150)
        self.assertGreaterEqual(moved["all_gather.operations"], 150)
        self.assertEqual(moved["collective_permute.operations"], 0)
        self.assertEqual(moved.left, {"kept by the test": 6})

    def test_beside_callbacks(self):
        # Public report 25671.
        seen: list[int] = []

        def note(value):
            seen.append(int(value))

        def f(v):
            io_callback(note, None, v[0].astype(jnp.int32), ordered=True)
            a = psum(v)
            b = jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct(v.shape, v.dtype), v)
            io_callback(note, None, v[0].astype(jnp.int32) + 1, ordered=True)
            return psum(b) + a

        x = normal(1, 9)
        one = one_process.sharded(f, one_process.devices_mesh(1))
        for i in range(50):
            y = np.concatenate([np.full((1, 1), 2 * i, np.float32), x], 1)
            np.testing.assert_allclose(
                one_process.per_device(one(y))[0], y[0] + np.cumsum(y[0]), rtol=1e-5
            )
        jax.effects_barrier()
        self.assertEqual(seen, list(range(100)))

    def test_beside_callbacks_on_several_devices(self):
        x = normal(4, 50)

        def f(v):
            a = psum(v)
            b = jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct(v.shape, v.dtype), v)
            return psum(b) + a

        g = one_process.sharded(f, one_process.devices_mesh(4))
        want = np.cumsum(x, 1).sum(0) + x.sum(0)
        for _ in range(50):
            got = one_process.per_device(g(x))
            one_process.assert_alike(got)
            np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-4)

    def test_beside_lapack_calls(self):
        x = normal(4, 6, 6)

        def f(v):
            q, r = jnp.linalg.qr(v)
            return psum(jnp.abs(r)) + psum(q @ r)

        g = one_process.sharded(f, one_process.devices_mesh(4))
        want = sum(np.abs(np.linalg.qr(s)[1]) for s in x) + x.sum(0)
        for _ in range(50):
            got = one_process.per_device(g(x))
            one_process.assert_alike(got)
            np.testing.assert_allclose(got[0], want, rtol=1e-3, atol=1e-3)

    def test_from_several_threads_at_once(self):
        x = normal(4, 2000)
        fs = [
            one_process.sharded(
                functools.partial(lambda k, v: psum(v * k), np.float32(k)),
                one_process.devices_mesh(4),
            )
            for k in (1, 2, 3)
        ]

        def work(k: int) -> None:
            want = reference.all_reduce("sum", list(x * np.float32(k + 1)))
            for _ in range(60):
                one_process.assert_same_bits(one_process.per_device(fs[k](x)), want)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(work, k) for k in range(3)]:
                future.result(timeout=60)


if __name__ == "__main__":
    absltest.main()
