# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `strata-jax doctor`: a healthy host, and what it says of an unhealthy one."""

from __future__ import annotations

import contextlib
import io
import json
import os
from unittest import mock

from absl.testing import absltest, parameterized

from strata_jax.tools import doctor, host, main

WINDOW = {"oldest": [0, 10, 2], "newest": [0, 12, 0], "donation_since": [0, 11, 0]}
MOVED = {"calls": 4, "bytes": 100, "registered_bytes": 100}


def run(*argv: str) -> tuple[int, str]:
    """Run `strata-jax doctor` in this process; return its status and stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main.main(["doctor", *argv])
    return status, out.getvalue()


class WholeReportTest(absltest.TestCase):
    def test_this_host(self):
        status, out = run("--json")
        checks = {check["name"]: check for check in json.loads(out)["checks"]}
        self.assertEqual(status, 0, out)
        self.assertNotIn("FAIL", {check["level"] for check in checks.values()})
        for name in ("python", "strata_jax", "jax", "jaxlib", "numpy", "ffi", "init", "self-test"):
            self.assertIn(name, checks)
        self.assertIn("posix_memalign", checks["init"]["found"])
        self.assertEqual(checks["self-test"]["level"], "OK")

    def test_failure_names_the_cause_and_the_cure(self):
        with mock.patch.dict(os.environ, {"STRATA_ISA": "abacus"}):
            status, out = run()
        self.assertEqual(status, 1)
        lines = {line.split()[1]: line for line in out.splitlines() if not line.startswith(" ")}
        for name in ("environment", "init", "self-test"):
            self.assertStartsWith(lines[name], "FAIL")
            self.assertIn("abacus", lines[name])
        self.assertStartsWith(lines["numpy"], "OK")
        self.assertIn("-> correct or unset the variable", out)


class ChecksTest(parameterized.TestCase):
    @parameterized.parameters(
        ("0.10.1", "FAIL"), ("0.10.2", "WARN"), ("0.11.0", "OK"), ("0.12.0.1", "OK"),
        ("0.13.0", "WARN"), (None, "FAIL"),
    )  # fmt: skip
    def test_window(self, version, level):
        check = doctor.check_versions({"jax": version}, {"window": WINDOW})[1]
        self.assertEqual((check.name, check.level), ("jax", level))
        self.assertEqual(check.advice == "", level == "OK")

    @parameterized.parameters(
        ((0, 3), (0, 3), "OK"), ((0, 3), (0, 5), "OK"), ((0, 4), (0, 3), "FAIL"),
        ((0, 3), (1, 3), "FAIL"), (None, (0, 3), "FAIL"), (None, None, "FAIL"),
    )  # fmt: skip
    def test_ffi(self, built, running, level):
        check = doctor.check_ffi({"ffi_built": built, "ffi_running": running})
        self.assertEqual(check.level, level)

    def test_missing_slot(self):
        stages = {"init": {"arena": {"slots": {"posix_memalign": 0, "free": 3}}}}
        check = doctor.check_init(stages, "")
        self.assertEqual(check.level, "FAIL")
        self.assertIn("posix_memalign 0", check.found)

    @parameterized.parameters(
        (0, MOVED, "OK"),
        (3, MOVED, "FAIL"),
        (0, MOVED | {"registered_bytes": 50}, "WARN"),
        (0, MOVED | {"bytes": 0, "registered_bytes": 0}, "WARN"),
    )
    def test_self_test(self, wrong, moved, level):
        stages = {"self_test": {"wrong": wrong, "moved": moved}}
        self.assertEqual(doctor.check_self_test(stages, "").level, level)

    def test_huge_pages_turned_off(self):
        modes = {"enabled": "never", "defrag": "madvise", "shmem_enabled": "never"}
        with mock.patch.object(host, "huge_page_modes", return_value=modes):
            checks = {check.name: check for check in doctor.check_memory({})}
        self.assertEqual(checks["huge pages"].level, "WARN")

    def test_little_memory(self):
        with mock.patch.object(host, "cgroup_limit_bytes", return_value=1 << 30):
            check = doctor.check_memory({})[0]
        self.assertEqual(check.level, "WARN")
        self.assertIn("1.1 GB", check.found)

    def test_probe_that_dies_or_hangs(self):
        stages, trouble = doctor.run_probe(["-c", "raise SystemExit('it hurts')"])
        self.assertEqual(stages, {})
        self.assertIn("it hurts", trouble)
        stages, trouble = doctor.run_probe(
            ["-c", 'print(\'{"isa": "avx2"}\', flush=True); import time; time.sleep(60)'],
            deadline_s=3,
        )
        self.assertEqual(stages, {"isa": "avx2"})
        self.assertIn("did not end within 3 s", trouble)


if __name__ == "__main__":
    absltest.main()
