# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Who takes part in `strata-jax bench`: ours, and what it is measured against."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# What a user can have from the C library alone: huge pages, and freed pages that stay with the
# process. Blocks above the heaps of threads (64 MiB) would be mapped afresh at each run whatever
# the thresholds say, so all threads share the main heap, which has no such limit.
TUNABLES = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.arena_max=1",
        f"glibc.malloc.mmap_threshold={1 << 40}",
        f"glibc.malloc.trim_threshold={1 << 40}",
        f"glibc.malloc.top_pad={64 << 20}",
    )
)

# Baselines of --against.
OF_ONE_PROCESS = ("lax", "staged", "unpopulated", "none")
OF_SEVERAL_PROCESSES = ("gloo", "mpi", "one-process", "staged", "unpopulated", "none")
BASELINES = tuple(dict.fromkeys(OF_ONE_PROCESS + OF_SEVERAL_PROCESSES))

_STAGED = {"STRATA_ARENA": "off"}
_UNPOPULATED = {"STRATA_POPULATE": "off"}


@dataclasses.dataclass(frozen=True)
class Contender:
    """One job of processes that measures.

    Attributes:
        kind: its name in the output.
        library: "strata", "lax" (never loads this package) or "mpi" (no JAX either).
        num_processes: processes of the job.
        num_devices: devices of all its processes together.
        environment: variables that its processes run with.
        about: what it is, for the head of the output; "" where that needs no word.
    """

    kind: str
    library: str
    num_processes: int
    num_devices: int
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    about: str = ""


def contenders(
    against: str, *, num_processes: int, num_devices: int, staged: bool
) -> tuple[Contender, ...]:
    """Return ours, the baseline that `against` names, and what else goes with it.

    Args:
        against: one of `BASELINES`.
        num_processes: processes of ours.
        num_devices: devices of each contender, over all its processes.
        staged: whether ours runs without the arena.
    """

    def job(
        kind: str,
        library: str,
        about: str = "",
        environment: Mapping[str, str] | None = None,
        processes: int = num_processes,
    ) -> Contender:
        return Contender(kind, library, processes, num_devices, environment or {}, about)

    def with_tuned(baseline: Contender) -> tuple[Contender, ...]:
        tunables = {"GLIBC_TUNABLES": TUNABLES}
        about = f"{baseline.kind} with GLIBC_TUNABLES={TUNABLES}"
        return baseline, job("tuned", "lax", about, tunables)

    ours = job("ours", "strata")
    if staged:
        ours = job("ours", "strata", f"with {_text(_STAGED)}, so that it copies operands", _STAGED)
    others: tuple[Contender, ...] = ()
    if against == "lax":
        others = with_tuned(job("lax", "lax", "jax.lax in a process that never loads strata_jax"))
    elif against == "gloo":
        others = with_tuned(
            job("gloo", "lax", "jax.lax over Gloo in processes that never load strata_jax")
        )
    elif against == "mpi":
        about = "MPI's collectives on numpy arrays, mpi4py under mpirun, one rank a process"
        others = (job("mpi", "mpi", about),)
    elif against == "one-process":
        about = f"strata_jax with all {num_devices} devices in one process"
        others = (job("one-process", "strata", about, processes=1),)
    elif against == "staged":
        about = f"strata_jax with {_text(_STAGED)}, so that it copies operands"
        others = (job("staged", "strata", about, _STAGED),)
    elif against == "unpopulated":
        about = f"strata_jax with {_text(_UNPOPULATED)}, so that pages come with the first access"
        others = (job("unpopulated", "strata", about, {**ours.environment, **_UNPOPULATED}),)
    return ours, *others


def _text(environment: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items())
