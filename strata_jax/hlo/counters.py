# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What the compile hook has done in this process, for `strata_jax.stats()`."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from typing import Any


@dataclasses.dataclass
class Tally:
    """What the hook did.

    Attributes:
        modules: modules changed.
        lowered: calls written by the lowering that were given their identity.
        native: native collectives that became calls.
        split: native collectives over several hosts that became calls inside each, around a native
            one between them.
        absorbed: buffers of calls without the copies and conversions that XLA had put around.
        calls: calls that are left after small ones were merged.
        failed: calls turned into an error.
        finish: calls by how they are completed.
        left: collectives that stay native, by reason.
        seconds: time spent.
    """

    modules: int = 0
    lowered: int = 0
    native: int = 0
    split: int = 0
    absorbed: int = 0
    calls: int = 0
    failed: int = 0
    finish: Counter[str] = dataclasses.field(default_factory=Counter)
    left: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0


class Counters:
    """Sums of what the hook did in this process; any thread may compile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._total = Tally()
        self._said: set[str] = set()

    def add(self, tally: Tally) -> None:
        """Add what happened in one module."""
        with self._lock:
            for field in dataclasses.fields(Tally):
                total = getattr(self._total, field.name)
                total += getattr(tally, field.name)
                setattr(self._total, field.name, total)

    def first(self, what: str) -> bool:
        """Say whether `what` is asked about for the first time: then it is to be logged."""
        with self._lock:
            is_first = what not in self._said
            self._said.add(what)
            return is_first

    def snapshot(self) -> dict[str, Any]:
        """Return the sums so far."""
        with self._lock:
            result = dict(vars(self._total))
            return {**result, "finish": dict(result["finish"]), "left": dict(result["left"])}
