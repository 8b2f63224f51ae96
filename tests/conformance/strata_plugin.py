# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The pytest plug-in that `run.py` loads into JAX's own tests: 8 CPU devices, strata_jax on or off.

It writes a line of JSON for each thing that happens to the file that `STRATA_CONFORMANCE_LOG`
names, so that `run.py` knows where a process was when it died. Variables of the environment:

* `STRATA_CONFORMANCE`: `on` calls `strata_jax.init()` before JAX's tests are imported, `off` does
  not import strata_jax at all.
* `STRATA_CONFORMANCE_LOG`: the file to append to.
* `STRATA_CONFORMANCE_TESTS`: a JSON file, `{"only": [...] or null, "skip": [...]}`, of test names.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import pathlib
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest

NUM_DEVICES = 8
_MESSAGE_CHARACTERS = 1500

# Taken out of the environment: strata_jax refuses variables of its prefix that it does not know.
_ON = {"on": True, "off": False}[os.environ.pop("STRATA_CONFORMANCE")]
_LOG = pathlib.Path(os.environ.pop("STRATA_CONFORMANCE_LOG"))
_TESTS = json.loads(pathlib.Path(os.environ.pop("STRATA_CONFORMANCE_TESTS")).read_text())

# Read by jaxlib when the backend starts, which JAX's tests do while they are imported.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = str(NUM_DEVICES)

# Tests that JAX skips on CPU, because XLA has not the operation there or had not when they were
# written; by name without the folder.
UNSKIPPED = (
    "ragged_collective_test.py::*",
    "shard_map_test.py::*::test_pbroadcast*",
    "pmap_test.py::*::testCollectiveBroadcast*",
    "pmap_test.py::*::testCollectivePermuteGrad",
    "async_collectives_test.py::*_async_pbroadcast",
    "custom_partitioning_test.py::*::test_custom_partitioner",
    "custom_partitioning_test.py::*::test_custom_partition_with_sharding_rule_callback",
)


def _write(event: str, **fields: Any) -> None:
    with _LOG.open("a") as file:
        file.write(json.dumps({"event": event, **fields}) + "\n")


def _compile_stats() -> tuple[int, dict[str, int]]:
    """Returns how many calls of ours were compiled, and what stayed native by reason."""
    if not _ON:
        return 0, {}
    import strata_jax

    stats = strata_jax.stats()["compile"]
    return stats["calls"], stats["left"]


class _Running:
    """What is known of the test that runs now."""

    def __init__(self) -> None:
        self.outcome = "passed"
        self.seconds = 0.0
        self.cpu_start_s = time.process_time()
        self.message = ""
        self.calls, self.left = _compile_stats()

    def add(self, report: pytest.TestReport) -> None:
        """Add one phase of the test (set-up, call, tear-down) or one of its subtests."""
        is_subtest = type(report) is not pytest.TestReport
        self.seconds += 0 if is_subtest else report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            if self.outcome != "failed" or not self.message:
                self.message = text[:_MESSAGE_CHARACTERS]
            self.outcome = "failed"
        elif report.skipped and not is_subtest and self.outcome == "passed":
            self.outcome = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            reason = report.longrepr
            self.message = str(reason[2] if isinstance(reason, tuple) else reason)
            self.message = self.message[:_MESSAGE_CHARACTERS]


_running: _Running | None = None


def pytest_sessionstart() -> None:
    """Switches strata_jax on, before tests are collected."""
    if _ON:
        import strata_jax

        strata_jax.init()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests that `run.py` asked for."""
    only, skip = _TESTS["only"], set(_TESTS["skip"])
    wanted = [
        item for item in items if item.nodeid not in skip and (only is None or item.nodeid in only)
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted
    _write("collected", tests=[item.nodeid for item in wanted])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Reports a file that cannot be imported."""
    if report.failed:
        _write("import_error", message=str(report.longrepr)[-_MESSAGE_CHARACTERS:])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Says which test runs, in case that the process does not live to say more."""
    global _running
    _running = _Running()
    _write("start", test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what a phase of the test came to."""
    if _running is not None:
        _running.add(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Says how the test ended."""
    if _running is None:
        return
    calls, left = _compile_stats()
    _write(
        "end",
        test=nodeid,
        outcome=_running.outcome,
        seconds=round(_running.seconds, 3),
        cpu_s=round(time.process_time() - _running.cpu_start_s, 3),
        message=_running.message,
        calls=calls - _running.calls,
        left={r: n - _running.left.get(r, 0) for r, n in left.items() if n != _running.left.get(r)},
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Runs also the tests of `UNSKIPPED`."""
    name = item.nodeid.rpartition("/")[2]
    with contextlib.ExitStack() as stack:
        if _ON and any(fnmatch.fnmatchcase(name, pattern) for pattern in UNSKIPPED):
            stack.enter_context(_not_skipped_on_cpu())
        return (yield)


@contextlib.contextmanager
def _not_skipped_on_cpu() -> Generator[None, None, None]:
    """Hides that this is a CPU from `setUp` and from JAX's decorators, and only from them."""
    from jax._src import test_util as jtu

    matches = jtu.test_device_matches

    def test_device_matches(device_types: Any) -> bool:
        # The decorators `run_on_devices` and `skip_on_devices` ask in a lambda.
        caller = sys._getframe(1).f_code
        if caller.co_name == "setUp" or (caller.co_name, caller.co_filename) == asks:
            return "cpu" not in device_types
        return matches(device_types)

    asks = ("<lambda>", jtu.__file__)
    jtu.test_device_matches = test_device_matches
    try:
        yield
    finally:
        jtu.test_device_matches = matches


def pytest_sessionfinish() -> None:
    """Says what strata_jax did."""
    if _ON:
        import strata_jax

        _write("stats", stats=strata_jax.stats())
    _write("finished")
