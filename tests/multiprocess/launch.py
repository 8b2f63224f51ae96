# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs code on several processes through `strata-jax launch`, and says everything when it fails.

A job costs seconds of imports on each process: put several cases into one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence

from strata_jax.tools import host

# Put in front of the code of a job that uses JAX. `say` is for what a test reads.
PREAMBLE = '''
import faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later({dump_s})
import jax
jax.distributed.initialize()
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import strata_jax
from strata_jax import reference

rank, num_ranks = jax.process_index(), jax.process_count()
num_devices = len(jax.devices())
mesh = Mesh(np.array(jax.devices()), ("x",))

def say(*words):
    print(*words, flush=True)

def barrier(name):
    """Waits for all processes, without a collective."""
    jax._src.distributed.global_state.client.wait_at_barrier(name, 60_000)

def sharded(f, **jit):
    """Jits a function of one device's shard over all devices of the job."""
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                                 check_vma=False), **jit)

def place(x):
    """Puts an array that every process has in full onto the devices, split by its first axis."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P("x")), lambda i: x[i])

def shards(y):
    """Returns this process's shards by the index of their device in the mesh."""
    index = {{device: i for i, device in enumerate(jax.devices())}}
    return {{index[shard.device]: np.asarray(shard.data) for shard in y.addressable_shards}}

def check(y, parts):
    """Compares this process's shards with the parts of all devices, bit for bit."""
    for i, found in shards(y).items():
        np.testing.assert_array_equal(found, parts[i], f"device {{i}}")
'''

# SIGINT is switched off in what a shell starts in the background.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{no_service}
from strata_jax.tools import launch_job, main
{patch}
sys.exit(main.main(["launch", *sys.argv[1:]]))
"""

# Takes the place of what imports JAX into the launcher, for a second.
_NO_SERVICE = f"""
from types import ModuleType, SimpleNamespace
sys.modules["strata_jax"] = ModuleType("strata_jax")
sys.modules["strata_jax"].__path__ = [{str(host.package_root() / "strata_jax")!r}]
sys.modules["strata_jax"]._compat = SimpleNamespace(
    start_coordination_service=lambda *_: SimpleNamespace(shutdown=lambda: None)
)
"""

# Seconds that the launcher gets beyond the job's deadline.
_SPARE_S = 30.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a job.

    Attributes:
        status: exit status of the launcher, minus the signal that killed it.
        out: standard output of each rank.
        err: standard error of each rank.
        messages: what the launcher itself said.
        seconds: how long it took.
    """

    status: int
    out: Sequence[str]
    err: Sequence[str]
    messages: str
    seconds: float

    def report(self) -> str:
        """Returns all of it as text."""
        parts = [f"exit status {self.status} after {self.seconds:.1f} s", self.messages]
        for kind, texts in (("standard output", self.out), ("standard error", self.err)):
            parts += [f"--- {kind} of rank {i}\n{text}" for i, text in enumerate(texts)]
        return "\n".join(parts)


class Job:
    """A running job; used as a context manager, which leaves nothing behind.

    Args:
        code: what each rank runs; indentation in common is taken away.
        num_processes: number of ranks.
        num_devices: CPU devices of each.
        timeout_s: the job is ended after that.
        preamble: whether `PREAMBLE` is put in front, which starts JAX.
        service: whether there is a coordination service; ranks that do not use JAX need none.
        options: further options of the launcher.
        arguments: arguments of the script.
        env: variables to add to the environment.
        patch: code that the launcher runs first; `launch_job` and `main` are at hand.
        script: a file to run instead of the code.
    """

    def __init__(
        self,
        code: str = "",
        *,
        num_processes: int = 2,
        num_devices: int = 1,
        timeout_s: float = 60.0,
        preamble: bool = True,
        service: bool = True,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        patch: str = "",
        script: str | os.PathLike[str] | None = None,
    ):
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="strata-job-")
        folder = pathlib.Path(self._folder.name)
        if script is None:
            script = folder / "job.py"
            head = PREAMBLE.format(dump_s=max(timeout_s - 3, 1)) if preamble else ""
            script.write_text(head + textwrap.dedent(code))
        self._out, self._err = folder / "out", folder / "err"
        start = _START.format(no_service="" if service else _NO_SERVICE, patch=patch)
        command = [sys.executable, "-P", "-c", start]
        command += ["-n", str(num_processes), "--devices-per-process", str(num_devices)]
        command += ["--timeout", str(timeout_s), *options, str(script), *arguments]
        self._started = time.monotonic()
        (folder / "in").write_text("not for the ranks")
        with (
            (folder / "in").open("rb") as standard_input,
            self._out.open("wb") as out,
            self._err.open("wb") as err,
        ):
            self.launcher = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                stdin=standard_input,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.launcher.kill()  # takes the ranks with it
        self.launcher.wait()
        self._folder.cleanup()

    def out(self) -> str:
        """Returns what has come to the launcher's standard output."""
        return self._out.read_text(errors="replace")

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = 30.0) -> None:
        """Waits until the ranks have written a text so many times."""
        deadline = time.monotonic() + timeout_s
        while self.out().count(text) < times:
            if time.monotonic() > deadline or self.launcher.poll() is not None:
                raise AssertionError(f"no {text!r} {times} times\n{self._result().report()}")
            time.sleep(0.02)

    def send(self, signum: int) -> None:
        """Sends a signal to the launcher."""
        self.launcher.send_signal(signum)

    def ranks(self) -> list[int]:
        """Returns the process ids of the ranks that the launcher has not waited for."""
        pid = self.launcher.pid
        with contextlib.suppress(FileNotFoundError):
            return [
                int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        return []

    def wait(self, status: int | None = None) -> Result:
        """Waits for the end.

        Args:
            status: the exit status to expect; None takes any.

        Raises:
            AssertionError: the status is another, or the launcher hangs; the text has all output.
        """
        try:
            self.launcher.wait(self._timeout_s + _SPARE_S)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.launcher.wait()
            raise AssertionError(f"the launcher hangs\n{self._result().report()}") from None
        result = self._result()
        if status is not None and result.status != status:
            raise AssertionError(f"status {status} was expected\n{result.report()}")
        return result

    def _result(self) -> Result:
        out, other_out = split_by_rank(self.out(), self._num_processes)
        err, messages = split_by_rank(self._err.read_text(errors="replace"), self._num_processes)
        seconds = time.monotonic() - self._started
        code = self.launcher.poll()
        return Result(
            -signal.SIGKILL if code is None else code, out, err, other_out + messages, seconds
        )


def run(code: str = "", *, status: int = 0, **arguments: object) -> Result:
    """Runs a job to its end; see `Job`. Raises AssertionError, with all output, if it fails."""
    with Job(code, **arguments) as job:  # type: ignore[arg-type]
        return job.wait(status)


def split_by_rank(text: str, num_processes: int) -> tuple[list[str], str]:
    """Returns the lines of each rank without their prefix, and all other lines."""
    ranks: list[list[str]] = [[] for _ in range(num_processes)]
    others = []
    for line in text.splitlines(keepends=True):
        found = re.match(r"\[(\d+)\] ", line)
        if found:
            ranks[int(found[1])].append(line[found.end() :])
        else:
            others.append(line)
    return ["".join(lines) for lines in ranks], "".join(others)
