# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `strata-jax bench` on several processes, and of its other baselines."""

from __future__ import annotations

import json
import os
import types

from absl.testing import absltest, parameterized

import bench_runs
from strata_jax.tools import (
    bench_client,
    bench_contenders,
    bench_mpirun,
    bench_plan,
    bench_rows,
    main,
)

GLOO = bench_contenders.Contender("gloo", "lax", num_processes=2, num_devices=2)


def plan(*argv: str) -> bench_plan.Plan:
    return bench_plan.make_plan(main.make_parser().parse_args(["bench", *argv]))


class PlanTest(parameterized.TestCase):
    @parameterized.parameters(
        ((), 1, 2, "lax", ("ours", "lax", "tuned")),
        (("--processes", "2"), 2, 2, "gloo", ("ours", "gloo", "tuned")),
        (("--processes", "4"), 4, 4, "gloo", ("ours", "gloo", "tuned")),
        (("--processes", "2", "--devices", "8"), 2, 8, "gloo", ("ours", "gloo", "tuned")),
        (("--processes", "2", "--against", "none"), 2, 2, "none", ("ours",)),
        (("--against", "staged"), 1, 2, "staged", ("ours", "staged")),
        (("--mode", "first"), 1, 2, "unpopulated", ("ours", "unpopulated")),
        (("--mode", "first", "--against", "lax"), 1, 2, "lax", ("ours", "lax")),
    )
    def test_defaults(self, argv, num_processes, num_devices, against, kinds):
        found = plan("psum", *argv)
        self.assertEqual(
            (found.num_processes, found.num_devices, found.against),
            (num_processes, num_devices, against),
        )
        self.assertEqual(tuple(job.kind for job in found.contenders), kinds)
        for job in found.contenders:
            self.assertEqual((job.num_processes, job.num_devices), (num_processes, num_devices))

    def test_one_process_has_all_devices(self):
        ours, base = plan("psum", "--processes", "2", "--against", "one-process").contenders
        self.assertEqual((ours.num_processes, ours.library), (2, "strata"))
        self.assertEqual((base.num_processes, base.num_devices, base.library), (1, 2, "strata"))

    @parameterized.parameters(
        (("--staged",), {"STRATA_ARENA": "off"}, {}),
        (("--against", "staged"), {}, {"STRATA_ARENA": "off"}),
        (("--against", "unpopulated"), {}, {"STRATA_POPULATE": "off"}),
    )
    def test_switches_are_environment(self, argv, ours, base):
        jobs = plan("psum", "--processes", "2", *argv).contenders
        self.assertEqual([dict(job.environment) for job in jobs[:2]], [ours, base])

    def test_first_has_a_size_of_its_own(self):
        [row] = plan("psum", "--mode", "first").rows
        self.assertEqual((row.size_bytes, row.mode), (64 << 20, "first"))


class RoundsTest(parameterized.TestCase):
    @parameterized.parameters(
        (10e-6, "call", 500, 200),
        (2e-3, "call", 3, 75),
        (1.0, "call", 0, 3),
        (1.0, "chain", 0, 1),
        (0.0, "call", 1000, 200),
    )
    def test_number_of_calls_is_bounded(self, seconds, mode, warmup, calls):
        self.assertEqual(bench_rows.num_calls(seconds, mode), (warmup, calls))

    def test_slowest_process_counts_call_by_call(self):
        times = [{"times_s": [1.0, 4.0]}, {"times_s": [3.0, 2.0]}]
        worker = types.SimpleNamespace(kind="ours", ask_all=lambda command, **arguments: times)
        row = bench_plan.RowSpec("psum", 4096, "call")
        self.assertEqual(bench_rows.measure([worker], row, 1, lambda: None), {"ours": [[3.0, 4.0]]})

    def test_long_calls_leave_later_rounds_out(self):
        times = {"slow": 10.0, "ours": 1e-3}
        workers = [
            types.SimpleNamespace(
                kind=kind, ask_all=lambda *_, calls, kind=kind, **__: [{"times_s": [times[kind]]}]
            )
            for kind in times
        ]
        row = bench_plan.RowSpec("psum", 4096, "chain")
        rounds = bench_rows.measure(workers, row, 5, lambda: None)
        self.assertEqual({kind: len(r) for kind, r in rounds.items()}, {"slow": 2, "ours": 5})


