# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The subset of HloModuleProto against the descriptors that jaxlib's own library carries."""

from __future__ import annotations

import mmap
import pathlib
from typing import Any

import jaxlib
from absl.testing import absltest, parameterized
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from strata_jax.hlo import schema

_Descriptor = descriptor_pb2.FieldDescriptorProto
_LIBRARY = pathlib.Path(jaxlib.__file__).parent / "libjax_common.so"
_PROTO_FILES = ("xla/xla_data.proto", "xla/service/hlo.proto")
# More than either file takes (about 60 kB).
_LONGEST = 400_000


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _longest_descriptor(data: bytes) -> Any:
    """Return the FileDescriptorProto at the start of data; nothing marks where it ends."""
    at, best = 0, None
    while at < len(data):
        tag, after = _varint(data, at)
        # FileDescriptorProto has fields 1 to 14, lengths and integers.
        if not 1 <= tag >> 3 <= 14 or tag & 7 not in (0, 2):
            break
        value, after = _varint(data, after)
        at = after + value if tag & 7 == 2 else after
        try:
            best = descriptor_pb2.FileDescriptorProto.FromString(data[:at])
        except DecodeError:
            break
    return best


def _embedded_file(library: mmap.mmap, name: str) -> Any:
    key = b"\x0a" + bytes([len(name)]) + name.encode()  # field 1, its own name
    start = library.find(key)
    while start >= 0:
        found = _longest_descriptor(library[start : start + _LONGEST])
        if found is not None and found.message_type:
            return found
        start = library.find(key, start + 1)
    raise LookupError(f"{name} is not in {_LIBRARY}")


class SchemaTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.messages: dict[str, Any] = {}
        cls.enums: dict[str, dict[str, int]] = {}
        with (
            _LIBRARY.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
        ):
            for name in _PROTO_FILES:
                descriptor = _embedded_file(library, name)
                cls._collect(descriptor.message_type, "")
                for enum in descriptor.enum_type:
                    cls.enums[enum.name] = {v.name: v.number for v in enum.value}

    @classmethod
    def _collect(cls, messages: Any, prefix: str) -> None:
        for message in messages:
            cls.messages[prefix + message.name] = message
            cls._collect(message.nested_type, f"{prefix}{message.name}.")

    @parameterized.parameters(*schema.SCHEMA)
    def test_fields(self, message_name: str) -> None:
        there = {field.name: field for field in self.messages[message_name].field}
        for name, here in schema.SCHEMA[message_name].items():
            with self.subTest(name):
                field = there[name]
                self.assertEqual(here.number, field.number)
                self.assertEqual(here.repeated, field.label == _Descriptor.LABEL_REPEATED)
                if here.type == "enum":
                    self.assertEqual(field.type, _Descriptor.TYPE_ENUM)
                elif here.type in schema.SCALAR_TYPES:
                    self.assertEqual(field.type, schema.SCALAR_TYPES[here.type])
                else:
                    self.assertEqual(field.type, _Descriptor.TYPE_MESSAGE)
                    self.assertEqual(field.type_name, f".xla.{here.type}")

    def test_element_types(self) -> None:
        there = self.enums["PrimitiveType"]
        for name, (number, _) in schema.PRIMITIVE_TYPES.items():
            self.assertEqual(number, there[name], name)
        self.assertEqual(schema.TUPLE, there["TUPLE"])
        self.assertEqual(schema.type_name(there["F8E4M3FN"]), "F8E4M3FN")
        self.assertEqual(schema.type_name(999), "999")

    def test_element_sizes_follow_the_names(self) -> None:
        for name, (_, bits) in schema.PRIMITIVE_TYPES.items():
            digits = name.lstrip("BFSUC").split("E")[0]
            self.assertEqual(bits, 8 if name == "PRED" else int(digits), name)

    def test_api_version(self) -> None:
        self.assertEqual(
            schema.API_VERSION_TYPED_FFI,
            self.enums["CustomCallApiVersion"]["API_VERSION_TYPED_FFI"],
        )

    def test_array_bytes(self) -> None:
        f32, s4 = schema.PRIMITIVE_TYPES["F32"][0], schema.PRIMITIVE_TYPES["S4"][0]
        array = schema.ShapeProto(element_type=f32, dimensions=[3, 5])
        nibbles = schema.ShapeProto(element_type=s4, dimensions=[3])
        both = schema.ShapeProto(element_type=schema.TUPLE, tuple_shapes=[array, nibbles])
        self.assertEqual(schema.array_bytes(array), 60)
        self.assertEqual(schema.array_bytes(nibbles), 2)
        self.assertEqual(schema.array_bytes(both), 62)
        self.assertEqual(schema.array_bytes(schema.ShapeProto(element_type=f32)), 4)


if __name__ == "__main__":
    absltest.main()
