# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What the signatures of the collectives share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import jax

T = TypeVar("T")
AxisName = Hashable | tuple[Hashable, ...]
AxisIndexGroups = Sequence[Sequence[int]] | None


def check_bound(axis_name: AxisName) -> None:
    """Raises NameError where no mapped function around the call has this axis."""
    jax.lax.axis_size(axis_name)


def dimension(function: str, argument: str, value: int, num_dimensions: int) -> int:
    """Returns a dimension that may be counted from the end as one from the start."""
    if not -num_dimensions <= value < num_dimensions:
        raise ValueError(
            f"{function}: {argument} {value} is out of bounds for an array of {num_dimensions} "
            f"dimensions; it must be from {-num_dimensions} to {num_dimensions - 1}"
        )
    return value % num_dimensions