class RealRunTest(bench_runs.TestCase):
    def test_two_processes_against_gloo(self):
        path = self.folder / "rows.json"
        argv = ["psum", "--processes", "2", "--sizes", "4K", "--repeat", "1", "--json", str(path)]
        status, out, err = bench_runs.run(*argv)
        self.assertEqual(status, 0, err)
        [row] = json.loads(path.read_text())["rows"]
        found = {key: row[key] for key in ("devices", "processes", "wrong", "baseline")}
        self.assertEqual(found, {"devices": 2, "processes": 2, "wrong": 0, "baseline": "gloo"})
        self.assertAlmostEqual(row["speedup"], row["baseline_median_us"] / row["median_us"])
        self.assertIn("2 devices in 2 processes", out)
        self.assertIn("# gloo: jax.lax over Gloo", out)
        self.assertRegex(out, r"#wrong +gloo +speed-up")

    def test_wrong_answer_of_one_process_fails(self):
        ops_file = self.ops_file(
            """
            import jax
            case = real.OPS["psum"].build(request)
            expected = [[answer + jax.process_index() for answer in case.expected[0]]]
            return dataclasses.replace(case, expected=expected)
            """
        )
        argv = ["psum", "--processes", "2", "--sizes", "4K", "--repeat", "1", "--against", "none"]
        status, out, _ = bench_runs.run(*argv, ops_file=ops_file)
        self.assertEqual(status, 1)
        self.assertIn("WRONG: 2048 elements", out)  # of one device, before and after the timing

    def test_first(self):
        path = self.folder / "rows.json"
        argv = ["psum", "--mode", "first", "--sizes", "64K", "--repeat", "2", "--against", "none"]
        status, out, err = bench_runs.run(*argv, "--json", str(path))
        self.assertEqual(status, 0, err)
        [row] = json.loads(path.read_text())["rows"]
        self.assertEqual((row["mode"], row["wrong"]), ("first", 0))
        self.assertAlmostEqual(row["ratio"], row["first_us"] / row["tenth_us"])
        self.assertIsNone(row["baseline_ratio"])
        self.assertRegex(out, r"first +tenth +ratio")

    def test_against_mpi(self):
        if missing := bench_mpirun.missing():
            self.skipTest(f"{missing} not installed")
        job = bench_contenders.Contender("mpi", "mpi", num_processes=2, num_devices=2)
        worker = self.start(job)
        self.assertIn("mpi", worker.hello())
        for name in bench_mpirun.OPERATIONS:
            for mode in ("call", "chain"):
                with self.subTest(op=name, mode=mode):
                    case = bench_runs.PREPARE | {"op": name, "mode": mode}
                    right = [{"wrong": 0}] * 2
                    self.assertEqual(worker.ask_all("prepare", **case), right)
                    worker.ask_all("measure", warmup=1, calls=2)
                    self.assertEqual(worker.ask_all("check"), right)


class FailureTest(bench_runs.TestCase):
    def check_report(self, body: str, expected: str, deadline_s: float = 120) -> None:
        """Let process 1 of 2 do `body` where a case is built, and look at the report."""
        body = f"import jax\nif jax.process_index() == 1:\n    {body}"
        body += "\nreturn real.OPS['psum'].build(request)"
        worker = self.start(GLOO, ops_file=self.ops_file(body))
        pids = worker.pids
        self.assertLen(pids, 2)
        worker.hello()
        worker.deadline_s = deadline_s
        with self.assertRaisesRegex(bench_client.WorkerError, expected):
            worker.ask_all("prepare", **bench_runs.PREPARE)
        for pid in pids:  # the other one would wait in its collective for ever
            self.assertFalse(os.path.exists(f"/proc/{pid}"), pid)

    def test_death_is_reported_with_its_log(self):
        self.check_report(
            "print('last words', file=sys.stderr, flush=True); os._exit(7)",
            r"gloo worker \(number 1 of 2, (.|\n)*left with status 7(.|\n)*last words",
        )

    def test_error_is_reported_while_the_other_waits(self):
        self.check_report(
            "raise ValueError('no such')", r"number 1 of 2, (.|\n)*ValueError: no such"
        )

    def test_hang_is_reported(self):
        self.check_report(
            "time.sleep(100)", "2 of 2 processes did not answer within 2 s", deadline_s=2
        )


if __name__ == "__main__":
    absltest.main()
