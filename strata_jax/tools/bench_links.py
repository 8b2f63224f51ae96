# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The single operations that `strata-jax bench` measures, each alone and as a link of a chain.

A chain's result is the next link's operand, so what changes the shape or grows the values has a
little local work between the links: the same in ours and in the baselines, and as small as it gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import bench_cases as cases  # relative: see there

# Elements in a row of the operations on matrices.
ROW_WIDTH = 128


@dataclasses.dataclass(frozen=True)
class Link:
    """One operation.

    Attributes:
        rows: the operand of each device.
        call: the operation; traced, as `step`.
        step: from the operand of a link, and its number, to the next operand.
        answer: each device's result: of `call` for 0, of a chain of so many steps otherwise.
        num_roundings: of a chain, for the tolerance; 0 where nothing is computed.
        same: whether all devices get the same from `call`.
        first: from the operand to what the first step takes.
        last: from what the last step gives to the result.
    """

    rows: list[np.ndarray]
    call: Callable[[Any], Any]
    step: Callable[[Any, int], Any]
    answer: Callable[[int], Sequence[np.ndarray]]
    num_roundings: int = 0
    same: bool = False
    first: Callable[[Any], Any] = lambda operand: operand
    last: Callable[[Any], Any] = lambda operand: operand

    def chain(self, operand: Any, num_steps: int) -> Any:
        """Trace a chain."""
        state = self.first(operand)
        for number in range(num_steps):
            state = self.step(state, number)
        return self.last(state)


def builder(link_of: Callable[[cases.Request], Link]) -> Callable[[cases.Request], cases.Case]:
    """Make the builder of an operation."""

    def build(request: cases.Request) -> cases.Case:
        link = link_of(request)
        num_steps = cases.CHAIN_LENGTH if request.chained else 0

        def body(operand: Any) -> Any:
            return link.chain(operand, num_steps) if num_steps else link.call(operand)

        mesh = cases.make_mesh(request.num_devices)
        rounds = link.num_roundings if num_steps else min(link.num_roundings, 1)
        return cases.Case(
            function=cases.jit_per_device(mesh, body, 1, out_axis=bool(num_steps) or not link.same),
            inputs=(cases.shard(mesh, link.rows),),
            expected=[list(link.answer(num_steps))],
            tolerance=cases.tolerance(request, num_roundings=rounds) if rounds else 0.0,
        )

    return build


def reduce(name: str) -> Callable[[cases.Request], Link]:
    """Make the link of an all-reduce: psum, pmean, pmax or pmin."""

    def link(request: cases.Request) -> Link:
        n, dtype = request.num_devices, request.dtype
        rows = cases.random_rows(n, (request.num_elements,), dtype)

        def call(a: Any) -> Any:
            return getattr(request.collectives, name)(a, "x")

        def step(a: Any, number: int) -> Any:
            return cases.divide(call(a), n, dtype) if name == "psum" else call(a)

        def answer(num_steps: int) -> list[np.ndarray]:
            if name in ("pmax", "pmin"):
                pick = np.maximum if name == "pmax" else np.minimum
                return [cases.wide([pick.reduce(rows)], dtype)[0]] * n
            total = cases.sum_of(rows, dtype)
            # After the first step all devices hold the mean, which later steps keep.
            return [
                total if name == "psum" and not num_steps else cases.divide(total, n, dtype)
            ] * n

        # Scaling by 1/n is exact where n is a power of two, and rounds at each step elsewhere.
        rounds = cases.CHAIN_LENGTH if n & (n - 1) else 1
        return Link(rows, call, step, answer, num_roundings=rounds, same=True)

    return link


def all_gather(request: cases.Request) -> Link:
    """Link of an all-gather; a chain takes the next device's part, so that parts move on."""
    import jax

    n, length = request.num_devices, request.num_elements
    rows = cases.random_rows(n, (length,), request.dtype)

    def call(a: Any) -> Any:
        return request.collectives.all_gather(a, "x", tiled=True)

    def step(a: Any, number: int) -> Any:
        start = (jax.lax.axis_index("x") + 1) % n * length
        return jax.lax.dynamic_slice_in_dim(call(a), start, length)

    def answer(num_steps: int) -> list[np.ndarray]:
        if not num_steps:
            return [np.concatenate(rows)] * n
        return [rows[(device + num_steps) % n] for device in range(n)]

    return Link(rows, call, step, answer, same=True)


