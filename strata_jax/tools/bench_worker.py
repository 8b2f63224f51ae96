# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""A process that measures for `strata-jax bench`, started by this file's path.

It reads one JSON object a line and answers each with one, so that the command can let several of
these take turns. A baseline must be what a user has without this package: it never imports it,
which is why this file and the table of operations are loaded by path and import nothing of it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
import time
import traceback
from types import ModuleType
from typing import Any, TextIO

# Time before the recorded calls of a round, at least one call: others had the caches until now.
_WARMUP_S = 0.005


def load(ops_file: str) -> tuple[ModuleType, ModuleType]:
    """Import bench_cases.py and the table of operations without the package around them.

    Both, and what they import relatively, become parts of a package made here: its files are those
    beside the table and beside this file.
    """
    path = pathlib.Path(ops_file)
    package = ModuleType("bench_files")
    package.__path__ = [str(path.parent), str(pathlib.Path(__file__).parent)]
    sys.modules[package.__name__] = package
    names = ("bench_cases", path.stem)
    cases, ops = (importlib.import_module(f"{package.__name__}.{name}") for name in names)
    return cases, ops


class Worker:
    """Answers the requests of the command, in order."""

    def __init__(self, args: argparse.Namespace):
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.devices)
        jax.config.update("jax_enable_x64", args.x64)
        self._cases, self._ops = load(args.ops_file)
        self._ours = args.kind == "ours"
        if self._ours:
            sys.path.insert(0, args.package_root)
            import strata_jax

            strata_jax.init()
            self._collectives: Any = strata_jax
        else:
            self._collectives = jax.lax
        self._devices = len(jax.devices())
        self._case: Any = None
        self._result: Any = None

    def hello(self) -> dict[str, Any]:
        """Say what runs here."""
        import jax
        import numpy as np

        about = {
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "numpy": np.__version__,
            "devices": self._devices,
        }
        if self._ours:
            from strata_jax import _core

            about["strata_jax"] = self._collectives.__version__
            about["isa"] = _core.isa()
        return about

    def ceiling(self, num_bytes: int, num_threads: int, repeat: int) -> dict[str, Any]:
        """Measure the rate of copying with non-temporal stores on all cores."""
        from strata_jax import _core

        gbps = _core.copy_bandwidth(num_bytes, num_threads, repeat)
        if gbps <= 0:
            raise MemoryError(
                f"bench_worker: measuring the ceiling takes {2 * num_bytes * num_threads} bytes, "
                "which could not be had; free some memory"
            )
        return {"gbps": gbps}

    def prepare(self, op: str, size_bytes: int, dtype: str, mode: str) -> dict[str, Any]:
        """Build and compile one case and check its answer."""
        request = self._cases.Request(self._collectives, self._devices, size_bytes, dtype, mode)
        self._case = self._ops.OPS[op].build(request)
        self._run()
        return self.check()

    def check(self) -> dict[str, Any]:
        """Count the wrong elements of the last result."""
        return {"wrong": self._cases.count_wrong(self._result, self._case)}

    def measure(self, seconds: float, least: int, most: int) -> dict[str, Any]:
        """Time calls for about `seconds`, between `least` and `most` of them, in seconds."""
        begin = time.perf_counter()
        while True:
            self._run()
            if time.perf_counter() - begin > _WARMUP_S:
                break
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < most:
            if len(times) >= least and time.perf_counter() - begin > seconds:
                break
            start = time.perf_counter()
            self._run()
            times.append(time.perf_counter() - start)
        return {"times_s": times}

    def release(self) -> dict[str, Any]:
        """Drop the arrays of the case."""
        self._case = self._result = None
        return {}

    def _run(self) -> None:
        import jax

        # The last result is dropped inside the timed part, as in a loop `x = step(x)`.
        self._result = self._case.function(*self._case.inputs)
        jax.block_until_ready(self._result)


def _serve(worker: Worker, kind: str, answers: TextIO) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("command"))(**request)
            _check_baseline(kind)
        except Exception:  # the command shows it and stops
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def _check_baseline(kind: str) -> None:
    if kind != "ours" and "strata_jax" in sys.modules:
        raise RuntimeError(f"bench_worker: the {kind} baseline has imported strata_jax")


def main() -> None:
    """Serve requests until the other end closes the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=("ours", "lax", "tuned"))
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--ops-file", required=True)
    parser.add_argument("--package-root", required=True)
    args = parser.parse_args()

    # Answers leave by a copy of stdout; what libraries print there goes to stderr instead.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    worker = Worker(args)
    _check_baseline(args.kind)
    print(json.dumps(worker.hello()), file=answers, flush=True)
    _serve(worker, args.kind, answers)


if __name__ == "__main__":
    main()
