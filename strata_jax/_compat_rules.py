# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients and batching of collectives that JAX has wrong, put right; part of _compat.

Each rule is as JAX has it (jax/_src/lax/parallel.py, 0.10.2 to 0.12.0.1) but for the fault named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import ad, batching
from jax._src.lax import parallel

_ragged = parallel.ragged_all_to_all_p
_batch_ragged_alike = batching.fancy_primitive_batchers[_ragged]
_batch_pbroadcast_apart = batching.fancy_primitive_batchers[parallel.pbroadcast_p]


def install() -> None:
    """Puts the rules in place of JAX's, for good."""
    ad.primitive_transposes[_ragged] = _transpose_ragged
    batching.fancy_primitive_batchers[_ragged] = _batch_ragged
    ad.deflinear2(parallel.all_to_all_p, _transpose_all_to_all)
    ad.deflinear2(parallel.pbroadcast_p, _transpose_pbroadcast)
    batching.fancy_primitive_batchers[parallel.pbroadcast_p] = _batch_pbroadcast


def _transpose_all_to_all(
    cotangent: Any, operand: Any, *, split_axis: int, concat_axis: int, **params: Any
) -> tuple[Any]:
    """Sends the parts back.

    JAX goes through `all_to_all` again, which inserts an axis where the first call was not tiled;
    but the primitive is tiled always.
    """
    del operand
    result = parallel.all_to_all_p.bind(
        cotangent, split_axis=concat_axis, concat_axis=split_axis, **params
    )
    return (result,)


def _transpose_pbroadcast(
    cotangent: Any, operand: Any, *, axis_name: Any, source: int
) -> tuple[Any]:
    """Gives the source the sum of the cotangents. JAX fills an array with an array, which fails."""
    del operand
    total = lax.psum(cotangent, axis_name)
    is_source = lax.axis_index(axis_name) == source
    return (jnp.where(is_source, total, lax.full_like(total, 0)),)


def _batch_pbroadcast(
    axis_data: Any, values: Sequence[Any], dims: Sequence[Any], *, axis_name: Any, source: int
) -> tuple[Any, Any]:
    """Repeats the source's member of a batch. JAX indexes with a list, which fails."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if names != (axis_data.name,) or dims[0] is None:
        result: tuple[Any, Any] = _batch_pbroadcast_apart(
            axis_data, values, dims, axis_name=axis_name, source=source
        )
        return result
    member = lax.index_in_dim(values[0], source, dims[0], keepdims=False)
    return jnp.broadcast_to(member, (axis_data.size, *member.shape)), 0


def _transpose_ragged(
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
        operand_ct = _ragged.bind(
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


def _batch_ragged(
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
    result: tuple[Any, Any] = _batch_ragged_alike(axis_data, values, dims, **params)
    return result
