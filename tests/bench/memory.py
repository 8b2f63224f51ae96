# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Measure the memory of a training loop with and without strata_jax, with and without donation.

Each loop runs in its own process: 4 devices, some MiB of parameters with momentum, gradients
summed over the devices. Memory is PSS, sampled every few steps. Exits 1 where the peak is more than
1.25 times that of the loop without strata_jax, or memory is not flat after step 50: the peak of the
second half of what comes then is more than 5 % above that of the first half.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

NUM_DEVICES = 4
SAMPLE_EVERY = 5
SETTLED_STEP = 50
MOST_RATIO = 1.25
MOST_GROWTH = 1.05
MIB = 1 << 20
# Layers of 3.9 MiB of parameters together, in shapes of different size.
WIDTHS = (256, 1024, 512, 256)
BATCH = 64


def pss_bytes() -> int:
    """Return the proportional share of memory that this process holds."""
    text = pathlib.Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.M)
    if found is None:
        raise RuntimeError("memory: /proc/self/smaps_rollup has no line Pss; use Linux 4.14 on")
    return int(found.group(1)) << 10


def train(with_strata: bool, donate: bool, num_steps: int) -> dict[str, float]:
    """Run the loop; return its memory at the peak, after step 50 and at the end, and growth."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    if with_strata:
        import strata_jax

        strata_jax.init()
    random = np.random.default_rng(0)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    spec = jax.sharding.PartitionSpec

    def loss(params: list[Any], x: Any) -> Any:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return jnp.mean((y - x) ** 2)

    def step(params: list[Any], velocity: list[Any], x: Any) -> Any:
        own = jax.lax.pcast(params, "data", to="varying")
        grads = jax.lax.psum(jax.grad(loss)(own, x), "data")
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.01 * v, params, velocity), velocity

    program = jax.jit(
        jax.shard_map(
            step, mesh=mesh, in_specs=(spec(), spec(), spec("data")), out_specs=(spec(), spec())
        ),
        donate_argnums=(0, 1) if donate else (),
    )
    replicated = jax.sharding.NamedSharding(mesh, spec())
    params = [
        jax.device_put(random.normal(0, 0.05, shape).astype(np.float32), replicated)
        for shape in itertools.pairwise(WIDTHS)
    ]
    velocity = jax.tree.map(jnp.zeros_like, params)
    samples: dict[int, int] = {}
    for index in range(1, num_steps + 1):
        x = random.normal(size=(NUM_DEVICES * BATCH, WIDTHS[0])).astype(np.float32)
        params, velocity = program(params, velocity, x)
        if index % SAMPLE_EVERY == 0 or index == num_steps:
            jax.block_until_ready((params, velocity))
            samples[index] = pss_bytes()
    settled = [samples[index] for index in sorted(samples) if index >= SETTLED_STEP]
    half = (len(settled) + 1) // 2
    return {
        "peak": max(samples.values()),
        "settled": settled[0],
        "end": settled[-1],
        "growth": max(settled[half:]) / max(settled[:half]),
    }


def measure(with_strata: bool, donate: bool, num_steps: int) -> dict[str, float]:
    """Run `train` in its own process."""
    command = [sys.executable, __file__, "--steps", str(num_steps)]
    command += ["--child", f"{int(with_strata)}{int(donate)}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    """Measure the four loops and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < SETTLED_STEP + 2 * SAMPLE_EVERY:
        parser.error(f"--steps {args.steps}: must be {SETTLED_STEP + 2 * SAMPLE_EVERY} or more")
    if args.child:
        with_strata, donate = (flag == "1" for flag in args.child)
        print(json.dumps(train(with_strata, donate, args.steps)))
        return 0

    good = True
    print(f"{args.steps} steps, {NUM_DEVICES} devices, PSS in MiB")
    print(
        f"{'donation':>8} {'strata_jax':>10} {'peak':>8} {'step 50':>8} {'end':>8} {'ratio':>6}",
        end="",
    )
    print(f" {'growth':>6}")
    for donate in (False, True):
        without = measure(False, donate, args.steps)
        ours = measure(True, donate, args.steps)
        for name, found in (("without", without), ("with", ours)):
            ratio = found["peak"] / without["peak"]
            numbers = " ".join(f"{found[k] / MIB:8.1f}" for k in ("peak", "settled", "end"))
            print(f"{'yes' if donate else 'no':>8} {name:>10} {numbers} {ratio:6.2f}", end="")
            print(f" {found['growth']:6.2f}")
        good &= ours["peak"] <= MOST_RATIO * without["peak"]
        good &= ours["growth"] <= MOST_GROWTH
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
