# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What counts as worse when JAX's tests are compared without and with strata_jax."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import tempfile
import types
from dataclasses import asdict

from absl.testing import absltest, parameterized

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "conformance"


def load(name: str) -> types.ModuleType:
    """Import a file of the folder by the name that the others there import it by."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


compare, events, processes = map(load, ("compare", "events", "processes"))

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


class ProcessesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def collect(self, *ranks: list[dict], status: str) -> tuple[bool, compare.FileRun]:
        """Return what a run comes to in which the workers wrote these events."""
        found = []
        for number, written in enumerate(ranks):
            log = self.folder / f"events.{number}"
            log.write_text("".join(json.dumps(event) + "\n" for event in written))
            found.append(processes._Rank(number, log))
            found[-1].listen()
        result = compare.FileRun()
        return processes._collect(result, found, self.folder, status), result

    @parameterized.parameters(
        ("passed", "passed", "passed"),
        ("passed", "skipped", "passed"),
        ("skipped", "failed", "failed"),
        ("passed", "missing", "missing"),
        ("failed", "crashed", "crashed"),
    )
    def test_worst_process_counts(self, one, other, both):
        outcomes = [compare.Outcome(one, calls=1), compare.Outcome(other, calls=2)]
        for pair in (outcomes, outcomes[::-1]):
            merged = processes.merge(pair)
            self.assertEqual((merged.outcome, merged.calls), (both, 3))

    def test_death_in_a_test_leaves_the_rest_to_another_run(self):
        ended = [
            {"event": "start", "test": "a"},
            {"event": "end", "test": "a", "outcome": "passed"},
        ]
        start = [{"event": "start", "test": "b"}]
        again, result = self.collect(ended + start, ended + start, status="status 1")
        self.assertTrue(again)
        outcomes = {test: outcome.outcome for test, outcome in result.tests.items()}
        self.assertEqual(outcomes, {"a": "passed", "b": "crashed"})

    def test_bad_end_without_a_failed_test(self):
        again, result = self.collect([{"event": "finished"}], [], status="status 1")
        self.assertFalse(again)
        self.assertStartsWith(result.ended, "status 1")
        both = [{"event": "finished"}]
        self.assertEqual(self.collect(both, both, status="status 0")[1].ended, "")
        self.assertStartsWith(self.collect(both, both, status="status 1")[1].ended, "status 1")


if __name__ == "__main__":
    absltest.main()
