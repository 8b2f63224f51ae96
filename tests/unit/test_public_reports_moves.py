# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Reported faults of the collectives that move data; see test_public_reports.py.

Those of one operation only are in its own test file, under their numbers: 11194, 1703, 1704, 3757,
34755, 26203, 26915, 16303.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import cases
import one_process
import strata_jax
from cases import Case
from one_process import normal, psum
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


def gather(v, **options):
    return strata_jax.all_gather(v, "x", **options)


def scatter(v, **options):
    return strata_jax.psum_scatter(v, "x", tiled=True, **options)


def swap(v, **options):
    return strata_jax.all_to_all(v, "x", 0, 1, tiled=True, **options)


def shift(v, step=1):
    size = jax.lax.axis_size("x")
    return strata_jax.ppermute(v, "x", [(i, (i + step) % size) for i in range(size)])


def broadcast(v):
    return strata_jax.pbroadcast(v, "x", 1)


def ragged(v):
    """Rows one by one to all devices, as an all-to-all of one row each."""
    size = jax.lax.axis_size("x")
    ids = jnp.arange(size, dtype=jnp.int32)
    ones = jnp.ones(size, jnp.int32)
    here = jnp.broadcast_to(jax.lax.axis_index("x"), size)
    return strata_jax.ragged_all_to_all(v, v, ids, ones, here, ones, axis_name="x")


def swap_rows(shards):
    """What `ragged` does."""
    results = np.stack(shards).copy()
    results[:, : len(shards)] = np.swapaxes(np.stack(shards)[:, : len(shards)], 0, 1)
    return list(results)


# Of arrays [n, columns], n the number of devices.
MOVES = {
    "all_gather": (gather, reference.all_gather),
    "psum_scatter": (scatter, lambda s: reference.reduce_scatter("sum", s, 0, True)),
    "all_to_all": (swap, lambda s: reference.all_to_all(s, 0, 1, True)),
    "ppermute": (shift, lambda s: [s[i - 1] for i in range(len(s))]),
    "pbroadcast": (broadcast, lambda s: reference.pbroadcast(s, 1)),
    "ragged_all_to_all": (ragged, swap_rows),
}
COUNTERS = {
    "psum_scatter": "reduce_scatter",
    "ppermute": "collective_permute",
    "pbroadcast": "collective_broadcast",
}


