# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The table of operations that `strata-jax bench` can measure.

An entry says how an operation is built, how its size is counted, its bus bandwidth factor and the
bytes it has to move. This file is loaded by its path in the baseline's processes, so it imports
nothing of strata_jax; the operations come from the `collectives` a worker hands in, which is
`strata_jax` in ours and `jax.lax` in a baseline. JAX is imported when an operation is built.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

KIB = 1024
MIB = 1024 * KIB

# Collectives in one program of mode `chain`; the time of a row is that of one of them.
CHAIN_LENGTH = 50
# Width of the matrix in psum_matmul, and so of the rows that its buffer is seen as.
MATMUL_WIDTH = 128
NUM_GRADIENTS = 100
# Steps of the gradients' chain: fewer, as each is 100 collectives to compile when not combined.
GRADIENTS_CHAIN_LENGTH = 5
SEED = 20260729

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
FLOATS = ("float32", "float64", "float16", "bfloat16")
# Error allowed for one reduction, relative to numpy in float64: a few units in the last place.
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 4e-3, "bfloat16": 3e-2}


@dataclasses.dataclass(frozen=True)
class Request:
    """What one row of the benchmark asks to be built.

    Attributes:
        collectives: module that has `psum` and the rest.
        num_devices: devices the program runs on.
        size_bytes: size of the row, counted as the entry's `size_rule` says.
        dtype: name of the element type.
        mode: "call" or "chain".
    """

    collectives: Any
    num_devices: int
    size_bytes: int
    dtype: str
    mode: str


@dataclasses.dataclass(frozen=True)
class Case:
    """A compiled-on-first-use program, its inputs and its right answers.

    Attributes:
        function: jitted function of `inputs`.
        inputs: arrays, sharded over the devices.
        expected: for each output leaf, for each device, what its shard must hold.
        tolerance: error allowed, relative to the larger of `scale` and the value; 0 for bits.
        scale: size of the numbers that are summed.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    expected: list[list[np.ndarray]]
    tolerance: float
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Op:
    """One entry of the table.

    Attributes:
        about: what is measured, in one line.
        build: makes the case of a request; runs in a worker.
        size_rule: how the size of a row is counted.
        busbw_rule: the bus bandwidth factor as text.
        busbw_factor: the factor for a number of devices.
        copied_bytes: payload bytes that have to be read and written once, from (devices, size).
        modes: modes that make sense, the default first.
        chain_length: operations in one program of mode `chain`.
        dtypes: element types it takes.
        default_sizes: sizes of the rows when none are asked for.
        unit_bytes: a size must be a multiple of it, from the bytes of an element.
        smallest_bytes: the smallest size, from the bytes of an element.
        least_devices: fewest devices it makes sense with.
        xla_flags: flags for every process that measures this operation.
    """

    about: str
    build: Callable[[Request], Case]
    size_rule: str
    busbw_rule: str = "2(n-1)/n"
    busbw_factor: Callable[[int], float] = lambda n: 2 * (n - 1) / n
    copied_bytes: Callable[[int, int], int] = lambda n, size: n * size
    modes: tuple[str, ...] = ("call", "chain")
    chain_length: int = CHAIN_LENGTH
    dtypes: tuple[str, ...] = tuple(ITEM_BYTES)
    default_sizes: tuple[int, ...] = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
    unit_bytes: Callable[[int], int] = lambda item_bytes: item_bytes
    smallest_bytes: Callable[[int], int] = lambda item_bytes: item_bytes
    least_devices: int = 2
    xla_flags: str = ""


def _jnp_dtype(name: str) -> np.dtype[Any]:
    import jax.numpy as jnp  # gives numpy the name bfloat16

    dtype: np.dtype[Any] = np.dtype(getattr(jnp, name))
    return dtype


def _random_rows(num_rows: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """One host array for each device, with sums that stay inside an integer's range."""
    kind = _jnp_dtype(dtype)
    rows = []
    for row in range(num_rows):
        generator = np.random.default_rng((SEED, row, *shape))
        if dtype in FLOATS:
            values = generator.uniform(-1, 1, shape).astype(kind)
        else:
            high = max(1, min(1000, np.iinfo(kind).max // (2 * num_rows)))
            low = 0 if np.iinfo(kind).min == 0 else -high
            values = generator.integers(low, high, shape, endpoint=True).astype(kind)
        rows.append(values)
    return rows


def _mesh(num_devices: int) -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ("x",))


def _shard(mesh: Any, rows: Sequence[np.ndarray]) -> Any:
    """Put row i on device i, as one array of shape [devices * rows, ...]."""
    import jax
    import jax.numpy as jnp

    shape = (len(rows) * rows[0].shape[0], *rows[0].shape[1:])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    pieces = [jax.device_put(r, d) for r, d in zip(rows, mesh.devices.flat, strict=True)]
    array = jax.make_array_from_single_device_arrays(shape, sharding, pieces)
    # device_put may alias numpy's memory; a program's own arrays come from XLA's allocator.
    return jax.block_until_ready(jax.jit(jnp.copy)(array))


def _jit_per_device(mesh: Any, body: Callable[..., Any], num_inputs: int, out_axis: bool) -> Any:
    """Jit `body` over the shards; `out_axis` says that each device's result is its own."""
    import jax

    spec: Any = jax.sharding.PartitionSpec
    # check_vma=False: a chain feeds a psum's replicated result to the next psum as it is.
    mapped = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(spec("x"),) * num_inputs,
        out_specs=spec("x") if out_axis else spec(),
        check_vma=False,
    )
    return jax.jit(mapped)


