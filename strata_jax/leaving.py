# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How a process leaves its job when the interpreter exits.

In a job of several processes JAX lets nobody go before all have come to their end. A process that
waits in an operation for one that has ended its script would so wait for its deadline; and if one
was killed, JAX waits for that one and then aborts. So a process here first ends what it has begun,
then shows the others that it will begin nothing any more, and goes without JAX's leave where
somebody is dead.
"""

from __future__ import annotations

import contextlib
import time

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from strata_jax import _compat, _core

# Seconds that an operation with missing ranks may still take when the interpreter exits; and that
# the process whose end ends all others waits for them to go first.
_EXIT_TIMEOUT_S = 5.0
_POLL_S = 0.02


def at_exit() -> None:
    """To be called at exit before JAX's own exit functions."""
    _core.set_exiting()
    _core.limit_deadline(_EXIT_TIMEOUT_S)
    if not _core.has_joined():
        return
    if _compat.has_backend():
        try:
            _wait_for_programs()
        except Exception as error:  # whatever it is, it must not keep the process from its end
            logging.info("strata_jax: at exit, waiting for programs: %s", error)
    _compat.at_distributed_shutdown(_leave)


def _wait_for_programs() -> None:
    """Waits for all programs that were launched, also those whose results nobody holds.

    A program over all local devices runs after all that were launched before by this thread.
    """
    devices = np.array(jax.local_devices(backend="cpu"))
    sharding = NamedSharding(Mesh(devices, "x"), PartitionSpec("x"))
    last = jax.jit(lambda: jax.numpy.zeros(devices.size), out_shardings=sharding)
    jax.block_until_ready(last())
    for array in jax.live_arrays("cpu"):  # those of other threads
        with contextlib.suppress(Exception):  # of a program that failed: that is over, too
            if not array.is_deleted():
                array.block_until_ready()


def _leave() -> bool:
    """Leaves the other processes; whether JAX shall do so, too."""
    ended = _core.other_processes()
    all_in_order = not any(state == "died" for _, state in ended)
    coordinates = _compat.coordinator_process_index() == _compat.distributed_process_index()
    if all_in_order or coordinates:
        _core.leave()
    if not all_in_order and coordinates:
        # JAX aborts the others as soon as this process ends; let them say what they have to say.
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while any(state == "lives" for _, state in _core.other_processes()):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
    return all_in_order
