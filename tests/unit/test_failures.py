# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Devices that never arrive, interrupts, exits and forks: an end in time, with a reason.

Each test runs a process of its own, with a hard timeout.
"""

from __future__ import annotations

import textwrap
import time

from absl.testing import absltest, parameterized

import one_process

SHORT = {"STRATA_TIMEOUT_S": "2", "STRATA_WARN_S": "1"}

# `stuck(x)`: device 1 raises in a callback before it arrives, the others wait for it.
STUCK = """
def raise_on_device_1(i, v):
    if i == 1:
        raise ValueError("boom on device 1")
    return v

def with_callback(v):
    shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
    return jax.pure_callback(raise_on_device_1, shape, jax.lax.axis_index("x"), v)

x = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)
strata_jax.init()
good = sharded(psum)
check(good(x), x)
stuck = sharded(lambda v: psum(with_callback(v)))
jax.block_until_ready(sharded(lambda v: v * 2)(x))
"""


def with_stuck(code: str) -> str:
    return STUCK + textwrap.dedent(code)


class MissingDeviceTest(parameterized.TestCase):
    def test_others_fail_by_the_deadline_and_later_programs_run(self):
        ended = one_process.in_subprocess(
            with_stuck(
                """
                start = time.monotonic()
                y = stuck(x)
                texts = []
                for shard in sorted(y.addressable_shards, key=lambda s: s.device.id):
                    try:
                        np.asarray(shard.data)
                        raise SystemExit("a shard is right")
                    except jax.errors.JaxRuntimeError as error:
                        texts.append(str(error))
                took = time.monotonic() - start
                assert 1.5 < took < 4.5, took
                # jax 0.10 gives the first error of a launch to all of its shards.
                waiting = [0, 2, 3] if jax.version.__version_info__ >= (0, 11) else []
                for device in waiting:
                    text = texts[device]
                    assert "DEADLINE_EXCEEDED" in text, text
                    assert "all_reduce" in text and "jit__lambda" in text, text
                    assert "waits for rank 1 (device 1)" in text, text
                    assert "0 (device 0)" in text and "STRATA_TIMEOUT_S" in text, text
                    assert "float32[600]" in text, text
                assert "boom on device 1" in texts[1], texts[1]
                stats = strata_jax.stats()
                assert stats["pending"] == 0 and stats["all_reduce"]["failed"] == 1, stats
                check(good(x), x)
                check(sharded(lambda v: psum(v) + 0)(x), x)
                """
            ),
            env=SHORT,
        )
        # The watchdog speaks at 1 s, before it gives up.
        self.assertRegex(
            ended.stderr,
            r"strata_jax: all_reduce \S+ \(operation 0\) in jit__lambda, float32\[600\]: rank "
            r"0 \(device 0\), 2 \(device 2\), 3 \(device 3\) waits for rank 1 \(device 1\) for 1 s",
        )

    def test_many_deadlines_in_a_row_leave_nothing(self):
        one_process.in_subprocess(
            with_stuck(
                """
                import resource
                for i in range(12):
                    try:
                        jax.block_until_ready(stuck(x))
                        raise SystemExit("no error")
                    except jax.errors.JaxRuntimeError:
                        pass
                    check(good(x), x)
                deadline = time.monotonic() + 5
                while strata_jax.stats()["pending"] and time.monotonic() < deadline:
                    time.sleep(0.1)
                stats = strata_jax.stats()
                assert stats["pending"] == 0 and stats["all_reduce"]["failed"] == 12, stats
                assert len(os.listdir("/proc/self/task")) < 60
                """
            ),
            env={"STRATA_TIMEOUT_S": "0.5", "STRATA_WARN_S": "0.25"},
        )

    def test_in_a_loop_and_beside_others(self):
        # The turns before the failure are right, the waiting ranks fail, the next program is right.
        one_process.in_subprocess(
            """
            calls = []
            def sometimes(i, turn, v):
                if i == 2 and turn == 3:
                    raise ValueError("boom in turn 3")
                return v
            def f(v):
                def body(turn, a):
                    shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
                    a = jax.pure_callback(sometimes, shape, jax.lax.axis_index("x"), turn, a)
                    return psum(a) / 4
                return jax.lax.fori_loop(0, 6, body, v)
            x = np.ones((8, 4), np.float32)
            strata_jax.init()
            n = operations()
            try:
                jax.block_until_ready(sharded(f)(x))
                raise SystemExit("no error")
            except jax.errors.JaxRuntimeError as error:
                assert "device 2" in str(error) or "boom" in str(error), error
            time.sleep(2.5)
            assert operations() - n == 3, operations() - n
            assert strata_jax.stats()["pending"] == 0
            check(sharded(psum)(x), x)
            """,
            env=SHORT,
        )

    def test_a_late_device_is_no_failure(self):
        ended = one_process.in_subprocess(
            """
            def late(i, v):
                if i == 1:
                    time.sleep(2)
                return v
            x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
            strata_jax.init()
            def f(v):
                shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
                return psum(jax.pure_callback(late, shape, jax.lax.axis_index("x"), v))
            check(sharded(f)(x), x)
            assert strata_jax.stats()["all_reduce"]["failed"] == 0
            """,
            env={"STRATA_TIMEOUT_S": "20", "STRATA_WARN_S": "1"},
        )
        self.assertEqual(ended.stderr.count("waits for"), 1, ended.stderr)


class ExitTest(parameterized.TestCase):
    def test_after_a_failure_was_seen(self):
        ended = one_process.in_subprocess(
            with_stuck(
                """
                try:
                    jax.block_until_ready(stuck(x))
                except jax.errors.JaxRuntimeError:
                    pass
                print(time.monotonic(), flush=True)
                sys.exit(1)
                """
            ),
            env=SHORT,
            returncode=1,
            timeout_s=30,
        )
        self.assertNotEmpty(ended.stdout)

    def test_while_stuck_ends_in_time(self):
        # The deadline is far away: exit must not wait for it.
        ended = one_process.in_subprocess(
            with_stuck(
                """
                y = stuck(x)
                time.sleep(0.3)
                print(time.time(), flush=True)
                """
            ),
            env={"STRATA_TIMEOUT_S": "300", "STRATA_WARN_S": "100"},
            returncode=None,
            timeout_s=40,
        )
        left = time.time() - float(ended.stdout.split()[-1])
        self.assertLess(left, 9)
        self.assertIn(ended.returncode, (0, 1), ended.stderr)

    @parameterized.parameters(2, 4)
    def test_with_healthy_collectives_in_flight(self, num_devices):
        # Report mpi4jax 22.
        ended = one_process.in_subprocess(
            """
            x = np.random.default_rng(0).standard_normal((8, 200_000)).astype(np.float32)
            strata_jax.init()
            f = sharded(psum)
            g = sharded(lambda v: jnp.tanh(psum(jnp.sin(v)) + psum(v)))
            results = []
            for _ in range(12):
                results += [f(x), g(x)]
            """,
            num_devices=num_devices,
            timeout_s=40,
        )
        self.assertEqual(ended.stderr, "")

    def test_with_arrays_alive_and_after_shutdown(self):
        ended = one_process.in_subprocess(
            """
            x = np.ones((8, 100_000), np.float32)
            strata_jax.init()
            y = sharded(psum)(x)
            view = np.asarray(y)
            strata_jax.shutdown()
            z = sharded(psum)(x)
            """
        )
        self.assertEqual(ended.stderr, "")

    def test_an_uncaught_exception(self):
        ended = one_process.in_subprocess(
            """
            strata_jax.init()
            y = sharded(psum)(np.ones((8, 100_000), np.float32))
            raise KeyError("from the user")
            """,
            returncode=1,
            timeout_s=30,
        )
        self.assertIn("from the user", ended.stderr)


class InterruptTest(parameterized.TestCase):
    @parameterized.named_parameters(("old", 1.6), ("just begun", 0.1))
    def test_ctrl_c_ends_a_wait(self, waited_s):
        ended = one_process.in_subprocess(
            with_stuck(
                f"""
                def interrupt():
                    while not strata_jax.stats()["pending"]:
                        time.sleep(0.01)
                    time.sleep({waited_s})
                    global start
                    start = time.monotonic()
                    os.kill(os.getpid(), signal.SIGINT)
                threading.Thread(target=interrupt).start()
                try:
                    try:
                        y = stuck(x)
                        for shard in sorted(y.addressable_shards, key=lambda s: s.device.id):
                            np.asarray(shard.data)
                        raise SystemExit("no error")
                    except jax.errors.JaxRuntimeError:
                        time.sleep(5)  # Python raises KeyboardInterrupt as soon as it runs again
                        raise SystemExit("no KeyboardInterrupt")
                except KeyboardInterrupt:
                    took = time.monotonic() - start
                while strata_jax.stats()["pending"] and time.monotonic() - start < 4:
                    time.sleep(0.05)
                assert took < 3 and strata_jax.stats()["pending"] == 0, took
                check(good(x), x)
                print("ended")
                """
            ),
            env={"STRATA_TIMEOUT_S": "15", "STRATA_WARN_S": "10"},
            timeout_s=30,
        )
        self.assertIn("ended", ended.stdout)

    def test_ctrl_c_without_a_wait_is_pythons(self):
        one_process.in_subprocess(
            """
            x = np.ones((8, 4), np.float32)
            strata_jax.init()
            f = sharded(psum)
            f(x)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(2)
                raise SystemExit("no KeyboardInterrupt")
            except KeyboardInterrupt:
                pass
            check(f(x), x)
            strata_jax.shutdown()
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(2)
                raise SystemExit("no KeyboardInterrupt")
            except KeyboardInterrupt:
                pass
            """
        )

    def test_a_wakeup_descriptor_of_others_still_hears(self):
        one_process.in_subprocess(
            """
            import socket
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            signal.set_wakeup_fd(theirs.fileno())
            signal.signal(signal.SIGUSR1, lambda *_: None)
            strata_jax.init()
            ours.settimeout(5)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)
            assert ours.recv(1) == bytes([signal.SIGUSR1])
            strata_jax.shutdown()
            assert signal.set_wakeup_fd(-1) == theirs.fileno()
            """
        )


class ForkTest(absltest.TestCase):
    def test_child_reads_and_cannot_change_the_parent(self):
        # Report 18852.
        one_process.in_subprocess(
            """
            import ctypes, warnings
            warnings.filterwarnings("ignore")
            strata_jax.init()
            x = np.random.default_rng(0).standard_normal((8, 300_000)).astype(np.float32)
            y = sharded(psum)(x)
            check(y, x)
            views = [np.asarray(shard.data) for shard in y.addressable_shards]
            copies = [view.copy() for view in views]
            pointers = [shard.data.unsafe_buffer_pointer() for shard in y.addressable_shards]
            assert strata_jax.stats()["arena"]["in_use_bytes"] > 0
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    if all((v == c).all() for v, c in zip(views, copies)):
                        for pointer, copy in zip(pointers, copies):
                            ctypes.memset(pointer, 0xFF, copy.nbytes)
                        code = 0 if all((v != c).all() for v, c in zip(views, copies)) else 2
                finally:
                    os._exit(code)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    break
                time.sleep(0.05)
            else:
                os.kill(pid, signal.SIGKILL)
                raise SystemExit("the child hangs")
            assert status == 0, status
            for view, copy in zip(views, copies):
                assert (view == copy).all(), "the child changed the parent"
            check(sharded(lambda v: psum(v) + 0)(x), x)
            """
        )

    def test_a_child_frees_arrays(self):
        one_process.in_subprocess(
            """
            import gc, warnings
            warnings.filterwarnings("ignore")
            strata_jax.init()
            alive = [jax.block_until_ready(jnp.full(20_000, i, jnp.float32)) for i in range(50)]
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    before = strata_jax.stats()["arena"]["frees"]
                    alive.clear()
                    gc.collect()
                    os._exit(0 if strata_jax.stats()["arena"]["frees"] >= before + 50 else 3)
                assert os.waitpid(pid, 0)[1] == 0
            assert all((np.asarray(a) == i).all() for i, a in enumerate(alive))
            """
        )

    def test_worker_processes_and_subprocesses(self):
        one_process.in_subprocess(
            """
            import multiprocessing, subprocess, warnings
            warnings.filterwarnings("ignore")
            strata_jax.init()
            x = np.ones((8, 100_000), np.float32)
            y = sharded(psum)(x)
            check(y, x)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, range(-50, 50)) == [abs(i) for i in range(-50, 50)]
            assert subprocess.run(["true"], timeout=20).returncode == 0
            check(sharded(psum)(x), x)
            """
        )


if __name__ == "__main__":
    absltest.main()