class ValuesTest(parameterized.TestCase):
    @parameterized.product(op=[*MOVES], dtype=["bfloat16", "float16", "float8_e5m2", "int4"])
    def test_23543_narrow_types_keep_their_bits_and_move_no_wider_bytes(self, op, dtype):
        numbers = cases.integral(4, 4, 5) % 4
        x = (numbers.astype(np.int8) if dtype == "int4" else numbers).astype(cases.dtype_of(dtype))
        run, oracle = MOVES[op]
        name = COUNTERS.get(op, op)
        with one_process.counters() as moved:
            got = one_process.run(run, list(x))
        one_process.assert_same_bits(got, oracle(list(x)))
        ids = 4 * 4 * 4 * 4 if op == "ragged_all_to_all" else 0
        num_bits = 4 if dtype == "int4" else 8 * x.dtype.itemsize
        operands = 2 if ids else 1
        self.assertEqual(moved[f"{name}.bytes"], operands * x.size * num_bits // 8 + ids)

    @parameterized.parameters(2, 4, 8)
    def test_xla_13305_two_types_in_one_function(self, num_devices):
        found = {}
        for dtype in ("float32", "bfloat16", "int8", "complex64", "bool"):
            x = list(cases.integral(num_devices, num_devices, 3).astype(cases.dtype_of(dtype)))
            for op, (run, oracle) in MOVES.items():
                if (op, dtype) != ("psum_scatter", "bool"):
                    found[f"{op} {dtype}"] = Case(run, x, oracle(x))
        cases.check(found)


class GroupsTest(parameterized.TestCase):
    def test_15903_scatter_and_gather_follow_the_order_of_the_mesh(self):
        rng = np.random.default_rng(0)
        for _ in range(3):
            order = rng.permutation(8)
            mesh = Mesh(np.array(jax.devices())[order], ("x",))
            x = list(cases.integral(8, 8, 3))
            found = {op: Case(run, x, oracle(x)) for op, (run, oracle) in MOVES.items()}
            found["there and back"] = Case(
                lambda v: gather(scatter(v), tiled=True), x, reference.all_reduce("sum", x)
            )
            cases.check(found, mesh)

    def test_19709_psum_scatter_in_groups(self):
        x = np.arange(32, dtype=np.int32).reshape(4, 8)
        got = one_process.run(
            lambda v: strata_jax.psum_scatter(
                v, "x", axis_index_groups=[[0, 2], [1, 3]], tiled=True
            ),
            list(x),
        )
        want = [[16, 18, 20, 22], [32, 34, 36, 38], [24, 26, 28, 30], [40, 42, 44, 46]]
        np.testing.assert_array_equal(np.stack(got), want)

    @parameterized.parameters("float32", "bfloat16", "int8", "int32")
    def test_19709_every_operation_in_groups(self, dtype):
        x = list(cases.integral(8, 8, 6).astype(cases.dtype_of(dtype)))
        found = {}
        for i, groups in enumerate(cases.GROUPS[1:4]):
            options = {"axis_index_groups": groups}
            found |= {
                f"gather {i}": Case(
                    lambda v, o=options: gather(v, **o), x, reference.all_gather(x, groups=groups)
                ),
                f"scatter {i}": Case(
                    lambda v, o=options: scatter(v, **o),
                    x,
                    reference.reduce_scatter("sum", x, 0, True, groups),
                ),
                f"swap {i}": Case(
                    lambda v, o=options: swap(v, **o),
                    x,
                    reference.all_to_all(x, 0, 1, True, groups),
                ),
            }
        cases.check(found)

    @parameterized.parameters("float32", "bfloat16", "int8", "bool")
    def test_1332_split_rows_concatenate_columns(self, dtype):
        x = cases.values(cases.dtype_of(dtype), (4, 8, 3))
        got = one_process.run(swap, list(x))
        blocks = x.reshape(4, 4, 2, 3)  # sender, receiver, ...
        want = [np.concatenate(list(blocks[:, receiver]), 1) for receiver in range(4)]
        one_process.assert_same_bits(got, want)

    @parameterized.parameters("all_gather", "psum_scatter", "all_to_all")
    def test_8221_tiled_under_vmap_equals_untiled_and_reshaped(self, op):
        x = cases.integral(4, 5, 4, 3)

        def f(v):
            if op == "all_to_all":
                tiled, untiled = (
                    jax.vmap(lambda a, t=t: strata_jax.all_to_all(a, "x", 0, 0, tiled=t))(v)
                    for t in (True, False)
                )
            else:
                run = getattr(strata_jax, op)
                tiled, untiled = (
                    jax.vmap(lambda a, t=t: run(a, "x", tiled=t))(v) for t in (True, False)
                )
            return tiled, untiled.reshape(tiled.shape)

        tiled, untiled = one_process.sharded(f, one_process.devices_mesh(4))(x)
        one_process.assert_same_bits([np.asarray(tiled)], [np.asarray(untiled)])

    @parameterized.parameters("all_to_all", "ragged_all_to_all", "all_gather", "psum_scatter")
    def test_33123_outside_a_mapped_function(self, op):
        x = jnp.ones((4, 4))
        calls = {
            "all_to_all": lambda v: strata_jax.all_to_all(v, "x", 0, 1),
            "ragged_all_to_all": lambda v: strata_jax.ragged_all_to_all(
                v, v, *[jnp.ones(4, jnp.int32)] * 4, axis_name="x"
            ),
            "all_gather": gather,
            "psum_scatter": scatter,
        }
        for f in (calls[op], jax.jit(calls[op])):
            with self.assertRaisesRegex(NameError, "unbound axis name"):
                f(x)


class GradientsTest(parameterized.TestCase):
    @parameterized.product(num_devices=(2, 4), check_vma=(True, False))
    def test_15982_all_to_all_through_shard_map(self, num_devices, check_vma):
        x = cases.integral(num_devices, 2 * num_devices, 3)
        ct = cases.integral(num_devices, 2, 3 * num_devices, seed=1)
        f = one_process.sharded(
            swap, one_process.devices_mesh(num_devices), jit=False, check_vma=check_vma
        )
        got = jax.jit(jax.grad(lambda v: jnp.vdot(ct, f(v))))(x)
        want = reference.all_to_all(list(ct), 1, 0, True)
        np.testing.assert_array_equal(np.asarray(got), np.stack(want))

    @parameterized.product(num_devices=(2, 4), tiled=(True, False))
    def test_7965_vmap_of_all_gather(self, num_devices, tiled):
        x = cases.integral(num_devices, 5, 2)
        shape = (5, 2 * num_devices) if tiled else (5, num_devices, 2)
        ct = cases.integral(num_devices, *shape, seed=1)

        def f(v, c):
            many = jax.vmap(lambda a: gather(a, tiled=tiled))
            return jax.grad(lambda a: jnp.vdot(c, many(a)))(v)

        got = one_process.sharded(f, one_process.devices_mesh(num_devices))(x, ct)
        want = reference.reduce_scatter("sum", list(ct), 1, tiled)
        one_process.assert_same_bits(one_process.per_device(got), want)

    def test_3970_gathered_and_scattered_loss(self):
        # Each local gradient once, with replication checks on.
        x = cases.integral(4, 8)

        def loss(v):
            parts = scatter(gather(v, tiled=True) ** 2)
            return psum(jnp.sum(parts))

        f = jax.shard_map(
            loss, mesh=one_process.devices_mesh(4), in_specs=P(None, "x"), out_specs=P()
        )
        # Each of the 4 devices adds the squares of all.
        got = jax.jit(jax.grad(f))(np.ones((4, 4), np.float32) * x[:, :4])
        np.testing.assert_array_equal(np.asarray(got), 4 * 2 * x[:, :4])


class HangsTest(parameterized.TestCase):
    @parameterized.parameters(2, 4, 8)
    def test_14_12701_independent_collectives(self, num_devices):
        x = cases.integral(num_devices, num_devices, 4)
        f = one_process.sharded(
            lambda v: {op: run(v) for op, (run, _) in MOVES.items()},
            one_process.devices_mesh(num_devices),
        )
        placed = jax.device_put(x, jax.NamedSharding(one_process.devices_mesh(num_devices), P("x")))
        for i in range(1000):
            got = f(placed)
            if i % 20 == 0:
                jax.block_until_ready(got)
        for op, (_, oracle) in MOVES.items():
            one_process.assert_same_bits(one_process.per_device(got[op]), oracle(list(x)))

    @parameterized.parameters(*MOVES)
    def test_11620_unused_result(self, op):
        def f(v):
            MOVES[op][0](v * 3)
            return v + 1

        x = normal(4, 4, 3)
        for _ in range(5):
            got = one_process.run(f, list(x))
        np.testing.assert_array_equal(np.stack(got), x + 1)

    @parameterized.parameters(*MOVES)
    def test_5065_6896_dispatches_without_waiting(self, op):
        x = cases.integral(2, 2, 1000)
        run, oracle = MOVES[op]
        f = one_process.sharded(run, one_process.devices_mesh(2))
        results = [f(x) for _ in range(1000)]
        for result in results[::200]:
            one_process.assert_same_bits(one_process.per_device(result), oracle(list(x)))
        jax.block_until_ready(results)
        self.assertEqual(strata_jax.stats()["pending"], 0)

    @parameterized.parameters(2, 8)
    def test_mpi4jax_2_order_that_could_be_swapped(self, num_devices):
        def f(v):
            a, b = shift(v), shift(v * 2, -1)
            c = gather(v).sum(0) + shift(psum(v) + a)
            return a, b, c, shift(shift(v, 3), -3)

        x = cases.integral(num_devices, 7)
        a, total = np.roll(x, 1, 0), x.sum(0)
        want = (a, np.roll(x * 2, -1, 0), total + np.roll(total + a, 1, 0), x)
        g = one_process.sharded(f, one_process.devices_mesh(num_devices))
        for _ in range(50):
            got = jax.block_until_ready(g(x))
        for result, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.asarray(result), w)


if __name__ == "__main__":
    absltest.main()
