# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Exported, serialised, cached, donating and strictly compiled programs."""

from __future__ import annotations

import json
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax import export
from jax.experimental import serialize_executable

import one_process
import strata_jax
from one_process import normal
from strata_jax import _compat, reference


def setUpModule() -> None:
    one_process.ensure_fabric()


X = normal(4, 6)
TOTAL = reference.all_reduce("sum", list(X))


def fresh():
    """Returns a function that no cache knows."""
    return one_process.sharded(lambda v: strata_jax.psum(v, "x"), one_process.devices_mesh(4))


def _temporary_folder(test: absltest.TestCase) -> str:
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return folder.name


def _placed(x: np.ndarray, mesh: jax.sharding.Mesh) -> jax.Array:
    """Returns an array in XLA's own memory; device_put may borrow numpy's."""
    sharding = jax.sharding.NamedSharding(mesh, jax.P("x"))
    return jax.jit(lambda v: v + v * 0, out_shardings=sharding)(x)


class ExportTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16")
    def test_exports_and_runs_on_the_fabric_when_loaded(self, dtype):
        x = X.astype(np.dtype(dtype))
        exported = export.export(fresh())(jax.ShapeDtypeStruct(x.shape, x.dtype))
        self.assertNotIn("strata_all_reduce", exported.mlir_module())
        self.assertIn("stablehlo.all_reduce", exported.mlir_module())
        self._run_exported(exported, x)

    def test_from_its_serialised_form(self):
        try:
            import flatbuffers  # noqa: F401
        except ImportError:
            self.skipTest("jax.export serialises only where flatbuffers is installed")
        data = export.export(fresh())(jax.ShapeDtypeStruct(X.shape, X.dtype)).serialize()
        self._run_exported(export.deserialize(data), X)

    def _run_exported(self, exported, x):
        with one_process.counters() as moved:
            placed = _placed(x, one_process.devices_mesh(4))
            got = one_process.per_device(jax.jit(exported.call)(placed))
        tolerance = 1e-6 if x.dtype == np.float32 else 3e-2
        np.testing.assert_allclose(
            np.stack(got).astype(np.float32), np.stack(TOTAL), rtol=tolerance, atol=tolerance
        )
        self.assertEqual(moved["all_reduce.operations"], 1)

    def test_serialised_executable_and_the_original_in_turns(self):
        # On all devices of the process: JAX aborts when it loads a program for fewer.
        x = normal(8, 6)
        mesh = one_process.devices_mesh(8)
        compiled = one_process.sharded(lambda v: strata_jax.psum(v, "x"), mesh).lower(x).compile()
        again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.P("x")))
        want = reference.all_reduce("sum", list(x))
        with one_process.counters() as moved:
            results = [f(placed) for _ in range(12) for f in (compiled, again)]
            for result in results:
                one_process.assert_same_bits(one_process.per_device(result), want)
        self.assertEqual(moved["all_reduce.operations"], 24)

    def test_persistent_cache_never_mixes_modes(self):
        # By the count of files: a mode that hits another's entry writes none.
        cache = _temporary_folder(self)
        code = """
            import json
            jax.config.update("jax_compilation_cache_dir", {cache!r})
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
            x = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
            def entries():
                return len([n for n in os.listdir({cache!r}) if n.endswith("-cache")])
            def once():
                jax.clear_caches()
                before, files = operations(), entries()
                y = sharded(lambda v: psum(jnp.cos(v)) * 2)(x)
                want = 2 * np.cos(x).reshape(4, 2, 5).sum(0)
                np.testing.assert_allclose(np.asarray(y)[:2], want, rtol=1e-5)
                return [operations() - before, entries() - files]
            mode = {mode!r}
            if mode != "absent":
                strata_jax.init()
            found = [once(), once()]
            if mode == "on":
                with strata_jax.disabled():
                    found += [once(), once()]
                found.append(once())
            print(json.dumps(found))
            """

        def run(mode):
            ended = one_process.in_subprocess(code.format(cache=cache, mode=mode))
            return json.loads(ended.stdout.splitlines()[-1])

        # [operations, new files]: on, on again; off, off again; on again.
        self.assertEqual(run("on"), [[1, 1], [1, 0], [0, 1], [0, 0], [1, 0]])
        self.assertEqual(run("on"), [[1, 0], [1, 0], [0, 0], [0, 0], [1, 0]])  # from the disk
        self.assertEqual(run("absent"), [[0, 1], [0, 0]])
        self.assertEqual(run("on"), [[1, 0], [1, 0], [0, 0], [0, 0], [1, 0]])

    def test_cache_entry_loads_without_other_compilations_of_this_process(self):
        # The handler must be registered although nothing was lowered here before.
        cache = _temporary_folder(self)
        code = f"""
            jax.config.update("jax_compilation_cache_dir", {cache!r})
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
            strata_jax.init()
            x = np.ones((8, 5), np.float32)
            check(sharded(psum)(x), x)
            print(strata_jax.stats()["compile"]["modules"])
            """
        self.assertEqual(one_process.in_subprocess(code).stdout, "1\n")
        self.assertEqual(one_process.in_subprocess(code).stdout, "0\n")


class DonationTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16")
    def test_donated_input(self, dtype):
        mesh = one_process.devices_mesh(4)
        f = one_process.sharded(lambda v: strata_jax.psum(v, "x") + v, mesh, donate_argnums=0)
        x = normal(4, 100_000).astype(np.dtype(dtype))
        placed = _placed(x, mesh)
        pointers = [s.data.unsafe_buffer_pointer() for s in placed.addressable_shards]
        with one_process.counters() as moved:
            y = jax.block_until_ready(f(placed))
        want = x.astype(np.float32).sum(0) + x.astype(np.float32)
        tolerance = 1e-5 if dtype == "float32" else 5e-2
        np.testing.assert_allclose(np.asarray(y, np.float32), want, rtol=tolerance, atol=tolerance)
        self.assertTrue(placed.is_deleted())
        self.assertEqual([s.data.unsafe_buffer_pointer() for s in y.addressable_shards], pointers)
        if _compat.JAX_VERSION >= (0, 11, 0):
            self.assertEqual(moved["all_reduce.operations"], 1)
            self.assertEmpty(moved.left)
        else:
            self.assertEqual(moved["all_reduce.operations"], 0)
            self.assertEqual(moved.left, {"donation": 1})

    def test_a_training_loop_that_donates_its_state(self):
        mesh = one_process.devices_mesh(4)
        f = one_process.sharded(lambda w, g: w - strata_jax.psum(g, "x"), mesh, donate_argnums=0)
        g = normal(4, 5000)
        w = np.zeros_like(g)
        for _ in range(30):
            w = f(w, g)
        got = one_process.per_device(w)
        one_process.assert_alike(got)
        np.testing.assert_allclose(got[0], -30 * g.sum(0), rtol=1e-4, atol=1e-3)

    def test_donation_in_place(self):
        # The result may take the operand's own memory: every rank reads before anyone writes there.
        mesh = one_process.devices_mesh(8)
        for size in (10, 70_000, 600_000):
            f = one_process.sharded(lambda v: strata_jax.psum(v, "x"), mesh, donate_argnums=0)
            x = normal(8, size)
            placed = _placed(x, mesh)
            got = one_process.per_device(f(placed))
            want = reference.all_reduce("sum", list(x))
            if _compat.JAX_VERSION >= (0, 11, 0):
                one_process.assert_same_bits(got, want)
            else:
                np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)


class StrictTest(absltest.TestCase):
    def test_names_what_cannot_run(self):
        one_process.in_subprocess(
            """
            keep_native("all_gather")
            strata_jax.init(strict=True)
            x = np.ones((8, 8), np.float32)
            check(sharded(psum)(x), x)
            f = sharded(lambda v: jax.lax.all_gather(v, "x").sum(0) + psum(v))
            for _ in range(2):
                try:
                    f(x)
                    raise SystemExit("compiled")
                except Exception as error:
                    text = str(error)
                    assert "all-gather" in text and "strict" in text and "jit_" in text, text
                    assert "disabled()" in text, text
            with strata_jax.disabled():
                want = 8 + 4
                assert (np.asarray(f(x))[0] == 4 + 4).all()
            check(sharded(lambda v: psum(v) + 0)(x), x)
            """
        )

    def test_from_the_environment(self):
        one_process.in_subprocess(
            """
            keep_native("collective_permute")
            strata_jax.init()
            x = np.ones((8, 8), np.float32)
            try:
                sharded(lambda v: jax.lax.ppermute(v, "x", [(0, 1), (1, 0)]))(x)
                raise SystemExit("compiled")
            except Exception as error:
                assert "collective-permute" in str(error), error
            """,
            env={"STRATA_STRICT": "1"},
        )

    def test_not_strict_after_the_next_init(self):
        one_process.in_subprocess(
            """
            keep_native("all_gather")
            x = np.ones((8, 8), np.float32)
            g = lambda: sharded(lambda v: jax.lax.all_gather(v, "x").sum(0) + psum(v))
            strata_jax.init(strict=True)
            try:
                g()(x)
                raise SystemExit("compiled")
            except Exception as error:
                assert "strict" in str(error), error
            strata_jax.shutdown()
            strata_jax.init()
            assert (np.asarray(g()(x))[0] == 8).all()
            assert left() == {"kept by the test": 2}, left()
            """
        )

    def test_strict_is_not_fooled_by_the_persistent_cache(self):
        cache = _temporary_folder(self)
        code = f"""
            jax.config.update("jax_compilation_cache_dir", {cache!r})
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
            keep_native("all_gather")
            strata_jax.init()
            x = np.ones((8, 8), np.float32)
            try:
                sharded(lambda v: jax.lax.all_gather(v, "x").sum(0) + psum(v))(x)
                print("ran")
            except Exception as error:
                assert "strict" in str(error), error
                print("refused")
            """
        self.assertEqual(one_process.in_subprocess(code).stdout, "ran\n")
        ended = one_process.in_subprocess(code, env={"STRATA_STRICT": "1"})
        self.assertEqual(ended.stdout, "refused\n")


if __name__ == "__main__":
    absltest.main()
