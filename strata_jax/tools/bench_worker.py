# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""A process that measures for `strata-jax bench`, started by this file's path.

It reads one JSON object a line and answers each with one, so that the command can let several jobs
of these take turns. A baseline must be what a user has without this package: it never imports it,
which is why this file and the table of operations are loaded by path and import nothing of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import pathlib
import socket
import sys
import time
import traceback
from types import ModuleType
from typing import Any


def load(ops_file: str, *names: str) -> list[ModuleType]:
    """Import modules beside this file, or beside the table of operations, without the package.

    They, and what they import relatively, become parts of a package made here.
    """
    package = ModuleType("bench_files")
    package.__path__ = [str(pathlib.Path(ops_file).parent), str(pathlib.Path(__file__).parent)]
    sys.modules[package.__name__] = package
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


class Worker:
    """Answers the requests of the command, in order."""

    def __init__(self, args: argparse.Namespace):
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.devices // args.processes)
        jax.config.update("jax_enable_x64", args.x64)
        if args.processes > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(args.coordinator, args.processes, args.process)
        self._cases, self._ops = load(
            args.ops_file, "bench_cases", pathlib.Path(args.ops_file).stem
        )
        self._ours = args.library == "strata"
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
        self._operands: list[Any] = []
        self._meeting = self._make_meeting() if args.processes > 1 else None

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

    def measure(self, warmup: int, calls: int) -> dict[str, Any]:
        """Time calls, in seconds, after some that are not recorded.

        Their numbers are the command's: all processes of a job must make the same calls.
        """
        self._meet()
        for _ in range(warmup):
            self._run()
        return {"times_s": [self._timed() for _ in range(calls)]}

    def first(self, calls: int) -> dict[str, Any]:
        """Time calls on new operands, in seconds.

        The operands lie in memory that no collective has used: what was used before stays alive,
        but for the memory of one result, where all results go.
        """
        import jax
        import jax.numpy as jnp

        self._operands.append(self._case.inputs)
        copies = jax.jit(lambda arrays: jax.tree.map(jnp.copy, arrays))(self._case.inputs)
        self._case = dataclasses.replace(self._case, inputs=jax.block_until_ready(copies))
        self._meet()
        times = []
        for _ in range(calls):
            self._result = None
            times.append(self._timed())
        return {"times_s": times}

    def release(self) -> dict[str, Any]:
        """Drop the arrays of the case."""
        self._case = self._result = None
        self._operands = []
        return {}

    def _timed(self) -> float:
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start

    def _run(self) -> None:
        import jax

        # The last result is dropped inside the timed part, as in a loop `x = step(x)`.
        self._result = self._case.function(*self._case.inputs)
        jax.block_until_ready(self._result)

    def _make_meeting(self) -> Any:
        import jax
        import numpy as np

        mesh = self._cases.make_mesh(self._devices)
        tiny = self._cases.shard(mesh, [np.ones(1, np.float32)] * self._devices)
        total = self._cases.jit_per_device(mesh, lambda a: jax.lax.psum(a, "x"), 1, out_axis=False)
        jax.block_until_ready(total(tiny))
        return lambda: jax.block_until_ready(total(tiny))

    def _meet(self) -> None:
        """Wait for the other processes, so that none is timed while it waits for them."""
        if self._meeting is not None:
            self._meeting()


def _serve(worker: Any, library: str, channel: socket.socket) -> None:
    with channel.makefile("rw", encoding="utf-8") as stream:

        def answer(message: dict[str, Any]) -> None:
            print(json.dumps(message), file=stream, flush=True)

        answer(worker.hello())
        for line in stream:
            request = json.loads(line)
            try:
                result = getattr(worker, request.pop("command"))(**request)
                _check_baseline(library)
            except Exception:  # the command shows it and stops
                result = {"error": traceback.format_exc()}
            answer(result)


def _check_baseline(library: str) -> None:
    if library != "strata" and "strata_jax" in sys.modules:
        raise RuntimeError("bench_worker: the baseline has imported strata_jax")


def _channel(args: argparse.Namespace) -> socket.socket:
    if args.connect is None:
        return socket.socket(fileno=args.channel)
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(args.connect)
    return channel


def main() -> None:
    """Serve requests until the other end closes the socket."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, help="name of the job, for who lists processes")
    parser.add_argument("--library", required=True, choices=("strata", "lax", "mpi"))
    parser.add_argument("--devices", type=int, required=True, help="of all processes")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator", help="address for jax.distributed")
    parser.add_argument("--channel", type=int, help="an open socket to the command")
    parser.add_argument("--connect", help="or the path of one to connect to")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--ops-file", required=True)
    parser.add_argument("--package-root", required=True)
    args = parser.parse_args()
    channel = _channel(args)
    if args.library == "mpi":
        [bench_mpi] = load(args.ops_file, "bench_mpi")
        worker = bench_mpi.Worker()
    else:
        worker = Worker(args)
    _check_baseline(args.library)
    _serve(worker, args.library, channel)


if __name__ == "__main__":
    main()
