# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The part of XLA's HloModuleProto that the compile hook reads or writes.

jaxlib hands the hook a serialised module but ships no Python classes for it. This file declares the
few fields the hook needs; protobuf keeps every other field as unknown bytes and writes it back.
The numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`; jaxlib's own library
embeds both files, and tests/unit/test_hlo_schema.py compares each field here with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Descriptor = descriptor_pb2.FieldDescriptorProto

# Enumerations are declared as int32, which has the same encoding.
SCALAR_TYPES: dict[str, Any] = {
    "bool": _Descriptor.TYPE_BOOL,
    "bytes": _Descriptor.TYPE_BYTES,
    "enum": _Descriptor.TYPE_INT32,
    "int32": _Descriptor.TYPE_INT32,
    "int64": _Descriptor.TYPE_INT64,
    "string": _Descriptor.TYPE_STRING,
}


class Field(NamedTuple):
    """One field of a message: its number, a scalar type or the name of a message, and its label."""

    number: int
    type: str
    repeated: bool


def _one(number: int, field_type: str) -> Field:
    return Field(number, field_type, False)


def _many(number: int, field_type: str) -> Field:
    return Field(number, field_type, True)


# Full name of the message in package `xla` -> its fields by name.
SCHEMA: dict[str, dict[str, Field]] = {
    "HloModuleProto": {
        "name": _one(1, "string"),
        "computations": _many(3, "HloComputationProto"),
        "entry_computation_id": _one(6, "int64"),
        "device_assignment": _one(15, "DeviceAssignmentProto"),
        "input_output_alias": _one(8, "HloInputOutputAliasProto"),
        "frontend_attributes": _one(19, "FrontendAttributes"),
    },
    "HloInputOutputAliasProto": {},
    "HloComputationProto": {
        "name": _one(1, "string"),
        "instructions": _many(2, "HloInstructionProto"),
        "id": _one(5, "int64"),
        "root_id": _one(6, "int64"),
        "is_fusion_computation": _one(7, "bool"),
    },
    "HloInstructionProto": {
        "name": _one(1, "string"),
        "opcode": _one(2, "string"),
        "shape": _one(3, "ShapeProto"),
        "literal": _one(8, "LiteralProto"),
        "parameter_number": _one(9, "int64"),
        "fusion_kind": _one(11, "string"),
        "tuple_index": _one(13, "int64"),
        "dimensions": _many(14, "int64"),
        "convolution_dimension_numbers": _one(16, "ConvolutionDimensionNumbers"),
        "slice_dimensions": _many(17, "HloInstructionProto.SliceDimensions"),
        "channel_id": _one(26, "int64"),
        "custom_call_target": _one(28, "string"),
        "dot_dimension_numbers": _one(30, "DotDimensionNumbers"),
        "id": _one(35, "int64"),
        "operand_ids": _many(36, "int64"),
        "control_predecessor_ids": _many(37, "int64"),
        "called_computation_ids": _many(38, "int64"),
        "backend_config": _one(43, "bytes"),
        "replica_groups": _many(49, "ReplicaGroup"),
        "source_target_pairs": _many(52, "SourceTarget"),
        "constrain_layout": _one(56, "bool"),
        "operand_shapes_with_layout": _many(57, "ShapeProto"),
        "custom_call_has_side_effect": _one(65, "bool"),
        "use_global_device_ids": _one(71, "bool"),
        "output_operand_aliasing": _many(74, "OutputOperandAliasing"),
        "custom_call_api_version": _one(77, "enum"),
        "collective_device_list": _one(87, "CollectiveDeviceListProto"),
        "iota_collective_device_list": _one(92, "IotaReplicaGroupListProto"),
        "mesh_axes_replica_group_list": _one(93, "MeshAxesReplicaGroupListProto"),
        "backend_config_payload": _one(99, "Payload"),
    },
    "HloInstructionProto.SliceDimensions": {
        "start": _one(1, "int64"),
        "limit": _one(2, "int64"),
        "stride": _one(3, "int64"),
    },
    "OutputOperandAliasing": {
        "output_shape_index": _many(1, "int64"),
        "operand_index": _one(2, "int64"),
        "operand_shape_index": _many(3, "int64"),
    },
    "SourceTarget": {"source": _one(1, "int64"), "target": _one(2, "int64")},
    "Payload": {},
    "ShapeProto": {
        "element_type": _one(2, "enum"),
        "dimensions": _many(3, "int64"),
        "tuple_shapes": _many(4, "ShapeProto"),
        "layout": _one(5, "LayoutProto"),
        "is_dynamic_dimension": _many(6, "bool"),
    },
    "LiteralProto": {"shape": _one(1, "ShapeProto"), "s64s": _many(5, "int64")},
    "LayoutProto": {"minor_to_major": _many(1, "int64")},
    "DotDimensionNumbers": {"lhs_contracting_dimensions": _many(1, "int64")},
    "ConvolutionDimensionNumbers": {"kernel_output_feature_dimension": _one(4, "int64")},
    "ReplicaGroup": {"replica_ids": _many(1, "int64")},
    "CollectiveDeviceListProto": {"replica_groups": _many(1, "ReplicaGroup")},
    "IotaReplicaGroupListProto": {
        "num_replica_groups": _one(1, "int64"),
        "num_devices_per_group": _one(2, "int64"),
        "iota_reshape_dims": _many(3, "int64"),
        "iota_transpose_perm": _many(4, "int32"),
    },
    "MeshAxesReplicaGroupListProto": {
        "mesh": _one(1, "MeshProto"),
        "axes": _many(2, "AxisRefProto"),
    },
    "MeshProto": {
        "axes": _many(1, "MeshProto.MeshAxis"),
        "device_ids": _many(2, "int64"),
        "iota_transform": _one(3, "MeshProto.IotaTransform"),
    },
    "MeshProto.MeshAxis": {"name": _one(1, "string"), "size": _one(2, "int64")},
    "MeshProto.IotaTransform": {
        "reshape_dims": _many(1, "int64"),
        "transpose_perm": _many(2, "int64"),
    },
    "AxisRefProto": {
        "mesh_axis_index": _one(1, "int64"),
        "sub_axis_info": _one(2, "AxisRefProto.SubAxis"),
    },
    "AxisRefProto.SubAxis": {"pre_size": _one(1, "int64"), "size": _one(2, "int64")},
    "DeviceAssignmentProto": {
        "replica_count": _one(1, "int32"),
        "computation_count": _one(2, "int32"),
        "computation_devices": _many(3, "DeviceAssignmentProto.ComputationDevice"),
    },
    "DeviceAssignmentProto.ComputationDevice": {"replica_device_ids": _many(1, "int64")},
    "FrontendAttributes": {"map": _many(1, "FrontendAttributes.MapEntry")},
    "FrontendAttributes.MapEntry": {"key": _one(1, "string"), "value": _one(2, "string")},
}


def _message_classes() -> dict[str, Any]:
    package = "strata_jax.hlo"
    file = descriptor_pb2.FileDescriptorProto(
        name="strata_jax/hlo/schema.proto", package=package, syntax="proto3"
    )
    for message_name, fields in SCHEMA.items():
        message = file.message_type.add(name=message_name.replace(".", "_"))
        for field_name, field in fields.items():
            entry = message.field.add(name=field_name, number=field.number)
            entry.label = (
                _Descriptor.LABEL_REPEATED if field.repeated else _Descriptor.LABEL_OPTIONAL
            )
            if field.type in SCALAR_TYPES:
                entry.type = SCALAR_TYPES[field.type]
            else:
                entry.type = _Descriptor.TYPE_MESSAGE
                entry.type_name = f".{package}.{field.type.replace('.', '_')}"
    # A pool of our own: names cannot clash with those of another package in the process.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{name.replace('.', '_')}")
        )
        for name in SCHEMA
    }


_classes = _message_classes()
HloModuleProto: Any = _classes["HloModuleProto"]
HloInstructionProto: Any = _classes["HloInstructionProto"]
ShapeProto: Any = _classes["ShapeProto"]

# CustomCallApiVersion of hlo.proto.
API_VERSION_TYPED_FFI = 4

# PrimitiveType of xla_data.proto: name -> (number, bits of one element).
PRIMITIVE_TYPES: dict[str, tuple[int, int]] = {
    "PRED": (1, 8),
    "S1": (30, 1),
    "S2": (26, 2),
    "S4": (21, 4),
    "S8": (2, 8),
    "S16": (3, 16),
    "S32": (4, 32),
    "S64": (5, 64),
    "U1": (31, 1),
    "U2": (27, 2),
    "U4": (22, 4),
    "U8": (6, 8),
    "U16": (7, 16),
    "U32": (8, 32),
    "U64": (9, 64),
    "F16": (10, 16),
    "F32": (11, 32),
    "BF16": (16, 16),
    "F64": (12, 64),
    "F8E5M2": (19, 8),
    "F8E4M3": (28, 8),
    "F8E4M3FN": (20, 8),
    "F8E4M3B11FNUZ": (23, 8),
    "F8E3M4": (29, 8),
    "F8E5M2FNUZ": (24, 8),
    "F8E4M3FNUZ": (25, 8),
    "F4E2M1FN": (32, 4),
    "F8E8M0FNU": (33, 8),
    "C64": (15, 64),
    "C128": (18, 128),
}
TUPLE = 13
S64 = PRIMITIVE_TYPES["S64"][0]
U32 = PRIMITIVE_TYPES["U32"][0]
TYPE_NAMES: dict[int, str] = {number: name for name, (number, _) in PRIMITIVE_TYPES.items()}
TYPE_BITS: dict[int, int] = dict(PRIMITIVE_TYPES.values())


def type_name(element_type: int) -> str:
    """Return XLA's name of an element type, or its number where this file does not know it."""
    return TYPE_NAMES.get(element_type, str(element_type))


def array_bytes(shape: Any) -> int:
    """Return the bytes of one array, or of all leaves of a tuple; 0 for tokens and opaque types."""
    element_type = shape.element_type
    if element_type == TUPLE:
        return sum(array_bytes(leaf) for leaf in shape.tuple_shapes)
    bits = TYPE_BITS.get(element_type, 0)
    for dimension in shape.dimensions:
        bits *= dimension
    return (bits + 7) // 8
