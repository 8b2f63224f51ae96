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
    lines = [f"rank {first.index} failed first, after {seconds:.1f} s: {how_ended(first)}"]
    if first.last_lines:
        lines[0] += "; the end of its standard error:"
        lines += [f"    {line}" for line in first.last_lines]
    others = [rank for rank in ranks if rank is not first]
    if others:
        lines.append(f"of the others, {how_all_ended(others)}")
    return "\n".join(lines)


def timed_out(ranks: Sequence[Rank], timeout_s: float) -> str:
    """Say which ranks still ran when the time was up."""
    return f"ended the job after --timeout {timeout_s:g} s: {how_all_ended(ranks)}"


def told_to_end(ranks: Sequence[Rank], signum: int) -> str:
    """Say how ranks ended after the launcher was told to end."""
    return f"told to end by {signal_name(signum)}: {how_all_ended(ranks)}"


def some_ended(ranks: Sequence[Rank], seconds: float) -> str:
    """Say that some ranks have ended with success and others have not."""
    ended = [rank.index for rank in ranks if rank.status is not None]
    running = [rank.index for rank in ranks if rank.status is None]
    return (
        f"{names(ended)} ended with status 0 {seconds:g} s ago, {names(running)} still "
        f"{'runs' if len(running) == 1 else 'run'}"
    )


def how_all_ended(ranks: Iterable[Rank]) -> str:
    """Return e.g. "ranks 0 and 2 exited with status 1, rank 3 was killed by SIGKILL"."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(how_ended(rank), []).append(rank.index)
    return ", ".join(f"{names(indices)} {how}" for how, indices in groups.items())


def how_ended(rank: Rank) -> str:
    """Return e.g. "did not end within the grace and was ended by SIGTERM"."""
    status = rank.status
    if status is None:
        return "runs"
    if status >= 0:
        how = f"exited with status {status}"
        return f"{how} after {sent(rank)}" if rank.signals else how
    if -status in rank.signals:
        return f"was ended by {sent(rank)} of the launcher"
    return f"was killed by {signal_name(-status)}"


def sent(rank: Rank) -> str:
    """Return the names of the signals that the launcher sent."""
    return " and ".join(signal_name(signum) for signum in dict.fromkeys(rank.signals))


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
