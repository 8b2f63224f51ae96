# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax bench`: time operations against the same ones without this package.

Jobs of one or several processes take turns, one at a time: ours, a baseline on plain `jax.lax` that
never loads this package, and the same baseline tuned through the C library's GLIBC_TUNABLES; or
another baseline (bench_contenders.py). Each checks its answer first; each row is timed in several
short rounds in turn, so that a change of the machine's speed touches all of them. Of several
processes the slowest counts, call by call. Only ratios of one invocation mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from strata_jax.tools import (
    bench_cases,
    bench_client,
    bench_contenders,
    bench_ops,
    bench_plan,
    bench_rows,
    host,
    table,
)

# Bytes that each core copies to measure the ceiling, and most bytes of all cores together.
_CEILING_BYTES = 64 << 20
_CEILING_BYTES_OF_ALL = 1 << 30
# The ceiling is the median of some turns, each the best of some rounds.
_CEILING_TURNS = 5
_CEILING_REPEAT = 3
_NOTE_WIDTH = 98


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `bench` subcommand."""
    width = max(map(len, bench_ops.OPS))
    ops = "\n".join(f"  {name.ljust(width)}  {op.about}" for name, op in bench_ops.OPS.items())
    parser = commands.add_parser(
        "bench",
        help="time operations against plain jax.lax",
        description="Time operations against the same ones without strata_jax, answers checked.",
        epilog=f"operations:\n{ops}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ops", nargs="+", metavar="OP", help="operations, from the list below")
    parser.add_argument(
        "--devices",
        metavar="N",
        help="devices of all processes together, as many in each (2, or one a process if more)",
    )
    parser.add_argument("--processes", default="1", metavar="P", help="processes (1)")
    parser.add_argument(
        "--sizes", metavar="LIST", help="such as 4K,64K,1M,16M,64M; each operation has its own"
    )
    parser.add_argument("--dtype", default="float32", metavar="TYPE", help="element type (float32)")
    parser.add_argument(
        "--mode",
        metavar="MODE",
        help="call: one collective a jit call; "
        f"chain: {bench_cases.CHAIN_LENGTH} dependent ones in one program, time for one; "
        "each operation has its own; first: the first collective on an operand in memory that "
        "none has used, and the tenth on it",
    )
    parser.add_argument(
        "--against",
        metavar="BASE",
        help="baseline: lax, in one process; gloo, jax.lax over it in as many processes; mpi, as "
        "many ranks of mpi4py; ours, but in one process (one-process), with STRATA_ARENA=off "
        "(staged) or with STRATA_POPULATE=off (unpopulated); or none (lax, gloo with --processes, "
        "unpopulated with --mode first)",
    )
    parser.add_argument(
        "--staged", action="store_true", help="run ours with STRATA_ARENA=off, so that it copies"
    )
    parser.add_argument("--repeat", default="5", metavar="R", help="rounds of a row (5)")
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE")
    parser.add_argument(
        "--deadline", default="300", metavar="S", help="seconds one step may take (300)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, ops_file: str | os.PathLike[str] | None = None) -> int:
    """Run the subcommand.

    Args:
        args: parsed arguments.
        ops_file: another table of operations for the workers, for tests.

    Returns:
        0; 1 where an answer was wrong or a worker failed; 2 for a wrong argument.
    """
    try:
        plan = bench_plan.make_plan(args)
        return Bench(plan, ops_file or bench_client.OPS_FILE).run()
    except bench_plan.UsageError as error:
        print(f"strata-jax bench: {error}", file=sys.stderr)
        return 2
    except bench_client.WorkerError as error:
        print(f"strata-jax bench: {error}", file=sys.stderr)
        return 1


class Bench:
    """One invocation: workers, rounds, rows, output."""

    def __init__(self, plan: bench_plan.Plan, ops_file: str | os.PathLike[str]):
        self._plan = plan
        self._ops_file = ops_file
        self._ceiling_gbps = 0.0
        self._host: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._baseline_wrong = 0
        steps = len(plan.contenders) * (plan.repeat + 1) + 1
        self._bar = _progress_bar(steps * len(plan.rows))

    def run(self) -> int:
        """Measure all rows and return the exit status."""
        plan = self._plan
        with self._bar:
            for flags, rows in _by_flags(plan.rows):
                with contextlib.ExitStack() as stack:
                    workers = [
                        stack.enter_context(self._start(contender, flags))
                        for contender in plan.contenders
                    ]
                    abouts = [worker.hello() for worker in workers]
                    if not self._ceiling_gbps:
                        self._begin(workers[0], abouts)
                    self._measure_rows(workers, rows)
        wrong = sum(row["wrong"] for row in self._rows)
        self._print_end(wrong)
        if plan.json_path is not None:
            self._write_json(plan.json_path)
        return 1 if wrong or self._baseline_wrong else 0

    def _start(self, contender: bench_contenders.Contender, flags: str) -> bench_client.Worker:
        return bench_client.Worker(
            contender,
            x64=bench_cases.ITEM_BYTES[self._plan.dtype] == 8,
            xla_flags=flags,
            deadline_s=self._plan.deadline_s,
            ops_file=self._ops_file,
        )

    def _begin(self, ours: bench_client.Worker, abouts: list[dict[str, Any]]) -> None:
        plan, about = self._plan, abouts[0]
        num_threads = host.num_cores()
        self._ceiling_gbps = statistics.median(
            ours.ask(
                "ceiling",
                num_bytes=min(_CEILING_BYTES, _CEILING_BYTES_OF_ALL // num_threads),
                num_threads=num_threads,
                repeat=_CEILING_REPEAT,
            )["gbps"]
            for _ in range(_CEILING_TURNS)
        )
        modes = host.huge_page_modes()
        versions = {k: about[k] for k in ("strata_jax", "jax", "jaxlib", "numpy")}
        for its_about in abouts:
            if "mpi" in its_about:
                versions["mpi"] = its_about["mpi"]
        self._host = {
            "cores": num_threads,
            "cpu": host.cpu_name(),
            "isa": about["isa"],
            "huge_pages": modes,
            "versions": versions,
            "tuned": bench_contenders.TUNABLES
            if any(contender.kind == "tuned" for contender in plan.contenders)
            else None,
        }
        named = ", ".join(f"{k} {v}" for k, v in versions.items())
        self._print(f"# {named}, Python {sys.version.split()[0]}")
        self._print(f"# {num_threads} cores, {self._host['cpu']}, kernels for {about['isa']}")
        self._print("# huge pages: " + ", ".join(f"{k} [{v}]" for k, v in modes.items()))
        self._print(
            f"# ceiling: {self._ceiling_gbps:.2f} GB/s copied with non-temporal stores by all "
            "cores; its share counts bytes that must be read and bytes that must be written"
        )
        for contender in plan.contenders:
            if contender.about:
                self._print(f"# {contender.kind}: {contender.about}")
        if plan.num_processes > 1:
            self._print("# the time of a call is that of the process where it took longest")
        if plan.rows[0].mode == bench_plan.FIRST:
            self._print(
                f"# first, tenth: call on an operand in memory that no collective has used; "
                f"medians of {plan.repeat} operands; results go to memory that was used"
            )
            return
        self._print(
            f"# times: median and 99th percentile of all calls in {plan.repeat} rounds in turn; "
            "GB = 1e9 bytes"
        )
        self._print(
            "# spread: of the rounds' medians, (largest - smallest) / median; "
            f"! is above {100 * table.SPREAD_LIMIT:.0f} %"
        )

    def _measure_rows(
        self, workers: list[bench_client.Worker], rows: Iterable[bench_plan.RowSpec]
    ) -> None:
        before: str | None = None
        for row in rows:
            if row.op != before:
                self._print_op(row)
                before = row.op
            self._measure_row(workers, row)

    def _measure_row(self, workers: list[bench_client.Worker], row: bench_plan.RowSpec) -> None:
        plan = self._plan
        self._bar.set_description(f"{row.op} {table.format_bytes(row.size_bytes)}")
        wrong = {}
        for worker in workers:
            wrong[worker.kind] = bench_rows.prepare(worker, row, plan.dtype)
            self._bar.update()
        rounds = bench_rows.measure(workers, row, plan.repeat, self._bar.update)
        for worker in workers:
            wrong[worker.kind] += bench_rows.release(worker)
        self._bar.update()
        self._baseline_wrong += sum(count for kind, count in wrong.items() if kind != "ours")
        if row.mode == bench_plan.FIRST:
            data = bench_rows.first_data(plan, row, wrong["ours"], rounds)
            line = table.first_line(data)
        else:
            data, spread = bench_rows.row_data(plan, row, wrong["ours"], rounds, self._ceiling_gbps)
            line = table.row_line(data, spread)
        self._rows.append(data)
        self._print(line)

    def _print_op(self, row: bench_plan.RowSpec) -> None:
        op, plan = bench_ops.OPS[row.op], self._plan
        self._print("")
        devices = f"{plan.num_devices} devices"
        if plan.num_processes > 1:
            devices += f" in {plan.num_processes} processes"
        self._print(f"{row.op}, {plan.dtype}, {devices}, {row.mode}: {op.about}")
        self._print(f"  size: {op.size_rule}; busbw = algbw * {op.busbw_rule}")
        if op.note:
            self._print(textwrap.indent(textwrap.fill(op.note, _NOTE_WIDTH), "  "))
        if row.mode == "chain":
            self._print(f"  {op.chain_length} dependent ones in one program, time for one")
        if op.xla_flags:
            self._print(f"  all processes run with XLA_FLAGS={op.xla_flags}")
        first = row.mode == bench_plan.FIRST
        baseline = "lax" if plan.against == "none" else plan.against
        self._print(table.head(baseline, table.FIRST_COLUMNS if first else table.COLUMNS))

    def _print_end(self, wrong: int) -> None:
        if wrong:
            self._print(f"\nWRONG: {wrong} elements of ours differ from numpy in float64")
        if self._baseline_wrong:
            self._print(f"\nWRONG: {self._baseline_wrong} elements of the baselines differ")

    def _print(self, line: str) -> None:
        self._bar.clear()
        print(line, flush=True)

    def _write_json(self, path: str) -> None:
        content = {
            "version": 1,
            "ceiling_gbps": self._ceiling_gbps,
            "host": self._host,
            "rows": self._rows,
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


def _by_flags(rows: Iterable[bench_plan.RowSpec]) -> list[tuple[str, list[bench_plan.RowSpec]]]:
    """Group rows, order kept, by the flags that their processes must be started with."""
    groups: dict[str, list[bench_plan.RowSpec]] = {}
    for row in rows:
        groups.setdefault(bench_ops.OPS[row.op].xla_flags, []).append(row)
    return list(groups.items())


def _progress_bar(total: int) -> Any:
    import tqdm

    # disable=None: only on a terminal.
    return tqdm.tqdm(total=total, disable=None, file=sys.stderr, leave=False)
