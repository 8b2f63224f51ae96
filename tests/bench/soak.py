# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Random programs on several processes for a while, every result compared, memory watched.

    python tests/bench/soak.py [--minutes 10] [--processes 4] [--devices 1] [--seed 0]

Every program has up to three operations of random kinds, dtypes, groups and sizes, compiled anew
and run a few times. Exit status 1 if a result differs from `strata_jax.reference`, an operation
failed, or memory (PSS of all processes) grows in the second half by more than a tenth and 64 MiB.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

_JOB = """
import gc, sys, time
import jax
jax.distributed.initialize()
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import strata_jax
from strata_jax import reference

minutes, seed = float(sys.argv[1]), int(sys.argv[2])
strata_jax.init(timeout_s=120)
rank, devices = jax.process_index(), jax.devices()
n = len(devices)
mesh = Mesh(np.array(devices), ("x",))
sharding = NamedSharding(mesh, P("x"))
index = {device: i for i, device in enumerate(devices)}
client = jax._src.distributed.global_state.client
GROUPS = [None]
if n % 2 == 0 and n > 2:
    GROUPS.append([list(range(n // 2)), list(range(n // 2, n))])
    GROUPS.append([[i, n - 1 - i] for i in range(n // 2)])
DTYPES = ["float32", "int32", ml_dtypes.bfloat16, "float16", "uint8"]

def size(random, unit):
    return unit * int(2 ** random.uniform(0, 21 - np.log2(unit)))

def one(random):
    # An operation: what one device does, all inputs, what each device gets.
    kind = random.choice(["sum", "max", "gather", "scatter", "all_to_all", "permute"])
    groups = GROUPS[random.integers(len(GROUPS))] if kind != "max" else None
    m = len(groups[0]) if groups else n
    unit = m if kind in ("scatter", "all_to_all") else 1
    count = size(random, unit) // (n if kind == "gather" else 1) or 1
    dtype = np.dtype(DTYPES[random.integers(len(DTYPES))])
    x = random.integers(-9 if dtype.kind != "u" else 0, 9, (n, count)).astype(dtype)
    options = {"axis_index_groups": groups} if groups else {}
    if kind == "sum":
        return ((lambda v: strata_jax.psum(v, "x", **options)), x,
                reference.all_reduce(kind, x, groups))
    if kind == "max":
        return (lambda v: strata_jax.pmax(v, "x")), x, reference.all_reduce(kind, x, None)
    if kind == "gather":
        return ((lambda v: strata_jax.all_gather(v, "x", **options)), x,
                reference.all_gather(x, groups=groups))
    if kind == "scatter":
        return ((lambda v: strata_jax.psum_scatter(v, "x", tiled=True, **options)), x,
                reference.reduce_scatter("sum", x, groups=groups, tiled=True))
    if kind == "all_to_all":
        return ((lambda v: strata_jax.all_to_all(v, "x", 0, 0, tiled=True, **options)), x,
                reference.all_to_all(x, 0, 0, groups=groups, tiled=True))
    shift = int(random.integers(1, n))
    pairs = [(i, (i + shift) % n) for i in range(n)]
    return (lambda v: strata_jax.ppermute(v, "x", pairs)), x, reference.ppermute(x, pairs)

def pss():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1])

end = time.monotonic() + 60 * minutes
programs = operations = 0
go_on = True
while go_on:
    random = np.random.default_rng([seed, programs])
    parts = [one(random) for _ in range(random.integers(1, 4))]
    f = jax.jit(jax.shard_map(lambda *vs: [p[0](v[0])[None] for p, v in zip(parts, vs)], mesh=mesh,
                              in_specs=P("x"), out_specs=P("x"), check_vma=False))
    inputs = [jax.make_array_from_callback(x.shape, sharding, lambda i, x=x: x[i])
              for _, x, _ in parts]
    for turn in range(3):
        outputs = f(*inputs)
        operations += len(parts)
        for (_, _, want), y in zip(parts, outputs):
            for shard in y.addressable_shards:
                i = index[shard.device]
                np.testing.assert_array_equal(np.asarray(shard.data)[0], np.asarray(want[i]),
                                              f"program {programs}")
    del f, inputs, outputs, parts, y, shard
    programs += 1
    if programs % 20 == 0:
        jax.clear_caches()
        gc.collect()
        key = f"soak/{programs}"
        if rank == 0:
            client.key_value_set(key, "on" if time.monotonic() < end else "off")
        go_on = client.blocking_key_value_get(key, 120_000) == "on"
        print("pss", pss(), programs, operations, flush=True)
counts = strata_jax.stats()
assert all(c.get("failed", 0) == 0 for c in counts.values() if isinstance(c, dict))
assert counts["pending"] == 0 and counts["arena"]["quarantined_bytes"] == 0
print("all right", flush=True)
"""

_START = (
    "import sys; from strata_jax.tools import main; sys.exit(main.main(['launch', *sys.argv[1:]]))"
)
_GROWTH, _GROWTH_KIB = 1.1, 64 << 10


def main() -> int:
    """Prints what was done; returns the exit status."""
    parser = argparse.ArgumentParser(description="Random programs, compared, for a while.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strata-soak-") as name:
        script = pathlib.Path(name) / "job.py"
        script.write_text(_JOB)
        command = [sys.executable, "-P", "-c", _START, "-n", str(args.processes)]
        limit_s = args.minutes * 60 + 300
        options = ["--devices-per-process", str(args.devices), "--timeout", str(limit_s)]
        ended = subprocess.run(
            [*command, *options, str(script), str(args.minutes), str(args.seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
    said = re.findall(r"\[(\d+)\] pss (\d+) (\d+) (\d+)", ended.stdout)
    right = ended.returncode == 0 and ended.stdout.count("all right") == args.processes
    totals: dict[int, int] = {}  # KiB of all processes, by programs run
    operations = 0
    for _, pss, programs, count in said:
        totals[int(programs)] = totals.get(int(programs), 0) + int(pss)
        operations = max(operations, int(count))
    order = sorted(totals)
    flat = bool(order)
    if order:
        middle = max(totals[p] for p in order[: len(order) // 2 + 1])
        last = totals[order[-1]]
        flat = last <= middle * _GROWTH + _GROWTH_KIB
        print(
            f"{order[-1]} programs, {operations} operations on {args.processes} processes of "
            f"{args.devices} devices; memory {totals[order[0]] >> 10} MiB at first, at most "
            f"{middle >> 10} in the first half, {last >> 10} at the end"
        )
    print("all results right" if right else f"failed: status {ended.returncode}")
    print("memory is flat" if flat else "memory grows")
    return 0 if right and flat else 1


if __name__ == "__main__":
    sys.exit(main())
