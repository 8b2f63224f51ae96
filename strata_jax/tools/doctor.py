# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax doctor`: check versions, hooks, memory and a small program, and say what to do."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from strata_jax import _env, _version
from strata_jax.tools import doctor_probe, host

OK, WARN, FAIL = "OK", "WARN", "FAIL"
_PROBE_DEADLINE_S = 180
# Less memory than this leaves little to keep pages in.
_SMALL_MEMORY_BYTES = 2 << 30
_VARIABLES = ("STRATA_", "JAX_", "XLA_FLAGS", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        level: OK, WARN or FAIL.
        found: what was found.
        advice: what to do; empty when all is well.
    """

    name: str
    level: str
    found: str
    advice: str = ""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `doctor` subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check this installation and host",
        description="Check versions, hooks, memory and a small program with 4 devices. Each line "
        "is OK, WARN or FAIL with what to do; exits 1 when a line is FAIL.",
    )
    parser.add_argument("--json", action="store_true", help="write JSON instead of lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run all checks, print them and return 1 where one failed."""
    checks = all_checks()
    if args.json:
        rows = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"version": 1, "checks": rows}, indent=1))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.level:<4}  {check.name:<{width}}  {check.found}")
            if check.advice:
                print(f"{'':<{width + 6}}  -> {check.advice}")
    return 1 if any(check.level == FAIL for check in checks) else 0


def all_checks() -> list[Check]:
    """Return every check, in the order of the report."""
    stages, trouble = run_probe()
    return [
        *check_versions(installed_versions(), stages),
        check_ffi(stages),
        check_init(stages, trouble),
        check_self_test(stages, trouble),
        check_isa(stages),
        *check_memory(stages),
        check_environment(os.environ),
    ]


