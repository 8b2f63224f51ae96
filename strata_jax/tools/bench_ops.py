# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The table of operations that `strata-jax bench` can measure.

An entry says how an operation is built, how its size is counted, its bus bandwidth factor and the
bytes it has to read and write. The operations come from the `collectives` a worker hands in, which
is `strata_jax` in ours and `jax.lax` in a baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from . import bench_cases as cases  # relative: see there
from . import bench_links as links
from . import bench_programs as programs

KIB = 1024
MIB = 1024 * KIB


@dataclasses.dataclass(frozen=True)
class Op:
    """One entry of the table.

    Attributes:
        about: what is measured, in one line.
        build: makes the case of a request; runs in a worker.
        size_rule: how the size of a row is counted.
        busbw_rule: the bus bandwidth factor as text.
        busbw_factor: the factor for a number of devices. It turns the algbw of this table's size
            into the bus bandwidth that nccl-tests would report, whose sizes may be others.
        read_bytes: payload bytes that have to be read, by all devices together, each once, from
            (devices, size).
        written_bytes: the same of bytes to write. `moved_bytes` of both make the ceiling.
        note: what a reader of the numbers should know besides, in one line: the work between the
            operations of a chain, what the baseline is.
        modes: modes that make sense, the default first.
        chain_length: operations in one program of mode `chain`.
        dtypes: element types it takes.
        default_sizes: sizes of the rows when none are asked for, rounded up to `unit_bytes`.
        unit_bytes: a size must be a multiple of it, from (bytes of an element, devices).
        smallest_bytes: the smallest size, from the same; None for `unit_bytes`.
        least_devices: fewest devices it makes sense with.
        xla_flags: flags for every process that measures this operation.
    """

    about: str
    build: Callable[[cases.Request], cases.Case]
    size_rule: str
    busbw_rule: str = "2(n-1)/n"
    busbw_factor: Callable[[int], float] = lambda n: 2 * (n - 1) / n
    read_bytes: Callable[[int, int], int] = lambda n, size: n * size
    written_bytes: Callable[[int, int], int] = lambda n, size: n * size
    note: str = ""
    modes: tuple[str, ...] = ("call", "chain")
    chain_length: int = cases.CHAIN_LENGTH
    dtypes: tuple[str, ...] = tuple(cases.ITEM_BYTES)
    default_sizes: tuple[int, ...] = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
    unit_bytes: Callable[[int, int], int] = lambda item_bytes, n: item_bytes
    smallest_bytes: Callable[[int, int], int] | None = None
    least_devices: int = 2
    xla_flags: str = ""

    def moved_bytes(self, num_devices: int, size_bytes: int) -> int:
        """Return the least bytes that are read and written, both counted."""
        return self.read_bytes(num_devices, size_bytes) + self.written_bytes(
            num_devices, size_bytes
        )


_PER_DEVICE = "bytes of the buffer on each device (nccl-tests' rule for all_reduce)"
_OPERAND = "bytes of the operand on each device"
_MATRIX = f"{_OPERAND}, rows of {links.ROW_WIDTH} elements"
_GRADIENTS = f"bytes of all {programs.NUM_GRADIENTS} parameters together, on each device"


def _reduce(about: str, name: str, **changes: Any) -> Op:
    return Op(about, links.builder(links.reduce(name)), _PER_DEVICE, **changes)


def _part(about: str, link_of: Callable[[cases.Request], links.Link], **changes: Any) -> Op:
    """Return the entry of an operation of which a share of (n-1)/n crosses devices."""
    entry: dict[str, Any] = {
        "size_rule": _MATRIX,
        "busbw_rule": "(n-1)/n",
        "unit_bytes": lambda item_bytes, n: links.ROW_WIDTH * item_bytes * n,
    }
    return Op(
        about,
        links.builder(link_of),
        busbw_factor=lambda n: (n - 1) / n,
        **(entry | changes),
    )


def _whole(about: str, link_of: Callable[[cases.Request], links.Link], **changes: Any) -> Op:
    """Return the entry of an operation that moves whole operands."""
    return Op(
        about,
        links.builder(link_of),
        _OPERAND,
        busbw_rule="1",
        busbw_factor=lambda n: 1.0,
        **changes,
    )


def _gradients(about: str, **changes: Any) -> Op:
    return Op(
        about,
        programs.build_gradients,
        _GRADIENTS,
        modes=("chain", "call"),
        chain_length=programs.GRADIENTS_CHAIN_LENGTH,
        dtypes=("float32", "float64", "bfloat16"),  # the sums of a chain are too large for float16
        default_sizes=(4 * MIB,),
        smallest_bytes=lambda item_bytes, n: programs.NUM_GRADIENTS * item_bytes,
        **changes,
    )


