# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""examples/02_train_processes.py: the losses of four processes are those of four devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
from absl.testing import absltest

import launch
from strata_jax.tools import demo, host

FIRST = demo.find_example(host.package_root())
EXAMPLE = FIRST.with_name("02_train_processes.py")
NUM_EPOCHS = 1

# Trains as the first example, in one process; prints the losses at the end of epochs.
ONE_PROCESS = f"""
import runpy, jax, strata_jax
jax.config.update("jax_num_cpu_devices", 4)
strata_jax.init()
digits = runpy.run_path({str(FIRST)!r})
losses = digits["train"](4, *digits["load_data"]()[0], num_epochs={NUM_EPOCHS})[1]
print(*(float(loss) for loss in losses.reshape({NUM_EPOCHS}, -1)[:, -1]))
"""


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with this installation of strata_jax."""
    paths = filter(None, [str(host.package_root()), os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, *argv],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class ProcessesTest(absltest.TestCase):
    def test_losses_are_those_of_one_process(self):
        result = launch.run(
            script=EXAMPLE, num_processes=4, arguments=[str(NUM_EPOCHS)], timeout_s=150
        )
        found = [np.float32(x) for x in re.findall(r"epoch \d+: loss (\S+)", result.out[0])]
        self.assertLen(found, NUM_EPOCHS, result.report())
        self.assertRegex(result.out[0], r"(?m)^4 devices in 4 processes, 12 steps, held-out accur")
        self.assertRegex(
            result.out[0],
            r"(?m)^all-reduces on the fabric: [\d,]+ calls, collectives left to XLA: ",
        )
        for rank in range(1, 4):
            self.assertNotIn("loss", result.out[rank])
        one = python("-c", ONE_PROCESS)
        self.assertEqual(one.returncode, 0, one.stderr)
        expected = [np.float32(x) for x in one.stdout.split()]
        # Sums are in rank order wherever the ranks are.
        self.assertEqual(found, expected)

    def test_without_the_launcher(self):
        done = python(str(EXAMPLE))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, f"start this with: strata-jax launch -n 4 {EXAMPLE}\n")


if __name__ == "__main__":
    absltest.main()
