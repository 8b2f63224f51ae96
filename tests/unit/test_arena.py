# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""XLA's arrays in the arena: where they lie, that pages are reused, and what limits do."""

from __future__ import annotations

import concurrent.futures
import gc

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import one_process
import strata_jax


def setUpModule() -> None:
    one_process.ensure_fabric()


def arena() -> dict:
    return strata_jax.stats()["arena"]


class ArraysTest(parameterized.TestCase):
    def test_an_array_is_counted_while_it_lives(self):
        make = jax.jit(lambda: jnp.full((1 << 20,), 3.0, jnp.float32))
        make()
        gc.collect()
        before = arena()
        arrays = [jax.block_until_ready(make()) for _ in range(5)]
        during = arena()
        self.assertGreaterEqual(during["in_use_bytes"] - before["in_use_bytes"], 5 * (4 << 20))
        self.assertGreaterEqual(during["peak_in_use_bytes"], during["in_use_bytes"])
        self.assertGreaterEqual(during["committed_bytes"], during["in_use_bytes"])
        self.assertGreaterEqual(during["reserved_bytes"], during["committed_bytes"])
        for array in arrays:
            self.assertEqual(array.unsafe_buffer_pointer() % 64, 0)
        del arrays, array
        gc.collect()
        self.assertLessEqual(arena()["in_use_bytes"], before["in_use_bytes"])

    def test_pages_are_reused(self):
        f = jax.jit(lambda v: v + 1)
        x = f(jnp.zeros((1 << 20,), jnp.float32))
        for _ in range(5):
            x = f(x)
        jax.block_until_ready(x)
        before = arena()
        for _ in range(50):
            x = f(x)
        jax.block_until_ready(x)
        after = arena()
        self.assertGreaterEqual(after["hits"] - before["hits"], 45)
        self.assertLessEqual(after["fresh"] - before["fresh"], 5)
        self.assertLessEqual(after["committed_bytes"] - before["committed_bytes"], 8 << 20)

    def test_a_program_is_on_registered_memory(self):
        f = one_process.sharded(lambda v: strata_jax.psum(v * 2, "x"), one_process.devices_mesh(4))
        x = np.ones((4, 100_000), np.float32)
        jax.block_until_ready(f(x))
        with one_process.counters() as moved:
            jax.block_until_ready(f(x))
        self.assertEqual(moved["all_reduce.bytes"], 4 * 400_000)
        self.assertEqual(moved["all_reduce.registered_bytes"], 4 * 400_000)

    def test_memory_of_others_is_right_too(self):
        # Constants of the executable and numpy's memory, aliased by jit, are not in the arena.
        constant = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
        f = one_process.sharded(
            lambda v: (strata_jax.psum(jnp.asarray(constant), "x"), strata_jax.psum(v, "x")),
            one_process.devices_mesh(4),
        )
        x = np.ones((4, 100_000), np.float32)
        for _ in range(3):
            a, b = f(x)
            np.testing.assert_allclose(one_process.per_device(a)[3], constant * 4, rtol=1e-6)
            np.testing.assert_array_equal(one_process.per_device(b)[0], x.sum(0))
        np.testing.assert_array_equal(x, np.ones_like(x))

    def test_a_numpy_view_outlives_its_array(self):
        array = jax.jit(lambda: jnp.arange(500_000, dtype=jnp.float32))()
        view = np.asarray(array)
        self.assertEqual(view.ctypes.data, array.unsafe_buffer_pointer())
        dlpack = np.from_dlpack(array)
        del array
        gc.collect()
        others = [jax.block_until_ready(jnp.ones(500_000, jnp.float32) * i) for i in range(8)]
        np.testing.assert_array_equal(view, np.arange(500_000, dtype=np.float32))
        np.testing.assert_array_equal(dlpack, view)
        del others

    def test_sizes_from_threads_at_once(self):
        f = jax.jit(lambda v: v * 1)
        g = {
            n: f.lower(np.zeros(n, np.float32)).compile() for n in (10, 999, 5000, 70_001, 400_000)
        }
        gc.collect()
        before = arena()["in_use_bytes"]

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            alive: list[tuple[float, jax.Array]] = []
            for step in range(150):
                n = list(g)[rng.integers(len(g))]
                value = float(seed * 1000 + step)
                alive.append((value, g[n](np.full(n, value, np.float32))))
                if len(alive) > 12:
                    value, array = alive.pop(rng.integers(len(alive)))
                    got = np.asarray(array)
                    assert (got == value).all(), "another array's bytes"

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for future in [pool.submit(work, seed) for seed in range(6)]:
                future.result(timeout=100)
        gc.collect()
        self.assertLessEqual(arena()["in_use_bytes"] - before, 1 << 20)

    def test_counters_add_up(self):
        stats = arena()
        self.assertGreaterEqual(stats["allocations"], stats["frees"])
        self.assertEqual(set(stats["slots"]) >= {"posix_memalign", "free"}, True)
        self.assertTrue(all(isinstance(n, int) for n in stats["fallbacks"].values()))


