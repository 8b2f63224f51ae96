# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Collectives that XLA would spoil before the compile hook sees them become our calls right away.

XLA:CPU, before the hook:

* converts narrow types to wider ones around a collective, and fuses that with its neighbours:
  bfloat16 to float32, the 8-bit floats to float16, and what is only moved also from 4 and 2 bits;
* transposes around an all-gather or a reduce-scatter whose dimension is not the major one;
* cuts the operand of an all-to-all in slices, and concatenates the results;
* has no broadcast, and cannot read every ragged all-to-all.

In fully manual regions (`shard_map` over all axes, `pmap`) these are lowered to the custom call;
the hook binds it later. All others stay native until the hook, so that XLA's own passes can work on
them. So do those over several hosts, which XLA runs; the ones that it cannot run fail in the hook.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from strata_jax import _compat
from strata_jax.hlo.find import crosses_hosts
from strata_jax.lowering import mark

KIND_CODES = {"sum": 0, "product": 1, "max": 2, "min": 3, "and": 4, "or": 5, "xor": 6}

WIDENED_IN_SUMS = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    }
)
WIDENED_IN_MOVES = WIDENED_IN_SUMS | {
    "float4_e2m1fn",
    "float8_e8m0fnu",
    "int2",
    "int4",
    "uint2",
    "uint4",
}

# Our kernels have no sums of these; XLA widens them.
NOT_SUMMED = frozenset({"float4_e2m1fn", "float8_e8m0fnu"})

_hosts: tuple[int, ...] = (0,)

# rule(ctx, *operands, **params) of a primitive: its results, or None for JAX's own lowering.
Rule = Callable[..., Sequence[Any] | None]


def install() -> None:
    """Puts our rules in front of JAX's, for good; they act only in modules that are marked."""
    for primitive, kind in _compat.ALL_REDUCE_PRIMITIVES.items():
        _install(primitive, functools.partial(_all_reduce, kind))
    for primitive in _compat.ALL_GATHER_PRIMITIVES:
        _install(primitive, _all_gather)
    for primitive in _compat.REDUCE_SCATTER_PRIMITIVES:
        _install(primitive, _reduce_scatter)
    _install(_compat.ALL_TO_ALL_PRIMITIVE, _all_to_all)
    _install(_compat.PPERMUTE_PRIMITIVE, _ppermute)
    _install(_compat.RAGGED_ALL_TO_ALL_PRIMITIVE, _ragged_all_to_all)
    _compat.fix_rules()
    _compat.install_pbroadcast_start()
    _compat.override_cpu_lowering(
        _compat.PBROADCAST_PRIMITIVE, _pbroadcast, original=_compat.lower_pbroadcast
    )


def use_hosts(hosts: Sequence[int]) -> None:
    """Sets the number of the host of each process of the job, by process index."""
    global _hosts
    _hosts = tuple(hosts)


