# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of examples/01_train_digits.py, through `strata-jax demo` and with a goal out of reach."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from absl.testing import absltest

from strata_jax.tools import demo, host

# Runs the example without the training, with some of its names replaced.
_RUN_UNTRAINED = """
import runpy
names = runpy.run_path({path!r})
main = names["main"]
untrained = names["init_params"]()
losses = names["np"].ones(3)
main.__globals__["train"] = lambda num_devices, *data: (untrained, losses / num_devices)
main.__globals__["LEAST_ACCURACY"] = {least_accuracy}
main()
"""


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this installation of strata_jax."""
    env = os.environ | {"PYTHONPATH": str(host.package_root())}
    return subprocess.run(
        [sys.executable, "-P", *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class DigitsTest(absltest.TestCase):
    def run_untrained(self, least_accuracy: float) -> subprocess.CompletedProcess[str]:
        path = str(demo.find_example(host.package_root()))
        return run("-c", _RUN_UNTRAINED.format(path=path, least_accuracy=least_accuracy))

    def test_demo_reaches_its_goals(self):
        done = run("-m", "strata_jax.tools.main", "demo")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = re.search(r"held-out accuracy: ([\d.]+)% of 360 images", done.stdout)
        self.assertIsNotNone(found, done.stdout)
        self.assertGreater(float(found[1]), 95)
        self.assertRegex(done.stdout, r"zero-copy collectives: [1-9][\d,]* calls, [1-9][\d,]* byt")
        found = re.search(r"([\d.]+)% of them in registered memory; 0 left to XLA", done.stdout)
        self.assertIsNotNone(found, done.stdout)
        self.assertGreater(float(found[1]), 50)
        self.assertNotIn("epoch", done.stderr)  # no progress bar off a terminal

    def test_unreached_accuracy_fails(self):
        done = self.run_untrained(least_accuracy=0.95)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("is not above 95%", done.stderr)

    def test_different_losses_fail(self):
        done = self.run_untrained(least_accuracy=0.0)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("losses differ", done.stderr)


if __name__ == "__main__":
    absltest.main()
