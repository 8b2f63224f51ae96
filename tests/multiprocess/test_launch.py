# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax launch`: jobs that end well, that fail in every way, and that are ended."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

from absl.testing import absltest, parameterized

import launch
from strata_jax.tools import launch_job

LAUNCH = (sys.executable, "-P", "-m", "strata_jax.tools.main", "launch")
# A rank that does not use JAX knows itself from its environment.
BARE = """
import os, signal, subprocess, sys, time
rank = int(os.environ["JAX_PROCESS_ID"])
def say(*words):
    print(*words, flush=True)
def ready():
    open(f"{sys.argv[0]}.{rank}", "w").close()
def wait_until_ready(rank):
    while not os.path.exists(f"{sys.argv[0]}.{rank}"):
        time.sleep(0.01)
"""
SLEEP = "say('sleeps')\ntime.sleep(120)\n"
IGNORE_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def bare(code: str, **arguments: object) -> launch.Job:
    """Starts a job of ranks that do not use JAX."""
    return launch.Job(BARE + textwrap.dedent(code), preamble=False, service=False, **arguments)


def is_alive(pid: int) -> bool:
    """Whether a process exists that is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def still_alive(pids: list[int], timeout_s: float = 5.0) -> list[int]:
    """Returns the processes that have not gone within a time."""
    deadline = time.monotonic() + timeout_s
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


class AllWellTest(parameterized.TestCase):
    def test_script_runs_as_if_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "script.py"
            logs = pathlib.Path(folder) / "new" / "logs"
            path.write_text(
                BARE
                + textwrap.dedent("""
                import pickle
                class Thing: pass
                assert __name__ == "__main__" and sys.modules["__main__"].Thing is Thing
                assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
                assert __file__ == %r and sys.path[0] == %r, (__file__, sys.path)
                assert sys.argv == [__file__, "--grace", "-x", "y z"], sys.argv
                assert sys.stdin.read() == ""
                assert os.getpgid(0) == os.getpid()
                assert "jax" not in sys.modules and "strata_jax" not in sys.modules
                assert "_die_with" not in globals()
                print("out", rank)
                print("err", rank, file=sys.stderr)
                print("é", end="")
                """)
                % (str(path), folder)
            )
            result = launch.run(
                script=path,
                service=False,
                num_processes=3,
                options=["--log-dir", str(logs)],
                arguments=["--grace", "-x", "y z"],
            )
            found = [(logs / f"rank_{rank}.log").read_text() for rank in range(3)]
        self.assertEqual(result.messages, "")
        for rank in range(3):
            self.assertEqual(result.out[rank], f"out {rank}\né\n")
            self.assertEqual(result.err[rank], f"err {rank}\n")
            self.assertCountEqual(found[rank].splitlines(), [f"out {rank}", f"err {rank}", "é"])

    def test_jax_finds_the_job(self):
        # Without the preamble, as a user would write it. Neither are proxies asked for the service,
        # nor Slurm, in whose job the launcher may run, for the number of processes.
        slurm = {"JOB_ID": "1", "STEP_NODELIST": "a", "NTASKS": "7", "PROCID": "5", "LOCALID": "5"}
        result = launch.run(
            """
            import os
            os.environ["JAX_ENABLE_X64"] = "1"  # before the import, so it counts
            import jax
            jax.distributed.initialize()
            from jax._src import distributed
            import strata_jax
            strata_jax.init()
            assert jax.config.jax_enable_x64
            assert jax.process_count() == 2 and jax.local_device_count() == 3
            assert len(jax.devices()) == 6 and jax.devices()[0].platform == "cpu"
            assert (distributed.global_state.service is not None) == (jax.process_index() == 0)
            print("rank", jax.process_index())
            """,
            num_devices=3,
            preamble=False,
            env={f"SLURM_{name}": value for name, value in slurm.items()}
            | {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        )
        self.assertEqual([text.splitlines()[-1] for text in result.out], ["rank 0", "rank 1"])
        self.assertEqual(list(result.err), ["", ""])
        self.assertEqual(result.messages, "")

    def test_module(self):
        done = subprocess.run(
            [*LAUNCH, "-n", "2", "-m", "json.tool", "--no-ensure-ascii", "-h"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(2):
            self.assertIn(f"[{rank}] usage: ", done.stdout)

    def test_rank_that_leaves_early_is_noted(self):
        with bare(
            """
            if rank == 1:
                ready()
                os._exit(0)
            wait_until_ready(1)
            time.sleep(1)
            """,
            num_processes=3,
            patch="launch_job._NOTE_S = 0.3",
        ) as job:
            result = job.wait(0)
        self.assertEqual(
            result.messages,
            "strata-jax launch: rank 1 ended with status 0 0.3 s ago, ranks 0 and 2 still run\n",
        )


class FailureTest(parameterized.TestCase):
    def test_exception(self):
        with bare(
            """
            def fail():
                raise ValueError("first\\nsecond")
            if rank == 1:
                ready()
                fail()
            wait_until_ready(1)
            time.sleep(1)  # as one that notices and reports
            say("reports")
            sys.exit(rank)
            """,
            num_processes=3,
        ) as job:
            result = job.wait(1)
        self.assertRegex(
            result.messages,
            r"(?s)^strata-jax launch: rank 1 failed first, after [\d.]+ s: exit status 1; the end "
            r"of its standard error:\n    Traceback .*\n    ValueError: first\n    second\n"
            r"strata-jax launch: the others: exit status 0 \(rank 0\), exit status 2 \(rank 2\)\n$",
        )
        self.assertEqual(result.out[0], "reports\n")
        self.assertNotIn("launch_rank", result.err[1])  # frames of the script alone
        self.assertIn("in <module>\n    fail()", result.err[1])

    @parameterized.parameters(
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.kill(os.getpid(), 40)", 168, "killed by signal 40"),
    )
    def test_exit_status_is_of_the_first_failure(self, code, status, how):
        code = f"if rank == 0:\n    print('last words')\n    {code}\n"
        buffered = {"PYTHONUNBUFFERED": ""}
        with bare(code + SLEEP, options=["--grace", "0.2"], env=buffered) as job:
            result = job.wait(status)
        self.assertEqual(result.out[0], "last words\n")
        self.assertRegex(result.messages, f"^strata-jax launch: rank 0 failed first.*: {how}\n")
        self.assertIn("the others: ended by the launcher with SIGTERM (rank 1)\n", result.messages)
        self.assertLess(result.seconds, 20)

    def test_rank_that_ignores_sigterm_is_killed(self):
        with bare(
            "if rank == 0: wait_until_ready(1); sys.exit(3)\n"
            + IGNORE_SIGTERM
            + "ready()\n"
            + SLEEP,
            options=["--grace", "0.2"],
            patch="launch_job._TERM_S = 0.3",
        ) as job:
            result = job.wait(3)
        self.assertRegex(result.messages, "^strata-jax launch: rank 0 failed.*: exit status 3\n")
        self.assertLess(result.seconds, 20)
        self.assertIn("ended by the launcher with SIGTERM and SIGKILL (rank 1)\n", result.messages)

    @parameterized.parameters((0, 2), (1, 3))
    def test_others_live_when_a_rank_is_killed(self, victim, num_processes):
        result = launch.run(
            f"""
            barrier("all are here")
            if rank == {victim}:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1.5)
            say("lives", float(jnp.sum(jnp.arange(4.0))))
            sys.exit("peer is dead")
            """,
            num_processes=num_processes,
            status=137,
        )
        for rank in range(num_processes):
            expected = "" if rank == victim else "lives 6.0\n"
            self.assertEqual(result.out[rank], expected, result.report())
            self.assertEqual(result.err[rank], "" if rank == victim else "peer is dead\n")
        self.assertRegex(
            result.messages,
            rf"^strata-jax launch: rank {victim} failed first, after [\d.]+ s: killed by SIGKILL\n"
            r"strata-jax launch: the others: exit status 1 \(rank.*\)\n$",
        )

    def test_timeout(self):
        with bare("if rank == 0: sys.exit(0)\n" + SLEEP, timeout_s=3.0) as job:
            result = job.wait(124)
        self.assertEqual(
            result.messages,
            "strata-jax launch: the job did not end within --timeout 3 s: exit status 0 (rank 0), "
            "ended by the launcher with SIGTERM (rank 1)\n",
        )


class EndedTest(parameterized.TestCase):
    def test_sigint_is_forwarded(self):
        with bare(SLEEP) as job:
            job.wait_for("sleeps", times=2)
            job.send(signal.SIGINT)
            result = job.wait(130)
        for rank in range(2):
            self.assertEndsWith(result.err[rank], "\nKeyboardInterrupt\n")
            self.assertNotIn("launch_rank", result.err[rank])
        self.assertEqual(
            result.messages,
            "strata-jax launch: got SIGINT: ended by the launcher with SIGINT (ranks 0 and 1)\n",
        )

    def test_second_sigint_kills(self):
        with bare(
            """
            signal.signal(signal.SIGINT, lambda *_: say("refuses"))
            say("sleeps")
            while True:
                time.sleep(60)
            """
        ) as job:
            job.wait_for("sleeps", times=2)
            job.send(signal.SIGINT)
            job.wait_for("refuses", times=2)
            job.send(signal.SIGINT)
            result = job.wait(130)
        self.assertIn("ended by the launcher with SIGINT and SIGKILL", result.messages)

    def test_sigterm_is_forwarded(self):
        # As a rank of JAX, which catches SIGTERM and goes on.
        with bare(
            "signal.signal(signal.SIGTERM, lambda *_: say('goes on'))\n" + SLEEP,
            options=["--grace", "0.5"],
        ) as job:
            job.wait_for("sleeps", times=2)
            job.send(signal.SIGTERM)
            job.wait_for("goes on", times=2)
            result = job.wait(143)
        self.assertEqual(
            result.messages,
            "strata-jax launch: got SIGTERM: "
            "ended by the launcher with SIGTERM and SIGKILL (ranks 0 and 1)\n",
        )
        self.assertLess(result.seconds, 20)

    def test_ranks_that_end_well_when_told_to(self):
        with bare(
            """
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            say("sleeps")
            time.sleep(60)
            """
        ) as job:
            job.wait_for("sleeps", times=2)
            job.send(signal.SIGTERM)
            result = job.wait(0)
        self.assertEqual(result.messages, "")

    def test_killed_launcher_takes_the_ranks_along(self):
        with bare(IGNORE_SIGTERM + SLEEP) as job:
            job.wait_for("sleeps", times=2)
            ranks = job.ranks()
            self.assertLen(ranks, 2)
            job.send(signal.SIGKILL)
            job.wait(-signal.SIGKILL)
            self.assertEmpty(still_alive(ranks))

    def test_rank_of_a_launcher_that_is_gone_does_not_start(self):
        # As when the launcher dies while the rank's interpreter starts.
        rank_file = pathlib.Path(launch_job.__file__).with_name("launch_rank.py")
        done = subprocess.run(
            [sys.executable, str(rank_file), "1", "module", "this"],
            capture_output=True,
            check=False,
            timeout=60,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (137, b"", b""))

    def test_children_of_ranks_end_with_the_job(self):
        with bare(
            """
            child = subprocess.Popen(["sleep", "120"])  # holds the pipe of the output, too
            say("child", child.pid)
            """
        ) as job:
            result = job.wait(0)
        children = [int(re.search(r"child (\d+)", text)[1]) for text in result.out]
        self.assertEmpty(still_alive(children))
        self.assertLess(result.seconds, 20)

    def test_ends_when_nobody_reads_the_output(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "script.py"
            path.write_text(BARE + "while True: say('line'); time.sleep(0.02)")
            with subprocess.Popen(
                [*LAUNCH, "-n", "2", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as launcher:
                self.assertRegex(launcher.stdout.readline(), rb"^\[[01]\] line\n$")
                launcher.stdout.close()
                err = launcher.stderr.read()
                self.assertEqual(launcher.wait(30), 128 + signal.SIGPIPE)
        self.assertEqual(
            err.decode(),
            "strata-jax launch: nobody reads the output: "
            "ended by the launcher with SIGTERM (ranks 0 and 1)\n",
        )


if __name__ == "__main__":
    absltest.main()
