# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs code on several processes as a user without the launcher does: process 0 coordinates."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import launch


@dataclasses.dataclass(frozen=True)
class Ended:
    """What became of a process: its exit status, all its output, and how long it lived."""

    status: int
    output: str
    seconds: float


def run(code: str, *, num_processes: int = 2, timeout_s: float = 60.0) -> list[Ended]:
    """Runs the preamble of `launch` and the code on processes that find each other by a port.

    Raises:
        AssertionError: one of them does not end; the text has all output.
    """
    with tempfile.TemporaryDirectory(prefix="strata-plain-") as name:
        folder = pathlib.Path(name)
        script = folder / "job.py"
        head = launch.PREAMBLE.format(dump_s=max(timeout_s - 3, 1)).replace(
            "jax.distributed.initialize()",
            "jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))",
        )
        script.write_text(head + textwrap.dedent(code))
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{holder.getsockname()[1]}"
            started = time.monotonic()
            processes = []
            for index in range(num_processes):
                command = [sys.executable, "-P", str(script), address, str(num_processes)]
                with (folder / str(index)).open("wb") as output:
                    process = subprocess.Popen(
                        [*command, str(index)],
                        env={**os.environ, "JAX_PLATFORMS": "cpu"},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                processes.append(process)
            ends: dict[int, float] = {}
            try:
                while len(ends) < num_processes and time.monotonic() < started + timeout_s:
                    for i, process in enumerate(processes):
                        if i not in ends and process.poll() is not None:
                            ends[i] = time.monotonic() - started
                    time.sleep(0.02)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        ended = [
            Ended(
                process.returncode,
                (folder / str(i)).read_text(errors="replace"),
                ends.get(i, timeout_s),
            )
            for i, process in enumerate(processes)
        ]
    if len(ends) < num_processes:
        raise AssertionError(f"a process hangs\n{report(ended)}")
    return ended


def report(ended: list[Ended]) -> str:
    """Returns all of it as text."""
    return "\n".join(
        f"--- process {i}: status {end.status} after {end.seconds:.1f} s\n{end.output}"
        for i, end in enumerate(ended)
    )
