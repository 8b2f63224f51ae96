# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Two rules of JAX's `ragged_all_to_all` that give wrong gradients, or none; part of _compat.

Both are as JAX has them (jax/_src/lax/parallel.py, 0.10.2 to 0.12.0.1) but for the faults named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import ad, batching
from jax._src.lax import parallel

_primitive = parallel.ragged_all_to_all_p
_batch = batching.fancy_primitive_batchers[_primitive]


def install() -> None:
    """Puts the two rules in place of JAX's, for good."""
    ad.primitive_transposes[_primitive] = _transpose
    batching.fancy_primitive_batchers[_primitive] = _batch_all


def _transpose(
    cotangent: Any,
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
) -> list[Any]:
    """Sends the rows back; the cotangent of `output` is zero where rows were written.

    JAX marks the first row of each slice with 1 and the row after its last with -1, and adds up.
    Where slices begin at one row, as those of no rows do, it marks once but takes away twice. And
    its exchange of the offsets ignores the groups.
    """
    if type(cotangent) is ad.Zero:
        zeros = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in (operand, output)]
        return zeros + [None] * 4
    received_at, sent_from = (
        lax.all_to_all(offsets, axis_name, 0, 0, tiled=True, axis_index_groups=axis_index_groups)
        for offsets in (output_offsets, input_offsets)
    )
    operand_ct = output_ct = None
    if ad.is_undefined_primal(operand):
        operand_ct = _primitive.bind(
            cotangent,
            ad.zeros_like_aval(operand.aval),
            received_at,
            recv_sizes,
            sent_from,
            send_sizes,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
        )
    if ad.is_undefined_primal(output):
        edges = jnp.zeros(cotangent.shape[0] + 1, jnp.int32)
        edges = edges.at[received_at].add(1).at[received_at + recv_sizes].add(-1)
        kept = (jnp.cumsum(edges)[:-1] == 0).reshape(-1, *[1] * (cotangent.ndim - 1))
        kept = jnp.broadcast_to(kept, cotangent.shape)
        output_ct = lax.select(kept, cotangent, lax.full_like(cotangent, 0))
    return [operand_ct, output_ct, None, None, None, None]


def _batch_all(
    axis_data: Any, values: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """Gives every member of a batch its own offsets and sizes; JAX fails where they have one."""
    values, dims = list(values), list(dims)
    if axis_data.name not in params["axis_name"] and any(dim is not None for dim in dims):
        for i in range(2, len(values)):
            if dims[i] is None:
                values[i] = lax.broadcast_in_dim(
                    values[i], (*values[i].shape, axis_data.size), (0,)
                )
                dims[i] = 1
    result: tuple[Any, Any] = _batch(axis_data, values, dims, **params)
    return result
