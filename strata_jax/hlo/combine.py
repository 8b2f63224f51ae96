# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Merges small independent collectives of one computation into one call, so one rendezvous.

XLA's own combiner ran before the hook, but it does not see custom calls that the lowering wrote,
and it keeps element types apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strata_jax.hlo import schema
from strata_jax.hlo.bind import clear_call
from strata_jax.hlo.find import Call
from strata_jax.hlo.graph import Graph

# Bytes of one rank. A rendezvous costs 4 to 9 us and reducing 1 MiB some 50 us (2-core host), so a
# larger buffer gains nothing from sharing one. A merged call waits for the last of its operands and
# delays the users of all: the bound on the sum leaves room for overlap.
MAX_CALL_BYTES = 1 << 20
MAX_MERGED_BYTES = 8 << 20


def _buckets(calls: Sequence[Call], depths: Mapping[int, int]) -> list[list[Call]]:
    """Put calls that may be one into lists, in the order of the program, within the byte limits."""
    full: list[list[Call]] = []
    filling: dict[Any, tuple[list[Call], int]] = {}
    for call in calls:
        shape = call.instruction.shape
        num_bytes = schema.array_bytes(shape)
        # An array only: the users of a tuple's parts would have to be rewired. Without blocks, the
        # operands are not independent of each other.
        if shape.element_type == schema.TUPLE or not call.blocks or num_bytes > MAX_CALL_BYTES:
            continue
        # Equal depth is what makes them independent, and keeps the merged graph free of cycles.
        key = (depths[call.local], call.operation, call.kind, call.groups, call.sources)
        bucket, filled = filling.get(key, ([], 0))
        if filled + num_bytes > MAX_MERGED_BYTES:
            full.append(bucket)
            bucket, filled = [], 0
        bucket.append(call)
        filling[key] = (bucket, filled + num_bytes)
    full.extend(bucket for bucket, _ in filling.values())
    return [bucket for bucket in full if len(bucket) > 1]


def _merge(graph: Graph, bucket: Sequence[Call], name: str) -> Call:
    """Add the merged call; the instructions merged keep id, name and users, and pick its parts."""
    first = bucket[0]
    merged = schema.HloInstructionProto()
    merged.CopyFrom(first.instruction)  # for its metadata: where in the user's program it is from
    clear_call(merged)
    merged.ClearField("operand_ids")
    merged.ClearField("control_predecessor_ids")
    merged.name, merged.id = name, graph.new_id()
    merged.opcode = "custom-call"
    merged.shape.Clear()
    merged.shape.element_type = schema.TUPLE
    controls: dict[int, None] = {}
    for call in bucket:
        merged.shape.tuple_shapes.append(call.instruction.shape)
        merged.operand_ids.extend(call.instruction.operand_ids)
        controls.update(dict.fromkeys(call.instruction.control_predecessor_ids))
    merged.control_predecessor_ids.extend(controls)
    local = graph.append(merged)
    for index, call in enumerate(bucket):
        part = call.instruction
        clear_call(part)
        part.ClearField("control_predecessor_ids")
        part.opcode, part.tuple_index = "get-tuple-element", index
        part.operand_ids[:] = [merged.id]
        graph.reread(call.local)
    blocks = tuple(block for call in bucket for block in call.blocks)
    return dataclasses.replace(first, local=local, blocks=blocks)


def combine(
    graph: Graph,
    calls: Sequence[Call],
    depths: dict[int, int],
    unused_name: Callable[[str], str],
) -> list[Call]:
    """Merge what can be merged in one computation.

    Args:
        graph: the computation; its instruction list is reordered where something was merged.
        calls: its calls, in the order of the list.
        depths: `graph.depths` of at least these calls; the merged calls are added.
        unused_name: makes a name that the module does not have yet from its first part.

    Returns:
        The calls that are left, in the new order of the list.
    """
    buckets = _buckets(calls, depths)
    if not buckets:
        return list(calls)
    place = {local: index for index, local in enumerate(graph.nodes)}
    gone: set[int] = set()
    merged_calls = []
    for bucket in buckets:
        gone.update(call.local for call in bucket)
        merged = _merge(graph, bucket, unused_name(bucket[0].operation.target))
        depths[merged.local] = depths[bucket[0].local]
        place[merged.local] = place[bucket[0].local]
        merged_calls.append(merged)
    graph.sort(place)
    order = {local: index for index, local in enumerate(graph.nodes)}
    left = [call for call in calls if call.local not in gone] + merged_calls
    return sorted(left, key=lambda call: order[call.local])
