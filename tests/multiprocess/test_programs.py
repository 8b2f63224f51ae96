# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Programs of several processes: who waits for whom, and where the bytes were."""

from __future__ import annotations

import launch


def test_the_caller_of_a_large_program_does_not_wait_for_a_late_peer() -> None:
    result = launch.run("""
        strata_jax.init()
        f = sharded(lambda v: lax.psum(v, "x"))
        x = place(np.ones((num_devices, 1 << 20), np.float32))
        jax.block_until_ready(f(x))
        barrier("compiled")
        time.sleep(rank)
        start = time.monotonic()
        y = f(x)
        returned = time.monotonic() - start
        check(y, [np.full((1, 1 << 20), num_devices, np.float32)] * num_devices)
        arrived = time.monotonic() - start
        say(f"returned={returned:.2f} arrived={arrived:.2f}")
        assert returned < 0.5, returned
        assert rank > 0 or arrived > 0.5, arrived
    """)
    for out in result.out:
        assert "returned=" in out, result.report()


def test_arrays_outside_the_arena_are_staged_and_counted() -> None:
    result = launch.run(
        """
        strata_jax.init()
        f = sharded(lambda v: lax.psum(v, "x"))
        gather = sharded(lambda v: lax.all_gather(v, "x"))
        for size in (5, 100_000, 1 << 20):
            x = np.arange(num_devices * size, dtype=np.float32).reshape(num_devices, size)
            check(f(place(x)), [x.sum(0, keepdims=True)] * num_devices)
            y = gather(place(x))
            check(y, [x.reshape(num_devices, 1, size)] * num_devices)
        stats = strata_jax.stats()
        assert stats["arena"]["allocations"] == 0, stats["arena"]
        for name in ("all_reduce", "all_gather"):
            counts = stats[name]
            assert counts["registered_bytes"] == 0, counts
            assert counts["staged_bytes"] == 4 * (100_000 + (1 << 20)), counts
        say("all right")
        """,
        env={"STRATA_ARENA": "off"},
    )
    for out in result.out:
        assert "all right" in out, result.report()


def test_a_small_arena_is_enough() -> None:
    result = launch.run(
        """
        strata_jax.init()
        f = sharded(lambda v: lax.psum(v * 2, "x"))
        x = np.ones((num_devices, 1 << 20), np.float32)
        ys = [f(place(x)) for _ in range(30)]  # more than fits
        for y in ys:
            check(y, [np.full((1, 1 << 20), 2 * num_devices, np.float32)] * num_devices)
        stats = strata_jax.stats()
        assert stats["arena"]["fallbacks"]["exhausted"] > 0, stats["arena"]
        assert stats["all_reduce"]["failed"] == 0, stats["all_reduce"]
        say("all right")
        """,
        env={"STRATA_ARENA_BYTES": "64M"},
    )
    for out in result.out:
        assert "all right" in out, result.report()
