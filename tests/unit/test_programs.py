# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-reduce inside whole programs: transformations, control flow, plain jit, pmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import one_process
import strata_jax
from one_process import normal, on_mesh, psum
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


def total(x: np.ndarray) -> np.ndarray:
    """Returns what every device holds after a psum of blocks of the first axis."""
    return reference.all_reduce("sum", list(x[:, None]))[0]


class TransformationsTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_gradient_of_a_loss(self, check_vma):
        # Public report 3970: each gradient once, no factor of the number of devices.
        x, w = normal(8, 6), normal(6, 3, seed=1)
        cos = np.cos(x @ w)
        loss = on_mesh(
            lambda a, b: psum(jnp.sum(jnp.sin(a @ b))),
            in_specs=(P("x"), P()),
            check_vma=check_vma,
        )
        with one_process.counters() as moved:
            grads = jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w))
        np.testing.assert_allclose(grads[0], cos @ w.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(grads[1], x.T @ cos, rtol=1e-4, atol=1e-5)
        self.assertGreaterEqual(moved["all_reduce.operations"], 1)

    def test_gradient_inside_shard_map(self):
        x, w = normal(8, 6), normal(6, seed=1)
        step = on_mesh(
            lambda a, b: psum(jax.grad(lambda c: jnp.sum(jnp.sin(a @ c)))(b)),
            in_specs=(P("x"), P()),
            check_vma=False,
        )
        got = jax.jit(step)(x, w)
        np.testing.assert_allclose(got, x.T @ np.cos(x @ w), rtol=1e-4, atol=1e-5)

    def test_gradient_of_mean(self):
        x = normal(4, 5)
        f = on_mesh(lambda v: jnp.sum(strata_jax.pmean(v**2, "x")))
        np.testing.assert_allclose(jax.jit(jax.grad(f))(x), x / 2, rtol=1e-6)

    def test_forward_mode_and_transpose(self):
        x, t = normal(4, 5), normal(4, 5, seed=1)
        f = on_mesh(lambda v: psum(jnp.sin(v)))
        y, dy = jax.jit(lambda a, b: jax.jvp(f, (a,), (b,)))(x, t)
        np.testing.assert_allclose(y, total(np.sin(x)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dy, total(np.cos(x) * t), rtol=1e-5, atol=1e-6)
        linear = on_mesh(lambda v: psum(v * 3))
        (ct,) = jax.jit(lambda c: jax.linear_transpose(linear, x)(c))(normal(1, 5))
        np.testing.assert_allclose(ct, np.tile(3 * normal(1, 5), (4, 1)), rtol=1e-6)

    @parameterized.parameters(True, False)
    def test_maximum_has_no_gradient_as_in_jax(self, check_vma):
        f = on_mesh(lambda v: jnp.sum(strata_jax.pmax(v, "x")), check_vma=check_vma)
        with self.assertRaises(NotImplementedError):
            jax.grad(f)(normal(4, 5))

    def test_checkpoint_and_custom_vjp(self):
        @jax.custom_vjp
        def scaled(v):
            return psum(v) * 2

        scaled.defvjp(lambda v: (psum(v) * 2, None), lambda _, ct: (psum(ct) * 7,))
        x = normal(4, 5)

        def local(v):
            inner = jax.checkpoint(lambda a: jnp.sin(psum(jnp.cos(a))))
            return jax.grad(lambda a: jnp.sum(inner(a) + scaled(a)))(v)

        got = jax.jit(on_mesh(local, out_specs=P("x"), check_vma=False))(x)
        outer = np.cos(total(np.cos(x)))
        # Without replication checks the transpose of psum is psum.
        want = -np.sin(x) * 4 * outer + 4 * 7
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    @parameterized.parameters(0, 1, -1)
    def test_vmap_over_a_mapped_function(self, axis):
        x = normal(5, 8, 3)
        f = jax.vmap(on_mesh(psum), in_axes=axis, out_axes=axis)
        got = jax.jit(f)(np.moveaxis(x, 0, axis))
        want = np.stack([x[i].reshape(4, 2, 3).sum(0) for i in range(5)])
        np.testing.assert_allclose(
            np.moveaxis(np.asarray(got), axis, 0), want, rtol=1e-5, atol=1e-6
        )

    def test_vmap_inside_and_its_axis_name_mixed_with_the_mesh(self):
        x = normal(4, 6, 3)
        inside = on_mesh(lambda v: jax.vmap(psum)(v), check_vma=False)
        np.testing.assert_allclose(jax.jit(inside)(x), total(x), rtol=1e-5, atol=1e-6)
        x = normal(8, 3)
        mixed = on_mesh(
            lambda v: jax.vmap(lambda a: strata_jax.psum(a, ("x", "b")), axis_name="b")(v),
            check_vma=False,
        )
        want = np.broadcast_to(x.sum(0), (2, 3))
        np.testing.assert_allclose(jax.jit(mixed)(x), want, rtol=1e-5, atol=1e-6)
        only = on_mesh(
            lambda v: jax.vmap(lambda a: strata_jax.psum(a, "b"), axis_name="b")(v),
            out_specs=P("x"),
            check_vma=False,
        )
        want = np.repeat(x.reshape(4, 2, 3).sum(1), 2, 0)
        np.testing.assert_allclose(jax.jit(only)(x), want, rtol=1e-5, atol=1e-6)


class ControlFlowTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16")
    def test_loops_branches_and_their_nests(self, dtype):
        n = 4

        def f(v):
            outside = psum(v)
            looped = jax.lax.fori_loop(0, 3, lambda _, a: psum(a) / 8 + 1, v)
            counted = jax.lax.while_loop(
                lambda s: s[0] < 4, lambda s: (s[0] + 1, psum(s[1]) / 4), (0, v)
            )[1]
            carry, each = jax.lax.scan(lambda c, r: (c + psum(r), psum(r * 2)), v[0] * 0, v)
            flag = psum(jnp.float32(1)) > 3
            chosen = jax.lax.cond(flag, lambda a: psum(a * 3), lambda a: psum(a * 5) + 1, v)

            def nest(c, r):
                def body(i, a):
                    return jax.lax.cond(i % 2 == 0, lambda b: psum(b) / 4, lambda b: b + 1, a)

                return jax.lax.fori_loop(0, 4, body, c + r), None

            nested = jax.lax.scan(nest, v[0] * 0, v)[0]
            return outside, looped, counted, carry, each, chosen, nested

        x = np.random.default_rng(0).integers(-4, 5, (n, 3, 5)).astype(np.float32)
        got = jax.jit(on_mesh(lambda v: f(v[0]), out_specs=(P(),) * 7, check_vma=False))(
            x.astype(np.dtype(dtype))
        )
        v = x.copy()
        for _ in range(3):
            v = np.broadcast_to(v.sum(0) / 8 + 1, x.shape)
        c = np.zeros((n, 5), np.float32)
        for row in range(3):
            c = c + x[:, row]
            for i in range(4):
                c = np.broadcast_to(c.sum(0) / 4, c.shape) if i % 2 == 0 else c + 1
        s = x.sum(0)
        want = (s, v[0], s / 4, s.sum(0), 2 * s, 3 * s, c[0])
        tolerance = 1e-5 if dtype == "float32" else 5e-2
        for g, w in zip(got, want, strict=True):
            one_process.assert_alike([np.asarray(shard.data) for shard in g.addressable_shards])
            np.testing.assert_allclose(
                np.asarray(g, np.float32), w, rtol=tolerance, atol=tolerance * 4
            )

    def test_axis_index_inside_cond(self):
        # Public reports 24721 and 15780.
        def f(v):
            i = jax.lax.axis_index("x")
            return psum(jax.lax.cond(v[0, 0] > 0, lambda: i, lambda: i * 0))

        got = jax.jit(on_mesh(f, 8, check_vma=False))(np.ones((8, 1), np.float32))
        self.assertEqual(int(got), 28)

    def test_branches_by_device_group(self):
        # Each group takes its own branch, and only its own members meet there.
        groups = [[0, 1], [2, 3]]

        def f(v):
            first = jax.lax.axis_index("x") < 2
            return jax.lax.cond(
                first,
                lambda a: strata_jax.psum(a, "x", axis_index_groups=groups),
                lambda a: strata_jax.psum(a * 10, "x", axis_index_groups=groups),
                v,
            )

        x = normal(4, 5)
        got = np.asarray(jax.jit(on_mesh(f, out_specs=P("x"), check_vma=False))(x))
        for _ in range(20):
            np.testing.assert_allclose(got[0], x[0] + x[1], rtol=1e-6)
            np.testing.assert_allclose(got[3], x[2] * 10 + x[3] * 10, rtol=1e-6)

    def test_one_jitted_function_in_a_dozen_places(self):
        inner = jax.jit(lambda v: jnp.sin(psum(jnp.cos(v))))
        x = normal(4, 5)

        def f(v):
            return sum(inner(v * k) for k in range(12))

        want = sum(np.sin(total(np.cos(x * k))) for k in range(12))
        got = jax.jit(on_mesh(f, check_vma=False))(x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


class PlainJitTest(parameterized.TestCase):
    """The partitioner inserts the collectives."""

    def _count(self, f, *args):
        with one_process.counters() as moved:
            result = jax.block_until_ready(f(*args))
        self.assertGreaterEqual(moved["all_reduce.operations"], 1)
        self.assertEmpty(moved.left)
        return np.asarray(result)

    @parameterized.named_parameters(
        ("sum", jnp.sum), ("prod", jnp.prod), ("max", jnp.max), ("min", jnp.min)
    )
    def test_reductions(self, op):
        x = normal(8, 6) + 1
        placed = jax.device_put(x, NamedSharding(one_process.devices_mesh(4), P("x")))
        name = op.__name__
        got = self._count(jax.jit(lambda v: op(v, axis=0)), placed)
        want = getattr(np, name)(x, axis=0)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        got = self._count(jax.jit(lambda v: op(v)), placed)
        np.testing.assert_allclose(got, getattr(np, name)(x), rtol=1e-5)

    @parameterized.parameters("any", "all")
    def test_truth(self, name):
        x = np.random.default_rng(0).random((8, 64)) > (0.9 if name == "any" else 0.1)
        placed = jax.device_put(x, NamedSharding(one_process.devices_mesh(4), P("x")))
        got = self._count(jax.jit(lambda v: getattr(jnp, name)(v, axis=0)), placed)
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis=0))

    @parameterized.product(
        kind=["or", "and", "xor"], dtype=["bool", "int8", "uint8", "int16", "uint32"]
    )
    def test_bitwise(self, kind, dtype):
        rng = np.random.default_rng(1)
        numbers = rng.integers(0, 2 if dtype == "bool" else 8, (4, 40))
        x = np.asarray(jnp.asarray(numbers, dtype))
        placed = jax.device_put(x, NamedSharding(one_process.devices_mesh(4), P("x")))
        op = {"or": jax.lax.bitwise_or, "and": jax.lax.bitwise_and, "xor": jax.lax.bitwise_xor}
        ones = True if dtype == "bool" else (15 if dtype == "uint8" else -1)
        start = np.asarray(ones if kind == "and" else 0)
        if dtype == "uint32":
            start = np.asarray(0xFFFFFFFF if kind == "and" else 0)
        initial = start.astype(x.dtype)
        got = self._count(jax.jit(lambda v: jax.lax.reduce(v, initial, op[kind], (0,))), placed)
        one_process.assert_same_bits([got], [reference.all_reduce(kind, list(x))[0]])

    def test_sharded_matmul_and_its_gradient(self):
        mesh = one_process.devices_mesh(8)
        a, b = normal(8, 32), normal(32, 8, seed=1)
        f = jax.jit(
            lambda p, q: p @ q,
            in_shardings=(NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x", None))),
            out_shardings=NamedSharding(mesh, P()),
        )
        np.testing.assert_allclose(self._count(f, a, b), a @ b, rtol=1e-4, atol=1e-5)
        placed = jax.device_put(a, NamedSharding(mesh, P("x")))
        got = self._count(jax.jit(jax.grad(lambda q, p: jnp.sum(jnp.sin(p @ q)))), b, placed)
        np.testing.assert_allclose(got, a.T @ np.cos(a @ b), rtol=1e-4, atol=1e-4)

    def test_partly_manual_and_nested(self):
        mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
        x = normal(8, 12)
        partly = jax.shard_map(
            lambda v: strata_jax.psum(v, "a") * jnp.sum(v),
            mesh=mesh,
            in_specs=P("a"),
            out_specs=P("a"),
            axis_names={"a"},
            check_vma=False,
        )
        placed = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
        got = self._count(jax.jit(partly), placed)
        blocks = x.reshape(2, 4, 12)
        want = blocks.sum(0)[None] * blocks.sum((1, 2))[:, None, None]
        np.testing.assert_allclose(got, want.reshape(8, 12), rtol=1e-4, atol=1e-4)

        def outer(v):
            inner = jax.shard_map(
                lambda u: strata_jax.psum(u, "b"),
                in_specs=P(None, "b"),
                out_specs=P(),
                axis_names={"b"},
            )
            return strata_jax.psum(inner(v), "a")

        nested = jax.shard_map(outer, mesh=mesh, in_specs=P("a"), out_specs=P(), axis_names={"a"})
        got = self._count(jax.jit(nested), placed)
        np.testing.assert_allclose(got, x.reshape(2, 4, 4, 3).sum((0, 2)), rtol=1e-5, atol=1e-5)

    @parameterized.parameters("float32", "bfloat16", "int32")
    def test_pmap(self, dtype):
        x = np.random.default_rng(0).integers(-9, 9, (4, 30)).astype(np.dtype(dtype))
        f = jax.pmap(
            lambda v: (psum(v), strata_jax.pmax(v, "x")),
            axis_name="x",
            devices=jax.devices()[:4],
        )
        with one_process.counters() as moved:
            got = jax.block_until_ready(f(x))
        for kind, result in zip(("sum", "max"), got, strict=True):
            one_process.assert_same_bits(
                list(np.asarray(result)), reference.all_reduce(kind, list(x))
            )
        self.assertGreaterEqual(moved["all_reduce.operations"], 1)


if __name__ == "__main__":
    absltest.main()
