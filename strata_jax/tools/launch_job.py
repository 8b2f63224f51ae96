# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""A job of `strata-jax launch`: start its ranks, pass on their output, end all when one fails.

One thread does everything: it waits for output, for ends of ranks, for signals and for deadlines.
A rank that ended stays a zombie until all did, so that its process id, which is also that of its
group, cannot come to belong to another process before the last signal was sent to it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import math
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from strata_jax.tools import launch_report

_RANK_FILE = pathlib.Path(__file__).resolve().with_name("launch_rank.py")
# Seconds between SIGTERM and SIGKILL. JAX catches SIGTERM in a distributed job and goes on.
_TERM_S = 3.0
# Seconds to wait for what is left in the pipes when all ranks have ended: something that left its
# rank's process group may hold them open for ever.
_DRAIN_S = 1.0
# Seconds after which it is noted, once, that a rank ended with success while others run.
_NOTE_S = 10.0
_MAX_LINE_BYTES = 1 << 16
_NUM_LAST_LINES = 8
_CHUNK_BYTES = 1 << 16
TIMEOUT_STATUS = 124  # as of coreutils' timeout


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        num_processes: number of ranks.
        num_devices: CPU devices of each, None to leave that to JAX.
        timeout_s: seconds after which the job is ended.
        grace_s: seconds that ranks get to end by themselves once one failed.
        log_dir: where a file for each rank's output goes, None for none.
        kind: "script" or "module".
        command: the script or module, and its arguments.
    """

    num_processes: int
    num_devices: int | None
    timeout_s: float
    grace_s: float
    log_dir: pathlib.Path | None
    kind: str
    command: tuple[str, ...]


class Rank:
    """One process of the job.

    Attributes:
        status: None while it runs, then its exit status, or minus the signal that killed it.
        ended_at: seconds on the monotonic clock when it was seen to have ended.
        signals: what the launcher sent to it while it ran, in order.
        last_lines: the end of its standard error.
    """

    def __init__(self, index: int, process: subprocess.Popen[bytes], log: io.FileIO | None):
        self.index = index
        self.process = process
        self.log = log
        self.pidfd = os.pidfd_open(process.pid)
        self.status: int | None = None
        self.ended_at = math.inf
        self.signals: list[int] = []
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_NUM_LAST_LINES)

    def look(self) -> None:
        """Set the status if the process has ended; it stays a zombie."""
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is not None:
            exited = found.si_code == os.CLD_EXITED
            self.status = found.si_status if exited else -found.si_status
            self.ended_at = time.monotonic()

    def send(self, signum: int) -> None:
        """Send a signal to the rank and the processes that it started."""
        if self.status is None:
            self.signals.append(signum)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signum)


class _Stream:
    """One output of a rank, cut into lines.

    Args:
        rank: whose it is.
        pipe: where it comes from.
        sink: where it goes.
        is_error: whether it is standard error.
    """

    def __init__(self, rank: Rank, pipe: Any, sink: BinaryIO, *, is_error: bool):
        self.rank = rank
        self.pipe = pipe
        self.is_error = is_error
        self.sink = sink
        self._prefix = b"[%d] " % rank.index
        self._begun = b""

    def pump(self) -> bool:
        """Pass on what has come; return whether more may come.

        Raises:
            BrokenPipeError: nobody reads the sink any more.
        """
        data = os.read(self.pipe.fileno(), _CHUNK_BYTES)
        *lines, self._begun = (self._begun + data).split(b"\n")
        if self._begun and (not data or len(self._begun) > _MAX_LINE_BYTES):
            lines.append(self._begun)
            self._begun = b""
        if lines:
            if self.rank.log is not None:
                self.rank.log.write(b"".join(line + b"\n" for line in lines))
            if self.is_error:
                self.rank.last_lines.extend(line.decode(errors="replace") for line in lines)
            self.sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self.sink.flush()
        return bool(data)


class Job:
    """All ranks, from start to end.

    Args:
        plan: what to run.
        environs: the environment of each rank.
    """

    def __init__(self, plan: Plan, environs: Sequence[Mapping[str, str]]):
        self._plan = plan
        self._environs = environs
        self._ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._first_failed: Rank | None = None
        self._received: list[int] = []  # signals to the launcher that were not yet dealt with
        self._ended_by: int | None = None  # the first of them; SIGPIPE if nobody reads our output
        self._timed_out = False
        self._noted = False
        self._to_send: list[tuple[float, int]] = []  # when to send which signal to all ranks

    def run(self) -> int:
        """Run to the end, say what went wrong, and return the exit status."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._selector)
            stack.enter_context(self._signals_received())
            stack.callback(self._end_for_good)
            self._started = time.monotonic()
            for index in range(self._plan.num_processes):
                self._start(index, stack)
            while any(rank.status is None for rank in self._ranks):
                self._wait()
            for rank in self._ranks:  # what it started may live on
                rank.send(signal.SIGKILL)
            self._drain()
        return self._conclude()

    def _start(self, index: int, stack: contextlib.ExitStack) -> None:
        log = None
        if self._plan.log_dir is not None:
            path = self._plan.log_dir / f"rank_{index}.log"
            log = stack.enter_context(open(path, "wb", buffering=0))
        process = subprocess.Popen(
            [
                sys.executable,
                str(_RANK_FILE),
                str(os.getpid()),
                self._plan.kind,
                *self._plan.command,
            ],
            env=dict(self._environs[index]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        rank = Rank(index, process, log)
        self._ranks.append(rank)
        out = _Stream(rank, process.stdout, sys.stdout.buffer, is_error=False)
        err = _Stream(rank, process.stderr, sys.stderr.buffer, is_error=True)
        for stream in (out, err):
            self._selector.register(stream.pipe, selectors.EVENT_READ, stream)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)

    @contextlib.contextmanager
    def _signals_received(self) -> Iterator[None]:
        """Collects signals instead of being interrupted; leaves those alone that are ignored."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        wakeup_before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        handlers: dict[signal.Signals, Any] = {}
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:
                handlers[signum] = signal.signal(signum, lambda n, _: self._received.append(n))
        self._selector.register(read_fd, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(wakeup_before)
            os.close(read_fd)
            os.close(write_fd)

    def _wait(self) -> None:
        """Wait for the next thing that happens and deal with all that did."""
        now = time.monotonic()
        deadlines = [when for when, _ in self._to_send] + [self._note_at()]
        if not self._timed_out:
            deadlines.append(self._started + self._plan.timeout_s)
        left_s = max(0.0, min(deadlines) - now)
        found = [key for key, _ in self._selector.select(None if math.isinf(left_s) else left_s)]
        for key in found:
            if isinstance(key.data, _Stream):
                self._pump(key.data)
            elif key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 1024)
        self._deal_with_ends([key.data for key in found if isinstance(key.data, Rank)])
        while self._received:
            self._deal_with_signal(self._received.pop(0))
        now = time.monotonic()
        if not self._timed_out and now >= self._started + self._plan.timeout_s:
            self._timed_out = True
            self._schedule((0.0, signal.SIGTERM), (_TERM_S, signal.SIGKILL))
        if now >= self._note_at():
            self._noted = True
            self._say(launch_report.some_ended(self._ranks, _NOTE_S))
        for when, signum in list(self._to_send):
            if now >= when:
                self._to_send.remove((when, signum))
                self._send(signum)

    def _pump(self, stream: _Stream) -> None:
        try:
            if stream.pump():
                return
        except BrokenPipeError:
            # Most programs would be killed by SIGPIPE now. What is still to come goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.sink.fileno())
            os.close(nowhere)
            if self._ended_by is None:
                self._ended_by = signal.SIGPIPE
                self._schedule((0.0, signal.SIGTERM), (_TERM_S, signal.SIGKILL))
            return
        self._selector.unregister(stream.pipe)
        stream.pipe.close()

    def _deal_with_ends(self, ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            rank.look()
            if rank.status is not None:
                self._selector.unregister(rank.pidfd)
        # Of ranks that are found at once: one that was killed, as others fail because of that.
        failed = [rank for rank in ranks if rank.status]
        if failed and self._first_failed is None:
            self._first_failed = min(failed, key=lambda rank: ((rank.status or 0) > 0, rank.index))
            self._schedule(
                (self._plan.grace_s, signal.SIGTERM), (self._plan.grace_s + _TERM_S, signal.SIGKILL)
            )

    def _deal_with_signal(self, signum: int) -> None:
        again = self._ended_by == signal.SIGINT
        if self._ended_by is None:
            self._ended_by = signum
        if signum == signal.SIGINT:
            self._send(signal.SIGKILL if again else signal.SIGINT)
        else:
            self._send(signal.SIGTERM)
            self._schedule((self._plan.grace_s, signal.SIGKILL))

    def _schedule(self, *signals: tuple[float, int]) -> None:
        now = time.monotonic()
        self._to_send.extend((now + after_s, signum) for after_s, signum in signals)

    def _send(self, signum: int) -> None:
        for rank in self._ranks:
            if rank.status is None:
                rank.send(signum)

    def _note_at(self) -> float:
        """Return when to note that ranks ended with success and others run; never, mostly."""
        if self._noted or self._to_send or self._ended_by is not None:
            return math.inf
        return min(rank.ended_at for rank in self._ranks) + _NOTE_S

    def _drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while (left_s := deadline - time.monotonic()) > 0:
            streams = [
                key.data
                for key in self._selector.get_map().values()
                if isinstance(key.data, _Stream)
            ]
            if not streams:
                return
            for key, _ in self._selector.select(left_s):
                if key.data in streams:
                    self._pump(key.data)

    def _end_for_good(self) -> None:
        """Leave nothing behind, also where starting or waiting failed."""
        for rank in self._ranks:
            rank.send(signal.SIGKILL)
        for rank in self._ranks:
            rank.process.wait()
            os.close(rank.pidfd)
            for pipe in (rank.process.stdout, rank.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _conclude(self) -> int:
        """Report, and return the exit status."""
        first = self._first_failed
        if first is not None and not first.signals:  # by itself, before it was told to end
            self._say(launch_report.failed(self._ranks, first, first.ended_at - self._started))
            status = first.status or 0
            return status if status > 0 else 128 - status
        if self._timed_out:
            self._say(launch_report.timed_out(self._ranks, self._plan.timeout_s))
            return TIMEOUT_STATUS
        if first is not None and self._ended_by is not None:
            self._say(launch_report.told_to_end(self._ranks, self._ended_by))
            return 128 + self._ended_by
        return 0

    def _say(self, text: str) -> None:
        """Write a message: what is indented belongs to the line before."""
        lines = (
            f"{'' if line[:1] == ' ' else 'strata-jax launch: '}{line}\n"
            for line in text.split("\n")
        )
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write("".join(lines))
            sys.stderr.flush()
