# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How each Strata call hands back to XLA: inline or through lanes, decided statically.

Completing a call runs the rest of a device's program, up to its next Strata call, on the completing
thread. Inline, the last device to arrive does this for all peers one after another: the fastest way
where little work follows, and a loss where much does. If that rest can block on another device it
must not run on another device's thread at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strata_jax.hlo import schema
from strata_jax.hlo.find import Call
from strata_jax.hlo.graph import LOCAL_MASK, Graph

INLINE, LANE = 0, 1

# Microseconds of serialised work, (group size - 1) times what follows a call, up to which
# completing inline is faster than waking another thread for each peer. Measured on a 2-core host,
# 4 KiB psum and 128x128 matmul in turn: 8 devices (112 us by this estimate) take 47 us a turn
# inline, 103 through lanes; with 8 times the matmul, 2 devices (80 us) 67 and 75.
INLINE_WORK_US = 150.0

# Rates of one thread of XLA's, for estimates that are right within a small factor (2-core x86-64
# host, jaxlib 0.12: dots of 64 to 256 run at 60e3 flop/us on both cores, a fusion of 1 KiB takes
# 0.5 us and more, a sine 4 ns, sorting 2^18 floats 17 ns a comparison).
_DOT_FLOPS_PER_US = 30e3
_FLOPS_PER_US = 8e3
_BYTES_PER_US = 10e3
_INSTRUCTION_US = 0.4
_TRANSCENDENTAL_FLOPS = 32
_COMPARISON_FLOPS = 128

# Iterations of a loop whose trip count XLA does not know.
_UNKNOWN_TRIPS = 10
_TRIP_COUNT = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')

_FREE = frozenset(
    "add-dependency after-all bitcast constant get-tuple-element opt-barrier parameter "
    "partition-id replica-id tuple".split()
)
_TRANSCENDENTAL = frozenset(
    "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power sine "
    "tan tanh".split()
)
_HOLDERS = frozenset(("call", "conditional", "while"))
_CUBIC = frozenset(("cholesky", "custom-call", "triangular-solve"))
_SLICES = frozenset(("dynamic-slice", "gather", "slice"))
_HEAVY = frozenset(("convolution", "dot", "fft", "sort")) | _TRANSCENDENTAL | _CUBIC
_NEEDS_INPUTS = (_HEAVY - _TRANSCENDENTAL) | _SLICES | {"dynamic-update-slice"}

# Opcodes that wait for something outside this device's program.
BLOCKING_OPCODES = frozenset("infeed outfeed recv recv-done send send-done".split())
# Custom calls of jaxlib and XLA on CPU that only compute. All others may block: host callbacks do,
# and nothing is known of those of other packages.
_COMPUTING_TARGETS = frozenset(
    (
        "AllocateBuffer",
        "PadToStatic",
        "SliceToDynamic",
        "TopK",
        "cpu_csr_sparse_dense_ffi",
        "tridiagonal_solve_perturbed_ffi",
    )
)
_COMPUTING_PREFIXES = ("lapack_", "__onednn$")


def may_block(custom_call_target: str) -> bool:
    """Say whether a custom call other than ours may wait for another device or the host."""
    return custom_call_target not in _COMPUTING_TARGETS and not custom_call_target.startswith(
        _COMPUTING_PREFIXES
    )


def _elements(shape: Any) -> int:
    if shape.element_type == schema.TUPLE:
        return sum(_elements(leaf) for leaf in shape.tuple_shapes)
    return math.prod(shape.dimensions)


def _arithmetic_us(opcode: str, instruction: Any, operands: Sequence[Any]) -> float:
    """Time of the arithmetic of one instruction beyond reading and writing its buffers."""
    elements = _elements(instruction.shape)
    if opcode == "dot":
        lhs = operands[0].shape.dimensions
        contracting = instruction.dot_dimension_numbers.lhs_contracting_dimensions
        terms: int = math.prod(lhs[i] for i in contracting)
        return 2 * elements * terms / _DOT_FLOPS_PER_US
    if opcode == "convolution":
        kernel = operands[1].shape
        features = instruction.convolution_dimension_numbers.kernel_output_feature_dimension
        terms = _elements(kernel) // max(1, kernel.dimensions[features])
        return 2 * elements * terms / _DOT_FLOPS_PER_US
    if opcode in ("sort", "fft"):
        return _COMPARISON_FLOPS * elements * math.log2(elements + 1) / _FLOPS_PER_US
    if opcode in _TRANSCENDENTAL:
        return _TRANSCENDENTAL_FLOPS * elements / _FLOPS_PER_US
    if opcode in _CUBIC:
        largest = max((d for operand in operands for d in operand.shape.dimensions), default=1)
        return 2 * elements * largest / _FLOPS_PER_US
    return 0.0


