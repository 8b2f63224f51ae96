# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The operations that run on the fabric, by their names in HLO and in custom calls."""

from __future__ import annotations

import dataclasses
from typing import Any

# Opcode at the root of a reducer -> `kind` of the call, ReduceKind of xla_ffi/core/types.h.
KINDS: dict[str, int] = {
    "add": 0,
    "multiply": 1,
    "maximum": 2,
    "minimum": 3,
    "and": 4,
    "or": 5,
    "xor": 6,
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: as in `stats()` and in the compiled core, e.g. "all_gather".
        reduces: it has a reducer, and takes only what can be reduced.
        equal_groups: all its groups have the same number of ranks.
    """

    name: str
    reduces: bool = False
    equal_groups: bool = False

    @property
    def opcode(self) -> str:
        """Its opcode in HLO."""
        return self.name.replace("_", "-")

    @property
    def target(self) -> str:
        """The target of its custom call."""
        return f"strata_{self.name}"


ALL_REDUCE = Operation("all_reduce", reduces=True)
ALL_GATHER = Operation("all_gather", equal_groups=True)
REDUCE_SCATTER = Operation("reduce_scatter", reduces=True, equal_groups=True)
ALL_TO_ALL = Operation("all_to_all", equal_groups=True)
COLLECTIVE_PERMUTE = Operation("collective_permute")
COLLECTIVE_BROADCAST = Operation("collective_broadcast")
RAGGED_ALL_TO_ALL = Operation("ragged_all_to_all", equal_groups=True)

OPERATIONS: tuple[Operation, ...] = (
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    COLLECTIVE_BROADCAST,
    RAGGED_ALL_TO_ALL,
)
BY_OPCODE: dict[str, Operation] = {operation.opcode: operation for operation in OPERATIONS}
BY_TARGET: dict[str, Operation] = {operation.target: operation for operation in OPERATIONS}

# Operations that XLA's CPU compiler itself refuses.
ONLY_OURS: frozenset[str] = frozenset(("collective-broadcast", "ragged-all-to-all"))

# Asynchronous pairs, which XLA's CPU compiler turns into plain ones before the hook.
ASYNC_OPCODES: frozenset[str] = frozenset(f"{opcode}-start" for opcode in BY_OPCODE)


def native_axes(operation: Operation, instruction: Any) -> tuple[int | None, int | None]:
    """Return along which dimension operand and result of a native collective are cut in blocks."""
    dimension = instruction.dimensions[0] if instruction.dimensions else None
    if operation is ALL_GATHER:
        return None, dimension
    if operation is REDUCE_SCATTER:
        return dimension, None
    if operation is ALL_TO_ALL:
        return dimension, dimension
    return None, None
