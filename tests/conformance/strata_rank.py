# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs one of JAX's tests of several processes, strata_jax on or off; `processes.py` starts it.

Called as `strata_rank.py X_test.py FLAG...`, it runs X_test.py as if that had been called. JAX's
launcher starts its workers by the same command line, hence through this file too; these write a
line of JSON for each thing that happens, as `strata_plugin.py` does, to the file that
`STRATA_CONFORMANCE_LOG` names, followed by a dot and their number. With `STRATA_CONFORMANCE=on`
they call `strata_jax.init()` right after `jax.distributed.initialize()`.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import sys
import time
import types
import unittest
from collections.abc import Callable
from typing import Any

_MESSAGE_CHARACTERS = 1500


def worker_number(arguments: list[str]) -> int | None:
    """Return the number that JAX's launcher gave to this worker, None in the launcher."""
    for argument in arguments:
        if match := re.fullmatch(r"--multiprocess_test_worker_id=(\d+)", argument):
            return int(match[1])
    return None


class Watcher:
    """Follows the tests of a worker.

    Args:
        log: file to append to.
        file: name of the test file, of which the tests' names are made.
        only: names of the tests to run; None for all.
        skip: names of tests not to run.
        use: whether strata_jax is on.
    """

    def __init__(
        self, log: pathlib.Path, file: str, only: list[str] | None, skip: list[str], use: bool
    ) -> None:
        self._log = log
        self._file = file
        self._only, self._skip = only, set(skip)
        self._use = use
        self._outcome, self._message = "", ""

    def write(self, event: str, **fields: Any) -> None:
        """Append an event."""
        with self._log.open("a") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")

    def install(self) -> None:
        """Follow all tests that unittest runs from now on."""
        result = unittest.TestResult
        # Subclasses, absl's among them, call these of the base class too.
        for name, outcome in (
            ("addError", "failed"),
            ("addFailure", "failed"),
            ("addUnexpectedSuccess", "failed"),
            ("addSkip", "skipped"),
            ("addExpectedFailure", "xfailed"),
        ):
            setattr(result, name, self._noting(getattr(result, name), outcome))
        sub_test = result.addSubTest

        def add_sub_test(result: Any, test: Any, subtest: Any, error: Any) -> None:
            if error is not None:
                self._note("failed", error)
            sub_test(result, test, subtest, error)

        result.addSubTest = add_sub_test  # type: ignore[method-assign]
        unittest.TestCase.run = self._running(unittest.TestCase.run)  # type: ignore[method-assign]

    def _noting(self, method: Callable[..., Any], outcome: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def note(result: Any, test: Any, *details: Any) -> Any:
            self._note(outcome, *details)
            return method(result, test, *details)

        return note

    def _note(self, outcome: str, *details: Any) -> None:
        if self._outcome != "failed":
            reason = details[0] if details else ""
            text = f"{reason[0].__name__}: {reason[1]}" if isinstance(reason, tuple) else reason
            self._outcome, self._message = outcome, str(text)[:_MESSAGE_CHARACTERS]

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def watched(case: unittest.TestCase, result: Any = None) -> Any:
            name = f"{self._file}::{type(case).__name__}::{case._testMethodName}"
            if name in self._skip or (self._only is not None and name not in self._only):
                return None
            self._outcome, self._message = "passed", ""
            start, cpu_start = time.monotonic(), time.process_time()
            calls, left = self._compile_stats()
            self.write("start", test=name)
            try:
                return run(case, result)
            finally:
                calls_now, left_now = self._compile_stats()
                self.write(
                    "end",
                    test=name,
                    outcome=self._outcome,
                    seconds=round(time.monotonic() - start, 3),
                    cpu_s=round(time.process_time() - cpu_start, 3),
                    message=self._message,
                    calls=calls_now - calls,
                    left={r: n - left.get(r, 0) for r, n in left_now.items() if n != left.get(r)},
                )

        return watched

    def _compile_stats(self) -> tuple[int, dict[str, int]]:
        """Return how many calls of ours were compiled, and what stayed native by reason."""
        if not self._use:
            return 0, {}
        import strata_jax

        stats = strata_jax.stats()["compile"]
        return stats["calls"], stats["left"]

    def finish(self) -> None:
        """Say what strata_jax did."""
        if self._use and "strata_jax" in sys.modules:
            import strata_jax

            self.write("stats", stats=strata_jax.stats())
        self.write("finished")


def init_after_initialize() -> None:
    """Let jax.distributed.initialize() call strata_jax.init() at its end."""
    import jax
    from jax._src import distributed

    initialize = distributed.initialize

    @functools.wraps(initialize)
    def initialize_both(*args: Any, **kwargs: Any) -> None:
        initialize(*args, **kwargs)
        import strata_jax

        strata_jax.init()

    distributed.initialize = initialize_both  # what JAX's test helper calls
    jax.distributed.initialize = initialize_both


def run_as_main(path: str) -> None:
    """Run a file as Python itself would; unlike runpy this leaves `sys.argv` as it is."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    exec(compile(pathlib.Path(path).read_bytes(), path, "exec"), module.__dict__)


def main() -> None:
    """Run the test file."""
    test = sys.argv[1]
    number = worker_number(sys.argv)
    if number is None:
        # The launcher starts the workers with what is in sys.argv: this file first.
        run_as_main(test)
        return
    sys.argv = sys.argv[1:]
    # Taken out of the environment: strata_jax refuses variables of its prefix that it does not
    # know.
    use = {"on": True, "off": False}[os.environ.pop("STRATA_CONFORMANCE")]
    log = pathlib.Path(f"{os.environ.pop('STRATA_CONFORMANCE_LOG')}.{number}")
    tests = json.loads(pathlib.Path(os.environ.pop("STRATA_CONFORMANCE_TESTS")).read_text())
    file = "/".join(pathlib.Path(test).parts[-2:])
    watcher = Watcher(log, file, tests["only"], tests["skip"], use)
    watcher.install()
    if use:
        init_after_initialize()
    try:
        run_as_main(test)
    finally:
        watcher.finish()


if __name__ == "__main__":
    main()
