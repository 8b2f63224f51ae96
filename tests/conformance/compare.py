# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Compares outcomes of JAX's tests without and with strata_jax."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Mapping
from typing import Any

# How a test may end; "crashed" and "hung" took the process with them, "missing" was never run.
OUTCOMES = ("passed", "failed", "skipped", "xfailed", "crashed", "hung", "missing")


@dataclasses.dataclass
class Outcome:
    """How one test ended.

    Attributes:
        outcome: one of `OUTCOMES`.
        seconds: that it took.
        cpu_s: of all threads of the process; much less than `seconds` where it waited.
        message: why it failed or was skipped.
        calls: our calls in the programs that it compiled.
        left: collectives in them that stayed native, by reason.
        again: how it ended when it was run again in a process of its own; "" for not.
    """

    outcome: str
    seconds: float = 0.0
    message: str = ""
    cpu_s: float = 0.0
    calls: int = 0
    left: dict[str, int] = dataclasses.field(default_factory=dict)
    again: str = ""


@dataclasses.dataclass
class FileRun:
    """How the tests of one file ended, in one mode.

    Attributes:
        tests: by pytest's name.
        seconds: of all processes that it took.
        left: collectives that stayed native, by reason.
        ended: "" where the last process ended well, or how not.
        stats: of `strata_jax.stats()`, one of each process.
        import_error: why the file cannot be imported.
    """

    tests: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    left: dict[str, int] = dataclasses.field(default_factory=dict)
    ended: str = ""
    stats: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    import_error: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FileRun:
        """Returns what `dataclasses.asdict` wrote."""
        tests = {name: Outcome(**outcome) for name, outcome in data["tests"].items()}
        return cls(**{**data, "tests": tests})

    def counts(self) -> Counter[str]:
        """Returns the number of tests by outcome."""
        return Counter(test.outcome for test in self.tests.values())


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that ended otherwise with strata_jax.

    Attributes:
        test: its name.
        kind: "worse": passed without, took no process with it without, or runs only with us and
            fails; "expected": worse, but named in the list; "unrepeated": worse, but passed when
            run again; "better"; "other".
        without: how it ended without.
        with_us: and with.
        message: why.
        reason: of the named list.
    """

    test: str
    kind: str
    without: str
    with_us: str
    message: str = ""
    reason: str = ""


def expected_reason(test: str, expected: Mapping[str, str]) -> str:
    """Returns the reason of the named list for a test, "" where it is not in there.

    Args:
        test: e.g. "tests/pjit_test.py::PJitTest::test_x".
        expected: reasons by name without the folder, in which `*` stands for any characters.
    """
    name = test.rpartition("/")[2]
    for pattern, reason in expected.items():
        # Names of parameterized tests have brackets, which are no pattern here.
        if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
            return reason
    return ""


def _is_worse(without: str, with_us: str) -> bool:
    if with_us in ("crashed", "hung"):
        return without not in ("crashed", "hung")
    if without == "skipped":
        return with_us == "failed"
    return without == "passed" and with_us != "passed"


def compare(without: FileRun, with_us: FileRun, expected: Mapping[str, str]) -> list[Difference]:
    """Returns the tests of a file that ended otherwise, and a bad end of its process.

    Args:
        without: outcomes without strata_jax.
        with_us: outcomes with it.
        expected: the named list, see `expected_reason`.
    """
    differences = []
    for test in {**without.tests, **with_us.tests}:
        before = without.tests.get(test, Outcome("missing"))
        after = with_us.tests.get(test, Outcome("missing"))
        if before.outcome == after.outcome:
            continue
        kind, reason = "other", ""
        if _is_worse(before.outcome, after.outcome):
            reason = expected_reason(test, expected)
            kind = "expected" if reason else "unrepeated" if after.again == "passed" else "worse"
        elif after.outcome == "passed":
            kind = "better"
        differences.append(
            Difference(test, kind, before.outcome, after.outcome, after.message, reason)
        )
    if with_us.ended and not without.ended:
        differences.append(Difference("(end of the process)", "worse", "ended", with_us.ended))
    return differences


def needless(with_us: FileRun, expected: Mapping[str, str]) -> list[str]:
    """Returns tests that pass although the named list says that they do not."""
    return [
        test
        for test, outcome in with_us.tests.items()
        if outcome.outcome == "passed" and expected_reason(test, expected)
    ]
