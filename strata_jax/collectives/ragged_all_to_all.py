# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Ragged all-to-all: rows from anywhere to anywhere, as offsets and sizes say."""

from __future__ import annotations

import jax

from strata_jax import fabric
from strata_jax.collectives.types import AxisIndexGroups, AxisName, check_bound


def ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: AxisName,
    axis_index_groups: AxisIndexGroups = None,
) -> jax.Array:
    """Send slices of rows to every device, and write what is received into `output`.

    With n devices and offsets of length n, device s sends its rows `operand[input_offsets[r] :
    input_offsets[r] + send_sizes[r]]` to device r, which finds them in its result from row
    `output_offsets[r]` of device **s** on. With offsets of length k n, k slices go to each device:
    those of index r k to r k + k - 1 to device r. Rows that nobody writes keep the value of
    `output`.

    Two devices, with `output` zeros of 4 on both:

        operand  input_offsets  send_sizes  output_offsets  recv_sizes  result
        [1 2 2]  [0 1]          [1 2]       [0 0]           [1 1]       [1 3 0 0]
        [3 4 0]  [0 1]          [1 1]       [1 2]           [2 1]       [2 2 4 0]

    XLA's CPU compiler has no such operation: without `strata_jax.init()` this cannot be compiled.

    Collective: every device of a group must call it. If one does not, the others fail after
    `STRATA_TIMEOUT_S` seconds with an error that names it.

    Zero-copy: rows go from the sender's operand to their place in the receiver's result in one
    copy; where `output` is not used again, the result takes its memory.
    `stats()["ragged_all_to_all"]` counts the bytes.

    Bad offsets: rows outside the buffers are not moved; where several slices overlap in a result,
    that of the highest device counts, and of one device the last. With `STRATA_CHECK_RAGGED=1`
    both, and `recv_sizes` that differ from the sender's `send_sizes`, are errors when the program
    runs.

    Differentiable in `operand` (the cotangent's rows go back the same way; as in JAX, a row must
    not be in two slices then) and in `output` (the cotangent, zero where rows were written), and
    maps under `vmap`, as `jax.lax.ragged_all_to_all`.

    Args:
        operand: rows to send: `f32[N, ...]`, of any dtype.
        output: rows to update: `f32[M, ...]`, of the same dtype and row shape.
        input_offsets: `i32[k n]`, first row of each slice in this device's `operand`.
        send_sizes: `i32[k n]`, rows of each slice.
        output_offsets: `i32[k n]`, row of the **receiver's** result at which each slice begins.
        recv_sizes: `i32[k n]`, rows that are received from each device.
        axis_name: name of a mapped axis (of `shard_map` or `pmap`), or a tuple of names.
        axis_index_groups: a partition of the axis into groups of equal size; None for one group.

    Returns:
        `f32[M, ...]`: `output` with the received rows in their places.

    Raises:
        NameError: `axis_name` is not bound by a mapped function around this call.
        ValueError: offsets or sizes are not integers of one dimension and equal length.
    """
    fabric.note_use("ragged_all_to_all")
    check_bound(axis_name)
    result: jax.Array = jax.lax.ragged_all_to_all(
        operand,
        output,
        input_offsets,
        send_sizes,
        output_offsets,
        recv_sizes,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
    )
    return result
