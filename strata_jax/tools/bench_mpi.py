# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""A rank of MPI that measures for `strata-jax bench --against mpi`; bench_worker.py serves it.

What MPI can do at best: its collectives alone, on numpy arrays whose memory was touched, with no
result to allocate and no compiler between. It is loaded as bench_worker.py is.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import bench_cases as cases  # relative: see there

# Names of MPI's types.
ITEMS = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int8": "INT8_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
    "uint8": "UINT8_T",
    "uint16": "UINT16_T",
    "uint32": "UINT32_T",
    "uint64": "UINT64_T",
}


@dataclasses.dataclass
class Buffers:
    """What an operation works on; two of everything, as a chain reads what it wrote before.

    Attributes:
        operands: arrays; the first is filled.
        results: of a call on each of the operands.
        calls: a call on the first operand, whose result is (in) the second or makes it, and back.
        answer: right result of a call on the first operand.
    """

    operands: list[np.ndarray]
    results: list[np.ndarray]
    calls: Sequence[Callable[[], Any]]
    answer: np.ndarray


def _reduce(name: str, comm: Any, kind: Any, rows: list[np.ndarray], dtype: str) -> Buffers:
    from mpi4py import MPI

    a, b = rows[comm.rank].copy(), np.zeros_like(rows[0])
    op = {"psum": MPI.SUM, "pmax": MPI.MAX, "pmin": MPI.MIN}[name]
    calls = [
        functools.partial(comm.Allreduce, [x, kind], [y, kind], op) for x, y in ((a, b), (b, a))
    ]
    pick = {"pmax": np.maximum, "pmin": np.minimum}
    answer = cases.sum_of(rows, dtype) if name == "psum" else pick[name].reduce(rows)
    return Buffers([a, b], [b, a], calls, answer)


def _all_gather(name: str, comm: Any, kind: Any, rows: list[np.ndarray], dtype: str) -> Buffers:
    # The next operand is the part of the next rank, in place.
    size, start = rows[0].size, (comm.rank + 1) % comm.size * rows[0].size
    gathered = [np.zeros(size * comm.size, rows[0].dtype) for _ in range(2)]
    operands = [array[start : start + size] for array in gathered[::-1]]
    operands[0][:] = rows[comm.rank]
    calls = [
        functools.partial(comm.Allgather, [x, kind], [y, kind])
        for x, y in zip(operands, gathered, strict=True)
    ]
    return Buffers(operands, gathered, calls, np.concatenate(rows))


def _reduce_scatter(name: str, comm: Any, kind: Any, rows: list[np.ndarray], dtype: str) -> Buffers:
    # The result goes to its place in the next operand.
    size = rows[0].size // comm.size
    mine = slice(comm.rank * size, (comm.rank + 1) * size)
    operands = [rows[comm.rank].copy(), rows[comm.rank].copy()]
    results = [operands[1][mine], operands[0][mine]]
    calls = [
        functools.partial(comm.Reduce_scatter_block, [x, kind], [y, kind])
        for x, y in zip(operands, results, strict=True)
    ]
    return Buffers(operands, results, calls, cases.sum_of(rows, dtype)[mine])


def _all_to_all(name: str, comm: Any, kind: Any, rows: list[np.ndarray], dtype: str) -> Buffers:
    a, b = rows[comm.rank].copy(), np.zeros_like(rows[0])
    calls = [functools.partial(comm.Alltoall, [x, kind], [y, kind]) for x, y in ((a, b), (b, a))]
    parts = [np.split(row, comm.size)[comm.rank] for row in rows]
    return Buffers([a, b], [b, a], calls, np.concatenate(parts))


OPS = {
    "psum": _reduce,
    "pmax": _reduce,
    "pmin": _reduce,
    "all_gather": _all_gather,
    "psum_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


class Worker:
    """Answers the requests of the command, in order."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self._buffers: Buffers | None = None
        self._calls: list[Callable[[], Any]] = []
        self._fresh = np.empty(0)
        self._tolerance = 0.0

    def hello(self) -> dict[str, Any]:
        """Say what runs here."""
        library = self._mpi.Get_library_version().split(",")[0].split("\n")[0].strip()
        return {"numpy": np.__version__, "devices": self._comm.size, "mpi": library}

    def prepare(self, op: str, size_bytes: int, dtype: str, mode: str) -> dict[str, Any]:
        """Make the arrays of one case and check its answer."""
        request = cases.Request(None, self._comm.size, size_bytes, dtype, mode)
        rows = cases.random_rows(self._comm.size, (request.num_elements,), dtype)
        kind = getattr(self._mpi, ITEMS[dtype])
        self._buffers = buffers = OPS[op](op, self._comm, kind, rows, dtype)
        self._fresh = buffers.operands[0].copy()
        self._tolerance = cases.tolerance(request) if op in ("psum", "psum_scatter") else 0.0
        length = cases.CHAIN_LENGTH if request.chained else 1
        self._calls = [buffers.calls[i % 2] for i in range(length)]
        return self.check()

    def check(self) -> dict[str, Any]:
        """Count the wrong elements of a call on the first operand, as it was at first."""
        assert self._buffers is not None
        self._buffers.operands[0][:] = self._fresh
        self._buffers.calls[0]()
        got = self._buffers.results[0]
        answer = self._buffers.answer
        return {"wrong": cases.num_different(got, answer, self._tolerance)}

    def measure(self, warmup: int, calls: int) -> dict[str, Any]:
        """Time calls, in seconds, after some that are not recorded."""
        assert self._buffers is not None
        self._buffers.operands[0][:] = self._fresh  # sums of a chain grow
        self._comm.Barrier()
        for _ in range(warmup):
            self._timed()
        return {"times_s": [self._timed() for _ in range(calls)]}

    def release(self) -> dict[str, Any]:
        """Drop the arrays of the case."""
        self._buffers, self._calls = None, []
        return {}

    def _timed(self) -> float:
        calls = self._calls
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start
