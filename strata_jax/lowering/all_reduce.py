# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""All-reduces that XLA would spoil before the compile hook sees them become our calls right away.

XLA:CPU promotes bfloat16 all-reduces to float32 and 8-bit ones to float16, with conversions around
them that get fused into their neighbours. In fully manual regions (`shard_map` over all axes,
`pmap`) these are lowered to the custom call; the hook binds it later. All other all-reduces stay
native until the hook, so that XLA's own passes can work on them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from strata_jax import _compat
from strata_jax.lowering import mark

TARGET = "strata_all_reduce"
KIND_CODES = {"sum": 0, "product": 1, "max": 2, "min": 3, "and": 4, "or": 5, "xor": 6}

SPOILED_DTYPES = frozenset(
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


def install() -> None:
    """Puts our rules in front of JAX's, for good; they act only in modules that are marked."""
    for primitive, kind in _compat.ALL_REDUCE_PRIMITIVES.items():
        _compat.override_cpu_lowering(primitive, functools.partial(_make_rule, kind))


def _make_rule(kind: str, original: _compat.LoweringRule) -> _compat.LoweringRule:
    def rule(ctx: Any, operand: Any, **params: Any) -> Sequence[Any]:
        groups = None
        if mark.lowering_ours() and str(ctx.avals_in[0].dtype) in SPOILED_DTYPES:
            groups = _compat.manual_replica_groups(
                ctx, params["axes"], params.get("axis_index_groups")
            )
        if groups is None:
            return original(ctx, operand, **params)
        group_size = max(map(len, groups))
        flat = [i for group in groups for i in group + [-1] * (group_size - len(group))]
        lower = jax.ffi.ffi_lowering(TARGET)
        return lower(
            ctx,
            operand,
            kind=np.int64(KIND_CODES[kind]),
            groups=np.array(flat, np.int64),
            group_size=np.int64(group_size),
        )

    return rule
