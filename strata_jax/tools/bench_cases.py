# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What the programs that `strata-jax bench` measures are made of: inputs, answers, checks.

Baselines load these files as parts of a package of another name (`bench_worker.load`), so they
import each other by relative imports, and nothing else of strata_jax. JAX is imported when a
program is built.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Collectives in one program of mode `chain`; the time of a row is that of one of them. A prime:
# otherwise a chain of permutations could end with every array where it began.
CHAIN_LENGTH = 53
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
        collectives: module that has `psum` and the rest: `strata_jax` in ours, `jax.lax` in a
            baseline.
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

    @property
    def num_elements(self) -> int:
        """Elements in `size_bytes`."""
        return self.size_bytes // ITEM_BYTES[self.dtype]

    @property
    def chained(self) -> bool:
        """Whether the mode is "chain"."""
        return self.mode == "chain"

    @property
    def is_lax(self) -> bool:
        """Whether only what XLA's CPU compiler has can be used."""
        return str(self.collectives.__name__) == "jax.lax"


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


def jnp_dtype(name: str) -> np.dtype[Any]:
    """Return the element type of a name."""
    import jax.numpy as jnp  # gives numpy the name bfloat16

    dtype: np.dtype[Any] = np.dtype(getattr(jnp, name))
    return dtype


def random_rows(num_rows: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """One host array for each device, with sums that stay inside an integer's range."""
    kind = jnp_dtype(dtype)
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


def make_mesh(num_devices: int) -> Any:
    """Return a mesh of one axis, "x"."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ("x",))


def shard(mesh: Any, rows: Sequence[np.ndarray]) -> Any:
    """Put row i on device i, as one array of shape [devices * rows, ...].

    Of several processes each has all rows, and puts those of its own devices.
    """
    import jax
    import jax.numpy as jnp

    shape = (len(rows) * rows[0].shape[0], *rows[0].shape[1:])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    pairs = zip(rows, mesh.devices.flat, strict=True)
    pieces = [jax.device_put(row, d) for row, d in pairs if d.process_index == jax.process_index()]
    array = jax.make_array_from_single_device_arrays(shape, sharding, pieces)
    # device_put may alias numpy's memory; a program's own arrays come from XLA's allocator.
    return jax.block_until_ready(jax.jit(jnp.copy)(array))


def jit_per_device(mesh: Any, body: Callable[..., Any], num_inputs: int, out_axis: bool) -> Any:
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


def wide(rows: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Return the rows as numpy computes answers in: float64, or the integers themselves."""
    return [r.astype(np.float64 if dtype in FLOATS else r.dtype) for r in rows]


def sum_of(rows: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """Return the sum of the rows, as wide as `wide`."""
    total = np.zeros_like(rows[0], np.float64 if dtype in FLOATS else rows[0].dtype)
    for row in rows:
        total += row.astype(total.dtype)
    return total


def divide(value: Any, count: int, dtype: str) -> Any:
    """Divide an array of numpy or JAX by a number, as a chain of sums does to stay bounded."""
    return value * (1 / count) if dtype in FLOATS else value // count


def tolerance(request: Request, *, num_roundings: int = 1) -> float:
    """Return the error allowed after some reductions."""
    if request.dtype not in FLOATS:
        return 0.0
    return TOLERANCE[request.dtype] * request.num_devices * num_roundings


def count_wrong(result: Any, case: Case) -> int:
    """Count the elements of `result` that differ from the right answer, on this process's devices.

    The answers are those of the first devices of the job, in the order of `jax.devices()`.
    """
    import jax

    wrong = 0
    for leaf, answers in zip(jax.tree.leaves(result), case.expected, strict=True):
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
        places = [device.process_index == jax.process_index() for device in jax.devices()]
        mine = list(itertools.compress(answers, places))
        for piece, answer in zip(shards, mine, strict=True):
            wrong += num_different(np.asarray(piece.data), answer, case.tolerance, case.scale)
    return wrong


def num_different(got: np.ndarray, answer: np.ndarray, tolerance: float, scale: float = 1.0) -> int:
    """Count the elements of `got` that differ from the right answer; see `Case`."""
    if tolerance:
        error = np.abs(got.astype(np.float64) - answer)
        # Written so that a NaN counts as wrong.
        right = error <= tolerance * np.maximum(scale, np.abs(answer))
    else:
        right = got == answer
    return int(right.size - np.count_nonzero(right))
