# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Run JAX's own tests about collectives without and with strata_jax, and compare. See README.md.

Those of one process on 8 devices, or with `--processes` those of several processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import compare
import events
import expected
import processes

HERE = pathlib.Path(__file__).resolve().parent
MODES = ("off", "on")
# About collectives first, then others that ask for several devices or look at what is compiled.
FILES = (
    "shard_map_test.py",
    "pjit_test.py",
    "pmap_test.py",
    "array_test.py",
    "layout_test.py",
    "multi_device_test.py",
    "custom_partitioning_test.py",
    "async_collectives_test.py",
    "overlap_test.py",
    "ragged_collective_test.py",
    "shard_alike_test.py",
    "memories_test.py",
    "control_deps_test.py",
    "linalg_sharding_test.py",
    "xla_transform_test.py",
    "compilation_cache_test.py",
    "cache_key_test.py",
    "aot_test.py",
    "ffi_test.py",
    "export_test.py",
    "python_callback_test.py",
    "clear_backends_test.py",
    "export_serialization_back_compat_test.py",
    "mutable_array_test.py",
    "jaxpr_effects_test.py",
    "debugging_primitives_test.py",
    "error_check_test.py",
    "checkify_test.py",
)
# A file in which more processes than this die is given up.
MOST_PROCESSES = 25
# Of a message that is printed; the JSON file holds it all.
_MOST_LINES = 25


@dataclasses.dataclass
class _Process:
    """One process of pytest on one file, and what it has said."""

    result: compare.FileRun
    running: str = ""
    collected: list[str] = dataclasses.field(default_factory=list)
    finished: bool = False

    def take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "collected":
            self.collected = event["tests"]
        elif kind == "import_error":
            self.result.import_error = event["message"]
        elif kind == "start":
            self.running = event["test"]
        elif kind == "end":
            test = event.pop("test")
            self.result.tests[test] = compare.Outcome(**event)
            left = Counter(self.result.left)
            left.update(event["left"])
            self.result.left = dict(left)
            self.running = ""
        elif kind == "stats":
            self.result.stats.append(event["stats"])
        elif kind == "finished":
            self.finished = True


def run_file(
    source: pathlib.Path,
    file: str,
    mode: str,
    *,
    timeout_s: float,
    logs: pathlib.Path,
    only: Sequence[str] | None = None,
) -> compare.FileRun:
    """Run the tests of one file, in further processes where one dies or hangs.

    Args:
        source: of JAX, the folder that holds `tests/`.
        file: below `tests/`.
        mode: of `MODES`.
        timeout_s: after which a test hangs.
        logs: folder for what the processes print.
        only: names of the tests to run; None for all.
    """
    result = compare.FileRun()
    start = time.monotonic()
    for attempt in range(MOST_PROCESSES):
        stem = f"{file.replace('/', '.')}.{mode}{'' if only is None else '.again'}.{attempt}"
        wanted = logs / f"{stem}.tests.json"
        log_file, output = logs / f"{stem}.jsonl", logs / f"{stem}.txt"
        wanted.write_text(json.dumps({"only": only, "skip": list(result.tests)}))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STRATA_CONFORMANCE": mode,
            "STRATA_CONFORMANCE_LOG": str(log_file),
            "STRATA_CONFORMANCE_TESTS": str(wanted),
        }
        # Not captured: what XLA prints before it aborts would be lost.
        command = [sys.executable, "-P", "-m", "pytest", "-p", "strata_plugin"]
        command += ["-p", "no:cacheprovider", "--capture=no", "-q", "--rootdir", str(source)]
        command += ["-c", str(source / "pyproject.toml"), str(source / "tests" / file)]
        state, log = _Process(result), events.Log(log_file)
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=source,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its children can be killed with it
            )
            hung, heard = False, time.monotonic()
            try:
                while not hung and process.poll() is None:
                    time.sleep(0.2)
                    for event in log.new():
                        state.take(event)
                        heard = time.monotonic()
                    hung = time.monotonic() - heard > timeout_s
            finally:
                if process.poll() is None:
                    events.kill(process)
        for event in log.new():
            state.take(event)
        if state.running:
            result.tests[state.running] = compare.Outcome(
                "hung" if hung else "crashed",
                round(time.monotonic() - heard, 3),
                f"status {process.returncode}\n{events.last_words(output)}",
            )
            continue
        # pytest's own statuses: all passed, some failed, not imported, none there.
        if hung or process.returncode not in (0, 1, 2, 5) or not state.finished:
            how = "hung" if hung else f"status {process.returncode}"
            result.ended = f"{how}\n{events.last_words(output)}"
        break
    else:
        result.ended = f"given up after {MOST_PROCESSES} processes"
    for test in state.collected:
        result.tests.setdefault(test, compare.Outcome("missing"))
    result.seconds = round(time.monotonic() - start, 1)
    return result


def run_both(
    source: pathlib.Path,
    file: str,
    runs: dict[str, compare.FileRun],
    *,
    modes: Sequence[str],
    run: Callable[..., compare.FileRun],
) -> None:
    """Run a file in the modes that are missing in `runs`, and what got worse once more.

    Args:
        source: of JAX.
        file: below its tests/.
        runs: of the file, by mode; more are added.
        modes: to run.
        run: `run_file`, here or in `processes`, with its settings.
    """
    for mode in modes:
        if mode not in runs:
            print(f"{file} {mode} ...", end=" ", flush=True)
            runs[mode] = run(source, file, mode)
            print(_counts(runs[mode]), flush=True)
    if len(runs) < len(MODES):
        return
    found = compare.compare(runs["off"], runs["on"], expected.EXPECTED)
    names = [d.test for d in found if d.kind == "worse" and d.test in runs["on"].tests]
    if names and "on" in modes:
        print(f"{file} on, again: {len(names)} tests ...", end=" ", flush=True)
        again = run(source, file, "on", only=names)
        for name, outcome in again.tests.items():
            runs["on"].tests[name].again = outcome.outcome
        print(_counts(again), flush=True)


