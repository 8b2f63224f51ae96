# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax launch` without processes: arguments, the environment of ranks, what is reported."""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import math
import os
import pathlib
import socket
import tempfile
import types
from unittest import mock

from absl.testing import absltest, parameterized

from strata_jax.tools import launch, launch_job, launch_report, main

ADDRESS, UNUSED = "127.0.0.1:1111", "127.0.0.1:2222"


def run(*argv: str) -> tuple[int, str]:
    """Runs the command in this process; returns its status and standard error."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            return main.main(["launch", *argv]), err.getvalue()
        except SystemExit as leaving:  # argparse
            return int(leaving.code or 0), err.getvalue()


def plan_of(*argv: str) -> launch_job.Plan:
    """Returns the plan of a command line."""
    parser = argparse.ArgumentParser()
    launch.add_parser(parser.add_subparsers())
    return launch.make_plan(parser.parse_args(["launch", *argv]))


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ((), "-n/--num-processes", "required"),
        (("-n", "0", __file__), "-n 0", "1 to 256"),
        (("-n", "257", __file__), "-n 257", "1 to 256"),
        (("-n", "two", __file__), "-n two", "1 to 256"),
        (("-n", "2"), "there is none", "a file or -m MODULE"),
        (("-n", "2", "--"), "there is none", "a file or -m MODULE"),
        (("-n", "2", "no_such.py"), "no_such.py: does not exist", "a Python file"),
        (("-n", "2", "/"), "script /: is a folder", "a Python file"),
        (("-n", "2", "-m"), "there is none", "a file or -m MODULE"),
        (("-n", "2", "-m", "no_such.module"), "-m no_such.module", "importable module"),
        (("-n", "2", "-m", "not a name"), "-m not a name", "importable module"),
        (("-n", "2", "--devices-per-process", "0", __file__), "process 0", "1 to 256"),
        (("-n", "2", "--timeout", "soon", __file__), "--timeout soon", "0 to 10000000"),
        (("-n", "2", "--grace", "-1", __file__), "--grace -1", "0 to 10000000"),
        (("-n", "2", "--grace", "nan", __file__), "--grace nan", "0 to 10000000"),
        (("-n", "2", "--log-dir", "/proc/x", __file__), "--log-dir /proc/x", "can be made"),
        (("-n", "2", "--log-dir", __file__, __file__), "File exists", "can be made"),
        (("-n", "2", "--no-such", __file__), "--no-such", "usage"),
    )
    def test_wrong_argument_says_what_is_allowed(self, argv, found, allowed):
        status, err = run(*argv)
        self.assertEqual(status, 2)
        self.assertIn(found, err)
        self.assertIn(allowed, err)

    def test_what_follows_the_script_is_its_own(self):
        plan = plan_of("-n", "3", "--grace", "1.5", __file__, "-n", "4", "--", "-m", "x")
        self.assertEqual(
            plan,
            launch_job.Plan(
                num_processes=3,
                num_devices=None,
                timeout_s=math.inf,
                grace_s=1.5,
                log_dir=None,
                kind="script",
                command=(__file__, "-n", "4", "--", "-m", "x"),
            ),
        )

    def test_what_follows_the_module_is_its_own(self):
        plan = plan_of("-n", "3", "--timeout", "9", "-m", "json.tool", "-n", "x.py")
        self.assertEqual((plan.kind, plan.command), ("module", ("json.tool", "-n", "x.py")))
        self.assertEqual(plan.timeout_s, 9)

    def test_log_dir_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            plan_of("-n", "1", "--log-dir", f"{folder}/a/b", __file__)
            self.assertTrue(pathlib.Path(folder, "a", "b").is_dir())


class EnvironTest(parameterized.TestCase):
    def environ(self, rank: int, environ: dict[str, str], *argv: str) -> dict[str, str]:
        plan = plan_of("-n", "2", *argv, __file__)
        return launch.rank_environ(environ, plan, rank, ADDRESS, UNUSED)

    def test_only_rank_0_binds_elsewhere(self):
        common = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COORDINATOR_ADDRESS": ADDRESS,
            "JAX_NUM_PROCESSES": "2",
        }
        before = {"HOME": "/x", "JAX_COORDINATOR_BIND_ADDRESS": "of another job"}
        for rank, more in ((0, {"JAX_COORDINATOR_BIND_ADDRESS": UNUSED}), (1, {})):
            self.assertEqual(
                self.environ(rank, before),
                common | {"HOME": "/x", "JAX_PROCESS_ID": str(rank)} | more,
            )

    def test_platform_and_devices(self):
        found = self.environ(1, {"JAX_PLATFORMS": "x"}, "--devices-per-process", "7")
        self.assertEqual((found["JAX_PLATFORMS"], found["JAX_NUM_CPU_DEVICES"]), ("x", "7"))

    @parameterized.parameters(
        ({}, None),
        ({"HTTPS_PROXY": "p"}, "127.0.0.1"),
        ({"http_proxy": "p", "no_proxy": "a,b"}, "a,b,127.0.0.1"),
        ({"http_proxy": "p", "no_proxy": "a", "no_grpc_proxy": "c"}, "c,127.0.0.1"),
    )
    def test_proxies_are_not_asked_for_this_host(self, environ, exempt):
        self.assertEqual(self.environ(1, environ).get("no_grpc_proxy"), exempt)

    def test_held_port_is_given_to_nobody_else(self):
        with launch.held_port() as address:
            host, port = address.split(":")
            with socket.socket() as other, self.assertRaises(OSError):
                other.bind((host, int(port)))
            with socket.socket() as grpc:
                grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                grpc.bind((host, int(port)))
                grpc.listen()


def rank_of(index: int, status: int | None, *signals: int, last: str = "") -> launch_report.Rank:
    """Returns what is told of a rank."""
    return types.SimpleNamespace(
        index=index,
        status=status,
        signals=list(signals),
        last_lines=collections.deque(last.split()),
    )


class ReportTest(absltest.TestCase):
    def test_failure(self):
        first = rank_of(1, -11, last="a b")
        others = [rank_of(0, 1), rank_of(2, 1), rank_of(3, 0, 15), rank_of(4, -9, 15, 9, 9)]
        self.assertEqual(
            launch_report.failed([others[0], first, *others[1:]], first, 1.26),
            "rank 1 failed first, after 1.3 s: killed by SIGSEGV; the end of its standard error:\n"
            "    a\n    b\n"
            "the others: exit status 1 (ranks 0 and 2), exit status 0 after the launcher's SIGTERM "
            "(rank 3), ended by the launcher with SIGTERM and SIGKILL (rank 4)",
        )

    def test_failure_of_the_only_rank(self):
        only = rank_of(0, 3)
        self.assertEqual(
            launch_report.failed([only], only, 0.0),
            "rank 0 failed first, after 0.0 s: exit status 3",
        )

    def test_of_ranks_that_are_seen_at_once_the_killed_one_failed_first(self):
        class FakeRank:
            pidfd = -1
            ended_at = 0.0

            def __init__(self, index: int, status: int):
                self.index, self.status = index, status

            def look(self) -> None:
                pass

        for statuses, first in (((1, 1, -9), 2), ((0, 3, 1), 1), ((0, -9, -11), 1)):
            job = launch_job.Job(plan_of("-n", "3", __file__), [])
            with mock.patch.object(job._selector, "unregister"):
                job._deal_with_ends([FakeRank(i, status) for i, status in enumerate(statuses)])
            self.assertEqual(job._first_failed.index, first)
            job._selector.close()


class StandardErrorTest(absltest.TestCase):
    def test_is_kept_unless_an_error_is_raised(self):
        for error in (None, RuntimeError("no service")):
            read_fd, write_fd = os.pipe()
            before = os.dup(2)
            os.dup2(write_fd, 2)
            try:
                with contextlib.suppress(RuntimeError), launch._standard_error_kept():
                    os.write(2, b"from a library\n")
                    if error:
                        raise error
                os.write(2, b"after\n")
            finally:
                os.dup2(before, 2)
                for fd in (before, write_fd):
                    os.close(fd)
            with open(read_fd, "rb") as found:
                self.assertEqual(found.read(), b"from a library\n" * bool(error) + b"after\n")


if __name__ == "__main__":
    absltest.main()