def _install(primitive: Any, ours: Rule) -> None:
    def rule(original: _compat.LoweringRule) -> _compat.LoweringRule:
        def lower(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
            results = ours(ctx, *operands, **params) if mark.lowering_ours() else None
            return original(ctx, *operands, **params) if results is None else results

        return lower

    _compat.override_cpu_lowering(primitive, rule)


def _dtype(ctx: Any) -> str:
    return str(ctx.avals_in[0].dtype)


def _on_one_host(ctx: Any, groups: Sequence[Sequence[int]]) -> bool:
    """Whether each group of partitions is on one host, as far as JAX knows by now.

    A mesh without devices (`AbstractMesh`) is taken for one over several hosts, if there are any.
    """
    if len(set(_hosts)) == 1:
        return True
    devices = _compat.mesh_device_ids(ctx)
    return devices is not None and not any(
        crosses_hosts((devices[i] for i in group), _hosts) for group in groups
    )


def _groups(ctx: Any, axis_name: Any, axis_index_groups: Any = None) -> list[list[int]] | None:
    """The groups of a call; None where the collective is to stay JAX's."""
    groups = _compat.manual_replica_groups(ctx, axis_name, axis_index_groups)
    return groups if groups is not None and _on_one_host(ctx, groups) else None


def _call(
    name: str,
    ctx: Any,
    *operands: Any,
    groups: Sequence[Sequence[int]],
    kind: str = "sum",
    in_axis: int = -1,
    out_axis: int = -1,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    group_size = max(map(len, groups), default=1)
    flat = [i for group in groups for i in [*group, *[-1] * (group_size - len(group))]]
    lower = jax.ffi.ffi_lowering(f"strata_{name}", operand_output_aliases=aliases)
    return lower(
        ctx,
        *operands,
        kind=np.int64(KIND_CODES[kind]),
        groups=np.array(flat, np.int64),
        group_size=np.int64(group_size),
        in_axis=np.int64(in_axis),
        out_axis=np.int64(out_axis),
    )


def _all_reduce(kind: str, ctx: Any, operand: Any, **params: Any) -> Sequence[Any] | None:
    if _dtype(ctx) not in WIDENED_IN_SUMS:
        return None
    groups = _groups(ctx, params["axes"], params.get("axis_index_groups"))
    return groups and _call("all_reduce", ctx, operand, groups=groups, kind=kind)


def _all_gather(ctx: Any, operand: Any, **params: Any) -> Sequence[Any] | None:
    axis = params["all_gather_dimension"] % ctx.avals_out[0].ndim
    if axis == 0 and _dtype(ctx) not in WIDENED_IN_MOVES:
        return None
    groups = _groups(ctx, params["axis_name"], params.get("axis_index_groups"))
    if groups is None:
        return None
    if not params["tiled"]:
        (aval,) = ctx.avals_in
        shape = [*aval.shape[:axis], 1, *aval.shape[axis:]]
        operand, aval = _compat.reshape(ctx, operand, aval, shape)
        ctx = ctx.replace(avals_in=[aval])
    return _call("all_gather", ctx, operand, groups=groups, out_axis=axis)


def _reduce_scatter(ctx: Any, operand: Any, **params: Any) -> Sequence[Any] | None:
    axis = params["scatter_dimension"] % ctx.avals_in[0].ndim
    if _dtype(ctx) in NOT_SUMMED or (axis == 0 and _dtype(ctx) not in WIDENED_IN_MOVES):
        return None
    groups = _groups(ctx, params["axis_name"], params.get("axis_index_groups"))
    if groups is None:
        return None
    (result,) = ctx.avals_out
    if not params["tiled"]:
        shape = [*result.shape[:axis], 1, *result.shape[axis:]]
        ctx = ctx.replace(avals_out=[result.update(shape=tuple(shape))])
    results = _call("reduce_scatter", ctx, operand, groups=groups, in_axis=axis)
    if params["tiled"]:
        return results
    return [_compat.reshape(ctx, results[0], result, result.shape)[0]]


def _all_to_all(ctx: Any, operand: Any, **params: Any) -> Sequence[Any] | None:
    groups = _groups(ctx, params["axis_name"], params.get("axis_index_groups"))
    # JAX returns the operand of a group of one, and refuses groups of several sizes.
    if groups is None or {len(group) for group in groups} != {len(groups[0])} or not groups[0][1:]:
        return None
    return _call(
        "all_to_all",
        ctx,
        operand,
        groups=groups,
        in_axis=params["split_axis"] % ctx.avals_in[0].ndim,
        out_axis=params["concat_axis"] % ctx.avals_in[0].ndim,
    )


def _ppermute(ctx: Any, operand: Any, **params: Any) -> Sequence[Any] | None:
    if _dtype(ctx) not in WIDENED_IN_MOVES:
        return None
    if _compat.manual_replica_groups(ctx, params["axis_name"], None) is None:
        return None
    pairs = _compat.permutation_pairs(ctx, params["axis_name"], params["perm"])
    if not _on_one_host(ctx, pairs):
        return None
    return _call("collective_permute", ctx, operand, groups=pairs)


def _ragged_all_to_all(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any] | None:
    # XLA's translator refuses one whose arrays have another than the default layout, as after a
    # transpose. Those of one dimension cannot.
    if ctx.avals_in[0].ndim == 1 and _dtype(ctx) not in WIDENED_IN_MOVES:
        return None
    groups = _compat.manual_replica_groups(ctx, params["axis_name"], params["axis_index_groups"])
    if groups is None or {len(group) for group in groups} != {len(groups[0])}:
        return None
    # The result takes the memory of `output`; XLA copies that first if it is used again.
    return _call("ragged_all_to_all", ctx, *operands, groups=groups, aliases={1: 0})


def _pbroadcast(original: _compat.LoweringRule) -> _compat.LoweringRule:
    def rule(ctx: Any, operand: Any, *, axis_name: Any, source: int) -> Sequence[Any]:
        if not mark.active():
            raise NotImplementedError(
                "pbroadcast: XLA's CPU compiler has no such operation; call strata_jax.init() "
                "first, or use jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == source, x, 0), "
                "axis)"
            )
        groups = _compat.manual_replica_groups(ctx, axis_name, None)
        if groups is None or not mark.lowering_ours():
            return original(ctx, operand, axis_name=axis_name, source=source)
        if not -len(groups[0]) <= source < len(groups[0]):
            raise IndexError(
                f"pbroadcast: source is {source}, but axis {axis_name} has {len(groups[0])} "
                f"devices; it must be from 0 to {len(groups[0]) - 1}"
            )
        source %= len(groups[0])
        ordered = [[g[source], *g[:source], *g[source + 1 :]] for g in groups]
        return _call("collective_broadcast", ctx, operand, groups=ordered)

    return rule
