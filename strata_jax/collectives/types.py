# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What the signatures of the collectives share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
AxisName = Hashable | tuple[Hashable, ...]
AxisIndexGroups = Sequence[Sequence[int]] | None
