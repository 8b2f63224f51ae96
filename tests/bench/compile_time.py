# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Measure what strata_jax adds to compilation.

Two figures: the time to lower and compile a program with 200 collectives, with and without
strata_jax, each time in a new process without a compilation cache; and the time that the compile
hook takes for a module of about 2,000 instructions with 40 collectives. Exits 1 where a figure is
worse than its aim.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

NUM_DEVICES = 4
MOST_RATIO = 1.3
MOST_HOOK_MS = 10.0
# Elementwise work between two collectives of the hook's program; 8 gives about 2,000 instructions.
_WORK_BETWEEN = 8


def _setup() -> Any:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    jax.config.update("jax_enable_compilation_cache", False)
    return jax


def _program(jax: Any, num_collectives: int, between: Callable[[Any, int], Any]) -> Any:
    """Return a jitted chain of collectives and its argument."""
    import numpy as np

    spec = jax.sharding.PartitionSpec

    def body(x: Any) -> Any:
        for index in range(num_collectives):
            x = between(jax.lax.psum(x, "x") * (1 / NUM_DEVICES), index)
        return x

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=spec("x"), out_specs=spec("x"), check_vma=False
    )
    return jax.jit(mapped), np.ones((NUM_DEVICES * 8, 128), np.float32)


def compile_once(with_strata: bool) -> dict[str, float]:
    """Time lowering and compiling a program with 200 collectives, in seconds."""
    jax = _setup()
    if with_strata:
        import strata_jax

        strata_jax.init()
    function, x = _program(jax, 200, lambda x, index: jax.numpy.sin(x + index))
    jax.jit(lambda y: y + 1).lower(x).compile()  # start the backend
    start = time.perf_counter()
    function.lower(x).compile()
    return {"seconds": time.perf_counter() - start}


def hook_once(repeat: int) -> dict[str, float]:
    """Time the hook on a module of about 2,000 instructions, in milliseconds."""
    jax = _setup()
    import strata_jax
    from strata_jax import _compat
    from strata_jax.hlo import rewrite, schema

    strata_jax.init()
    captured: list[bytes] = []

    def capture(data: bytes) -> None:
        captured.append(data)

    # The real hook would change the module before this one could see it.
    _compat.clear_hlo_transform(strata_jax.fabric.HOOK_NAME)
    _compat.register_hlo_transform("capture", capture)

    def work(x: Any, index: int) -> Any:
        # Products with slices of each other do not fuse into one instruction.
        for i in range(_WORK_BETWEEN):
            x = x @ x[:, :128].T[:128] if i % 5 == 0 else jax.numpy.tanh(x + i + index)
        return x

    function, x = _program(jax, 40, work)
    function.lower(x).compile()
    data = max(captured, key=len)
    module = schema.HloModuleProto.FromString(data)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        changed = rewrite.rewrite(data, strict=False, hosts=(0,), counters=rewrite.Counters())
        times.append(1e3 * (time.perf_counter() - start))
        if changed is None:
            raise RuntimeError("compile_time: the hook left the module as it was")
    return {
        "milliseconds": statistics.median(times),
        "instructions": sum(len(c.instructions) for c in module.computations),
    }


def _child(mode: str, repeat: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", mode, "--repeat", str(repeat)]
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return json.loads(done.stdout)


def main() -> int:
    """Measure both figures and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="processes of each kind (5)")
    parser.add_argument("--child", choices=("with", "without", "hook"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        found = hook_once(50) if args.child == "hook" else compile_once(args.child == "with")
        print(json.dumps(found))
        return 0

    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(args.repeat):
        for mode, values in seconds.items():
            values.append(_child(mode, args.repeat)["seconds"])
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    ratio = medians["with"] / medians["without"]
    print("compile a program with 200 collectives, median of", args.repeat)
    for mode, value in medians.items():
        print(f"  {mode:>7} strata_jax {1e3 * value:8.1f} ms")
    print(f"  ratio {ratio:.2f}, aim at most {MOST_RATIO}")
    hook = _child("hook", args.repeat)
    print(
        f"hook on {hook['instructions']} instructions with 40 collectives: "
        f"{hook['milliseconds']:.2f} ms, aim at most {MOST_HOOK_MS:g} ms"
    )
    return 0 if ratio <= MOST_RATIO and hook["milliseconds"] <= MOST_HOOK_MS else 1


if __name__ == "__main__":
    sys.exit(main())
