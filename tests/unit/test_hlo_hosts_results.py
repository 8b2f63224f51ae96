# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Results of collectives over several hosts, for which devices of this process stand.

The hook takes them for devices of several hosts, see test_hlo_hosts.py: our calls run inside these
"hosts", and XLA's collectives between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import hlo_programs as programs
import one_process
import strata_jax
from strata_jax import _compat, reference
from strata_jax.hlo import hosts
from strata_jax.hlo.counters import Counters

_TRANSFORM = "strata_jax_test_hosts"
_TWO = (0, 1)  # two processes, on two hosts


def setUpModule() -> None:
    one_process.ensure_fabric()


def _smallest(num_bytes: int) -> Any:
    return mock.patch.object(hosts, "MIN_BYTES", num_bytes)


def _run(
    op: Callable[[Any], Any],
    x: Any,
    table: Sequence[int] = _TWO,
    num_devices: int = 4,
) -> tuple[Any, dict[str, Any]]:
    """Run `op` of each device's part of `x`; return what the devices got, and the counters."""
    counters = Counters()
    hook = programs.hook(hosts=table, counters=counters)
    function = one_process.sharded(op, one_process.devices_mesh(8, "i"))
    with strata_jax.disabled():
        lowered = function.lower(x)
    jax.clear_caches()
    _compat.register_hlo_transform(_TRANSFORM, lambda data: hook(programs.with_mark(data)))
    try:
        with programs.devices_of(num_devices):
            compiled = lowered.compile()
    finally:
        _compat.clear_hlo_transform(_TRANSFORM)
    result = jax.tree.map(one_process.per_device, jax.block_until_ready(compiled(x)))
    return result, counters.snapshot()


def _whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return small whole numbers, whose sums are exact in any order, for 8 devices."""
    return np.random.default_rng(0).integers(-9, 9, (8, *shape)).astype(dtype)


class RunTest(parameterized.TestCase):
    """The results of what was split."""

    @parameterized.product(shape=((1 << 12,), (4099,), (33, 7, 19)), kind=("sum", "max", "min"))
    def test_all_reduce(self, shape: tuple[int, ...], kind: str) -> None:
        op = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}[kind]
        x = _whole(*shape)
        found, counts = _run(lambda v: op(v, "i"), x)
        self.assertEqual(counts["split"], 1)
        one_process.assert_same_bits(found, reference.all_reduce(kind, list(x)))

    @parameterized.parameters("int8", "uint8", "int32", "float64", "complex64", "bool", "bfloat16")
    def test_types(self, dtype: str) -> None:
        with jax.enable_x64(True), _smallest(1024):
            x = (_whole(1031) % 3).astype(jnp.dtype(dtype))
            op = jax.lax.pmax if dtype == "bool" else jax.lax.psum
            found, counts = _run(lambda v: op(v, "i"), x)
        self.assertEqual(counts["split"], 1)
        one_process.assert_same_bits(
            found, reference.all_reduce("max" if dtype == "bool" else "sum", list(x))
        )

    def test_all_devices_have_the_same_bits(self) -> None:
        found, _ = _run(lambda v: jax.lax.psum(v, "i"), one_process.normal(8, 10_007))
        one_process.assert_alike(found)

    def test_several_arrays(self) -> None:
        x = _whole(4099)
        sizes = (0, 1, 5, 8, 1000, 4096, 4099)
        found, counts = _run(lambda v: jax.lax.psum([v[:n] for n in sizes], "i"), x)
        self.assertGreaterEqual(counts["split"], 1)
        for n, parts in zip(sizes, found, strict=True):
            one_process.assert_same_bits(parts, reference.all_reduce("sum", list(x[:, :n])))

    @parameterized.product(
        table=((0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0, 1, 1, 1, 1)),
        axis=(0, 1),
    )
    def test_hosts_of_several_processes(self, table: Sequence[int], axis: int) -> None:
        x = _whole(16, 32)
        num_devices = 8 // len(table)
        with _smallest(256):
            found, counts = _run(
                lambda v: (
                    jax.lax.psum(v, "i"),
                    jax.lax.all_gather(v, "i", axis=axis, tiled=True),
                    jax.lax.psum_scatter(v, "i", scatter_dimension=axis, tiled=True),
                ),
                x,
                table,
                num_devices,
            )
        alternating_pairs = table == (0, 1, 0, 1)  # of devices: neither order
        self.assertEqual(counts["split"], 1 if alternating_pairs else 3)
        total, gathered, scattered = found
        one_process.assert_same_bits(total, reference.all_reduce("sum", list(x)))
        one_process.assert_same_bits(gathered, reference.all_gather(list(x), axis, tiled=True))
        one_process.assert_same_bits(
            scattered, reference.reduce_scatter("sum", list(x), axis, tiled=True)
        )

    @parameterized.parameters(
        (((0, 1, 4, 5), (2, 3, 6, 7)),),
        (((4, 5, 1, 0), (7, 6, 2, 3)),),
        (((0, 4, 1, 5), (2, 6, 3, 7)),),
    )
    def test_groups(self, groups: Any) -> None:
        x = _whole(4, 64)
        with _smallest(256):
            found, counts = _run(
                lambda v: (
                    jax.lax.psum(v, "i", axis_index_groups=groups),
                    jax.lax.all_gather(v, "i", axis_index_groups=groups),
                    jax.lax.psum_scatter(v, "i", axis_index_groups=groups),
                ),
                x,
            )
        self.assertEqual(counts["split"], 3)
        total, gathered, scattered = found
        one_process.assert_same_bits(total, reference.all_reduce("sum", list(x), groups))
        one_process.assert_same_bits(gathered, reference.all_gather(list(x), groups=groups))
        one_process.assert_same_bits(
            scattered, reference.reduce_scatter("sum", list(x), groups=groups)
        )

    def test_in_loops_and_branches(self) -> None:
        def op(v: Any) -> Any:
            v = jax.lax.fori_loop(0, 3, lambda _, u: jax.lax.psum(u, "i") / 8, v)
            return jax.lax.cond(
                jax.lax.psum(v[0], "i") > 0,
                lambda u: jax.lax.psum(u + 1, "i"),
                lambda u: jax.lax.pmax(u - 1, "i"),
                v,
            )

        x = 8 * np.abs(_whole(4099)) + 8
        found, counts = _run(op, x)
        self.assertEqual((counts["split"], counts["left"]), (3, {"crosses hosts": 1}))
        one_process.assert_same_bits(found, [8 * (x.sum(0) / 8 + 1)] * 8)

    def test_many_at_once(self) -> None:
        x = _whole(4099)
        found, counts = _run(
            lambda v: [jax.lax.psum(v * k, "i") for k in range(1, 5)] + [jax.lax.pmax(v, "i")], x
        )
        self.assertGreaterEqual(counts["split"], 2)
        for k, parts in enumerate(found[:4], 1):
            one_process.assert_same_bits(parts, [k * x.sum(0)] * 8)
        one_process.assert_same_bits(found[4], [x.max(0)] * 8)


if __name__ == "__main__":
    absltest.main()
