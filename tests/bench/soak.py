# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Random programs between processes for some minutes: every result compared, memory flat.

python tests/bench/soak.py [--minutes 10] [--processes 4] [--devices-per-process 1]
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "multiprocess"))
import launch

# All ranks draw the same programs. Memory is that of all ranks, each shared page counted once.
CODE = """
import pathlib
seconds, seed = float(sys.argv[1]), int(sys.argv[2])
strata_jax.init()
rng = np.random.default_rng(seed)
n = num_devices
OPS = {
    "psum": (lambda v: lax.psum(v, "x"), lambda x: reference.all_reduce("sum", x)),
    "pmax": (lambda v: lax.pmax(v, "x"), lambda x: reference.all_reduce("max", x)),
    "all_gather": (lambda v: lax.all_gather(v, "x"), lambda x: reference.all_gather(x)),
    "psum_scatter": (lambda v: lax.psum_scatter(v, "x", tiled=True),
                     lambda x: reference.reduce_scatter("sum", x, tiled=True)),
    "all_to_all": (lambda v: lax.all_to_all(v, "x", 0, 0, tiled=True),
                   lambda x: reference.all_to_all(x, 0, 0, tiled=True)),
    "ppermute": (lambda v: lax.ppermute(v, "x", [(i, (i + 1) % n) for i in range(n)]),
                 lambda x: reference.ppermute(x, [(i, (i + 1) % n) for i in range(n)])),
}
DTYPES = ["float32", "float64", "int32", "bfloat16", "uint8"]
jax.config.update("jax_enable_x64", True)

def pss():
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("\\nPss:")[1].split()[0]) / 1024

compiled, count, measured = {}, 0, []
end = time.monotonic() + seconds
while True:
    names = tuple(rng.choice(list(OPS), size=rng.integers(1, 4)))
    dtype = str(rng.choice(DTYPES))
    size = n * int(rng.choice([1, 3, 1000, 4096, 50_001, 300_000]))
    key = (names, size, dtype)
    if key not in compiled and len(compiled) < 150:
        def of_one(v, names=names):
            v = v.reshape(v.shape[1:])
            return tuple(OPS[name][0](v)[None] for name in names)
        compiled[key] = sharded(of_one)
    elif key not in compiled:
        names, size, dtype = key = list(compiled)[int(rng.integers(len(compiled)))]
    x = rng.integers(-5, 6, (n, size)).astype(jnp.dtype(dtype))
    ys = compiled[key](place(x))
    for name, y in zip(names, ys):
        check(y, [np.asarray(part)[None] for part in OPS[name][1](list(x))])
    count += 1
    if count % 200 == 0:
        measured.append(pss())
    # All have to stop after the same program.
    if count % 50 == 0:
        late = multihost_utils.process_allgather(np.float64(time.monotonic() > end))
        if np.any(late):
            break
failed = sum(strata_jax.stats()[name]["failed"] for name in ("all_reduce", "all_gather"))
say("programs", count, "failed", failed, "PSS", *(f"{m:.0f}" for m in measured))
"""


def main() -> int:
    """Runs the job; returns 1 if a result was wrong or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices-per-process", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = launch.run(
        CODE,
        num_processes=args.processes,
        num_devices=args.devices_per_process,
        timeout_s=args.minutes * 60 + 300,
        arguments=[str(args.minutes * 60), str(args.seed)],
    )
    grown = False
    for rank, out in enumerate(result.out):
        line = next(line for line in out.splitlines() if line.startswith("programs "))
        print(f"rank {rank}: {line}")
        memory = [float(word) for word in line.split("PSS")[1].split()]
        half = len(memory) // 2
        if half and max(memory[half:]) > 1.25 * max(memory[:half]):
            grown = True
    print("memory grew" if grown else "0 wrong, memory flat")
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