def _counts(run: compare.FileRun | None) -> str:
    if run is None:
        return "-"
    if run.import_error:
        return "not imported"
    counts = run.counts()
    text = ", ".join(f"{counts[o]} {o}" for o in compare.OUTCOMES if counts[o])
    return f"{text or 'no tests'}, {run.seconds:.0f} s" + (", bad end" if run.ended else "")


def report(results: dict[str, dict[str, compare.FileRun]]) -> int:
    """Print the table, the differences, and what stayed native; return the number of bad ones."""
    print("\n| file | without strata_jax | with |\n|---|---|---|")
    for file, runs in results.items():
        print(f"| {file} | {_counts(runs.get('off'))} | {_counts(runs.get('on'))} |")
    num_bad = 0
    left: Counter[str] = Counter()
    calls = 0
    for file, runs in results.items():
        for mode, run in runs.items():
            if run.import_error:
                print(f"\n{file} {mode} is not imported: {run.import_error}")
        if "on" in runs:
            left.update(runs["on"].left)
            calls += sum(test.calls for test in runs["on"].tests.values())
        if len(runs) < len(MODES):
            continue
        for d in compare.compare(runs["off"], runs["on"], expected.EXPECTED):
            num_bad += d.kind == "worse"
            why = d.reason or d.message.strip()
            lines = [f"    {line}" for line in why.splitlines()[:_MOST_LINES]]
            print("\n".join([f"\n{d.kind}: {d.test}: {d.without} -> {d.with_us}", *lines]))
        for test in compare.needless(runs["on"], expected.EXPECTED):
            print(f"\nneedless in the named list: {test} passes")
    if any("on" in runs for runs in results.values()):
        print(f"\nCalls of ours compiled: {calls}. Collectives left native, by reason:")
    for reason, number in left.most_common():
        print(f"{number:7} {reason}")
    return num_bad


def _load(
    path: pathlib.Path, version: str, job: dict[str, int]
) -> dict[str, dict[str, compare.FileRun]]:
    data = json.loads(path.read_text())
    if data["jax"] != version:
        raise SystemExit(
            f"run.py: {path} is of jax {data['jax']}, but {version} is installed; "
            f"make it anew with --only off --json {path}"
        )
    if (found := data.get("job", {})) != job:
        raise SystemExit(
            f"run.py: {path} is of {found or 'one process'}, but {job or 'one process'} is asked "
            f"for; make it anew with --only off --json {path}"
        )
    return {
        file: {mode: compare.FileRun.from_json(run) for mode, run in runs.items()}
        for file, runs in data["files"].items()
    }


def _save(
    path: pathlib.Path | None,
    version: str,
    job: dict[str, int],
    results: dict[str, dict[str, compare.FileRun]],
) -> None:
    if path:
        files = {
            file: {mode: dataclasses.asdict(run) for mode, run in runs.items()}
            for file, runs in results.items()
        }
        content = {"jax": version, "job": job, "files": files}
        path.write_text(json.dumps(content, indent=1))


@contextlib.contextmanager
def _logs(folder: pathlib.Path | None) -> Iterator[pathlib.Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="strata-conformance.") as name:
            yield pathlib.Path(name)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.rglob("*.jsonl*"):
            old.unlink()
        yield folder.resolve()


def main() -> None:
    """Parse the command line, run, and exit with 1 where a test got worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=pathlib.Path, help="of JAX, with its tests/")
    parser.add_argument("--files", nargs="+", help="below tests/, e.g. pjit_test.py")
    parser.add_argument("--processes", type=int, metavar="P", help="run those of P processes")
    parser.add_argument(
        "--devices", type=int, default=0, metavar="N", help="that these have together; one each"
    )
    parser.add_argument("--only", choices=MODES, help="run without or with strata_jax only")
    parser.add_argument("--baseline", type=pathlib.Path, help="take runs without it from this file")
    parser.add_argument("--json", type=pathlib.Path, help="write all outcomes to this file")
    parser.add_argument("--timeout-s", type=float, default=300, help="after which a test hangs")
    parser.add_argument("--logs", type=pathlib.Path, help="keep what the processes print here")
    args = parser.parse_args()
    source = args.source.resolve()
    if not (source / "pyproject.toml").is_file() or not (source / "tests").is_dir():
        parser.error(f"{source} holds no pyproject.toml and tests/; give a checkout of JAX")
    version = importlib.metadata.version("jax")
    job: dict[str, int] = {}
    if args.processes:
        if args.devices % args.processes:
            parser.error(f"--devices {args.devices} is no multiple of --processes {args.processes}")
        job = {"num_processes": args.processes, "num_devices": args.devices or args.processes}
    baseline = _load(args.baseline, version, job) if args.baseline else {}
    results: dict[str, dict[str, compare.FileRun]] = {}
    with _logs(args.logs) as logs:
        run = functools.partial(run_file, timeout_s=args.timeout_s, logs=logs)
        if args.processes:
            run = functools.partial(processes.run_file, **job, timeout_s=args.timeout_s, logs=logs)
        for file in args.files or (processes.files(source) if args.processes else FILES):
            if not (source / "tests" / file).exists():
                print(f"{file}: not in this version of JAX")
                continue
            results[file] = {m: r for m, r in baseline.get(file, {}).items() if m == "off"}
            modes = [args.only] if args.only else MODES
            run_both(source, file, results[file], modes=modes, run=run)
            _save(args.json, version, job, results)
    sys.exit(1 if report(results) else 0)


if __name__ == "__main__":
    main()
