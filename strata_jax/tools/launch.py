# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax launch`: run a script on several processes of this host, one JAX job."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import pathlib
import socket
import sys
from collections.abc import Iterator, Mapping

from strata_jax.tools import launch_job

MAX_PROCESSES = 256
MAX_DEVICES = 256
_LOOPBACK = "127.0.0.1"
_EPILOG = """\
Each process (rank) runs the script with JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID set; it calls jax.distributed.initialize() without arguments, then
strata_jax.init(). Standard input is empty. Lines of output are prefixed with the rank.

When a rank fails, the others get --grace seconds to end by themselves; the exit status is that of
the first that failed, 128 + N where signal N killed it. Ctrl-C goes to all ranks, a second one
kills them. SIGTERM goes to all ranks, those that live after --grace seconds are killed. Exit
status 124: the job ran into --timeout.
"""


class UsageError(Exception):
    """A wrong argument; the text says what was asked, found, allowed, and what to do."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `launch` subcommand."""
    parser = commands.add_parser(
        "launch",
        help="run a script on several processes of this host",
        usage="strata-jax launch -n N [options] (SCRIPT | -m MODULE) [argument ...]",
        description="Run a Python script on N processes of this host as one JAX job, in which any "
        "process may die and the others live to report it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", "--num-processes", metavar="N", required=True, help="processes")
    parser.add_argument(
        "--devices-per-process",
        metavar="D",
        help="CPU devices of each process; sets JAX_NUM_CPU_DEVICES",
    )
    parser.add_argument(
        "--timeout", metavar="S", help="seconds after which the job is ended; none by default"
    )
    parser.add_argument(
        "--grace",
        metavar="S",
        default="5",
        help="seconds that ranks get to end by themselves once one failed (default: 5)",
    )
    parser.add_argument(
        "--log-dir", metavar="DIR", help="keep the output of each rank in DIR/rank_R.log"
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module as `python -m` does; all that follows are its arguments",
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the script and its arguments"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the job and return its exit status; 2 for a wrong argument."""
    try:
        plan = make_plan(args)
    except UsageError as error:
        print(f"strata-jax launch: {error}", file=sys.stderr)
        return 2
    from strata_jax import _compat

    with held_port() as address, held_port() as unused_address:
        with _standard_error_kept():  # a warning of what recoverable means
            service = _compat.start_coordination_service(address, plan.num_processes)
        environs = [
            rank_environ(os.environ, plan, rank, address, unused_address)
            for rank in range(plan.num_processes)
        ]
        try:
            return launch_job.Job(plan, environs).run()
        finally:
            service.shutdown()


def make_plan(args: argparse.Namespace) -> launch_job.Plan:
    """Check the arguments.

    Raises:
        UsageError: one of them is wrong.
    """
    num_processes = _whole(args.num_processes, "-n", MAX_PROCESSES)
    num_devices = None
    if args.devices_per_process is not None:
        num_devices = _whole(args.devices_per_process, "--devices-per-process", MAX_DEVICES)
    timeout_s = math.inf if args.timeout is None else _seconds(args.timeout, "--timeout")
    grace_s = _seconds(args.grace, "--grace")
    kind, command = ("script", args.script) if args.module is None else ("module", args.module)
    if kind == "script" and command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UsageError(
            "a script to run was expected, but there is none; allowed are a file or -m MODULE, "
            "after the options. Give one of these."
        )
    if kind == "script":
        _check_script(command[0])
    else:
        _check_module(command[0])
    log_dir = None if args.log_dir is None else _make_log_dir(args.log_dir)
    return launch_job.Plan(
        num_processes, num_devices, timeout_s, grace_s, log_dir, kind, tuple(command)
    )


def rank_environ(
    environ: Mapping[str, str],
    plan: launch_job.Plan,
    rank: int,
    address: str,
    unused_address: str,
) -> dict[str, str]:
    """Return the environment of one rank.

    Args:
        environ: what the launcher was started with.
        plan: the job.
        rank: the rank's index.
        address: where the coordination service listens.
        unused_address: where rank 0 puts the service that JAX starts there, which nobody uses.
    """
    result = {"JAX_PLATFORMS": "cpu", **environ}
    result["JAX_COORDINATOR_ADDRESS"] = address
    result["JAX_NUM_PROCESSES"] = str(plan.num_processes)
    result["JAX_PROCESS_ID"] = str(rank)
    result.pop("JAX_COORDINATOR_BIND_ADDRESS", None)
    if rank == 0:
        result["JAX_COORDINATOR_BIND_ADDRESS"] = unused_address
    if any(name.lower().endswith("_proxy") for name in environ):
        # gRPC would ask the proxy for the coordination service, and wait for ever.
        exempt = environ.get("no_grpc_proxy") or environ.get("no_proxy")
        result["no_grpc_proxy"] = f"{exempt},{_LOOPBACK}" if exempt else _LOOPBACK
    if plan.num_devices is not None:
        result["JAX_NUM_CPU_DEVICES"] = str(plan.num_devices)
    return result


@contextlib.contextmanager
def held_port() -> Iterator[str]:
    """Yield an address on this host whose port nobody else gets meanwhile.

    The socket does not listen. It is bound so that gRPC of the same user, which binds in the same
    way, can listen on the port, but the kernel does not give it to anybody that asks for any port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((_LOOPBACK, 0))
        yield f"{_LOOPBACK}:{holder.getsockname()[1]}"


@contextlib.contextmanager
def _standard_error_kept() -> Iterator[None]:
    """Keeps what libraries write to standard error; writes it only where an error is raised."""
    sys.stderr.flush()
    stderr = os.dup(2)
    kept = os.memfd_create("stderr", os.MFD_CLOEXEC)
    os.dup2(kept, 2)
    try:
        yield
    except BaseException:
        os.write(stderr, os.pread(kept, 1 << 16, 0))
        raise
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(kept)


def _whole(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise UsageError(
            f"{name} {text}: is not a whole number in range; allowed are 1 to {most}. "
            "Give one of these."
        )
    return int(text)


def _seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e7:
        raise UsageError(
            f"{name} {text}: is not a number of seconds in range; allowed are 0 to 10000000. "
            "Give one of these."
        )
    return seconds


def _check_script(path: str) -> None:
    if not os.path.isfile(path):
        found = "is a folder" if os.path.isdir(path) else "does not exist"
        raise UsageError(
            f"script {path}: {found} (seen from {os.getcwd()}); allowed is a Python file. "
            "Correct the path, and put options before it."
        )
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"script {path}: cannot be read; allowed is a file that this user may read. "
            "Change its permissions."
        )


def _check_module(name: str) -> None:
    # Parents are not imported here, so only the first part is looked up.
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or not _is_found(parts[0]):
        raise UsageError(
            f"-m {name}: no such module is found from {os.getcwd()}; allowed is the name of an "
            "importable module. Install it, or correct the name."
        )


def _is_found(name: str) -> bool:
    if (pathlib.Path.cwd() / name).is_dir() or (pathlib.Path.cwd() / f"{name}.py").is_file():
        return True
    return importlib.util.find_spec(name) is not None


def _make_log_dir(path: str) -> pathlib.Path:
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise UsageError(
            f"--log-dir {path}: cannot be used ({error.strerror or error}); allowed is a folder "
            "that exists or can be made, and that this user may write. Give another one."
        ) from error
    return folder
