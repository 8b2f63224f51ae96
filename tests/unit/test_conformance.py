# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What counts as worse when JAX's tests are compared without and with strata_jax."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from dataclasses import asdict

from absl.testing import absltest, parameterized

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "conformance"
SPEC = importlib.util.spec_from_file_location("conformance_compare", FOLDER / "compare.py")
compare = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = compare  # dataclasses look their module up
SPEC.loader.exec_module(compare)

TEST = "tests/pjit_test.py::PJitTest::test_x[a]"


def run(outcome: str | None, again: str = "", ended: str = "") -> compare.FileRun:
    """Returns the run of a file with one test, or with none."""
    tests = {} if outcome is None else {TEST: compare.Outcome(outcome, again=again)}
    return compare.FileRun(tests=tests, ended=ended)


class ConformanceTest(parameterized.TestCase):
    @parameterized.parameters(
        ("passed", "passed", None),
        ("passed", "failed", "worse"),
        ("passed", "skipped", "worse"),
        ("passed", "crashed", "worse"),
        ("passed", "hung", "worse"),
        ("passed", "missing", "worse"),
        ("passed", None, "worse"),
        ("failed", "crashed", "worse"),
        ("crashed", "hung", "other"),
        ("failed", "failed", None),
        ("failed", "passed", "better"),
        ("skipped", "passed", "better"),
        ("skipped", "failed", "worse"),
        (None, "failed", "other"),
    )
    def test_kinds(self, without, with_us, kind):
        found = compare.compare(run(without), run(with_us), {})
        self.assertEqual([d.kind for d in found], [kind] if kind else [])

    def test_named_list(self):
        for pattern in ("pjit_test.py::PJitTest::test_x[a]", "pjit_test.py::PJitTest::test_*"):
            [found] = compare.compare(run("passed"), run("failed"), {pattern: "reads text"})
            self.assertEqual((found.kind, found.reason), ("expected", "reads text"))
            self.assertEqual(compare.needless(run("passed"), {pattern: "reads text"}), [TEST])
        for pattern in ("pjit_test.py::PJitTest::test_x", "test_x*", "pmap_test.py::*"):
            [found] = compare.compare(run("passed"), run("failed"), {pattern: "reads text"})
            self.assertEqual(found.kind, "worse")

    def test_passed_when_run_again(self):
        [found] = compare.compare(run("passed"), run("failed", again="passed"), {})
        self.assertEqual(found.kind, "unrepeated")
        [found] = compare.compare(run("passed"), run("failed", again="failed"), {})
        self.assertEqual(found.kind, "worse")

    def test_bad_end_of_the_process(self):
        [found] = compare.compare(run("passed"), run("passed", ended="status -11"), {})
        self.assertEqual((found.kind, found.with_us), ("worse", "status -11"))
        both = compare.compare(run("passed", ended="hung"), run("passed", ended="hung"), {})
        self.assertEqual(both, [])

    def test_json_round_trip(self):
        before = run("failed", again="passed")
        after = compare.FileRun.from_json(json.loads(json.dumps(asdict(before))))
        self.assertEqual(after, before)


if __name__ == "__main__":
    absltest.main()