def psum_scatter(request: cases.Request) -> Link:
    """Link of a reduce-scatter; a chain writes the mean into its place in the operand."""
    import jax

    n, dtype = request.num_devices, request.dtype
    part = request.num_elements // n
    rows = cases.random_rows(n, (request.num_elements,), dtype)

    def call(a: Any) -> Any:
        return request.collectives.psum_scatter(a, "x", tiled=True)

    def step(a: Any, number: int) -> Any:
        mean = cases.divide(call(a), n, dtype)
        start = jax.lax.axis_index("x") * part
        return jax.lax.dynamic_update_slice_in_dim(a, mean, start, 0)

    def answer(num_steps: int) -> list[np.ndarray]:
        parts = [slice(part * device, part * (device + 1)) for device in range(n)]
        total = cases.sum_of(rows, dtype)
        if not num_steps:
            return [total[own] for own in parts]
        results = cases.wide(rows, dtype)
        for own, result in zip(parts, results, strict=True):
            # Nobody but its owner changes a part.
            others = total[own] - result[own]
            for _ in range(num_steps):
                result[own] = cases.divide(others + result[own], n, dtype)
        return results

    # Each step divides what errors there are by n, so their sum stays below two roundings.
    return Link(rows, call, step, answer, num_roundings=2)


def _moved(
    rows: list[np.ndarray], step: Callable[[np.ndarray], np.ndarray], num_steps: int
) -> list[np.ndarray]:
    """Return the devices' arrays after some steps that move whole rows.

    Args:
        rows: one array for each device.
        step: from an array of [devices, rows] to one, where each element stands for a row.
        num_steps: how often.
    """
    places = np.arange(len(rows) * len(rows[0])).reshape(len(rows), -1)
    for _ in range(num_steps):
        places = step(places)
    flat = np.concatenate(rows)
    return [flat[place] for place in places]


def _matrices(request: cases.Request) -> list[np.ndarray]:
    shape = (request.num_elements // ROW_WIDTH, ROW_WIDTH)
    return cases.random_rows(request.num_devices, shape, request.dtype)


def all_to_all(request: cases.Request) -> Link:
    """Link of an all-to-all of blocks of rows."""
    n, rows = request.num_devices, _matrices(request)

    def call(a: Any) -> Any:
        return request.collectives.all_to_all(a, "x", 0, 0, tiled=True)

    def move(places: np.ndarray) -> np.ndarray:
        return places.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1)

    return Link(rows, call, lambda a, number: call(a), lambda k: _moved(rows, move, k or 1))


def all_to_all_axis(request: cases.Request) -> Link:
    """Link of an all-to-all that interleaves rows; a chain sees the result in the old shape."""
    n, rows = request.num_devices, _matrices(request)

    def call(a: Any) -> Any:
        return request.collectives.all_to_all(a, "x", 0, 1, tiled=True)

    def move(places: np.ndarray) -> np.ndarray:
        return places.reshape(n, n, -1).transpose(1, 2, 0).reshape(n, -1)

    def answer(num_steps: int) -> list[np.ndarray]:
        results = _moved(rows, move, num_steps or 1)
        return results if num_steps else [result.reshape(-1, n * ROW_WIDTH) for result in results]

    return Link(rows, call, lambda a, number: call(a).reshape(a.shape), answer)


def ppermute(request: cases.Request) -> Link:
    """Link of a shift around the ring of devices."""
    n = request.num_devices
    rows = cases.random_rows(n, (request.num_elements,), request.dtype)

    def call(a: Any) -> Any:
        return request.collectives.ppermute(a, "x", [(i, (i + 1) % n) for i in range(n)])

    def answer(num_steps: int) -> list[np.ndarray]:
        return [rows[(device - (num_steps or 1)) % n] for device in range(n)]

    return Link(rows, call, lambda a, number: call(a), answer)


