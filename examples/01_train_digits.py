# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Train a small network on handwritten digits, data-parallel over 4 devices.

Each device holds the same parameters and a quarter of every batch. It computes the gradients of
its quarter; `strata_jax.psum` adds them up, so all devices take the same step. The whole step is
one jitted program. The same program then trains on one device, to see that the sums are right.

Run it with `strata-jax demo`, or as a script. It needs `pip install 'strata_jax[examples]'`.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import strata_jax

NUM_DEVICES = 4
NUM_EPOCHS = 30
BATCH = 128  # must be a multiple of NUM_DEVICES: each device takes an equal part
LEARNING_RATE = 0.2
MOMENTUM = 0.9
LEAST_ACCURACY = 0.95
# Sums in another order differ in the last bits of a float32, and training carries that on.
MOST_LOSS_DIFFERENCE = 1e-5

P = jax.sharding.PartitionSpec


def load_data():
    """Return (images, labels) to train on and (images, labels) held out, split by a fixed seed."""
    digits = load_digits()  # 1,797 scanned images of 8x8 pixels with values 0 to 16
    images = (digits.data / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(images))
    held_out, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def make_batches(images, labels, seed):
    """Shuffle into batches of one shape; the last one is filled up with images of weight 0.

    So every image counts once in an epoch, and the program is compiled for one shape only.
    """
    order = np.random.default_rng(seed).permutation(len(images))
    padding = -len(order) % BATCH
    weights = np.concatenate([np.ones(len(order)), np.zeros(padding)]).astype(np.float32)
    order = np.concatenate([order, np.zeros(padding, order.dtype)])
    for i in range(0, len(order), BATCH):
        part = order[i : i + BATCH]
        yield images[part], labels[part], weights[i : i + BATCH]


def init_params():
    """Return weights and biases of a network 64 -> 128 -> 10."""
    random = np.random.default_rng(1)
    return {
        "w1": random.normal(0, 0.1, (64, 128)).astype(np.float32),
        "b1": np.zeros(128, np.float32),
        "w2": random.normal(0, 0.1, (128, 10)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }


def predict(params, images):
    """Return a score for each of the 10 digits."""
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def sum_of_losses(params, images, labels, weights):
    """Add up the cross-entropy of one device's images."""
    scores = jax.nn.log_softmax(predict(params, images))
    return -jnp.sum(weights * scores[jnp.arange(len(labels)), labels])


def make_step(mesh):
    """Build the program of one training step for the devices of `mesh`."""

    def step_on_one_device(params, velocity, images, labels, weights):
        # Tell JAX that each device differentiates its own copy of the parameters. Otherwise it
        # would add the gradients up by itself, and the psum below would count them twice.
        own = jax.lax.pcast(params, "data", to="varying")
        loss, grads = jax.value_and_grad(sum_of_losses)(own, images, labels, weights)
        # The collective: gradients, loss and number of images of all devices, in one go.
        grads, loss, count = strata_jax.psum((grads, loss, jnp.sum(weights)), "data")
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g / count, velocity, grads)
        params = jax.tree.map(lambda p, v: p - LEARNING_RATE * v, params, velocity)
        return params, velocity, loss / count

    return jax.jit(
        jax.shard_map(
            step_on_one_device,
            mesh=mesh,
            in_specs=(P(), P(), P("data"), P("data"), P("data")),
            out_specs=(P(), P(), P()),
        )
    )


def train(num_devices, images, labels, num_epochs=NUM_EPOCHS):
    """Train and return the parameters and the loss of every step."""
    step = make_step(jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ("data",)))
    params = init_params()
    velocity = jax.tree.map(jnp.zeros_like, params)
    losses = []
    bar = tqdm(range(num_epochs), desc=f"{num_devices} device(s)", unit="epoch", disable=None)
    for epoch in bar:
        for batch in make_batches(images, labels, seed=epoch):
            params, velocity, loss = step(params, velocity, *batch)
            losses.append(float(loss))
        bar.set_postfix(loss=f"{losses[-1]:.4f}")
    return params, np.array(losses)


def main():
    """Train on 4 devices and on one, compare, and say what the collectives did."""
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    strata_jax.init()

    (images, labels), (held_out_images, held_out_labels) = load_data()
    params, losses = train(NUM_DEVICES, images, labels)
    stats = strata_jax.stats()
    guesses = np.argmax(predict(jax.device_get(params), held_out_images), axis=1)
    accuracy = np.mean(guesses == held_out_labels)
    print(f"trained on {len(images)} images, {len(losses)} steps on {NUM_DEVICES} devices")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    print(f"held-out accuracy: {accuracy:.2%} of {len(held_out_images)} images")

    done, left = stats["all_reduce"], sum(stats["compile"]["left"].values())
    share = done["registered_bytes"] / max(done["bytes"], 1)
    print(f"zero-copy collectives: {done['calls']:,} calls, {done['bytes']:,} bytes,", end=" ")
    print(f"{share:.1%} of them in registered memory; {left} left to XLA")

    _, losses_of_one = train(1, images, labels)
    difference = np.max(np.abs(losses - losses_of_one))
    print(f"largest difference of a step's loss from one device: {difference:.1e}")

    if accuracy <= LEAST_ACCURACY:
        sys.exit(f"accuracy {accuracy:.2%} is not above {LEAST_ACCURACY:.0%}")
    if not difference <= MOST_LOSS_DIFFERENCE:
        sys.exit(f"losses differ by {difference:.1e}, more than {MOST_LOSS_DIFFERENCE:.0e}")


if __name__ == "__main__":
    main()
