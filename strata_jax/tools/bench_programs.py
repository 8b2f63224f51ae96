# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The programs of several operations that `strata-jax bench` measures, and the one of none."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from . import bench_cases as cases  # relative: see there
from . import bench_links as links

# Width of the matrix in psum_matmul, and so of the rows that its buffer is seen as.
MATMUL_WIDTH = 128
NUM_GRADIENTS = 100
# Steps of the gradients' chain: fewer, as each is 100 collectives to compile when not combined.
GRADIENTS_CHAIN_LENGTH = 5
INDEPENDENT = ("psum", "pmax", "all_gather", "psum_scatter", "all_to_all", "ppermute")
INDEPENDENT_CHAIN_LENGTH = 5
NUM_LAYERS = 8
# Every second dimension of the layers, about: it is divided among the devices.
LAYER_WIDTH = 512
# Rows of a batch on each device: few, so that weights cost more than arithmetic.
BATCH_ROWS = 4


def build_add_one(request: cases.Request) -> cases.Case:
    """Build x + 1."""
    n, dtype = request.num_devices, request.dtype
    mesh = cases.make_mesh(n)
    rows = cases.random_rows(n, (request.num_elements,), dtype)
    return cases.Case(
        function=cases.jit_per_device(mesh, lambda a: a + 1, 1, out_axis=True),
        inputs=(cases.shard(mesh, rows),),
        expected=[[row + row.dtype.type(1) for row in cases.wide(rows, dtype)]],
        tolerance=cases.tolerance(request),
    )


