# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Train the network of the first example data-parallel over several processes.

    strata-jax launch -n 4 examples/02_train_processes.py [number of epochs]

The launcher starts the processes; `jax.distributed.initialize()` makes one job of them, whose
devices all of them see. The training itself is that of 01_train_digits.py, without a change: each
process runs the same program, on its own device. It needs `pip install 'strata_jax[examples]'`.
"""

import importlib
import os
import sys

import jax
import numpy as np

import strata_jax

digits = importlib.import_module("01_train_digits")  # beside this file


def main():
    """Train, and let process 0 say how it went and what the collectives did."""
    if "JAX_NUM_PROCESSES" not in os.environ:
        sys.exit(f"start this with: strata-jax launch -n 4 {sys.argv[0]}")
    jax.distributed.initialize()
    strata_jax.init()
    num_devices = jax.device_count()
    if digits.BATCH % num_devices:
        sys.exit(f"a batch of {digits.BATCH} cannot be split over {num_devices} devices equally")

    num_epochs = int(sys.argv[1]) if len(sys.argv) > 1 else digits.NUM_EPOCHS
    (images, labels), (held_out_images, held_out_labels) = digits.load_data()
    params, losses = digits.train(num_devices, images, labels, num_epochs)
    if jax.process_index() != 0:
        return
    for epoch, loss in enumerate(losses.reshape(num_epochs, -1)[:, -1], start=1):
        print(f"epoch {epoch}: loss {loss:.9g}")  # 9 digits tell any two float32 numbers apart
    guesses = np.argmax(digits.predict(jax.device_get(params), held_out_images), axis=1)
    print(
        f"{num_devices} devices in {jax.process_count()} processes, {len(losses)} steps,", end=" "
    )
    print(f"held-out accuracy {np.mean(guesses == held_out_labels):.2%}")

    stats = strata_jax.stats()
    print(f"all-reduces on the fabric: {stats['all_reduce']['calls']:,} calls,", end=" ")
    left = ", ".join(f"{number} ({why})" for why, number in stats["compile"]["left"].items())
    print(f"collectives left to XLA: {left or 'none'}")


if __name__ == "__main__":
    main()
