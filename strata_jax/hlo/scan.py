# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""One pass over a module: where its collectives are, and what else could block beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

from strata_jax.hlo.attributes import is_bound
from strata_jax.hlo.cost import BLOCKING_OPCODES, may_block
from strata_jax.hlo.find import Left
from strata_jax.hlo.graph import LOCAL_MASK
from strata_jax.hlo.operations import ASYNC_OPCODES, BY_OPCODE, BY_TARGET, Operation

# Opcodes without interest. Some of them apply a computation to elements, but only control flow can
# lead to a collective.
_PLAIN_OPCODES = frozenset(
    "abs add and bitcast bitcast-convert broadcast clamp compare complex concatenate constant "
    "convert copy cosine divide dot dynamic-slice dynamic-update-slice exponential fusion gather "
    "get-tuple-element imag iota is-finite log map maximum minimum multiply negate not or pad "
    "parameter power real reduce reduce-window remainder reshape reverse rsqrt scatter select "
    "shift-left shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract tanh "
    "transpose tuple xor".split()
)


@dataclasses.dataclass
class Scan:
    """What one pass over all instructions finds; fused computations hold none of it.

    Attributes:
        computations: every computation by id.
        natives: (computation, local id, operation) of each native collective.
        lowered: the same for calls that the lowering wrote.
        left: collectives that have no form on the fabric.
        callers: computation -> (computation, local id) of each instruction that may run it.
        blocks: something other than a collective may wait for the host or another device.
        is_bound: a call has its identity already.
    """

    computations: dict[int, Any] = dataclasses.field(default_factory=dict)
    natives: list[tuple[int, int, Operation]] = dataclasses.field(default_factory=list)
    lowered: list[tuple[int, int, Operation]] = dataclasses.field(default_factory=list)
    left: list[Left] = dataclasses.field(default_factory=list)
    callers: dict[int, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    blocks: bool = False
    is_bound: bool = False


def scan_module(module: Any) -> Scan:
    """Look at every instruction that is not inside a fusion, once."""
    scan = Scan()
    for computation in module.computations:
        scan.computations[computation.id] = computation
        if computation.is_fusion_computation:
            continue
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in _PLAIN_OPCODES:
                continue
            for called in instruction.called_computation_ids:
                site = (computation.id, instruction.id & LOCAL_MASK)
                scan.callers.setdefault(called, []).append(site)
            local = instruction.id & LOCAL_MASK
            if opcode in BY_OPCODE:
                scan.natives.append((computation.id, local, BY_OPCODE[opcode]))
            elif opcode == "custom-call":
                if instruction.custom_call_target in BY_TARGET:
                    operation = BY_TARGET[instruction.custom_call_target]
                    scan.lowered.append((computation.id, local, operation))
                    scan.is_bound |= is_bound(instruction.backend_config)
                else:
                    scan.blocks |= may_block(instruction.custom_call_target)
            elif opcode in ASYNC_OPCODES:
                scan.left.append(Left(computation, instruction, f"{opcode}: asynchronous"))
            elif opcode in BLOCKING_OPCODES:
                scan.blocks = True
    return scan