def build_psum_matmul(request: cases.Request) -> cases.Case:
    """Build a chain of a product with a matrix and a sum over the devices."""
    n, width = request.num_devices, MATMUL_WIDTH
    psum = request.collectives.psum
    # An orthogonal matrix keeps the length of every row over the whole chain.
    matrix = np.linalg.qr(np.random.default_rng(cases.SEED).normal(size=(width, width)))[0]
    matrix = matrix.astype(np.float32)

    def body(a: Any, w: Any) -> Any:
        for _ in range(cases.CHAIN_LENGTH):
            a = psum(a @ w, "x") * (1 / n)
        return a

    mesh = cases.make_mesh(n)
    rows = cases.random_rows(n, (request.num_elements // width, width), request.dtype)
    # After the first step all devices hold the same, so the rest is one product of matrices.
    mean = cases.sum_of(rows, request.dtype) / n
    answer = mean @ np.linalg.matrix_power(matrix.astype(np.float64), cases.CHAIN_LENGTH)
    return cases.Case(
        function=cases.jit_per_device(mesh, body, 2, out_axis=True),
        inputs=(cases.shard(mesh, rows), cases.shard(mesh, [matrix] * n)),
        expected=[[answer] * n],
        tolerance=cases.tolerance(request, num_roundings=cases.CHAIN_LENGTH),
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


def build_gradients(request: cases.Request) -> cases.Case:
    """Build the sum over the devices of a pytree."""
    import jax.numpy as jnp

    n, dtype = request.num_devices, request.dtype
    psum = request.collectives.psum
    num_steps = GRADIENTS_CHAIN_LENGTH if request.chained else 1
    shapes = gradient_shapes(request.num_elements)
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))

    def body(flat: Any) -> Any:
        # As in a training step, the gradients begin and end inside the program; passing 100
        # arrays in and out of it would cost more than the collective that is measured.
        pieces = jnp.split(flat, ends[:-1])
        tree = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        for _ in range(num_steps):
            tree = psum(tree, "x")
        return jnp.concatenate([leaf.ravel() for leaf in tree])

    mesh = cases.make_mesh(n)
    rows = cases.random_rows(n, (request.num_elements,), dtype)
    # Nothing scales the sums down between the steps, so that collectives alone are timed.
    growth = float(n) ** (num_steps - 1)
    return cases.Case(
        function=cases.jit_per_device(mesh, body, 1, out_axis=False),
        inputs=(cases.shard(mesh, rows),),
        expected=[[cases.sum_of(rows, dtype) * growth] * n],
        tolerance=cases.tolerance(request, num_roundings=num_steps),
        scale=growth,
    )


def build_independent(request: cases.Request) -> cases.Case:
    """Build a program of collectives that do not wait for each other."""
    n = request.num_devices
    num_steps = INDEPENDENT_CHAIN_LENGTH if request.chained else 0
    parts = []
    for name in INDEPENDENT:
        make = getattr(links, name, None) or links.reduce(name)
        part = request
        if name == "all_gather":  # its result, not its operand, has the size
            part = dataclasses.replace(request, size_bytes=request.size_bytes // n)
        parts.append(make(part))

    def body(*operands: Any) -> Any:
        pairs = zip(parts, operands, strict=True)
        return [link.chain(a, num_steps) if num_steps else link.call(a) for link, a in pairs]

    mesh = cases.make_mesh(n)
    return cases.Case(
        function=cases.jit_per_device(mesh, body, len(parts), out_axis=True),
        inputs=tuple(cases.shard(mesh, link.rows) for link in parts),
        expected=[list(link.answer(num_steps)) for link in parts],
        tolerance=cases.tolerance(request, num_roundings=num_steps or 1),
    )


def layer_width(num_devices: int) -> int:
    """Return every second dimension of the layers of fsdp."""
    return max(LAYER_WIDTH // num_devices, 1) * num_devices


def _fsdp_arrays(request: cases.Request) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the weights of the layers and the batch."""
    width = layer_width(request.num_devices)
    hidden = request.num_elements // NUM_LAYERS // width
    generator = np.random.default_rng(cases.SEED)
    weights = []
    for i in range(NUM_LAYERS):
        shape = (hidden, width) if i % 2 else (width, hidden)
        values = generator.uniform(-1, 1, shape) * math.sqrt(3 / shape[0])
        weights.append(values.astype(np.float32))
    batch = generator.uniform(-1, 1, (BATCH_ROWS * request.num_devices, width))
    return weights, batch.astype(np.float32)


def _fsdp_answer(weights: list[np.ndarray], batch: np.ndarray) -> list[np.ndarray]:
    """Return the weights after the step, computed in float64."""
    wide = [weight.astype(np.float64) for weight in weights]
    layers = [batch.astype(np.float64)]
    for weight in wide:
        layers.append(np.tanh(layers[-1] @ weight))
    results = []
    upstream = layers[-1] / len(batch)
    for i in reversed(range(len(wide))):
        upstream = upstream * (1 - layers[i + 1] ** 2)
        results.append(wide[i] - layers[i].T @ upstream)
        upstream = upstream @ wide[i].T
    return results[::-1]


def build_fsdp(request: cases.Request) -> cases.Case:
    """Build a training step whose weights, and batch, are divided among the devices."""
    import jax
    import jax.numpy as jnp

    n = request.num_devices
    weights, batch = _fsdp_arrays(request)
    mesh = cases.make_mesh(n)
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.sum(x * x) / (2 * len(x))

    def step(weights: Any, x: Any) -> Any:
        gathered = [jax.lax.with_sharding_constraint(weight, whole) for weight in weights]
        gradients = jax.grad(loss)(gathered, x)
        return [old - change for old, change in zip(weights, gradients, strict=True)]

    answer = _fsdp_answer(weights, batch)
    return cases.Case(
        function=jax.jit(
            step, in_shardings=([divided] * NUM_LAYERS, divided), out_shardings=divided
        ),
        inputs=(
            [cases.shard(mesh, np.split(weight, n)) for weight in weights],
            cases.shard(mesh, np.split(batch, n)),
        ),
        expected=[np.split(result, n) for result in answer],
        tolerance=cases.tolerance(request, num_roundings=NUM_LAYERS),
        scale=max(float(np.abs(result).max()) for result in answer),
    )