OPS: dict[str, Op] = {
    "psum": _reduce("sum over the devices", "psum"),
    "pmean": _reduce("mean over the devices", "pmean", dtypes=cases.FLOATS),
    "pmax": _reduce("maximum over the devices", "pmax"),
    "pmin": _reduce("minimum over the devices", "pmin"),
    "all_gather": Op(
        "concatenation of all devices' shards",
        links.builder(links.all_gather),
        "bytes of the shard of each device (nccl-tests' size is n times it)",
        busbw_rule="(n-1)",
        busbw_factor=lambda n: n - 1.0,
        written_bytes=lambda n, size: n * n * size,
        note="a chain goes on with the next device's shard, sliced out of each result",
    ),
    "psum_scatter": _part(
        "each device's part of the sum over the devices",
        links.psum_scatter,
        size_rule=_OPERAND,
        written_bytes=lambda n, size: size,
        note="a chain writes each result, divided by n, into its place in the operand",
        unit_bytes=lambda item_bytes, n: item_bytes * n,
    ),
    "all_to_all": _part(
        "a part of each array to every device, split and concatenated along axis 0",
        links.all_to_all,
        note="XLA itself joins the parts that a device receives only at the end of a chain",
    ),
    "all_to_all_axis": _part(
        "a part of each array to every device, split along axis 0, concatenated along axis 1",
        links.all_to_all_axis,
        note="a chain reshapes each result to the operand's shape, which moves nothing",
    ),
    "ppermute": _whole("shift by one around the ring of devices", links.ppermute),
    "pbroadcast": _whole(
        "one device's array to all",
        links.pbroadcast,
        read_bytes=lambda n, size: size,
        note="XLA's CPU compiler has none: the baseline is psum(where(axis_index == source, x, "
        "0)); a chain takes the devices in turn, and negates each result",
    ),
    "ragged_all_to_all": _part(
        "rows to every device, to one n times as many as to another",
        links.ragged_all_to_all,
        busbw_rule="(n-1)/n (nccl-tests' rule for alltoallv)",
        unit_bytes=lambda item_bytes, n: links.ROW_WIDTH * item_bytes,
        note="XLA's CPU compiler has none: the baseline is an all_to_all of slices padded to the "
        "longest, cut out and put in place as dynamic slices; ours has the zeros of `output` to "
        "make as well, in a chain only once",
    ),
    "independent": Op(
        f"{len(programs.INDEPENDENT)} collectives of different kinds, in one program",
        programs.build_independent,
        "bytes of the larger of operand and result of each collective, on each device",
        busbw_rule="(1 + 7(n-1)/n), the sum of the six",
        busbw_factor=lambda n: 1 + 7 * (n - 1) / n,
        read_bytes=lambda n, size: (5 * n + 1) * size,
        written_bytes=lambda n, size: (5 * n + 1) * size,
        note=f"{', '.join(programs.INDEPENDENT)}; the time is that of all",
        chain_length=programs.INDEPENDENT_CHAIN_LENGTH,
        default_sizes=(4 * MIB,),
        unit_bytes=lambda item_bytes, n: links.ROW_WIDTH * item_bytes * n,
    ),
    "add_one": Op(
        "x + 1, no collective: the cost of fresh memory for results",
        programs.build_add_one,
        "bytes of the buffer on each device",
        busbw_rule="1, no bytes cross devices",
        busbw_factor=lambda n: 1.0,
        modes=("call",),
        least_devices=1,
    ),
    "psum_matmul": Op(
        f"sum over the devices after a float32 product with a {programs.MATMUL_WIDTH}x"
        f"{programs.MATMUL_WIDTH} matrix; the time is that of both",
        programs.build_psum_matmul,
        f"bytes of the buffer on each device, seen as rows of {programs.MATMUL_WIDTH}",
        modes=("chain",),
        dtypes=("float32",),
        default_sizes=(4 * KIB, 64 * KIB, MIB),
        unit_bytes=lambda item_bytes, n: programs.MATMUL_WIDTH * item_bytes,
    ),
    "gradients": _gradients(f"psum of a pytree of {programs.NUM_GRADIENTS} parameters"),
    "gradients_uncombined": _gradients(
        f"psum of a pytree of {programs.NUM_GRADIENTS} parameters, XLA's all-reduce combiner "
        "turned off",
        xla_flags="--xla_disable_hlo_passes=cpu-all-reduce-combiner",
    ),
    "fsdp": Op(
        f"training step by plain jit, {programs.NUM_LAYERS} layers, weights divided among devices",
        programs.build_fsdp,
        "bytes of all weights together, on all devices together",
        busbw_rule="2(n-1)/n, one all_gather and one psum_scatter",
        read_bytes=lambda n, size: (1 + n) * size,
        written_bytes=lambda n, size: (n + 1) * size,
        note=f"tanh(x @ w), {programs.BATCH_ROWS} rows a device, SGD; weights are gathered, "
        "gradients summed and divided, by XLA itself as an all_reduce and slices; arithmetic is in "
        "the time, not in busbw and ceiling",
        modes=("call",),
        dtypes=("float32",),
        default_sizes=(32 * MIB,),
        unit_bytes=lambda item_bytes, n: (
            programs.NUM_LAYERS * programs.layer_width(n) * item_bytes * n
        ),
    ),
}