class _Fused(NamedTuple):
    """What a fused computation does.

    Attributes:
        arithmetic_us: time of its arithmetic.
        sliced: number of a parameter that is only sliced -> bytes that its slices read. A loop that
            takes one row a turn from a large array does not pay for the array.
        updated: bytes written if the result is an update in place, else None.
    """

    arithmetic_us: float
    sliced: dict[int, int]
    updated: int | None


class CostModel:
    """Estimates the work that follows each call of one module.

    A call, and an instruction whose loop body or branch holds calls, ends the stretch of work
    before it; `depths` counts both, so the work that follows a call is what has its depth.

    Args:
        computations: every computation of the module by id.
        graphs: those that hold calls, themselves or in what they call.
        counted: for each of `graphs`, its calls and its instructions that hold calls.
        depths: for each of `graphs`, `Graph.depths(counted)`.
        callers: for each of `graphs` but the entry, the one instruction that calls it.
        smallest_group: ranks of the smallest group that has more than one.
    """

    def __init__(
        self,
        computations: Mapping[int, Any],
        graphs: Mapping[int, Graph],
        counted: Mapping[int, set[int]],
        depths: Mapping[int, dict[int, int]],
        callers: Mapping[int, tuple[int, int]],
        smallest_group: int,
    ) -> None:
        # With more work than this no call is INLINE, so there is no need to know how much more.
        self._enough_us = INLINE_WORK_US / (smallest_group - 1)
        self._computations = computations
        self._graphs = graphs
        self._counted = counted
        self._depths = depths
        self._callers = callers
        self._stretches_of: dict[int, list[float]] = {}
        self._bodies: dict[int, float] = {}
        self._fused: dict[int, _Fused] = {}

    def finish(self, call: Call) -> int:
        """Return INLINE or LANE for a call of a module in which nothing else blocks."""
        work_us = self._after(call.graph.proto.id, call.local)
        return INLINE if work_us * (call.group_size - 1) <= INLINE_WORK_US else LANE

    def _after(self, computation: int, local: int) -> float:
        """Work after a counted instruction and before the next, also beyond the computation."""
        stretches = self._stretches(computation)
        depth = self._depths[computation][local]
        work_us = stretches[depth]
        if depth + 1 < len(stretches) or computation not in self._callers:
            return work_us
        # The last of its computation: what comes next is the next iteration, or the caller's rest.
        caller, site = self._callers[computation]
        rest_us = self._after(caller, site)
        if self._graphs[caller].opcodes[site] == "while":
            rest_us = max(rest_us, self._stretches(computation)[0])
        return work_us + rest_us

    def _stretches(self, computation: int) -> list[float]:
        """Work of a computation that holds calls, by depth."""
        if computation not in self._stretches_of:
            graph, depths = self._graphs[computation], self._depths[computation]
            counted = self._counted[computation]
            stretches = [0.0] * (1 + max(depths.values()))
            sizes: dict[int, int] = {}
            # Fusions last: what is inside them takes longest to read.
            worked = [(n, op) for n, op in graph.opcodes.items() if op not in _FREE]
            for local, opcode in sorted(worked, key=lambda item: item[1] == "fusion"):
                depth = depths[local]
                if local in counted:
                    if opcode in _HOLDERS:
                        stretches[depth - 1] += self._lead_us(graph.nodes[local])
                elif stretches[depth] <= self._enough_us:
                    stretches[depth] += self._work_us(
                        local, opcode, graph.nodes, graph.operands(local), sizes
                    )
            self._stretches_of[computation] = stretches
        return self._stretches_of[computation]

    def _lead_us(self, holder: Any) -> float:
        """Work inside a loop or branch before its first call."""
        inside = [i for i in holder.called_computation_ids if i in self._graphs]
        return max((self._stretches(i)[0] for i in inside), default=0.0)

    def _work_us(
        self,
        local: int,
        opcode: str,
        nodes: Mapping[int, Any],
        operands: Sequence[int],
        sizes: dict[int, int],
    ) -> float:
        """Time of one instruction that holds no call.

        Args:
            local: its local id.
            opcode: its opcode.
            nodes: the instructions of its computation.
            operands: local ids of its operands.
            sizes: bytes of results that are known; more are added.
        """
        if opcode in _FREE:
            return 0.0
        instruction = nodes[local]
        if opcode in _HOLDERS:
            inside = [self._body_us(i) for i in instruction.called_computation_ids]
            if opcode == "conditional":
                return max(inside, default=0.0)
            if opcode == "call":
                return sum(inside)
            trips = _TRIP_COUNT.search(instruction.backend_config)
            return sum(inside) * (int(trips[1]) if trips else _UNKNOWN_TRIPS)
        for i in (local, *operands):
            if i not in sizes:
                sizes[i] = schema.array_bytes(nodes[i].shape)
        read = [sizes[i] for i in operands]
        written = sizes[local]
        arithmetic_us = 0.0
        if opcode == "fusion":
            fused = self._inside_fusion(instruction.called_computation_ids[0])
            arithmetic_us = fused.arithmetic_us
            written = written if fused.updated is None else fused.updated
            for number, num_bytes in fused.sliced.items():
                read[number] = num_bytes
        elif opcode == "dynamic-update-slice":
            read[0] = 0
            written = read[1]
        elif opcode in _SLICES:
            read[0] = written
        elif opcode in _HEAVY:
            arithmetic_us = _arithmetic_us(opcode, instruction, [nodes[i] for i in operands])
        return _INSTRUCTION_US + (sum(read) + written) / _BYTES_PER_US + arithmetic_us

    def _body_us(self, computation: int) -> float:
        """Work of a whole computation that holds no call."""
        if computation not in self._bodies:
            nodes = {i.id & LOCAL_MASK: i for i in self._computations[computation].instructions}
            sizes: dict[int, int] = {}
            work_us = 0.0
            for local, instruction in nodes.items():
                operands = [i & LOCAL_MASK for i in instruction.operand_ids]
                work_us += self._work_us(local, instruction.opcode, nodes, operands, sizes)
            self._bodies[computation] = work_us
        return self._bodies[computation]

    def _inside_fusion(self, computation: int) -> _Fused:
        if computation not in self._fused:
            proto = self._computations[computation]
            opcodes = [i.opcode for i in proto.instructions]
            if not _NEEDS_INPUTS.isdisjoint(opcodes):
                self._fused[computation] = _read_fusion(proto, opcodes)
            else:
                arithmetic_us = sum(
                    _arithmetic_us(opcode, instruction, ())
                    for instruction, opcode in zip(proto.instructions, opcodes, strict=True)
                    if opcode in _TRANSCENDENTAL
                )
                self._fused[computation] = _Fused(arithmetic_us, {}, None)
        return self._fused[computation]


