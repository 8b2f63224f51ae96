# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""init(), shutdown() and disabled(): which programs are traced for the fabric, and when."""

from __future__ import annotations

import threading

import jax
import numpy as np
from absl.testing import absltest, parameterized

import one_process
import strata_jax
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = normal(4, 6)
TOTAL = reference.all_reduce("sum", list(X))


def fresh():
    """Returns a function that no cache knows."""
    return one_process.sharded(lambda v: strata_jax.psum(v, "x"), one_process.devices_mesh(4))


class DisabledTest(parameterized.TestCase):
    def _operations(self, f, x=X) -> int:
        with one_process.counters() as moved:
            got = one_process.per_device(f(x))
        np.testing.assert_allclose(
            np.stack(got).astype(np.float32),
            np.stack(TOTAL).astype(x.dtype).astype(np.float32),
            rtol=1e-5 if x.dtype == np.float32 else 3e-2,
            atol=1e-6 if x.dtype == np.float32 else 3e-2,
        )
        return moved["all_reduce.operations"]

    @parameterized.parameters("float32", "bfloat16")
    def test_jit_retraces_on_each_switch(self, dtype):
        f, x = fresh(), X.astype(np.dtype(dtype))
        self.assertEqual(self._operations(f, x), 1)
        with strata_jax.disabled():
            self.assertEqual(self._operations(f, x), 0)
            with strata_jax.disabled():
                self.assertEqual(self._operations(f, x), 0)
            self.assertEqual(self._operations(f, x), 0)
        self.assertEqual(self._operations(f, x), 1)

    def test_first_use_inside(self):
        f = fresh()
        with strata_jax.disabled():
            self.assertEqual(self._operations(f), 0)
        self.assertEqual(self._operations(f), 1)

    @parameterized.parameters("float32", "bfloat16")
    def test_ahead_of_time(self, dtype):
        x = X.astype(np.dtype(dtype))
        f = fresh()
        with strata_jax.disabled():
            lowered_inside = f.lower(x)
            compiled_inside = lowered_inside.compile()
        lowered_outside = fresh().lower(x)
        self.assertEqual(self._operations(compiled_inside, x), 0)
        self.assertEqual(self._operations(lowered_inside.compile(), x), 0)
        with strata_jax.disabled():
            compiled = lowered_outside.compile()
            self.assertEqual(self._operations(compiled, x), 1)
        self.assertEqual(self._operations(compiled, x), 1)
        self.assertEqual(self._operations(f.lower(x).compile(), x), 1)

    @parameterized.parameters("float32", "bfloat16")
    def test_traced_on_one_side_lowered_on_the_other(self, dtype):
        x = X.astype(np.dtype(dtype))
        traced = fresh().trace(x)
        with strata_jax.disabled():
            self.assertEqual(self._operations(traced.lower().compile(), x), 0)
            traced_inside = fresh().trace(x)
        self.assertEqual(self._operations(traced_inside.lower().compile(), x), 1)

    def test_other_threads_are_not_disabled(self):
        counts = []
        with strata_jax.disabled():
            thread = threading.Thread(target=lambda: counts.append(self._operations(fresh())))
            thread.start()
            thread.join(60)
        self.assertEqual(counts, [1])

    def test_after_an_exception_inside(self):
        f = fresh()
        with self.assertRaises(ZeroDivisionError), strata_jax.disabled():
            _ = 1 // 0
        self.assertEqual(self._operations(f), 1)

    def test_as_a_whole_function_with_an_inner_jit(self):
        inner = jax.jit(lambda v: strata_jax.psum(v, "x"))
        mesh = one_process.devices_mesh(4)
        f = one_process.sharded(inner, mesh)
        self.assertEqual(self._operations(f), 1)
        with strata_jax.disabled():
            self.assertEqual(self._operations(one_process.sharded(inner, mesh)), 0)
        self.assertEqual(self._operations(one_process.sharded(inner, mesh)), 1)