def pbroadcast(request: cases.Request) -> Link:
    """Link of a broadcast; a chain negates, so that no step gives what the last one gave."""
    import jax
    import jax.numpy as jnp

    n = request.num_devices
    rows = cases.random_rows(n, (request.num_elements,), request.dtype)

    def broadcast(a: Any, source: int) -> Any:
        if not request.is_lax:
            return request.collectives.pbroadcast(a, "x", source)
        mine = jnp.where(jax.lax.axis_index("x") == source, a, jnp.zeros_like(a))
        return jax.lax.psum(mine, "x")

    def answer(num_steps: int) -> list[np.ndarray]:
        return [-rows[1] if num_steps % 2 else rows[1]] * n

    return Link(
        rows,
        lambda a: broadcast(a, 1),
        lambda a, number: -broadcast(a, (number + 1) % n),
        answer,
        same=True,
    )


def ragged_counts(num_rows: int, num_devices: int) -> np.ndarray:
    """Return the number of rows that device s sends to device r, at [s, r].

    They grow from a device to the next around the ring as 1, 2, ..., n do, and each device sends
    and receives `num_rows`.
    """
    ends = np.arange(num_devices + 1)
    ends = num_rows * (ends * (ends + 1)) // (num_devices * (num_devices + 1))
    distance = np.arange(num_devices) - np.arange(num_devices)[:, None]
    counts: np.ndarray = np.diff(ends)[distance % num_devices].astype(np.int32)
    return counts


def ragged_all_to_all(request: cases.Request) -> Link:
    """Link of a ragged all-to-all; a chain writes into the operand of the step before.

    XLA's CPU compiler has none, so a baseline does it with slices as long as the longest.
    """
    import jax
    import jax.numpy as jnp

    n, rows = request.num_devices, _matrices(request)
    counts = ragged_counts(len(rows[0]), n)
    starts = np.cumsum(counts, axis=1, dtype=np.int32) - counts  # in the sender's operand
    places = np.cumsum(counts, axis=0, dtype=np.int32) - counts  # in the receiver's result

    def ragged(a: Any, output: Any) -> Any:
        # The tables are constants of the program, but each device's part of them is not.
        i = jax.lax.axis_index("x")
        mine = [jnp.asarray(table)[i] for table in (starts, counts, places, counts.T)]
        return request.collectives.ragged_all_to_all(a, output, *mine, axis_name="x")

    def padded(a: Any, output: Any) -> Any:
        i, longest = jax.lax.axis_index("x"), int(counts.max())
        begin, place = jnp.asarray(starts)[i], jnp.asarray(places.T)[i]
        long = jnp.pad(a, ((0, longest), (0, 0)))
        slices = [jax.lax.dynamic_slice_in_dim(long, begin[r], longest) for r in range(n)]
        received = request.collectives.all_to_all(jnp.stack(slices), "x", 0, 0, tiled=True)
        # Every row is written, so `output` need not be copied first. In the order of the senders
        # each slice is written over the spare rows of the last.
        result = jnp.zeros_like(long)
        for sender in range(n):
            result = jax.lax.dynamic_update_slice_in_dim(result, received[sender], place[sender], 0)
        return result[: len(a)]

    exchange = padded if request.is_lax else ragged

    def move(old: np.ndarray) -> np.ndarray:
        new = np.empty_like(old)
        for s, r in np.ndindex(n, n):
            begin, place, count = starts[s, r], places[s, r], counts[s, r]
            new[r, place : place + count] = old[s, begin : begin + count]
        return new

    def step(pair: Any, number: int) -> Any:
        operand, output = pair
        return exchange(operand, output), operand

    return Link(
        rows,
        lambda a: exchange(a, jnp.zeros_like(a)),
        step,
        lambda num_steps: _moved(rows, move, num_steps or 1),
        first=lambda a: (a, jnp.zeros_like(a)),
        last=lambda pair: pair[0],
    )
