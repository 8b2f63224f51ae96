# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What `strata-jax launch` says of a job that did not end well."""

from __future__ import annotations

import collections
import signal
from collections.abc import Iterable, Sequence
from typing import Protocol


class Rank(Protocol):
    """What is told of a rank; see `launch_job.Rank`."""

    index: int
    status: int | None
    signals: list[int]
    last_lines: collections.deque[str]


def failed(ranks: Sequence[Rank], first: Rank, seconds: float) -> str:
    """Say who failed first and why, and what happened to the others."""
    text = f"rank {first.index} failed first, after {seconds:.1f} s: {how_ended(first)}"
    if first.last_lines:
        text += "; the end of its standard error:"
        text += "".join(f"\n    {line}" for line in first.last_lines)
    others = [rank for rank in ranks if rank is not first]
    return f"{text}\nthe others: {how_all_ended(others)}" if others else text


def timed_out(ranks: Sequence[Rank], timeout_s: float) -> str:
    """Say which ranks still ran when the time was up."""
    return f"the job did not end within --timeout {timeout_s:g} s: {how_all_ended(ranks)}"


def told_to_end(ranks: Sequence[Rank], signum: int) -> str:
    """Say how ranks ended after the launcher was told to end."""
    why = "nobody reads the output" if signum == signal.SIGPIPE else f"got {signal_name(signum)}"
    return f"{why}: {how_all_ended(ranks)}"


def some_ended(ranks: Sequence[Rank], seconds: float) -> str:
    """Say that some ranks have ended with success and others have not."""
    ended = [rank.index for rank in ranks if rank.status is not None]
    running = [rank.index for rank in ranks if rank.status is None]
    return (
        f"{names(ended)} ended with status 0 {seconds:g} s ago, {names(running)} still "
        f"{'runs' if len(running) == 1 else 'run'}"
    )


def how_all_ended(ranks: Iterable[Rank]) -> str:
    """Return e.g. "exit status 1 (ranks 0 and 2), killed by SIGKILL (rank 3)"."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(how_ended(rank), []).append(rank.index)
    return ", ".join(f"{how} ({names(indices)})" for how, indices in groups.items())


def how_ended(rank: Rank) -> str:
    """Return e.g. "ended by the launcher with SIGTERM"."""
    status, sent = rank.status, " and ".join(map(signal_name, dict.fromkeys(rank.signals)))
    if status is None:
        return "running"
    if status < 0:
        by_launcher = -status in rank.signals
        return f"ended by the launcher with {sent}" if by_launcher else killed_by(-status)
    return f"exit status {status}" + (f" after the launcher's {sent}" if sent else "")


def killed_by(signum: int) -> str:
    """Return e.g. "killed by SIGKILL"."""
    return f"killed by {signal_name(signum)}"


def names(indices: Sequence[int]) -> str:
    """Return e.g. "ranks 0, 1 and 3"."""
    if len(indices) == 1:
        return f"rank {indices[0]}"
    return f"ranks {', '.join(map(str, indices[:-1]))} and {indices[-1]}"


def signal_name(signum: int) -> str:
    """Return e.g. "SIGKILL"."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
