# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-reduce of every dtype of JAX on CPU, kind by kind, against the oracle, bit by bit."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import one_process
import strata_jax
from cases import FLOAT8S, FLOATS, INTEGERS, NUMS_DEVICES, dtype_of, values
from strata_jax import reference

OPS = {"sum": strata_jax.psum, "max": strata_jax.pmax, "min": strata_jax.pmin}


def setUpModule() -> None:
    one_process.ensure_fabric()


def assert_same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Same bits, but for the payload and sign of a NaN that arithmetic made."""
    one_process.assert_alike(actual)
    nan = np.isnan(expected[0].astype(np.float32))
    np.testing.assert_array_equal(np.isnan(actual[0].astype(np.float32)), nan)
    zero = np.zeros((), expected[0].dtype)
    actual = [np.where(nan, zero, a) for a in actual]
    expected = [np.where(nan, zero, e) for e in expected]
    one_process.assert_same_bits(actual, expected)


class DtypesTest(parameterized.TestCase):
    @parameterized.product(dtype=[*INTEGERS, *FLOATS], num_devices=NUMS_DEVICES)
    def test_equals_the_fold_in_rank_order(self, dtype, num_devices):
        x = values(dtype_of(dtype), (num_devices, 131))
        f = one_process.sharded(
            lambda v: {kind: op(v, "x") for kind, op in OPS.items()},
            one_process.devices_mesh(num_devices),
        )
        with one_process.counters() as moved:
            got = jax.block_until_ready(f(x))
        for kind in OPS:
            assert_same(one_process.per_device(got[kind]), reference.all_reduce(kind, list(x)))
        self.assertEmpty(moved.left)
        if num_devices > 1:
            self.assertEqual(moved["all_reduce.operations"], 3)

    @parameterized.product(dtype=["complex64"], num_devices=NUMS_DEVICES)
    def test_complex(self, dtype, num_devices):
        shards = list(values(dtype_of(dtype), (num_devices, 131)))
        got = one_process.run(lambda v: strata_jax.psum(v, "x"), shards)
        one_process.assert_same_bits(got, reference.all_reduce("sum", shards))

    @parameterized.parameters("max", "min")
    def test_complex_has_no_order(self, kind):
        shards = [np.zeros(3, np.complex64)] * 2
        with self.assertRaises(Exception) as caught:
            one_process.run(lambda v: OPS[kind](v, "x"), shards)
        self.assertIn("UNIMPLEMENTED", str(caught.exception))  # as without us

    @parameterized.parameters(*NUMS_DEVICES)
    def test_bool_is_summed_as_int32(self, num_devices):
        shards = list(values(np.dtype(bool), (num_devices, 37)))
        got = one_process.run(lambda v: strata_jax.psum(v, "x"), shards)
        wide = [shard.astype(np.int32) for shard in shards]
        one_process.assert_same_bits(got, reference.all_reduce("sum", wide))
        for kind in ("max", "min"):
            got = one_process.run(lambda v, op=OPS[kind]: op(v, "x"), shards)
            one_process.assert_same_bits(got, reference.all_reduce(kind, shards))

    @parameterized.product(
        dtype=["float8_e8m0fnu", "float4_e2m1fn"], kind=["sum", "max", "min"], num_devices=(2, 8)
    )
    def test_types_that_xla_widens(self, dtype, kind, num_devices):
        # XLA reduces these in a wider type; all sums here are exact in any of them.
        rng = np.random.default_rng(1)
        powers = np.array([0.5, 1.0, 2.0, 4.0], np.float32)
        shards = list(rng.choice(powers, (num_devices, 50)).astype(dtype_of(dtype)))
        got = one_process.run(lambda v: OPS[kind](v, "x"), shards)
        one_process.assert_same_bits(got, reference.all_reduce(kind, shards))

    @parameterized.product(
        dtype=["bool", "int4", "int8", "uint8", "int16", "int32", "uint32", "float32", "float16"],
        num_devices=(1, 3, 4, 8),
    )
    def test_mean(self, dtype, num_devices):
        shards = list(values(dtype_of(dtype), (num_devices, 33)))
        got = one_process.run(lambda v: strata_jax.pmean(v, "x"), shards)
        wide = [s.astype(np.int32) if dtype == "bool" else s for s in shards]
        total = reference.all_reduce("sum", wide)[0]
        if dtype == "float16":
            mean = (total.astype(np.float32) / np.float32(num_devices)).astype(np.float16)
        else:
            mean = total.astype(np.float32) / np.float32(num_devices)
        # XLA may divide by multiplying.
        ulp = 1e-3 if dtype == "float16" else 1e-6
        one_process.assert_alike(got)
        self.assertEqual(got[0].dtype, mean.dtype)
        np.testing.assert_allclose(got[0], mean, rtol=ulp)

    def test_f16_sum_is_rounded_once(self):
        # Public reports, own reading: the running sum in f16 loses what the f32 sum keeps.
        shards = [np.full(5, v, np.float16) for v in (2049.0, 2050.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0)]
        got = one_process.run(lambda v: strata_jax.psum(v, "x"), shards)
        exact = np.float16(np.float32(sum(np.float32(s[0]) for s in shards)))
        running = functools.reduce(lambda a, b: np.float16(a + b), [s[0] for s in shards])
        self.assertNotEqual(exact, running)
        one_process.assert_same_bits(got, [np.full(5, exact, np.float16)] * 8)

    @parameterized.parameters("bfloat16", *FLOAT8S)
    def test_narrow_floats_move_no_wider_bytes(self, dtype):
        shards = list(np.ones((4, 1000), dtype_of(dtype)))
        with one_process.counters() as moved:
            one_process.run(lambda v: strata_jax.psum(v, "x"), shards)
        self.assertEqual(moved["all_reduce.bytes"], 4 * 1000 * shards[0].dtype.itemsize)

    @parameterized.parameters(*FLOATS)
    def test_every_8_bit_code_and_special_value(self, dtype):
        if dtype in FLOAT8S:
            column = np.arange(256, dtype=np.uint8).view(dtype_of(dtype))
        else:
            special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0, 1e-7, -1e-7]
            column = np.array(special, np.float32).astype(dtype_of(dtype))
        pairs = [np.repeat(column, column.size), np.tile(column, column.size)]
        for kind in ("sum", "max", "min"):
            got = one_process.run(lambda v, op=OPS[kind]: op(v, "x"), pairs)
            assert_same(got, reference.all_reduce(kind, pairs))


class SignsTest(parameterized.TestCase):
    @parameterized.product(dtype=["float16", "bfloat16", "float32"], kind=["max", "min"])
    def test_zeros_infinities_and_nan(self, dtype, kind):
        # Public reports 21820 and own reading.
        rows = {
            "zeros": [0.0, -0.0, -0.0, 0.0],
            "minus first": [-0.0, 0.0, 0.0, 0.0],
            "all minus": [-0.0] * 4,
            "negative": [-1.0] * 4,
            "lowest": [-np.inf] * 4,
            "highest": [np.inf] * 4,
            "mixed": [-np.inf, 1.0, np.inf, -1.0],
            "nan last": [1.0, 2.0, 3.0, np.nan],
            "nan first": [np.nan, np.inf, -np.inf, 0.0],
        }
        table = np.array(list(rows.values()), np.float32).T.astype(dtype_of(dtype))
        got = one_process.run(lambda v: OPS[kind](v, "x"), list(table))
        one_process.assert_same_bits(got, reference.all_reduce(kind, list(table)))

    def test_nan_of_the_lowest_rank_wins(self):
        payloads = np.array([[0x3F800000], [0x7FC00123], [0x7FC00456], [0xFFC00789]], np.uint32)
        shards = list(payloads.view(np.float32))
        for kind in ("max", "min"):
            got = one_process.run(lambda v, op=OPS[kind]: op(v, "x"), shards)
            one_process.assert_same_bits(got, [shards[1]] * 4)

    @parameterized.parameters("float32", "bfloat16")
    def test_denormals_same_bits_in_30_runs(self, dtype):
        # Which thread does the work must not matter: all flush denormals.
        mesh = one_process.devices_mesh(4)
        f = one_process.sharded(lambda v: strata_jax.psum(v, "x") * jnp.asarray(1e-5, dtype), mesh)
        for size in (8, 200_000):
            x = np.full((4, size), 1e-35, dtype_of(dtype))
            for _ in range(30):
                one_process.assert_same_bits(
                    one_process.per_device(f(x)), [np.zeros(size, x.dtype)] * 4
                )
            tiny = np.full((4, size), 1e-39, dtype_of(dtype))
            total = one_process.run(lambda v: strata_jax.psum(v, "x"), list(tiny))
            one_process.assert_same_bits(total, [np.zeros(size, x.dtype)] * 4)


class PlainJitTest(parameterized.TestCase):
    """Reductions over a sharded axis: the partitioner inserts the all-reduce."""

    @parameterized.parameters("float32", "bfloat16", "float16", "int32", "int8", "int4")
    def test_sum_max_min_over_a_sharded_axis(self, dtype):
        mesh = one_process.devices_mesh(4)
        x = values(dtype_of(dtype), (4, 50))
        placed = jax.device_put(x, NamedSharding(mesh, P("x")))
        for kind, op in (("sum", jax.lax.add), ("max", jax.lax.max), ("min", jax.lax.min)):
            start = {"sum": 0, "max": x.min(), "min": x.max()}[kind]
            initial = np.asarray(start).astype(x.dtype)
            f = jax.jit(lambda v, i=initial, o=op: jax.lax.reduce(v, i, o, (0,)))
            with one_process.counters() as moved:
                got = jax.block_until_ready(f(placed))
            want = reference.all_reduce(kind, list(x))[0]
            if dtype in ("bfloat16", "float16") and kind == "sum":
                np.testing.assert_allclose(
                    np.asarray(got, np.float32), want.astype(np.float32), rtol=2e-2, atol=2e-2
                )
            elif dtype == "float32":
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
            else:
                one_process.assert_same_bits([np.asarray(got)], [want])
            self.assertEqual(moved["all_reduce.operations"], 1)


class WideTypesTest(absltest.TestCase):
    def test_64_bit_types(self):
        one_process.in_subprocess(
            """
            jax.config.update("jax_enable_x64", True)
            strata_jax.init()
            ops = {"sum": strata_jax.psum, "max": strata_jax.pmax, "min": strata_jax.pmin}
            rng = np.random.default_rng(0)
            for n in (1, 2, 3, 4, 8):
                for dtype in (np.int64, np.uint64, np.float64, np.complex128):
                    x = rng.integers(-2**62, 2**62, (n, 5003)).astype(dtype)
                    if dtype is np.float64:
                        x = rng.standard_normal(x.shape)
                    if dtype is np.complex128:
                        x = rng.standard_normal(x.shape) + 1j * rng.standard_normal(x.shape)
                    for kind, op in ops.items():
                        if dtype is np.complex128 and kind != "sum":
                            continue
                        y = sharded(lambda v: op(v, "x"), n)(x)
                        assert y.dtype == dtype, (y.dtype, dtype)
                        want = reference.all_reduce(kind, list(x))
                        for shard, w in zip(y.addressable_shards, want):
                            assert np.asarray(shard.data)[0].tobytes() == w.tobytes(), (kind, n)
            # 21820 in f64.
            y = sharded(lambda v: strata_jax.pmax(v, "x"), 2)(np.array([-1.0, -1.0]))
            assert y.dtype == np.float64 and float(y[1]) == -1.0
            assert left() == {}, left()
            assert operations() > 40, operations()
            """,
            num_devices=8,
        )


if __name__ == "__main__":
    absltest.main()
