# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What JAX lowers to calls of ours in a job over several hosts: only what is inside hosts.

The 8 devices of this process stand for two hosts of 4, see test_hlo_hosts.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import hlo_programs as programs
import one_process
import strata_jax
from strata_jax.lowering import rules

# Operation -> what it does with axis "i" of 2 devices and an array of bfloat16[4, 4].
_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda v: jax.lax.psum(v, "i"),
    "all_gather": lambda v: jax.lax.all_gather(v, "i", axis=1, tiled=True),
    "reduce_scatter": lambda v: jax.lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True),
    "all_to_all": lambda v: jax.lax.all_to_all(v, "i", 0, 1, tiled=True),
    "collective_permute": lambda v: jax.lax.ppermute(v, "i", [(0, 1)]),
}
_ONLY_OURS: dict[str, Callable[[Any], Any]] = {
    "collective_broadcast": lambda v: jax.lax.pbroadcast(v, "i", 0),
    "ragged_all_to_all": lambda v: jax.lax.ragged_all_to_all(
        v, v, *[jnp.zeros(2, np.int32)] * 4, axis_name="i"
    ),
}


def setUpModule() -> None:
    one_process.ensure_fabric()


class LoweringTest(parameterized.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enter_context(programs.devices_of(4))
        rules.use_hosts((0, 1))
        self.addCleanup(rules.use_hosts, (0,))

    def _text(self, op: Callable[[Any], Any], pair: tuple[int, int], mesh: Any = None) -> str:
        """Return the StableHLO of `op` over two devices."""
        mesh = mesh or Mesh(np.array(jax.devices())[list(pair)], ("i",))
        f = jax.shard_map(op, mesh=mesh, in_specs=P(), out_specs=P("i"), check_vma=False)
        return str(jax.jit(f).lower(jnp.ones((4, 4), jnp.bfloat16)).as_text())

    @parameterized.parameters(*_OPERATIONS)
    def test_inside_a_host(self, name: str) -> None:
        for pair in ((0, 1), (6, 4)):
            self.assertIn(f"@strata_{name}", self._text(_OPERATIONS[name], pair))

    @parameterized.parameters(*_OPERATIONS)
    def test_over_hosts(self, name: str) -> None:
        text = self._text(_OPERATIONS[name], (3, 4))
        self.assertNotIn("strata_", text.replace("strata_jax", ""))
        self.assertIn(f"stablehlo.{name}", text)

    @parameterized.parameters(*_OPERATIONS)
    def test_devices_unknown(self, name: str) -> None:
        mesh = jax.sharding.AbstractMesh((2,), ("i",), axis_types=(AxisType.Auto,))
        op = functools.partial(_OPERATIONS[name])  # else JAX finds what it has lowered before
        f = jax.shard_map(op, mesh=mesh, in_specs=P(), out_specs=P("i"), check_vma=False)
        devices = Mesh(np.array(jax.devices()[:2]), ("i",))
        x = jax.device_put(jnp.ones((4, 4), jnp.bfloat16), jax.sharding.NamedSharding(devices, P()))
        for table, lowered in (((0, 1), False), ((0, 0), True)):
            rules.use_hosts(table)
            jax.clear_caches()
            self.assertEqual(f"@strata_{name}" in jax.jit(f).lower(x).as_text(), lowered)

    @parameterized.parameters(*_ONLY_OURS)
    def test_what_only_the_fabric_has(self, name: str) -> None:
        # The hook says what is wrong with it.
        for pair in ((0, 1), (3, 4)):
            self.assertIn(f"@strata_{name}", self._text(_ONLY_OURS[name], pair))

    def test_the_pairs_of_a_permutation_count(self) -> None:
        mesh = Mesh(np.array(jax.devices()), ("i",))
        for permutation, lowered in (([(0, 3), (7, 4)], True), ([(0, 3), (3, 4)], False)):
            text = self._text(lambda v, p=permutation: jax.lax.ppermute(v, "i", p), (0, 1), mesh)
            self.assertEqual("@strata_collective_permute" in text, lowered)

    def test_one_axis_of_a_mesh(self) -> None:
        mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("j", "i"))
        for axis, lowered in (("i", True), ("j", False), (("i", "j"), False)):
            text = self._text(lambda v, a=axis: jax.lax.psum(v, a), (0, 1), mesh)
            self.assertEqual("@strata_all_reduce" in text, lowered)

    @parameterized.parameters(*_OPERATIONS)
    def test_in_a_job_on_one_host(self, name: str) -> None:
        rules.use_hosts((0, 0))
        with mock.patch.object(rules, "crosses_hosts") as asked:
            self.assertIn(f"@strata_{name}", self._text(_OPERATIONS[name], (3, 4)))
        asked.assert_not_called()

    def test_disabled(self) -> None:
        with strata_jax.disabled():
            text = self._text(_OPERATIONS["all_to_all"], (0, 1))
        self.assertNotIn("@strata_", text)


if __name__ == "__main__":
    absltest.main()
