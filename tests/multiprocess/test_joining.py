# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Joining, leaving and joining again; processes that cannot join say why, all of them, in time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

import launch


def test_leaving_and_joining_again() -> None:
    result = launch.run(
        """
        import re
        x = np.arange(num_devices * 70_000, dtype=np.float32).reshape(num_devices, -1)
        want = reference.all_reduce("sum", x[:, None])
        def run():
            f = sharded(lambda v: strata_jax.psum(v, "x"))
            before = strata_jax.stats()["all_reduce"]["across"]
            check(f(place(x)), want)
            return f, strata_jax.stats()["all_reduce"]["across"] - before
        kept = None
        for turn in range(3):
            strata_jax.init(timeout_s=20)
            if turn == 0:
                try:
                    strata_jax.init()
                    say("a second init() went through")
                except RuntimeError as error:
                    assert "already active" in str(error), error
            f, across = run()
            assert across == 1, across
            kept = kept or f
            check(kept(place(x)), want)
            strata_jax.shutdown()
            f, across = run()  # through Gloo
            assert across == 0, across
            barrier(f"turn {turn}")
        strata_jax.init(timeout_s=20)
        check(f(place(x)), want)  # traced again
        assert strata_jax.stats()["all_reduce"]["failed"] == 0
        say("all right")
        """,
        num_devices=2,
    )
    assert all("all right" in out for out in result.out), result.report()


def test_before_distributed() -> None:
    code = "import strata_jax\nstrata_jax.init()"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "JAX_NUM_PROCESSES=2" in ended.stderr, ended.stderr
    assert "jax.distributed.initialize() first, then strata_jax.init()" in ended.stderr


def test_refusals_and_another_try() -> None:
    result = launch.run(
        """
        from strata_jax import joining
        def refused(name, **options):
            begin = time.time()
            try:
                strata_jax.init(**options)
                say(name, "joined")
            except RuntimeError as error:
                say(name, f"{time.time() - begin:.2f}", error)
            barrier(name)
        refused("strict", strict=rank == 1)
        version, joining.__version__ = joining.__version__, f"0.{1 + (rank == 1)}.0"
        refused("version")
        joining.__version__ = version
        if rank == 2:
            barrier("absent")
        else:
            refused("absent", timeout_s=2)
        joining._core.echo, echo = (lambda *a: 1 if rank == 1 else echo(*a)), joining._core.echo
        refused("unreachable", timeout_s=10)
        """,
        num_processes=3,
    )
    for rank, out in enumerate(result.out):
        found = {line.split()[0]: line for line in out.splitlines()}
        assert not any("joined" in line for line in found.values()), result.report()
        assert "strict=False in processes 0 and 2; strict=True in process 1" in found["strict"]
        assert "0.1.0 in processes 0 and 2; 0.2.0 in process 1" in found["version"], result.report()
        if rank != 2:
            assert 1.5 < float(found["absent"].split()[1]) < 6, result.report()
            assert "waited 2 s for process 2, which did not call" in found["absent"]
        assert "is not what is mapped here" in found["unreachable"], result.report()
        assert rank == 1 or "process 1 could not join" in found["unreachable"], result.report()


@pytest.mark.parametrize("moment", ["before addresses", "before connecting", "while mapping"])
def test_a_kill_while_joining(moment: str) -> None:
    result = launch.run(
        """
        from strata_jax import joining
        def die(*args, **options):
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            if sys.argv[1] == "before addresses":
                joining._core.free_addresses = die
            elif sys.argv[1] == "before connecting":
                joining._connect = die
            else:
                joining._core.join = die
        begin = time.time()
        try:
            strata_jax.init()
        except RuntimeError as error:
            say(f"{time.time() - begin:.2f} {os.getpid()} {error}")
        """,
        num_processes=3,
        arguments=[moment],
        status=128 + signal.SIGKILL,
    )
    for rank in (0, 2):
        assert float(result.out[rank].split()[0]) < 4, result.report()
        assert re.search(r"process 1 \(pid \d+\) ended while .* were joining", result.out[rank])


def test_who_was_not_invited() -> None:
    result = launch.run(
        """
        import json, socket, warnings
        name = ""
        if rank == 1:
            # Rank 0 waits for this one's record, and so is not past its listening.
            client = jax._src.distributed.global_state.client
            record = json.loads(client.blocking_key_value_get("strata_jax/0/place/0", 20_000))
            name = record["socket"]
            def connect(*messages):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                sock.connect("\\0" + name)
                for message in messages:
                    sock.send(message)
                return sock
            hello = json.dumps({"index": 1, "token": record["token"]}).encode()
            foreign = None
            if os.geteuid() == 0:
                warnings.simplefilter("ignore")
                read_fd, write_fd = os.pipe()
                foreign = os.fork()
                if foreign == 0:  # another user, who knows all
                    code = 1
                    try:
                        os.setuid(65534)
                        sock = connect(hello)
                        os.write(write_fd, b"c")
                        sock.settimeout(30)
                        code = 2 if sock.recv(99) else 0
                    except ConnectionResetError:
                        code = 0
                    finally:
                        os._exit(code)
                assert os.read(read_fd, 1) == b"c"
            others = [connect(), connect(b"{"), connect(b"[1]"), connect(b'{"index": 1}'),
                      connect(b'{"index": 1, "token": "00"}'), connect(b"x" * 60_000)]
            gone = connect(b"{}")
            gone.close()
        begin = time.time()
        strata_jax.init(timeout_s=20)
        assert time.time() - begin < 6
        if rank == 1:
            for sock in others:
                sock.settimeout(10)
                try:
                    assert sock.recv(99) == b""
                except ConnectionResetError:
                    pass
            if foreign is not None:
                assert os.waitpid(foreign, 0)[1] == 0
        f = sharded(lambda v: strata_jax.psum(v, "x"))
        check(f(place(np.ones((num_devices, 5), np.float32))), np.full((2, 1, 5), 2, np.float32))
        say("all right")
        """
    )
    assert all("all right" in out for out in result.out), result.report()
