# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What this host is: cores, memory, limits, huge pages, and where the package lies."""

from __future__ import annotations

import os
import pathlib
import re

_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
_CGROUP = pathlib.Path("/sys/fs/cgroup")


def package_root() -> pathlib.Path:
    """Return the folder that holds the package `strata_jax`."""
    return pathlib.Path(__file__).resolve().parents[2]


def num_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Return the processor's name, or "unknown"."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1) if found else "unknown"


def memory_bytes() -> tuple[int, int]:
    """Return physical memory and what of it is available, 0 where unknown."""
    text = _read("/proc/meminfo")
    found = [
        re.search(rf"^{name}:\s+(\d+) kB", text, re.M) for name in ("MemTotal", "MemAvailable")
    ]
    total, available = (int(match.group(1)) << 10 if match else 0 for match in found)
    return total, available


def cgroup_limit_bytes() -> int | None:
    """Return the least memory limit of this process's control groups, None where there is none."""
    limits = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = _CGROUP, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = _CGROUP / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        # In a container the path may lie outside of what is mounted; its root is then the limit.
        for folder in (group, *group.parents):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < 1 << 60:
                limits.append(int(text))
            if folder == top:
                break
    return min(limits) if limits else None


def huge_page_modes() -> dict[str, str]:
    """Return the chosen mode of each transparent huge page switch of the kernel."""
    modes = {}
    for name in ("enabled", "defrag", "shmem_enabled"):
        found = re.search(r"\[(.+?)\]", _read(_HUGE_PAGES / name))
        modes[name] = found.group(1) if found else "unknown"
    return modes


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
