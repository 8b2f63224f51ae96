# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Attributes of a Strata call: the MLIR dictionary in its backend_config."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strata_jax.hlo.groups import Groups

Value = int | str | Sequence[int]

_INTEGER = r"(?<![\w.]){name}\s*=\s*(-?\d+)\s*:\s*i64"
_ARRAY = re.compile(
    r"(?<![\w.])groups\s*=\s*(?:"
    r"array<i64:?\s*(?P<array>[-\d, ]*)>"
    r"|dense<\[(?P<list>[-\d, ]*)\]>\s*:\s*tensor<\d+xi64>"
    r"|dense<(?P<none>)>\s*:\s*tensor<0xi64>"
    r"|dense<(?P<splat>-?\d+)>\s*:\s*tensor<(?P<count>\d+)xi64>"
    r'|dense<"0x(?P<hex>[0-9A-Fa-f]*)">\s*:\s*tensor<\d+xi64>)'
)
_PATTERNS = {
    name: re.compile(_INTEGER.format(name=name))
    for name in ("kind", "group_size", "in_axis", "out_axis")
}
_BOUND = re.compile(r"(?<![\w.])(?:op|error)\s*=")


def quote(text: str) -> str:
    """Return text as an MLIR string literal."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for byte in text.encode():
        if 32 <= byte < 127 and byte not in b'"\\':
            out.append(chr(byte))
        else:
            out.append(f"\\{byte:02X}")
    return f'"{"".join(out)}"'


@functools.lru_cache(maxsize=64)  # the calls of a module share devices, and mostly groups
def _array_literal(values: tuple[int, ...]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, int):
        return f"{value} : i64"
    return _array_literal(tuple(value))


def encode(attributes: Mapping[str, Value]) -> bytes:
    """Return the MLIR dictionary of integers (i64), strings and arrays of i64."""
    items = (f"{name} = {_literal(value)}" for name, value in sorted(attributes.items()))
    return f"{{{', '.join(items)}}}".encode()


def flatten(groups: Sequence[Sequence[int]], padding: int = -1) -> tuple[list[int], int]:
    """Return the groups as one list, filled up to equal sizes, and that size."""
    group_size = max(map(len, groups), default=1)
    flat = [i for group in groups for i in (*group, *[padding] * (group_size - len(group)))]
    return flat, group_size


def _integers(text: str) -> tuple[int, ...]:
    """Read the groups of a call in each form in which MLIR prints an array of i64."""
    match = _ARRAY.search(text)
    if match is None:
        raise ValueError(f"no array of i64 named groups in {text[:200]}")
    if match["hex"] is not None:  # how MLIR prints more than 100 elements
        raw = bytes.fromhex(match["hex"])
        return struct.unpack(f"<{len(raw) // 8}q", raw)
    if match["splat"] is not None:  # how it prints equal elements
        return (int(match["splat"]),) * int(match["count"])
    return tuple(int(i) for i in (match["array"] or match["list"] or "").split(",") if i.strip())


def _integer(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    if match is None:
        raise ValueError(f"no i64 for {pattern.pattern} in {text[:200]}")
    return int(match[1])


class Written(NamedTuple):
    """What the lowering wrote into a call.

    Attributes:
        kind: which reduction; 0 if none.
        groups: replica groups, or the pairs of collective_permute.
        in_axis: dimension of the operand that is cut into one block a rank.
        out_axis: dimension of the result that is joined of one block a rank.
    """

    kind: int
    groups: Groups
    in_axis: int | None
    out_axis: int | None


def decode(backend_config: bytes) -> Written:
    """Return the attributes of a call as the lowering wrote them.

    Raises:
        ValueError: an attribute is missing or has another type.
    """
    text = backend_config.decode()
    kind, group_size, in_axis, out_axis = (
        _integer(_PATTERNS[name], text) for name in ("kind", "group_size", "in_axis", "out_axis")
    )
    flat = _integers(text)
    if group_size < 1 or len(flat) % group_size:
        raise ValueError(f"{len(flat)} ids in groups are no multiple of group_size {group_size}")
    groups = tuple(
        tuple(i for i in flat[start : start + group_size] if i >= 0)
        for start in range(0, len(flat), group_size)
    )
    return Written(
        kind, groups, None if in_axis < 0 else in_axis, None if out_axis < 0 else out_axis
    )


def is_bound(backend_config: bytes) -> bool:
    """Say whether a call has been given its identity, or an error, already."""
    return _BOUND.search(backend_config.decode(errors="replace")) is not None
