# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The command's end of a process that measures: start it, ask it, say what became of it."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from strata_jax.tools import host

_FOLDER = pathlib.Path(__file__).resolve().parent
WORKER_FILE = _FOLDER / "bench_worker.py"
OPS_FILE = _FOLDER / "bench_ops.py"

_NUM_LAST_LINES = 15
# Time that a worker gets to leave by itself once its pipe is closed.
_LEAVE_S = 10

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


class WorkerError(Exception):
    """A worker died, hung or failed; the text says which one and what it last said."""


class Worker:
    """One process that measures, alive until closed; used as a context manager.

    Args:
        kind: "ours", "lax" or "tuned".
        num_devices: devices in the process.
        x64: whether 8-byte types are on.
        xla_flags: flags added to XLA_FLAGS.
        deadline_s: longest that one answer may take.
        ops_file: path of the table of operations.
    """

    def __init__(
        self,
        kind: str,
        *,
        num_devices: int,
        x64: bool,
        xla_flags: str = "",
        deadline_s: float,
        ops_file: str | os.PathLike[str] = OPS_FILE,
    ):
        self.kind = kind
        self.deadline_s = deadline_s
        self._unread = b""
        env = dict(os.environ)
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {xla_flags}".strip()
        if kind == "tuned":
            env["GLIBC_TUNABLES"] = TUNABLES
        # -P: the folder of the script is the inside of the package and stays out of sys.path.
        command = [sys.executable, "-P", str(WORKER_FILE)]
        command += ["--kind", kind, "--devices", str(num_devices), "--ops-file", str(ops_file)]
        command += ["--package-root", str(host.package_root())]
        command += ["--x64"] if x64 else []
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
        )
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self._hello: dict[str, Any] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def hello(self) -> dict[str, Any]:
        """Wait until the process is ready and return the versions that run in it."""
        if self._hello is None:
            self._hello = self._answer("start")
        return self._hello

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            WorkerError: the process died, did not answer in time, or failed.
        """
        self.hello()
        try:
            self._to.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
            self._to.flush()
        except BrokenPipeError:
            self._fail(command, self._how_it_ended())
        return self._answer(command)

    def close(self) -> None:
        """Let the process leave; end it where it does not."""
        try:
            self._to.close()
        except BrokenPipeError:
            pass
        self._wait()
        self._from.close()
        self._stderr.close()

    def _answer(self, command: str) -> dict[str, Any]:
        line = self._read_line(command)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._fail(command, f"it raised an error\n{answer['error']}")
        return answer

    def _read_line(self, command: str) -> bytes:
        end = time.monotonic() + self.deadline_s
        while b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0:
                self._process.kill()
                self._fail(command, f"it did not answer within {self.deadline_s:g} s; ended it")
            if not select.select([self._from], [], [], left)[0]:
                continue
            data = os.read(self._from.fileno(), 1 << 16)
            if not data:
                self._fail(command, self._how_it_ended())
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _wait(self) -> int:
        try:
            return self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _how_it_ended(self) -> str:
        status = self._wait()
        return f"it died by signal {-status}" if status < 0 else f"it left with status {status}"

    def _fail(self, command: str, what: str) -> None:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        tail = "\n".join(f"  | {line}" for line in lines[-_NUM_LAST_LINES:]) or "  | (nothing)"
        raise WorkerError(
            f'asked the {self.kind} worker (process {self.pid}) for "{command}": {what}\n'
            f"the last lines it wrote to stderr:\n{tail}"
        )
