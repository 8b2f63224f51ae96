# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs code on processes of two hosts, which are two network namespaces of this one.

Processes in different network namespaces count as being on different hosts: they cannot share
memory. A pair of virtual network cards joins the two. Gloo listens at the address that the host's
name resolves to, so each namespace has a host name of its own, which is its address.

Nothing is left behind, however a job ends, or the process that started it. The first process of a
job is the init of a process namespace, which takes all others with it. It ends when its standard
input does. With the last process of a network namespace its cards go.

Run as a file this is that first process, and with `--host` the first one of the second host.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Sequence

import launch

ADDRESSES = ("10.213.0.1", "10.213.0.2")
_PORT = 7777  # nobody else is in the namespace
_CARD = "strata0"
_HERE = str(pathlib.Path(__file__).resolve().parent)


# An exception ends a rank at once: JAX waits for the other processes at exit.
_HEAD = """
import os, sys, traceback
def _fail(*error):
    traceback.print_exception(*error)
    os._exit(1)
sys.excepthook = _fail
"""


@functools.cache
def missing() -> str:
    """Return what keeps this host from standing for two, "" if nothing does."""
    for command in ("ip", "unshare"):
        if shutil.which(command) is None:
            return f"there is no command {command}"
    tried = subprocess.run(
        [*_unshared("--pid", "--fork", "--kill-child", "--mount-proc"), "sh", "-c", _TRY],
        capture_output=True,
        text=True,
    )
    return f"no namespaces can be made: {tried.stderr.strip()}" if tried.returncode else ""


_TRY = f"hostname {ADDRESSES[0]} && ip link add name {_CARD} type veth peer name peer"


def _unshared(*more: str, new_user: bool | None = None) -> list[str]:
    """Return the start of a command that runs in namespaces of its own.

    Args:
        more: further options of unshare.
        new_user: whether in a user namespace, where this user is root; by default if it is not.
    """
    user = os.geteuid() != 0 if new_user is None else new_user
    own = ["--user", "--map-root-user"] if user else []
    return ["unshare", *own, "--net", "--uts", *more]


def run(
    code: str,
    *,
    hosts: Sequence[int] = (0, 0, 1, 1),
    num_devices: int = 1,
    timeout_s: float = 120.0,
    preamble: bool = True,
) -> str:
    """Run code on one process for each of `hosts`, and return what they said.

    Args:
        code: what each process runs; indentation in common is taken away.
        hosts: number of the host, 0 or 1, of each process.
        num_devices: CPU devices of each process.
        timeout_s: the job is killed after that.
        preamble: whether `launch.PREAMBLE` is put in front, which starts JAX.

    Raises:
        AssertionError: a process failed, or the job did not end in time; with all output.
    """
    head = launch.PREAMBLE.format(dump_s=max(timeout_s - 3, 1)).replace(
        "jax.distributed.initialize()",
        "jax.distributed.initialize(os.environ['COORDINATOR'], *map(int, sys.argv[1:3]))",
    )
    with tempfile.TemporaryDirectory(prefix="strata-hosts-") as folder:
        script = pathlib.Path(folder, "job.py")
        script.write_text(_HEAD + (head if preamble else "") + textwrap.dedent(code))
        with pathlib.Path(folder, "output").open("w+b") as output:
            command = [
                *_unshared("--pid", "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, "-P", __file__, str(script), *map(str, hosts)),
            ]
            env = {
                **os.environ,
                "COORDINATOR": f"{ADDRESSES[hosts[0]]}:{_PORT}",
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(num_devices),
                # An empty entry would be the working folder, in which a checkout may be.
                "PYTHONPATH": os.pathsep.join(filter(None, [_HERE, os.environ.get("PYTHONPATH")])),
            }
            job = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
            with job:
                try:
                    status: object = job.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    status = f"none after {timeout_s:g} s"
                finally:
                    job.kill()
            output.seek(0)
            said = output.read().decode(errors="replace")
    if status != 0:
        raise AssertionError(f"exit status: {status}\n{said}")
    return said


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("script")
    parser.add_argument("hosts", type=int, nargs="+")
    arguments = parser.parse_args()
    address = ADDRESSES[arguments.host]
    socket.sethostname(address)
    other = None
    if arguments.host == 0:
        threading.Thread(target=_end_with_input, daemon=True).start()
        command = [*_unshared(new_user=False), sys.executable, "-P", __file__, "--host", "1"]
        command += [arguments.script, *map(str, arguments.hosts)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()  # it is in its namespace
        _ip(f"link add name {_CARD} type veth peer name {_CARD} netns {other.pid}")
        other.stdin.close()
    else:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _ip("link set lo up")
    _ip(f"address add {address}/24 dev {_CARD}")
    _ip(f"link set {_CARD} up")
    num_processes = len(arguments.hosts)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", arguments.script, str(num_processes), str(i)],
            stdin=subprocess.DEVNULL,
        )
        for i, host in enumerate(arguments.hosts)
        if host == arguments.host
    ]
    if other is not None:
        ranks.append(other)
    # Who fails ends all, as this process is the last to wait for the others.
    while ranks:
        pid, status = os.wait()
        ranks = [rank for rank in ranks if rank.pid != pid]
        if status:
            return os.waitstatus_to_exitcode(status) % 256 or 1
    return 0


def _end_with_input() -> None:
    # Not through sys.stdin, whose lock the interpreter wants at its end.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


if __name__ == "__main__":
    sys.exit(_main())
