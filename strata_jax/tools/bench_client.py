# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The command's end of a job of processes that measures: start it, ask it, say what became of it.

A job has a socket to each of its processes. A request goes to all of them before the first answer
is read, as a collective returns in none before all have called it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from strata_jax.tools import bench_mpirun, host
from strata_jax.tools.bench_contenders import Contender

_FOLDER = pathlib.Path(__file__).resolve().parent
WORKER_FILE = _FOLDER / "bench_worker.py"
OPS_FILE = _FOLDER / "bench_ops.py"

_NUM_LAST_LINES = 15
# Time that a job gets to leave by itself once its sockets are closed.
_LEAVE_S = 10
# And once it is asked to, before it is killed; a process of jax.distributed takes no notice.
_TERMINATE_S = 1
# An error in one process may come of the death of another, which is the better news; its end can
# take this long to be seen.
_DEATH_S = 0.5


class WorkerError(Exception):
    """A worker died, hung or failed; the text says which one and what it last said."""


class _Process:
    """A process that the command started, and what it writes."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], pass_fds: Sequence[int] = ()
    ):
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=environment,
            pass_fds=pass_fds,
        )
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> str:
        """Say how it ended; end it where it does not leave in time."""
        try:
            status = self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.end()
            status = self._process.wait()
        return f"it died by signal {-status}" if status < 0 else f"it left with status {status}"

    def end(self) -> None:
        """End the process; mpirun ends its ranks when it is asked, and only then."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TERMINATE_S)
        self._process.kill()
        self._process.wait()

    def last_lines(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-_NUM_LAST_LINES:]) or "  | (nothing)"

    def close(self) -> None:
        self._output.close()


