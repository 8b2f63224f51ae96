# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Text of `strata-jax bench`: sizes, numbers of fixed width, and the aligned table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# Stands for the name of the baseline in a title.
BASELINE = "BASELINE"
# Title, width and unit of each column; a value is text of at most the width.
COLUMNS = (
    ("size", 8, "B"),
    ("time", 10, "us"),
    ("algbw", 8, "GB/s"),
    ("busbw", 8, "GB/s"),
    ("p99", 10, "us"),
    ("#wrong", 7, ""),
    (BASELINE, 11, "us"),
    ("speed-up", 9, "x"),
    ("tuned", 10, "us"),
    ("tuned sp.", 9, "x"),
    ("ceiling", 8, "share"),
    ("spread", 7, "%"),
)
# The same of mode `first`: of ours, then of the baseline.
FIRST_COLUMNS = (
    ("size", 8, "B"),
    ("first", 10, "us"),
    ("tenth", 10, "us"),
    ("ratio", 7, ""),
    ("#wrong", 7, ""),
    (BASELINE, 11, ""),
    ("first", 10, "us"),
    ("tenth", 10, "us"),
    ("ratio", 7, ""),
)
# A spread of the rounds' medians above this is flagged.
SPREAD_LIMIT = 0.10


def parse_bytes(text: str) -> int:
    """Read a number of bytes such as 4096, 4K, 1M or 2G.

    Raises:
        ValueError: `text` is none.
    """
    body = text.strip().upper()
    unit = body[-1:] if body[-1:] in ("K", "M", "G") else ""
    digits = body[: len(body) - len(unit)]
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def format_bytes(num_bytes: int) -> str:
    """Write a number of bytes with the largest unit that divides it."""
    for unit in ("G", "M", "K"):
        if num_bytes and num_bytes % _UNITS[unit] == 0:
            return f"{num_bytes // _UNITS[unit]}{unit}"
    return str(num_bytes)


def format_number(value: float | None) -> str:
    """Write a number with 4 significant digits, fewer decimals the larger it is."""
    if value is None:
        return "-"
    for limit, decimals in ((10, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def _line(cells: Sequence[str], columns: Sequence[tuple[str, int, str]]) -> str:
    padded = [cell.rjust(width) for cell, (_, width, _) in zip(cells, columns, strict=True)]
    return " ".join(padded)


def head(baseline: str, columns: Sequence[tuple[str, int, str]] = COLUMNS) -> str:
    """Return the two lines above the rows."""
    titles = [baseline if title == BASELINE else title for title, _, _ in columns]
    units = [f"({unit})" if unit else "" for _, _, unit in columns]
    return f"{_line(titles, columns)}\n{_line(units, columns)}"


def row_line(row: Mapping[str, Any], spread: float) -> str:
    """Return one aligned line of a row of the JSON file."""
    cells = [
        format_bytes(row["size_bytes"]),
        format_number(row["median_us"]),
        format_number(row["algbw_gbps"]),
        format_number(row["busbw_gbps"]),
        format_number(row["p99_us"]),
        str(row["wrong"]),
        format_number(row["baseline_median_us"]),
        format_number(row["speedup"]),
        format_number(row["tuned_median_us"]),
        format_number(row["tuned_speedup"]),
        format_number(row["ceiling_share"]),
        f"{100 * spread:.0f}{'!' if spread > SPREAD_LIMIT else ' '}",
    ]
    return _line(cells, COLUMNS)


def first_line(row: Mapping[str, Any]) -> str:
    """Return one aligned line of a row of mode `first`."""
    cells = [
        format_bytes(row["size_bytes"]),
        format_number(row["first_us"]),
        format_number(row["tenth_us"]),
        format_number(row["ratio"]),
        str(row["wrong"]),
        "",
        format_number(row["baseline_first_us"]),
        format_number(row["baseline_tenth_us"]),
        format_number(row["baseline_ratio"]),
    ]
    return _line(cells, FIRST_COLUMNS)
