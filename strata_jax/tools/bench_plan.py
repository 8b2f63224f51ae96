# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What an invocation of `strata-jax bench` asks for: its arguments, checked."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from strata_jax.tools import bench_cases, bench_ops, host, table

MAX_DEVICES = 256
# Processes that measure, by baseline; ours is the first.
KINDS = {"lax": ("ours", "lax", "tuned"), "none": ("ours",)}
# Memory that a worker holds at once, in bytes that the operation reads and writes: the inputs, the
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
    num_devices = _whole(args.devices, "--devices", 1, MAX_DEVICES)
    num_processes = _whole(args.processes, "--processes", 1, MAX_DEVICES)
    repeat = _whole(args.repeat, "--repeat", 1, 1000)
    deadline_s = _whole(args.deadline, "--deadline", 1, 86400)
    _known(args.against, "--against", ("lax", "gloo", "none"))
    if num_processes > 1 or args.against == "gloo":
        asked = f"--processes {num_processes}" if num_processes > 1 else "--against gloo"
        raise UsageError(
            f"{asked}: asks for several processes, but this version joins the devices of one "
            "process only; allowed are --processes 1 and --against lax or none. Use --devices N "
            "to measure N devices in one process."
        )
    _known(args.dtype, "--dtype", tuple(bench_cases.ITEM_BYTES))
    rows = []
    for name in args.ops:
        _known(name, "OP", tuple(bench_ops.OPS))
        rows += _rows_of(name, args, num_devices)
    if args.json is not None and not pathlib.Path(args.json).absolute().parent.is_dir():
        raise UsageError(
            f"--json {args.json}: its folder does not exist; the file is written at the end, into "
            "a folder that is there. Make the folder first."
        )
    plan = Plan(tuple(rows), num_devices, args.dtype, args.against, repeat, args.json, deadline_s)
    _check_memory(plan)
    return plan


def _rows_of(name: str, args: argparse.Namespace, num_devices: int) -> list[RowSpec]:
    op = bench_ops.OPS[name]
    mode = args.mode or op.modes[0]
    _known(mode, f"--mode of {name}", op.modes)
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
        sizes = list(dict.fromkeys(-(-size // unit) * unit for size in op.default_sizes))
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
    num_workers = len(KINDS[plan.against])
    needed, largest = max(
        (bench_ops.OPS[row.op].moved_bytes(plan.num_devices, row.size_bytes), row.size_bytes)
        for row in plan.rows
    )
    needed *= _TIMES_HELD * num_workers
    _, available = host.memory_bytes()
    available = min(available, host.cgroup_limit_bytes() or available)
    if available and needed > available:
        raise UsageError(
            f"--sizes {table.format_bytes(largest)} with --devices {plan.num_devices}: needs about "
            f"{needed / 1e9:.1f} GB in {num_workers} processes, but {available / 1e9:.1f} GB are "
            "available; the product of size and devices must fit. Choose a smaller size or fewer "
            "devices."
        )
