# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Kills a random rank at a random moment of a job, many times, and counts what became of the rest.

    python tests/bench/kills.py [--kills 100] [--processes 3] [--devices 1] [--seed 0]

The job trains: several operations of 4 KiB to 16 MiB a device, and arrays that come and go. It runs
under `strata-jax launch`. Exit status 1 unless every survivor reports an error that names the dead
rank, its process and an operation within 2 s, is gone within 5 s, and leaves nothing on the host.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

_JOB = """
import os, sys, time
import jax
jax.distributed.initialize()
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import strata_jax

strata_jax.init()
rank, n = jax.process_index(), len(jax.devices())
mesh = Mesh(np.array(jax.devices()), ("x",))
SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22]  # elements of 4 bytes

def step(w, size):
    g = strata_jax.psum(jnp.sin(w), "x")
    parts = strata_jax.all_to_all(w.reshape(n, -1), "x", 0, 0).reshape(-1)
    mean = strata_jax.all_gather(w[: size // 8], "x").mean()
    return jnp.tanh(w * 0.9 + g * 0.01 + parts[:1] * 0.01 + mean)

steps = []
for size in SIZES:
    size -= size % n
    f = jax.jit(jax.shard_map(lambda w, size=size: step(w[0], size)[None], mesh=mesh,
                              in_specs=P("x"), out_specs=P("x"), check_vma=False))
    w = jax.make_array_from_callback((n, size), NamedSharding(mesh, P("x")),
                                     lambda i, size=size: np.full((1, size), 0.1, np.float32))
    steps.append((f, f(w).block_until_ready()))
files = {line.split()[4] for line in open("/proc/self/maps") if "/memfd:strata_jax" in line}
sockets = [os.readlink(f"/proc/self/fd/{d}") for d in os.listdir("/proc/self/fd")
           if os.path.islink(f"/proc/self/fd/{d}")]
print("ready", os.getpid(), *files, *[s for s in sockets if s.startswith("socket:")], flush=True)
try:
    for turn in range(1 << 30):
        for i, (f, w) in enumerate(steps):
            if i < 3 or turn % 8 == 0:
                steps[i] = f, f(w)
        kept = [jnp.zeros(5000 + 1000 * (turn % 50 + j)) for j in range(4)]
        jax.block_until_ready([w for _, w in steps])
except Exception as error:
    print("error", time.time(), str(error).replace("\\n", " "), flush=True)
    sys.exit(5)
"""

_START = (
    "import sys; from strata_jax.tools import main; sys.exit(main.main(['launch', *sys.argv[1:]]))"
)
_ERROR_S, _GONE_S, _START_S = 2.0, 5.0, 90.0


def one_kill(number: int, args: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Runs a job, kills a rank; returns what was not as it should be."""
    chance = random.Random(args.seed * 100_000 + number)
    victim, delay_s = chance.randrange(args.processes), chance.uniform(0, 1.5)
    output = folder / f"{number}.log"
    command = [sys.executable, "-P", "-c", _START, "-n", str(args.processes), "--grace", "8"]
    with output.open("wb") as file:
        launcher = subprocess.Popen(
            [*command, "--devices-per-process", str(args.devices), str(folder / "job.py")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + _START_S
        while output.read_text(errors="replace").count("ready ") < args.processes:
            if time.monotonic() > deadline or launcher.poll() is not None:
                return ["did not start"]
            time.sleep(0.05)
        ready = dict(re.findall(r"\[(\d+)\] ready (.*)", output.read_text(errors="replace")))
        pids = {int(rank): int(words.split()[0]) for rank, words in ready.items()}
        time.sleep(delay_s)
        killed_at = time.time()
        os.kill(pids[victim], signal.SIGKILL)
        try:
            launcher.wait(40)
        except subprocess.TimeoutExpired:
            return ["hang"]
        gone_s = time.time() - killed_at
    finally:
        launcher.kill()
        launcher.wait()
    faults = []
    errors = {
        int(rank): (float(at) - killed_at, text)
        for rank, at, text in re.findall(
            r"\[(\d+)\] error (\S+) (.*)", output.read_text(errors="replace")
        )
    }
    for rank in set(pids) - {victim}:
        seconds, text = errors.get(rank, (0.0, ""))
        names = (f"process {victim} (pid {pids[victim]})", "operation ", "rank ")
        if not text:
            faults.append("no error")
        elif not all(name in text for name in names):
            faults.append("an error without names")
        elif seconds > _ERROR_S:
            faults.append("a late error")
    if gone_s > _GONE_S:
        faults.append("survivors stayed")
    if _leftovers(ready, pids):
        faults.append("leftovers")
    return faults


def _leftovers(ready: dict[str, str], pids: dict[int, int]) -> list[str]:
    words = {word for text in ready.values() for word in text.split()[1:]}
    left = [f"process {pid}" for pid in pids.values() if pathlib.Path(f"/proc/{pid}").exists()]
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        if f"socket:[{line.split()[6]}]" in words:
            left.append(line)
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue
        left += [x for x in lines if "/memfd:strata_jax" in x and x.split()[4] in words]
    return left + [str(path) for path in pathlib.Path("/dev/shm").glob("strata*")]


def main() -> int:
    """Prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(description="Kill ranks of jobs, and count the outcomes.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="strata-kills-") as name:
        folder = pathlib.Path(name)
        (folder / "job.py").write_text(_JOB)
        for number in range(args.kills):
            faults = one_kill(number, args, folder)
            counts.update(set(faults) or {"clean"})
            if faults:
                text = (folder / f"{number}.log").read_text(errors="replace")
                print(f"kill {number}: {', '.join(faults)}\n{text}", flush=True)
    print(f"{args.kills} kills, {args.processes} processes of {args.devices} devices")
    kinds = ["clean", "no error", "an error without names", "a late error", "survivors stayed"]
    for kind in [*kinds, "hang", "leftovers", "did not start"]:
        print(f"{kind:24}{counts[kind]:5}")
    return 0 if counts["clean"] == args.kills else 1


if __name__ == "__main__":
    sys.exit(main())