class InitAndShutdownTest(absltest.TestCase):
    def test_init_twice(self):
        with self.assertRaisesRegex(RuntimeError, "already active.*shutdown"):
            strata_jax.init()
        self.assertTrue(strata_jax.stats()["active"])

    def test_before_init_warns_once_and_equals_lax(self):
        ended = one_process.in_subprocess(
            """
            x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
            ops = [(strata_jax.psum, jax.lax.psum), (strata_jax.pmean, jax.lax.pmean),
                   (strata_jax.pmax, jax.lax.pmax), (strata_jax.pmin, jax.lax.pmin)]
            for ours, theirs in ops:
                a = sharded(lambda v: ours(v, "x"))(x)
                b = sharded(lambda v: theirs(v, "x"))(x)
                assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            try:
                strata_jax.shutdown()
                raise SystemExit("shutdown() without init() did not raise")
            except RuntimeError as error:
                assert "not active" in str(error) and "init()" in str(error), error
            with strata_jax.disabled():
                sharded(psum)(x)
            stats = strata_jax.stats()
            assert stats["before_init"] == {"psum": 1, "pmean": 1, "pmax": 1, "pmin": 1}, stats
            assert not stats["active"] and operations() == 0 and stats["arena"] == {}
            """
        )
        self.assertEqual(ended.stderr.count("init() was not"), 1, ended.stderr)
        self.assertIn("strata_jax.psum was called", ended.stderr)

    def test_import_changes_nothing(self):
        one_process.in_subprocess(
            """
            from jax._src.interpreters import mlir
            assert mlir.lower_jaxpr_to_module.__name__ == "lower_jaxpr_to_module"
            assert threading.active_count() == 1
            tasks = os.listdir("/proc/self/task")
            names = {open(f"/proc/self/task/{t}/comm").read() for t in tasks}
            assert not any(name.startswith("strata") for name in names), names
            """
        )

    def test_shutdown_and_init_again_with_arrays_alive(self):
        one_process.in_subprocess(
            """
            x = np.random.default_rng(0).standard_normal((8, 100_000)).astype(np.float32)
            f = sharded(lambda v: psum(v) * 1)
            native = f(x)
            before = jax.device_put(x, NamedSharding(devices_mesh(), P("x")))
            def moved(g, *args):
                n = operations()
                jax.block_until_ready(g(*args))
                return operations() - n
            for turn in range(3):
                strata_jax.init()
                assert strata_jax.stats()["active"]
                assert moved(f, before) == 1  # traced again
                ours = f(x)
                compiled = f.lower(x).compile()
                sharding = NamedSharding(devices_mesh(), P("x"))
                alive = [jax.device_put(x + i, sharding) for i in range(4)]
                pending = [f(x) for _ in range(20)]  # shutdown while programs run
                strata_jax.shutdown()
                assert not strata_jax.stats()["active"]
                jax.block_until_ready(pending)
                assert moved(f, x) == 0
                assert moved(compiled, x) == 1
                for y in pending:
                    check(y, x)
                for i, array in enumerate(alive):
                    assert (np.asarray(array) == x + i).all()
                check(ours, x)
                del alive, pending, array, y
            np.testing.assert_allclose(np.asarray(native), np.asarray(ours), rtol=1e-5, atol=1e-5)
            assert strata_jax.stats()["pending"] == 0
            try:
                strata_jax.shutdown()
                raise SystemExit("second shutdown() did not raise")
            except RuntimeError as error:
                assert "not active" in str(error)
            print("done")
            """
        )

    def test_init_before_a_backend_exists(self):
        one_process.in_subprocess(
            """
            strata_jax.init()
            from jax._src import xla_bridge
            assert not xla_bridge.backends_are_initialized()
            x = np.ones((8, 5), np.float32)
            check(sharded(psum)(x), x)
            assert operations() == 1
            """
        )

    def test_init_on_a_thread(self):
        ended = one_process.in_subprocess(
            """
            thread = threading.Thread(target=strata_jax.init)
            thread.start(); thread.join()
            x = np.ones((8, 5), np.float32)
            check(sharded(psum)(x), x)
            assert operations() == 1
            strata_jax.shutdown()
            """
        )
        self.assertEqual(ended.stdout, "")


if __name__ == "__main__":
    absltest.main()
