# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""One row of `strata-jax bench`: the rounds that jobs take in turn, and its numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from strata_jax.tools import bench_client, bench_ops, bench_plan

# One round of one row: about this long, and between these numbers of calls.
_ROUND_S = 0.15
_LEAST_CALLS = {"call": 3, "chain": 1}
_MOST_CALLS = 200
# A job whose calls of a row took so long leaves the rounds from the third on to the others.
_MOST_S = 15.0
_LEAST_ROUNDS = 2
# Time before the recorded calls of a round: others had the caches until now. A call as long as a
# round warms itself.
_WARMUP_S = 0.005
_MOST_WARMUP = 1000
# Calls on a new operand, of mode `first`.
_FIRST_CALLS = 10

# Of each kind of job, of each round, the times of its calls in seconds.
Rounds = dict[str, list[list[float]]]


def prepare(worker: bench_client.Worker, row: bench_plan.RowSpec, dtype: str) -> int:
    """Build a case in all processes of a job; return the number of wrong elements."""
    mode = "call" if row.mode == bench_plan.FIRST else row.mode
    answers = worker.ask_all(
        "prepare", op=row.op, size_bytes=row.size_bytes, dtype=dtype, mode=mode
    )
    return sum(int(answer["wrong"]) for answer in answers)


def release(worker: bench_client.Worker) -> int:
    """Drop a case; return the number of wrong elements of its last result."""
    # On the last timed result: memory reused too early would show here.
    wrong = sum(int(answer["wrong"]) for answer in worker.ask_all("check"))
    worker.ask_all("release")
    return wrong


def measure(
    workers: Sequence[bench_client.Worker],
    row: bench_plan.RowSpec,
    num_rounds: int,
    progress: Callable[[], Any],
) -> Rounds:
    """Let jobs measure in turn."""
    rounds: Rounds = {worker.kind: [] for worker in workers}
    if row.mode == bench_plan.FIRST:
        for _ in range(num_rounds):
            for worker in workers:
                rounds[worker.kind].append(_slowest(worker, "first", calls=_FIRST_CALLS))
                progress()
        return rounds
    # Seconds of one call, from the last round; before the first from a call of its own.
    expected = {
        worker.kind: _slowest(worker, "measure", warmup=0, calls=1)[0] for worker in workers
    }
    for number in range(num_rounds):
        for worker in workers:
            mine = rounds[worker.kind]
            progress()
            if number >= _LEAST_ROUNDS and sum(map(sum, mine)) > _MOST_S:
                continue
            warmup, calls = num_calls(expected[worker.kind], row.mode)
            mine.append(_slowest(worker, "measure", warmup=warmup, calls=calls))
            expected[worker.kind] = statistics.median(mine[-1])
    return rounds


def num_calls(seconds: float, mode: str) -> tuple[int, int]:
    """Return the calls of a round that are not recorded, and those that are.

    Args:
        seconds: what one call takes, about.
        mode: "call" or "chain".
    """
    seconds = max(seconds, 1e-9)
    warmup = 0 if seconds > _ROUND_S else min(math.ceil(_WARMUP_S / seconds), _MOST_WARMUP)
    calls = min(max(math.ceil(_ROUND_S / seconds), _LEAST_CALLS[mode]), _MOST_CALLS)
    return warmup, calls


def _slowest(worker: bench_client.Worker, command: str, **arguments: int) -> list[float]:
    """Return the time of each call in the process where it took longest."""
    answers = worker.ask_all(command, **arguments)
    return [max(times) for times in zip(*(a["times_s"] for a in answers), strict=True)]


def row_data(
    plan: bench_plan.Plan,
    row: bench_plan.RowSpec,
    wrong: int,
    rounds: Rounds,
    ceiling_gbps: float,
) -> tuple[dict[str, Any], float]:
    """Return a row of the JSON file, and the spread of our rounds."""
    op = bench_ops.OPS[row.op]
    per_call = op.chain_length if row.mode == "chain" else 1
    times = {k: sorted(t / per_call for r in v for t in r) for k, v in rounds.items()}
    median = {kind: statistics.median(values) for kind, values in times.items()}
    middles = [statistics.median(r) for r in rounds["ours"]]
    ours, base, tuned = median["ours"], median.get(plan.against), median.get("tuned")
    algbw = row.size_bytes / ours / 1e9
    # A copy reads and writes a byte for each that it counts.
    copied = op.moved_bytes(plan.num_devices, row.size_bytes) / 2
    data = _row_head(plan, row) | {
        "median_us": ours * 1e6,
        "p99_us": percentile(times["ours"], 0.99) * 1e6,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * op.busbw_factor(plan.num_devices),
        "wrong": wrong,
        "baseline": _baseline(plan),
        "baseline_median_us": base * 1e6 if base else None,
        "speedup": base / ours if base else None,
        "tuned_median_us": tuned * 1e6 if tuned else None,
        "tuned_speedup": tuned / ours if tuned else None,
        "ceiling_share": copied / (ceiling_gbps * 1e9) / ours,
    }
    return data, (max(middles) - min(middles)) / statistics.median(middles)


def first_data(
    plan: bench_plan.Plan, row: bench_plan.RowSpec, wrong: int, rounds: Rounds
) -> dict[str, Any]:
    """Return a row of the JSON file of mode `first`."""
    data = _row_head(plan, row) | {"wrong": wrong, "baseline": _baseline(plan)}
    for prefix, kind in (("", "ours"), ("baseline_", plan.against)):
        first = tenth = None
        if kind in rounds:
            first = statistics.median(r[0] for r in rounds[kind]) * 1e6
            tenth = statistics.median(r[-1] for r in rounds[kind]) * 1e6
        data[f"{prefix}first_us"], data[f"{prefix}tenth_us"] = first, tenth
        data[f"{prefix}ratio"] = first / tenth if first and tenth else None
    return data


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the sorted values do not exceed."""
    index = max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)
    return ordered[index]


def _baseline(plan: bench_plan.Plan) -> str | None:
    return None if plan.against == "none" else plan.against


def _row_head(plan: bench_plan.Plan, row: bench_plan.RowSpec) -> dict[str, Any]:
    return {
        "op": row.op,
        "dtype": plan.dtype,
        "devices": plan.num_devices,
        "processes": plan.num_processes,
        "mode": row.mode,
        "size_bytes": row.size_bytes,
    }