class LimitsTest(parameterized.TestCase):
    def test_exhaustion_falls_back_and_is_counted(self):
        one_process.in_subprocess(
            """
            strata_jax.init()
            x = np.random.default_rng(0).standard_normal((8, 500_000)).astype(np.float32)
            f = sharded(lambda v: psum(v * 1))
            alive = [f(x + i) for i in range(8)]
            arena = strata_jax.stats()["arena"]
            assert arena["fallbacks"]["exhausted"] > 0, arena
            assert arena["committed_bytes"] <= arena["reserved_bytes"] <= 32 << 20, arena
            for i, y in enumerate(alive):
                check(y, x + i)
            counts = strata_jax.stats()["all_reduce"]
            assert counts["registered_bytes"] < counts["bytes"], counts
            del alive, y
            check(f(x), x)
            """,
            env={"STRATA_ARENA_BYTES": "32M"},
        )

    @parameterized.parameters("0", "8M")
    def test_kept_pages_are_limited(self, keep):
        one_process.in_subprocess(
            """
            import gc
            strata_jax.init()
            x = np.ones((8, 1_000_000), np.float32)
            for _ in range(3):
                y = jax.block_until_ready(sharded(lambda v: psum(v * 2) + 1)(x))
                del y
            gc.collect()
            limit = strata_jax.stats()["arena"]["keep_limit_bytes"]
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline:
                kept = strata_jax.stats()["arena"]["kept_bytes"]
                if kept <= limit:
                    break
                time.sleep(0.2)
            assert kept <= limit <= 8 << 20, (kept, limit)
            check(sharded(psum)(x), x)
            """,
            env={"STRATA_KEEP_BYTES": keep},
        )

    def test_trim_gives_back(self):
        one_process.in_subprocess(
            """
            import gc
            from strata_jax import _core
            def rss():
                return int(open("/proc/self/statm").read().split()[1]) * 4096
            strata_jax.init()
            y = jax.block_until_ready(jax.jit(lambda: jnp.ones(50_000_000, jnp.float32))())
            high = rss()
            del y
            gc.collect()
            kept = strata_jax.stats()["arena"]["kept_bytes"]
            assert kept > 150_000_000, kept
            given = _core.arena_trim()
            arena = strata_jax.stats()["arena"]
            assert given >= 150_000_000 and arena["kept_bytes"] <= kept - given, (given, arena)
            assert rss() < high - 100_000_000, (high, rss())
            x = np.ones((8, 100_000), np.float32)
            check(sharded(psum)(x), x)
            """
        )

    def test_arrays_from_before_init_are_freed_right(self):
        one_process.in_subprocess(
            """
            import gc
            x = np.random.default_rng(0).standard_normal((8, 300_000)).astype(np.float32)
            f = sharded(lambda v: v * 2)
            old = [f(x) for _ in range(5)]
            jax.block_until_ready(old)
            strata_jax.init()
            for y in old:
                assert (np.asarray(y) == x * 2).all()
            check(sharded(psum)(old[0]), x * 2)
            del old, y
            gc.collect()
            check(sharded(psum)(x), x)
            """
        )

    def test_huge_pages_off_and_no_descriptors_left(self):
        one_process.in_subprocess(
            """
            jax.devices()
            before = len(os.listdir("/proc/self/fd"))
            strata_jax.init()
            x = np.ones((8, 300_000), np.float32)
            check(sharded(psum)(x), x)
            strata_jax.shutdown()
            time.sleep(0.5)
            assert len(os.listdir("/proc/self/fd")) <= before, os.listdir("/proc/self/fd")
            for _ in range(30):
                strata_jax.init()
                strata_jax.shutdown()
            time.sleep(0.5)
            assert len(os.listdir("/proc/self/fd")) <= before
            tasks = os.listdir("/proc/self/task")
            names = [open(f"/proc/self/task/{t}/comm").read() for t in tasks]
            assert names.count("strata-signals\\n") == 0, names
            assert names.count("strata-watchdog\\n") == 1, names
            """,
            env={"STRATA_HUGE_PAGES": "off"},
        )

    def test_a_small_address_space(self):
        # As under `ulimit -v`: less than the default reservation, and still right.
        one_process.in_subprocess(
            """
            import resource
            jax.devices()
            now = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (now + (6 << 30),) * 2)
            x = np.ones((8, 300_000), np.float32)
            try:
                strata_jax.init()
            except RuntimeError as error:
                assert "STRATA_ARENA_BYTES" in str(error), error
                os.environ["STRATA_ARENA_BYTES"] = "1G"
                strata_jax.init()
            check(sharded(psum)(x), x)
            assert operations() == 1
            """
        )

    def test_a_loop_of_changing_sizes_stays_flat(self):
        one_process.in_subprocess(
            """
            strata_jax.init()
            f = sharded(lambda v: psum(v) * 0.25)
            rng = np.random.default_rng(0)
            sizes = [1000, 30_000, 250_000, 777_777]
            def step(i):
                y = f(np.ones((4, sizes[i % 4]), np.float32))
                return jax.block_until_ready(y)
            for i in range(60):
                y = step(i)
            committed = strata_jax.stats()["arena"]["committed_bytes"]
            for i in range(200):
                y = step(i)
            after = strata_jax.stats()["arena"]["committed_bytes"]
            assert after <= committed * 1.25, (committed, after)
            """
        )


if __name__ == "__main__":
    absltest.main()
