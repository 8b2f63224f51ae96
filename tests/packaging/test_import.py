# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Importing the package loads it and changes nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from absl.testing import absltest

# In a fresh interpreter, with -P: the package that is installed, not one beside this file.
PROGRAM = """
import os, re, signal, struct, sys

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.interpreters import mlir
import jax.extend


def mappings(name):
    for line in open("/proc/self/maps"):
        found = re.match(rf"(\\w+)-(\\w+) (\\S+) .*/{name}", line)
        if found:
            yield int(found[1], 16), int(found[2], 16), found[3]


def pointers_into_core():
    # How many words in the data of XLA's library, the slots among them, point into ours.
    core = list(mappings(r"_core\\.[^/]*so"))
    low, high = min(m[0] for m in core), max(m[1] for m in core)
    count = 0
    with open("/proc/self/mem", "rb") as memory:
        for start, end, mode in mappings(r"libjax_common\\.so"):
            if mode.startswith("r") and "x" not in mode:
                memory.seek(start)
                words = np.frombuffer(memory.read(end - start), np.uint64)
                count += int(((words >= low) & (words < high)).sum())
    return count


def state():
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "backend": xla_bridge.backends_are_initialized(),
        "lowering": mlir.lower_jaxpr_to_module,
        "rules": dict(mlir._lowerings),
        "cpu_rules": dict(mlir._platform_specific_lowerings["cpu"]),
        "interrupt": signal.getsignal(signal.SIGINT),
        "wakeup": signal.set_wakeup_fd(-1),
        "environment": dict(os.environ),
    }


before = state()
import strata_jax
from strata_jax import _core

after = state()
assert {k for k in before if before[k] != after[k]} == set(), (before, after)
assert not before["backend"]
assert pointers_into_core() == 0
assert _core.stats()["arena"] == {}, _core.stats()

# The same looks do see what init() does.
strata_jax.init()
after = state()
changed = {k for k in before if before[k] != after[k]}
assert {"threads", "lowering", "cpu_rules", "wakeup"} <= changed, changed
assert pointers_into_core() > 0
assert "backend" not in changed  # init() starts none either
print("done")
"""


class ImportTest(absltest.TestCase):
    def test_changes_nothing(self):
        result = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(PROGRAM)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        self.assertEqual((result.returncode, result.stdout), (0, "done\n"), result.stderr)


if __name__ == "__main__":
    absltest.main()