def _read_fusion(proto: Any, opcodes: Sequence[str]) -> _Fused:
    """Look into a fused computation with instructions whose inputs matter."""
    nodes: dict[int, Any] = {}
    numbers: dict[int, int] = {}
    partial: dict[int, int] = {}
    whole: set[int] = set()
    arithmetic_us, updated = 0.0, None
    root = proto.root_id & LOCAL_MASK
    for instruction, opcode in zip(proto.instructions, opcodes, strict=True):
        local = instruction.id & LOCAL_MASK
        nodes[local] = instruction
        if opcode == "parameter":
            numbers[local] = instruction.parameter_number
            continue
        inputs = [i & LOCAL_MASK for i in instruction.operand_ids]
        if opcode in _HEAVY:
            arithmetic_us += _arithmetic_us(opcode, instruction, [nodes[i] for i in inputs])
        reads = None
        if opcode in _SLICES:
            reads = schema.array_bytes(instruction.shape)
        elif opcode == "dynamic-update-slice":
            reads = schema.array_bytes(nodes[inputs[1]].shape)
            updated = reads if local == root else updated
        if reads is not None and inputs[0] in numbers:
            number = numbers[inputs[0]]
            partial[number] = partial.get(number, 0) + reads
            inputs = inputs[1:]
        whole.update(numbers[i] for i in inputs if i in numbers)
    sliced = {number: size for number, size in partial.items() if number not in whole}
    return _Fused(arithmetic_us, sliced, updated)
