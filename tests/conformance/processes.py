# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs JAX's tests of several processes, which JAX's own launcher starts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import compare
import events

HERE = pathlib.Path(__file__).resolve().parent
# A file in which processes die more often than this is given up.
MOST_RUNS = 12
# Worst first: a test ended as it did in the process where it ended worst.
_WORST = ("hung", "crashed", "failed", "missing", "xfailed", "passed", "skipped")


class _Rank:
    """One worker, and what it has said."""

    def __init__(self, number: int, log: pathlib.Path) -> None:
        self.number = number
        self.running = ""
        self.finished = False
        self.ended: dict[str, compare.Outcome] = {}
        self.stats: list[dict[str, Any]] = []
        self._log = events.Log(log)

    def listen(self) -> bool:
        """Take in what it has written; return whether there was any."""
        heard = self._log.new()
        for event in heard:
            kind = event.pop("event")
            if kind == "start":
                self.running = event["test"]
            elif kind == "end":
                test = event.pop("test")
                self.ended[test] = compare.Outcome(**event)
                self.running = ""
            elif kind == "stats":
                self.stats.append(event["stats"])
            elif kind == "finished":
                self.finished = True
        return bool(heard)


def files(source: pathlib.Path) -> list[str]:
    """Return the test files of several processes, below tests/."""
    folder = source / "tests" / "multiprocess"
    return [f"multiprocess/{path.name}" for path in sorted(folder.glob("*_test.py"))]


def merge(outcomes: Sequence[compare.Outcome]) -> compare.Outcome:
    """Return how a test ended in all of its processes together."""
    worst = min(outcomes, key=lambda outcome: _WORST.index(outcome.outcome))
    left: Counter[str] = Counter()
    for outcome in outcomes:
        left.update(outcome.left)
    return compare.Outcome(
        worst.outcome,
        seconds=max(outcome.seconds for outcome in outcomes),
        message=worst.message,
        cpu_s=round(sum(outcome.cpu_s for outcome in outcomes), 3),
        calls=sum(outcome.calls for outcome in outcomes),
        left=dict(left),
    )


def run_file(
    source: pathlib.Path,
    file: str,
    mode: str,
    *,
    num_processes: int,
    num_devices: int,
    timeout_s: float,
    logs: pathlib.Path,
    only: Sequence[str] | None = None,
) -> compare.FileRun:
    """Run the tests of one file, again without those in which processes died or hung.

    Args:
        source: of JAX, the folder that holds `tests/`.
        file: below `tests/`.
        mode: "off" or "on".
        num_processes: workers.
        num_devices: devices of all workers together.
        timeout_s: after which a test hangs.
        logs: folder for what the processes print.
        only: names of the tests to run; None for all.
    """
    result = compare.FileRun()
    start = time.monotonic()
    for attempt in range(MOST_RUNS):
        again = "" if only is None else ".again"
        folder = logs / f"{file.replace('/', '.')}.{num_processes}.{mode}{again}.{attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        wanted, log = folder / "tests.json", folder / "events.jsonl"
        wanted.write_text(json.dumps({"only": only, "skip": list(result.tests)}))
        ranks = [_Rank(i, pathlib.Path(f"{log}.{i}")) for i in range(num_processes)]
        status = _run(
            source / "tests" / file,
            ranks,
            folder,
            timeout_s,
            {
                # Read by jaxlib when the backend starts.
                "JAX_NUM_CPU_DEVICES": str(num_devices // num_processes),
                "STRATA_CONFORMANCE": mode,
                "STRATA_CONFORMANCE_LOG": str(log),
                "STRATA_CONFORMANCE_TESTS": str(wanted),
            },
        )
        died = _collect(result, ranks, folder, status)
        if not died:
            break
    else:
        result.ended = f"given up after {MOST_RUNS} runs"
    result.seconds = round(time.monotonic() - start, 1)
    return result


def _run(
    test: pathlib.Path,
    ranks: Sequence[_Rank],
    folder: pathlib.Path,
    timeout_s: float,
    variables: dict[str, str],
) -> str:
    """Run JAX's launcher; return "hung" or its status."""
    environment = {
        **os.environ,
        **variables,
        "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "TEST_UNDECLARED_OUTPUTS_DIR": str(folder),
    }
    command = [sys.executable, "-P", str(HERE / "strata_rank.py"), str(test)]
    command += [f"--num_processes={len(ranks)}", "--cpu_collectives_implementation=gloo"]
    with (folder / "launcher.txt").open("wb") as stream:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the workers can be killed with it
        )
        heard = time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if any([rank.listen() for rank in ranks]):
                    heard = time.monotonic()
                if time.monotonic() - heard > timeout_s:
                    return "hung"
        finally:
            if process.poll() is None:
                events.kill(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)  # workers that outlive a launcher that failed
            for rank in ranks:
                rank.listen()
    return f"status {process.returncode}"


def _collect(
    result: compare.FileRun, ranks: Sequence[_Rank], folder: pathlib.Path, status: str
) -> bool:
    """Add what one run came to; return whether processes died in a test, and others are left."""
    how = "hung" if status == "hung" else "crashed"
    inside = [rank for rank in ranks if rank.running]
    for test in dict.fromkeys(test for rank in ranks for test in rank.ended):
        result.tests[test] = merge([rank.ended.get(test) or _missing(rank, test) for rank in ranks])
    for rank in inside:
        words = events.last_words(folder / f"jax_{rank.number}_stderr.log")
        message = f"process {rank.number}, {status}\n{words}"
        result.tests[rank.running] = compare.Outcome(how, message=message)
    for rank in ranks:
        result.stats += rank.stats
    left = Counter(result.left)
    for rank in ranks:
        for outcome in rank.ended.values():
            left.update(outcome.left)
    result.left = dict(left)
    # JAX's launcher fails where a worker does, hence also for tests that failed.
    failed = any(o.outcome == "failed" for rank in ranks for o in rank.ended.values())
    finished = all(rank.finished for rank in ranks)
    if not inside and not (finished and (failed or status == "status 0")):
        result.ended = f"{status}\n{events.last_words(folder / 'launcher.txt')}"
    return bool(inside)


def _missing(rank: _Rank, test: str) -> compare.Outcome:
    return compare.Outcome("missing", message=f"not run in process {rank.number}")