class _Peer:
    """The socket to one process of the job."""

    def __init__(self, name: str, channel: socket.socket, process: _Process):
        self.name = name
        self.process = process
        self._channel = channel
        self._unread = b""

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, message: dict[str, Any]) -> None:
        # Of a process that died the answer is missing too, which is where it is told.
        with contextlib.suppress(ConnectionError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> bytes | None:
        """Read what there is; return a line, b"" where it is not whole yet, None at the end."""
        try:
            data = self._channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._unread += data
        if b"\n" not in self._unread:
            return b""
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def close(self) -> None:
        self._channel.close()


class Worker:
    """One job that measures, alive until closed; used as a context manager.

    Args:
        contender: what it is made of.
        x64: whether 8-byte types are on.
        xla_flags: flags added to XLA_FLAGS.
        deadline_s: longest that one answer may take.
        ops_file: path of the table of operations.
    """

    def __init__(
        self,
        contender: Contender,
        *,
        x64: bool,
        xla_flags: str = "",
        deadline_s: float,
        ops_file: str | os.PathLike[str] = OPS_FILE,
    ):
        self.kind = contender.kind
        self.deadline_s = deadline_s
        self._contender = contender
        self._hello: dict[str, Any] | None = None
        self._peers: list[_Peer] = []
        self._processes: list[_Process] = []
        self._stack = contextlib.ExitStack()
        environment = {**os.environ, **contender.environment}
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {xla_flags}".strip()
        # -P: the folder of the script is the inside of the package and stays out of sys.path.
        command = [sys.executable, "-P", str(WORKER_FILE)]
        command += ["--kind", contender.kind, "--library", contender.library]
        command += ["--devices", str(contender.num_devices), "--ops-file", str(ops_file)]
        command += ["--processes", str(contender.num_processes)]
        command += ["--package-root", str(host.package_root())]
        command += ["--x64"] if x64 else []
        self._listener: socket.socket | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            if contender.library == "mpi":
                self._start_mpi(command, environment)
            else:
                self._start(command, environment)
            stack.pop_all()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of what was started."""
        return [process.pid for process in self._processes]

    def hello(self) -> dict[str, Any]:
        """Wait until the job is ready and return the versions that run in it."""
        if self._hello is None:
            if self._listener is not None:
                self._accept(self._listener)
            self._hello = self._answers("start", self._peers)[0]
        return self._hello

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request to the first process alone and wait for its answer.

        Raises:
            WorkerError: a process died, did not answer in time, or failed.
        """
        self.hello()
        return self._ask(command, arguments, self._peers[:1])[0]

    def ask_all(self, command: str, **arguments: Any) -> list[dict[str, Any]]:
        """Send a request to all processes and wait for their answers.

        Raises:
            WorkerError: a process died, did not answer in time, or failed.
        """
        self.hello()
        return self._ask(command, arguments, self._peers)

    def close(self) -> None:
        """Let the processes leave; end those that do not."""
        for peer in self._peers:
            peer.close()
        end = time.monotonic() + _LEAVE_S
        for process in self._processes:
            process.wait(end - time.monotonic())
            process.close()
        self._peers, self._processes = [], []
        self._stack.close()

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        count = self._contender.num_processes
        if count > 1:
            command = [*command, "--coordinator", f"127.0.0.1:{_free_port()}"]
        for i in range(count):
            ours, theirs = socket.socketpair()
            with theirs:
                process = _Process(
                    [*command, "--process", str(i), "--channel", str(theirs.fileno())],
                    environment,
                    [theirs.fileno()],
                )
            self._processes.append(process)
            which = f"number {i} of {count}, " if count > 1 else ""
            name = f"the {self.kind} worker ({which}process {process.pid})"
            self._peers.append(_Peer(name, ours, process))

    def _start_mpi(self, command: list[str], environment: dict[str, str]) -> None:
        # mpirun passes no open files on to ranks, so these come to a socket that has a name.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-bench."))
        path = os.path.join(folder, "socket")
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(path)
        self._listener.listen(self._contender.num_processes)
        ranks = [*command, "--connect", path]
        started = bench_mpirun.command(self._contender.num_processes, ranks)
        self._processes.append(_Process(started, environment | bench_mpirun.ENVIRONMENT))

    def _accept(self, listener: socket.socket) -> None:
        [process] = self._processes
        end = time.monotonic() + self.deadline_s
        count = self._contender.num_processes
        while len(self._peers) < count:
            if select.select([listener], [], [], 0.1)[0]:
                name = f"a rank of the {self.kind} worker (process {process.pid})"
                self._peers.append(_Peer(name, listener.accept()[0], process))
            elif process.ended:
                self._fail("start", process, f"the {self.kind} worker", process.wait(0))
            elif time.monotonic() > end:
                what = f"only {len(self._peers)} of {count} ranks came in {self.deadline_s:g} s"
                self._fail("start", process, f"the {self.kind} worker", what)
        self._stack.close()  # now, so that a command that is killed later leaves no folder

    def _ask(
        self, command: str, arguments: dict[str, Any], peers: list[_Peer]
    ) -> list[dict[str, Any]]:
        for peer in peers:
            peer.send({"command": command, **arguments})
        return self._answers(command, peers)

    def _answers(self, command: str, peers: list[_Peer]) -> list[dict[str, Any]]:
        end = time.monotonic() + self.deadline_s
        answers: dict[_Peer, dict[str, Any]] = {}
        while waiting := [peer for peer in peers if peer not in answers]:
            left = end - time.monotonic()
            if left <= 0:
                who = f"{len(waiting)} of {len(peers)} processes" if len(peers) > 1 else "it"
                what = f"{who} did not answer within {self.deadline_s:g} s; ended the job"
                self._fail_of(command, waiting[0], what)
            for peer in select.select(waiting, [], [], left)[0]:
                line = peer.receive()
                if line is None:
                    self._fail_of(command, peer, peer.process.wait(_LEAVE_S))
                elif line:
                    answers[peer] = json.loads(line)
                    if "error" in answers[peer]:
                        self._fail_of_error(command, peer, answers[peer]["error"], waiting)
        return [answers[peer] for peer in peers]

    def _fail_of_error(self, command: str, peer: _Peer, error: str, waiting: list[_Peer]) -> None:
        others = [other for other in waiting if other is not peer]
        for other in select.select(others, [], [], _DEATH_S if others else 0)[0]:
            if other.receive() is None:
                self._fail_of(command, other, other.process.wait(_LEAVE_S))
        self._fail_of(command, peer, f"it raised an error\n{error}")

    def _fail_of(self, command: str, peer: _Peer, what: str) -> NoReturn:
        self._fail(command, peer.process, peer.name, what)

    def _fail(self, command: str, process: _Process, name: str, what: str) -> NoReturn:
        """End all processes: one that waits for another in a collective would never leave."""
        last_lines = process.last_lines()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.map(_Process.end, self._processes)
        raise WorkerError(
            f'asked {name} for "{command}": {what}\nthe last lines it wrote:\n{last_lines}'
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