def installed_versions() -> dict[str, str | None]:
    """Return the versions of what the package stands on, None where one is not installed."""
    # Not from the metadata of an installation: a checkout has none.
    versions: dict[str, str | None] = {"strata_jax": _version.__version__}
    for name in ("jax", "jaxlib", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def run_probe(
    arguments: Sequence[str] = ("-m", "strata_jax.tools.doctor_probe"),
    deadline_s: float = _PROBE_DEADLINE_S,
) -> tuple[dict[str, Any], str]:
    """Run the probe; return the stages that it reached and what it said when it failed."""
    paths = [str(host.package_root()), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    with subprocess.Popen(
        [sys.executable, "-P", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        trouble = ""
        try:
            out, err = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            trouble = f"the check's process did not end within {deadline_s:g} s"
    stages: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            stages.update(json.loads(line))
    if process.returncode and not trouble:
        lines = err.strip().splitlines() or ["it said nothing"]
        trouble = f"{lines[-1]} (exit status {process.returncode})"
    return stages, trouble


def check_versions(versions: Mapping[str, str | None], stages: Mapping[str, Any]) -> list[Check]:
    """Check that everything is installed, and that JAX is in the window of support."""
    checks = [Check("python", OK, platform.python_version())]
    for name, version in versions.items():
        if version is None:
            checks.append(Check(name, FAIL, "not installed", f"pip install {name}"))
        elif name in ("jax", "jaxlib") and "window" in stages:
            checks.append(_check_window(name, version, **stages["window"]))
        else:
            checks.append(Check(name, OK, version))
    return checks


def _check_window(
    name: str, version: str, *, oldest: list[int], newest: list[int], donation_since: list[int]
) -> Check:
    numbers = [int(part) for part in version.split(".")[:3] if part.isdecimal()]
    first, last = (".".join(map(str, v)) for v in (oldest, newest))
    found = f"{version}, supported are {first} to {last}"
    if numbers < oldest:
        return Check(name, FAIL, found, "pip install --upgrade jax jaxlib")
    if numbers > newest:
        return Check(name, WARN, f"{found}; newer than tested", f"if it misbehaves: pin {name}")
    if name == "jax" and numbers < donation_since:
        return Check(
            name,
            WARN,
            f"{found}; programs that donate buffers keep XLA's own collectives",
            f"from {'.'.join(map(str, donation_since))} on, which needs Python 3.12, they do not",
        )
    return Check(name, OK, found)


def check_ffi(stages: Mapping[str, Any]) -> Check:
    """Compare the FFI API that the core was built for with the one that runs."""
    built, running = stages.get("ffi_built"), stages.get("ffi_running")
    if built is None or running is None:
        missing = "of the compiled core" if running else "of the installed jaxlib"
        return Check(
            "ffi", FAIL, f"the version {missing} could not be read", "install strata_jax again"
        )
    found = "built for {}.{}, running {}.{}".format(*built, *running)
    if built[0] != running[0] or built[1] > running[1]:
        return Check(
            "ffi",
            FAIL,
            f"{found}; the one that runs must have the same major and at least the same minor",
            "build strata_jax against the installed jaxlib: pip install --no-binary strata_jax "
            "--force-reinstall strata_jax",
        )
    return Check("ffi", OK, found)


def check_init(stages: Mapping[str, Any], trouble: str) -> Check:
    """Check that `init()` worked and which slots of XLA's allocator it found."""
    if "init" not in stages:
        return Check(
            "init", FAIL, f"strata_jax.init() failed: {trouble}", "do what the message says"
        )
    slots = stages["init"]["arena"].get("slots", {})
    found = ", ".join(f"{name} {count}" for name, count in slots.items()) or "none"
    if not all(slots.get(name) for name in ("posix_memalign", "free")):
        return Check(
            "init",
            FAIL,
            f"hook slots of XLA's allocator: {found}; posix_memalign and free are needed",
            "use a jaxlib in the window of support, unmodified, from its wheel",
        )
    return Check("init", OK, f"hook slots of XLA's allocator: {found}")


def check_self_test(stages: Mapping[str, Any], trouble: str) -> Check:
    """Check the answer of a small program, and that our path produced it."""
    name = "self-test"
    if "self_test" not in stages:
        return Check(name, FAIL, f"did not run: {trouble}", "do what the message says")
    wrong, moved = stages["self_test"]["wrong"], stages["self_test"]["moved"]
    what = f"psum over {doctor_probe.NUM_DEVICES} devices"
    if wrong:
        return Check(
            name, FAIL, f"{what}: {wrong} elements are wrong", "report this with `--json`'s output"
        )
    if not moved["bytes"]:
        return Check(
            name,
            WARN,
            f"{what}: right, but XLA's own collective computed it",
            "look at strata_jax.stats() for the reason",
        )
    found = f"{what}: every bit right, {moved['registered_bytes']} of {moved['bytes']} bytes"
    found += " in the arena"
    if moved["registered_bytes"] < moved["bytes"]:
        return Check(
            name,
            WARN,
            found,
            "look at the arena's fallbacks in strata_jax.stats()",
        )
    return Check(name, OK, found)


def check_isa(stages: Mapping[str, Any]) -> Check:
    """Say which vector instructions the kernels use."""
    isa = stages.get("isa")
    if isa is None:
        return Check("isa", FAIL, "the compiled core does not load", "install strata_jax again")
    cores = f"{host.num_cores()} cores, {host.cpu_name()}"
    if isa == "baseline":
        return Check(
            "isa", WARN, f"baseline on {cores}", "expect less speed than a machine with AVX2"
        )
    return Check("isa", OK, f"{isa} on {cores}")


def check_memory(stages: Mapping[str, Any]) -> list[Check]:
    """Check memory, its limit, the huge page modes and what the arena makes of them."""
    total, available = host.memory_bytes()
    limit = host.cgroup_limit_bytes()
    text = f"{total / 1e9:.1f} GB, {available / 1e9:.1f} GB available"
    text += f", control group limit {limit / 1e9:.1f} GB" if limit else ", no control group limit"
    small = min(total, limit or total) < _SMALL_MEMORY_BYTES
    checks = [
        Check("memory", WARN, text, "set STRATA_KEEP_BYTES low to leave memory to the program")
        if small
        else Check("memory", OK, text)
    ]
    modes = host.huge_page_modes()
    text = ", ".join(f"{name} [{mode}]" for name, mode in modes.items())
    checks.append(
        Check("huge pages", OK, text)
        if modes["enabled"] in ("always", "madvise")
        else Check(
            "huge pages",
            WARN,
            text,
            "fresh memory costs more; as root: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled",
        )
    )
    arena = stages.get("init", {}).get("arena", {})
    if arena:
        amounts = ", ".join(
            f"{key.removesuffix('_bytes').replace('_', ' ')} {value / 1e9:.1f} GB"
            for key, value in arena.items()
            if key in ("reserved_bytes", "keep_limit_bytes", "in_use_bytes", "kept_bytes")
        )
        checks.append(Check("arena", OK, amounts))
    return checks


def check_environment(environ: Mapping[str, str]) -> Check:
    """List the variables in force that change how JAX or this package work, and check ours."""
    found = [f"{k}={v}" for k, v in sorted(environ.items()) if k.startswith(_VARIABLES)]
    text = " ".join(found) or "nothing set"
    try:
        _env.read_settings(environ)
    except ValueError as error:
        return Check("environment", FAIL, f"{text}: {error}", "correct or unset the variable")
    return Check("environment", OK, text)
