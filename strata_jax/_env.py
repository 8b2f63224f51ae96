# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The environment variables of strata_jax, each read and checked here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ISAS = ("auto", "avx512", "avx2", "baseline")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
        warn_s: `STRATA_WARN_S`, seconds after which an operation with missing ranks is reported.
        timeout_s: `STRATA_TIMEOUT_S`, seconds after which it fails; None for the defaults of
            `init()`.
        num_workers: `STRATA_WORKERS`, threads that share the work of collectives; 0 for the number
            of cores.
        isa: `STRATA_ISA`, instruction set of the kernels; "" for the best.
        arena: `STRATA_ARENA`, whether XLA's arrays are allocated in the arena; without, operations
            between processes copy them first.
        arena_bytes: `STRATA_ARENA_BYTES`, address space to reserve; -1 for twice the memory.
        keep_bytes: `STRATA_KEEP_BYTES`, free pages to keep; -1 for a quarter of the memory (of the
            cgroup's limit, where there is one).
        huge_pages: `STRATA_HUGE_PAGES`.
        populate: `STRATA_POPULATE`, whether pages are got ahead of their use, and mapped into the
            other processes of the host.
        check_ragged: `STRATA_CHECK_RAGGED`, whether bad offsets and sizes of `ragged_all_to_all`
            are errors.
        spin_us: `STRATA_SPIN_US`, microseconds that a rank looks for other processes before its
            thread is given back; None for the default of `init()`.
        strict: `STRATA_STRICT`, whether a collective that stays native is an error.
    """

    warn_s: float = 20.0
    timeout_s: float | None = None
    num_workers: int = 0
    isa: str = ""
    arena: bool = True
    arena_bytes: int = -1
    keep_bytes: int = -1
    huge_pages: bool = True
    populate: bool = True
    check_ragged: bool = False
    spin_us: float | None = None
    strict: bool = False


VARIABLES = (
    "STRATA_WARN_S",
    "STRATA_TIMEOUT_S",
    "STRATA_WORKERS",
    "STRATA_ISA",
    "STRATA_ARENA",
    "STRATA_ARENA_BYTES",
    "STRATA_KEEP_BYTES",
    "STRATA_HUGE_PAGES",
    "STRATA_POPULATE",
    "STRATA_CHECK_RAGGED",
    "STRATA_SPIN_US",
    "STRATA_STRICT",
)


def _refuse(name: str, value: str, allowed: str) -> ValueError:
    return ValueError(f"{name} is {value!r}, but must be {allowed}; correct or unset it")


def parse_bytes(name: str, value: str) -> int:
    """Returns the number of bytes that e.g. "64M" stands for."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", value.strip().upper())
    if not match:
        raise _refuse(name, value, "a number of bytes, with K, M, G or T for powers of 1024")
    num_bytes = int(match[1]) * _SUFFIXES[match[2]]
    if num_bytes >= 1 << 47:
        raise _refuse(name, value, "less than 128T, the address space of a process")
    return num_bytes


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 1e6:
        raise _refuse(name, value, "a number of seconds above 0, at most 1000000")
    return seconds


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise _refuse(name, value, f"one of {', '.join(choices)}")
    return value.lower()


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads all variables.

    Raises:
        ValueError: a variable has a value, or a name that starts with `STRATA_`, that is unknown.
    """
    environ = os.environ if environ is None else environ
    unknown = sorted(n for n in environ if n.startswith("STRATA_") and n not in VARIABLES)
    if unknown:
        raise ValueError(
            f"unknown environment variable {', '.join(unknown)}; "
            f"strata_jax knows {', '.join(VARIABLES)}"
        )
    found: dict[str, float | int | str | bool] = {}
    if value := environ.get("STRATA_WARN_S"):
        found["warn_s"] = _seconds("STRATA_WARN_S", value)
    if value := environ.get("STRATA_TIMEOUT_S"):
        found["timeout_s"] = _seconds("STRATA_TIMEOUT_S", value)
    if value := environ.get("STRATA_WORKERS"):
        if not value.isdecimal() or not 1 <= int(value) <= 1024:
            raise _refuse("STRATA_WORKERS", value, "a whole number from 1 to 1024")
        found["num_workers"] = int(value)
    if value := environ.get("STRATA_ISA"):
        isa = _choice("STRATA_ISA", value, _ISAS)
        found["isa"] = "" if isa == "auto" else isa
    if value := environ.get("STRATA_ARENA_BYTES"):
        found["arena_bytes"] = parse_bytes("STRATA_ARENA_BYTES", value)
    if value := environ.get("STRATA_KEEP_BYTES"):
        found["keep_bytes"] = parse_bytes("STRATA_KEEP_BYTES", value)
    for name in ("arena", "huge_pages", "populate"):
        variable = f"STRATA_{name.upper()}"
        if value := environ.get(variable):
            found[name] = _choice(variable, value, ("on", "off")) == "on"
    if value := environ.get("STRATA_CHECK_RAGGED"):
        found["check_ragged"] = _choice("STRATA_CHECK_RAGGED", value, ("0", "1")) == "1"
    if value := environ.get("STRATA_SPIN_US"):
        if not value.isdecimal() or int(value) > 1_000_000:
            raise _refuse("STRATA_SPIN_US", value, "a whole number from 0 to 1000000")
        found["spin_us"] = float(value)
    if value := environ.get("STRATA_STRICT"):
        found["strict"] = _choice("STRATA_STRICT", value, ("0", "1")) == "1"
    return Settings(**found)  # type: ignore[arg-type]
