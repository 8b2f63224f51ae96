# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Kills a random rank of a job at a random moment, again and again, and looks what the others do.

    python tests/bench/kills.py [--kills 100] [--processes 4]

Each survivor has to report a clean error, which names the process that was killed, within 2 s, all
have to be gone within 5 s, and nothing may be left on the host.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "multiprocess"))
import launch

NOTICED_S, GONE_S = 2.0, 5.0

# Operations of 4 KiB to 16 MiB, one after another and several at once, and arrays that come and go.
CODE = """
import random
strata_jax.init()
def of_one(v):
    a, b = lax.psum(v, "x"), lax.all_gather(v, "x", tiled=True)
    return a + lax.psum_scatter(b, "x", tiled=True) + lax.ppermute(v, "x", [(0, 1), (1, 0)])
f = sharded(of_one)
arrays = [place(np.ones((num_devices, size), np.float32)) for size in (1 << 10, 1 << 16, 1 << 22)]
for x in arrays:
    jax.block_until_ready(f(x))
say("pid", os.getpid())
try:
    for i in range(10**9):
        x = arrays[i % 3] if i % 7 else arrays[i % 3] + i
        jax.block_until_ready(f(x))
except Exception as error:
    say("error", time.monotonic(), " ".join(str(error).split()))
    sys.exit(3)
"""


def sockets() -> int:
    """Returns the number of our sockets on this host."""
    return pathlib.Path("/proc/net/unix").read_text(encoding="ascii").count("strata_jax-")


def one_kill(num_processes: int, rng: random.Random) -> str:
    """Runs one job; returns what was wrong, empty if nothing."""
    left_before = (sockets(), sorted(os.listdir("/dev/shm")))
    with launch.Job(CODE, num_processes=num_processes, timeout_s=60) as job:
        job.wait_for("pid ", times=num_processes, timeout_s=50)
        pids = {int(r): int(p) for r, p in re.findall(r"\[(\d+)\] pid (\d+)", job.out())}
        time.sleep(rng.uniform(0, 1))
        victim = rng.randrange(num_processes)
        os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        result = job.wait()
        gone_s = time.monotonic() - killed
    problems = []
    if result.status != 128 + signal.SIGKILL:
        problems.append(f"the launcher ended with {result.status}")
    if gone_s > GONE_S:
        problems.append(f"gone after {gone_s:.1f} s")
    for rank in set(pids) - {victim}:
        found = re.search(r"error ([\d.]+) (.*)", result.out[rank])
        if not found:
            problems.append(f"rank {rank} reported no error")
            continue
        noticed_s = float(found[1]) - killed
        if noticed_s > NOTICED_S:
            problems.append(f"rank {rank} noticed after {noticed_s:.1f} s")
        if f"(pid {pids[victim]})" not in found[2]:
            problems.append(f"rank {rank} does not name process {pids[victim]}: {found[2]}")
    if any(os.path.exists(f"/proc/{pid}") for pid in pids.values()):
        problems.append("a process is left")
    if (sockets(), sorted(os.listdir("/dev/shm"))) != left_before:
        problems.append("a socket or a segment is left")
    return "; ".join(problems) + (f"\n{result.report()}" if problems else "")


def main() -> int:
    """Runs all; returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    num_bad = 0
    for i in range(args.kills):
        problem = one_kill(args.processes, rng)
        num_bad += bool(problem)
        print(f"kill {i + 1}: {problem or 'clean'}", flush=True)
    print(f"{args.kills - num_bad} of {args.kills} clean")
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
