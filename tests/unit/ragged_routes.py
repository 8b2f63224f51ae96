# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Offsets and sizes for tests of the ragged all-to-all."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

import strata_jax
from cases import Case
from one_process import normal
from strata_jax import reference

# That of JAX's documentation; public reports 34755 and 26203.
DOCUMENTED = (
    [[1, 2, 2], [3, 4, 0]],  # operand
    [[0] * 4] * 2,  # output
    [[0, 1], [0, 1]],  # input_offsets
    [[1, 2], [1, 1]],  # send_sizes
    [[0, 0], [1, 2]],  # output_offsets
    [[1, 1], [2, 1]],  # recv_sizes
)


@dataclasses.dataclass(frozen=True)
class Route:
    """Offsets and sizes of all devices, one row each: `i32[device, slice]`."""

    input_offsets: np.ndarray
    send_sizes: np.ndarray
    output_offsets: np.ndarray
    recv_sizes: np.ndarray

    def of(self, rank) -> tuple:
        return tuple(jnp.asarray(a)[rank] for a in dataclasses.astuple(self))

    def lists(self) -> list[list[np.ndarray]]:
        return [list(a) for a in dataclasses.astuple(self)]


def route(sizes: np.ndarray, groups=None, dtype=np.int32) -> Route:
    """Returns a route that packs slices on both sides.

    Args:
        sizes: `sizes[s, i]` rows in slice i of device s.
        groups: lists of devices that meet; by default all.
        dtype: of offsets and sizes.
    """
    sizes = np.asarray(sizes)
    recv, starts = np.zeros_like(sizes), np.zeros_like(sizes)
    for group in groups or [range(len(sizes))]:
        k = sizes.shape[1] // len(group)
        for receiver, rank in enumerate(group):
            row = 0
            for sender, source in enumerate(group):
                for i in range(k):
                    starts[source, receiver * k + i] = row
                    recv[rank, sender * k + i] = sizes[source, receiver * k + i]
                    row += sizes[source, receiver * k + i]
    inputs = np.cumsum(sizes, 1) - sizes
    return Route(*(a.astype(dtype) for a in (inputs, sizes, starts, recv)))


def call(operand, output, *ids, name="x", groups=None):
    return strata_jax.ragged_all_to_all(
        operand, output, *ids, axis_name=name, axis_index_groups=groups
    )


def case(
    operands, outputs, path: Route, *, name="x", ranks=None, groups=None, of=lambda v: v
) -> Case:
    """Returns a ragged all-to-all of `of(operand)`; `ranks` are the groups of the oracle."""
    shards = list(zip(operands, outputs, *path.lists(), strict=True))
    return Case(
        lambda v: call(of(v[0]), v[1], *v[2:], name=name, groups=groups),
        shards,
        reference.ragged_all_to_all(
            [of(o) for o in operands], outputs, *path.lists(), groups=ranks or groups
        ),
    )


def random_sizes(num_devices: int, num_slices: int = 1, seed: int = 0, high: int = 4):
    rng = np.random.default_rng(seed)
    return rng.integers(0, high, (num_devices, num_devices * num_slices))


def arrays(num_devices: int, rows: int, *shape: int) -> tuple[list, list]:
    """Returns operands and outputs of that many rows and some more."""
    return (
        list(normal(num_devices, rows + 1, *shape)),
        list(normal(num_devices, rows + 3, *shape, seed=1)),
    )