def _wide(rows: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
    return [r.astype(np.float64 if dtype in FLOATS else r.dtype) for r in rows]


def _sum_of(rows: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    total = np.zeros_like(rows[0], np.float64 if dtype in FLOATS else rows[0].dtype)
    for row in rows:
        total += row.astype(total.dtype)
    return total


def _tolerance(request: Request, *, num_roundings: int = 1) -> float:
    if request.dtype not in FLOATS:
        return 0.0
    return TOLERANCE[request.dtype] * request.num_devices * num_roundings


def _build_reduce(name: str) -> Callable[[Request], Case]:
    """Make the builder of an all-reduce: psum, pmean, pmax or pmin."""

    def build(request: Request) -> Case:
        n, dtype = request.num_devices, request.dtype
        reduce = getattr(request.collectives, name)
        chained = request.mode == "chain"

        def rescale(a: Any) -> Any:
            """Keep the values of a chain of sums bounded."""
            if name != "psum":
                return a
            return a * (1 / n) if dtype in FLOATS else a // n

        def body(a: Any) -> Any:
            if not chained:
                return reduce(a, "x")
            for _ in range(CHAIN_LENGTH):
                a = rescale(reduce(a, "x"))
            return a

        mesh = _mesh(n)
        rows = _random_rows(n, (request.size_bytes // ITEM_BYTES[dtype],), dtype)
        if name in ("pmax", "pmin"):
            pick = np.maximum if name == "pmax" else np.minimum
            answer = _wide([pick.reduce(rows)], dtype)[0]
        else:
            answer = _sum_of(rows, dtype)
            if name == "pmean":
                answer = answer / n
            elif chained:
                # After the first step all devices hold the mean, which later steps keep.
                answer = answer / n if dtype in FLOATS else answer // n
        # Scaling by 1/n is exact where n is a power of two, and rounds at each step elsewhere.
        rounds = CHAIN_LENGTH if chained and n & (n - 1) else 1
        return Case(
            function=_jit_per_device(mesh, body, 1, out_axis=chained),
            inputs=(_shard(mesh, rows),),
            expected=[[answer] * n],
            tolerance=_tolerance(request, num_roundings=rounds),
        )

    return build


def _build_add_one(request: Request) -> Case:
    n, dtype = request.num_devices, request.dtype
    mesh = _mesh(n)
    rows = _random_rows(n, (request.size_bytes // ITEM_BYTES[dtype],), dtype)
    return Case(
        function=_jit_per_device(mesh, lambda a: a + 1, 1, out_axis=True),
        inputs=(_shard(mesh, rows),),
        expected=[[row + row.dtype.type(1) for row in _wide(rows, dtype)]],
        tolerance=_tolerance(request),
    )


def _build_psum_matmul(request: Request) -> Case:
    n, width = request.num_devices, MATMUL_WIDTH
    psum = request.collectives.psum
    # An orthogonal matrix keeps the length of every row over the whole chain.
    matrix = np.linalg.qr(np.random.default_rng(SEED).normal(size=(width, width)))[0]
    matrix = matrix.astype(np.float32)

    def body(a: Any, w: Any) -> Any:
        for _ in range(CHAIN_LENGTH):
            a = psum(a @ w, "x") * (1 / n)
        return a

    mesh = _mesh(n)
    rows = _random_rows(n, (request.size_bytes // (4 * width), width), request.dtype)
    # After the first step all devices hold the same, so the rest is one product of matrices.
    mean = _sum_of(rows, request.dtype) / n
    answer = mean @ np.linalg.matrix_power(matrix.astype(np.float64), CHAIN_LENGTH)
    return Case(
        function=_jit_per_device(mesh, body, 2, out_axis=True),
        inputs=(_shard(mesh, rows), _shard(mesh, [matrix] * n)),
        expected=[[answer] * n],
        tolerance=_tolerance(request, num_roundings=CHAIN_LENGTH),
    )


def gradient_shapes(num_elements: int) -> list[tuple[int, ...]]:
    """Return the shapes of NUM_GRADIENTS small parameters that add up to `num_elements`."""
    weights = [1 + (37 * i) % 23 for i in range(NUM_GRADIENTS)]
    spare = num_elements - NUM_GRADIENTS
    counts = [1 + spare * weight // sum(weights) for weight in weights]
    counts[-1] += num_elements - sum(counts)
    # Every second one is a matrix where its length allows, as weights and biases alternate.
    return [
        (16, count // 16) if i % 2 == 0 and count % 16 == 0 else (count,)
        for i, count in enumerate(counts)
    ]


def _build_gradients(request: Request) -> Case:
    import jax.numpy as jnp

    n, dtype = request.num_devices, request.dtype
    psum = request.collectives.psum
    num_elements = request.size_bytes // ITEM_BYTES[dtype]
    num_steps = GRADIENTS_CHAIN_LENGTH if request.mode == "chain" else 1
    shapes = gradient_shapes(num_elements)
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))

    def body(flat: Any) -> Any:
        # As in a training step, the gradients begin and end inside the program; passing 100
        # arrays in and out of it would cost more than the collective that is measured.
        pieces = jnp.split(flat, ends[:-1])
        tree = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        for _ in range(num_steps):
            tree = psum(tree, "x")
        return jnp.concatenate([leaf.ravel() for leaf in tree])

    mesh = _mesh(n)
    rows = _random_rows(n, (num_elements,), dtype)
    # Nothing scales the sums down between the steps, so that collectives alone are timed.
    growth = float(n) ** (num_steps - 1)
    return Case(
        function=_jit_per_device(mesh, body, 1, out_axis=False),
        inputs=(_shard(mesh, rows),),
        expected=[[_sum_of(rows, dtype) * growth] * n],
        tolerance=_tolerance(request, num_roundings=num_steps),
        scale=growth,
    )


def count_wrong(result: Any, case: Case) -> int:
    """Count the elements of `result` that differ from the right answer, on every device."""
    import jax

    wrong = 0
    for leaf, answers in zip(jax.tree.leaves(result), case.expected, strict=True):
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
        for shard, answer in zip(shards, answers, strict=True):
            got = np.asarray(shard.data)
            if case.tolerance:
                error = np.abs(got.astype(np.float64) - answer)
                # Written so that a NaN counts as wrong.
                right = error <= case.tolerance * np.maximum(case.scale, np.abs(answer))
            else:
                right = got == answer
            wrong += right.size - int(np.count_nonzero(right))
    return wrong


_PER_DEVICE = "bytes of the buffer on each device (nccl-tests' rule for all_reduce)"
_GRADIENTS = f"bytes of all {NUM_GRADIENTS} parameters together, on each device"


def _gradients(about: str, **changes: Any) -> Op:
    return Op(
        about=about,
        build=_build_gradients,
        size_rule=_GRADIENTS,
        modes=("chain", "call"),
        chain_length=GRADIENTS_CHAIN_LENGTH,
        dtypes=("float32", "float64", "bfloat16"),  # the sums of a chain are too large for float16
        default_sizes=(4 * MIB,),
        smallest_bytes=lambda item_bytes: NUM_GRADIENTS * item_bytes,
        **changes,
    )


OPS: dict[str, Op] = {
    "psum": Op("sum over the devices", _build_reduce("psum"), _PER_DEVICE),
    "pmean": Op("mean over the devices", _build_reduce("pmean"), _PER_DEVICE, dtypes=FLOATS),
    "pmax": Op("maximum over the devices", _build_reduce("pmax"), _PER_DEVICE),
    "pmin": Op("minimum over the devices", _build_reduce("pmin"), _PER_DEVICE),
    "add_one": Op(
        "x + 1, no collective: the cost of fresh memory for results",
        _build_add_one,
        "bytes of the buffer on each device",
        busbw_rule="1, no bytes cross devices",
        busbw_factor=lambda n: 1.0,
        modes=("call",),
        least_devices=1,
    ),
    "psum_matmul": Op(
        f"sum over the devices after a float32 product with a {MATMUL_WIDTH}x{MATMUL_WIDTH} "
        "matrix; the time is that of both",
        _build_psum_matmul,
        f"bytes of the buffer on each device, seen as rows of {MATMUL_WIDTH}",
        modes=("chain",),
        dtypes=("float32",),
        default_sizes=(4 * KIB, 64 * KIB, MIB),
        unit_bytes=lambda item_bytes: MATMUL_WIDTH * item_bytes,
        smallest_bytes=lambda item_bytes: MATMUL_WIDTH * item_bytes,
    ),
    "gradients": _gradients(f"psum of a pytree of {NUM_GRADIENTS} parameters"),
    "gradients_uncombined": _gradients(
        f"psum of a pytree of {NUM_GRADIENTS} parameters, XLA's all-reduce combiner turned off",
        xla_flags="--xla_disable_hlo_passes=cpu-all-reduce-combiner",
    ),
}
