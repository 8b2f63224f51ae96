# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Writes Strata calls into the proto: the custom call, and the identity by which ranks find it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from strata_jax.hlo import attributes, schema
from strata_jax.hlo.blocks import Block
from strata_jax.hlo.find import PROCESS_SHIFT, Call
from strata_jax.hlo.graph import Graph
from strata_jax.hlo.operations import ALL_REDUCE, RAGGED_ALL_TO_ALL, Operation

# What a collective or a custom call has beyond a name, a shape and inputs. Layout constraints are
# among them: layouts are assigned long before the hook, and XLA would check one for each operand.
_CALL_FIELDS = (
    "backend_config",
    "backend_config_payload",
    "called_computation_ids",
    "channel_id",
    "collective_device_list",
    "constrain_layout",
    "custom_call_api_version",
    "custom_call_has_side_effect",
    "custom_call_target",
    "dimensions",
    "iota_collective_device_list",
    "mesh_axes_replica_group_list",
    "operand_shapes_with_layout",
    "replica_groups",
    "source_target_pairs",
    "use_global_device_ids",
)


# Operand bytes from which the thread that calls a program must not wait for other processes; what
# it costs to go through another thread, some 30 us, is a tenth of the operation then.
_LARGE_BYTES = 2 << 20
_FLOPS = 1024


def clear_call(instruction: Any) -> None:
    """Take from an instruction all that makes it a collective or a custom call."""
    for field in _CALL_FIELDS:
        instruction.ClearField(field)


def _make_call(instruction: Any, operation: Operation, values: dict[str, attributes.Value]) -> None:
    clear_call(instruction)
    instruction.opcode = "custom-call"
    instruction.custom_call_target = operation.target
    instruction.custom_call_api_version = schema.API_VERSION_TYPED_FFI
    instruction.backend_config = attributes.encode(values)


def make_error(instruction: Any, text: str, operation: Operation = ALL_REDUCE) -> None:
    """Turn a call into one that fails when the program is compiled."""
    _make_call(instruction, operation, {"error": text})


def add_error(module: Any, text: str, unused_name: Callable[[str], str]) -> None:
    """Add a call to the module that fails when the program is compiled.

    The collective that the text is about keeps its form: what verifies it stays content, whatever
    it is.
    """
    for computation in module.computations:
        if computation.id == module.entry_computation_id:
            instruction = schema.HloInstructionProto(
                name=unused_name(ALL_REDUCE.target),
                id=Graph(computation).new_id(),
                shape=schema.ShapeProto(element_type=schema.U32, layout={}),
            )
            make_error(instruction, text)
            instruction.custom_call_has_side_effect = True  # else it is dead code
            computation.instructions.insert(0, instruction)


def fingerprint(calls: Sequence[Call]) -> int:
    """Return 64 signed bits that are equal where the same collectives run in the same order.

    Names, ids, metadata and everything else in the module differ between processes that compile the
    same program: paths of files, number of cores, constants that depend on the process.
    """
    skeleton = [
        (
            call.operation.name,
            call.kind,
            call.groups,
            call.sources,
            [(shape.element_type, tuple(shape.dimensions)) for shape in call.shapes],
            call.blocks,
        )
        for call in calls
    ]
    digest = hashlib.sha256(repr(skeleton).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _block_values(blocks: Sequence[Block]) -> dict[str, attributes.Value]:
    return {
        "num_loops": [len(block.loops) for block in blocks],
        "loops": [value for block in blocks for loop in block.loops for value in loop],
        "runs": [block.run for block in blocks],
        "in_steps": [block.in_step for block in blocks],
        "out_steps": [block.out_step for block in blocks],
    }


def _crosses_processes(call: Call, devices: Sequence[int]) -> bool:
    return any(len({devices[i] >> PROCESS_SHIFT for i in group}) > 1 for group in call.groups)


def _cost_flops(graph: Graph, partition_id: Any, unused_name: Callable[[str], str]) -> Any:
    """Return an array of the partition id that XLA takes for work.

    With one device in a process, XLA runs a program of less than 1,000 flops on the thread that
    calls it, and a custom call counts for none (xla/pjrt/cpu/cpu_client.cc): the caller would wait
    for the other processes. A native all-reduce counts, so the caller does not.
    """
    shape = schema.ShapeProto(
        element_type=schema.U32, dimensions=[_FLOPS], layout={"minor_to_major": [0]}
    )
    wide = schema.HloInstructionProto(
        name=unused_name("strata-partition-ids"),
        opcode="broadcast",
        id=partition_id.id + 1,  # the highest so far
        shape=shape,
        operand_ids=[partition_id.id],
    )
    graph.proto.instructions.insert(1, wide)
    flops = schema.HloInstructionProto(
        name=unused_name("strata-flops"),
        opcode="or",
        id=partition_id.id + 2,
        shape=shape,
        operand_ids=[wide.id, wide.id],
    )
    graph.proto.instructions.insert(2, flops)
    return flops


def bind(
    module_name: str,
    calls: Sequence[Call],
    finishes: Sequence[int],
    devices: Sequence[int],
    unused_name: Callable[[str], str],
) -> None:
    """Make every call a custom call with its identity.

    Args:
        module_name: name of the module, which ranks that miss each other report.
        calls: all calls of the module in the order of their index.
        finishes: for each, how it is completed, see cost.py.
        devices: global device id of each partition.
        unused_name: makes an instruction name that the module does not have yet.
    """
    identity = fingerprint(calls)
    partition_ids: dict[int, Any] = {}
    has_flops = False
    for index, (call, finish) in enumerate(zip(calls, finishes, strict=True)):
        graph, instruction = call.graph, call.instruction
        computation = graph.proto
        if computation.id not in partition_ids:
            partition_ids[computation.id] = schema.HloInstructionProto(
                name=unused_name("strata-partition-id"),
                opcode="partition-id",
                id=graph.new_id(),
                shape=schema.ShapeProto(element_type=schema.U32, layout={}),
            )
            # First in the list, because operands have to come before their users.
            computation.instructions.insert(0, partition_ids[computation.id])
        groups, group_size = attributes.flatten(call.groups)
        _make_call(
            instruction,
            call.operation,
            {
                "devices": devices,
                "finish": finish,
                "fp": identity,
                "group_size": group_size,
                "groups": groups,
                "is_tuple": int(call.is_tuple),
                "kind": call.kind,
                "module": module_name,
                "name": instruction.name,
                "op": index,
                "ragged": call.ragged,
                # Padded by the same length as the groups; -1 is a rank without source.
                "sources": attributes.flatten(call.sources, padding=-2)[0],
                **_block_values(call.blocks),
            },
        )
        partition_id = partition_ids[computation.id]
        if (
            not has_flops
            and sum(map(schema.array_bytes, call.operand_shapes)) >= _LARGE_BYTES
            and _crosses_processes(call, devices)
        ):
            partition_id = _cost_flops(graph, partition_id, unused_name)
            has_flops = True
        instruction.operand_ids.append(partition_id.id)
        if call.operation is RAGGED_ALL_TO_ALL:
            # XLA counts on the result taking the memory of `output`: it has copied that where it is
            # used again. As a custom call the operation has to say so.
            instruction.ClearField("output_operand_aliasing")
            instruction.output_operand_aliasing.add(operand_index=1)
