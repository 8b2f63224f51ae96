# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What tests of one process with several devices share: running, comparing, counting, isolating."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import strata_jax
from strata_jax.hlo.find import Finder

# Put in front of the code of a test that needs a process of its own.
PREAMBLE = '''
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells switch it off for background jobs
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", {num_devices})
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import strata_jax
from strata_jax import reference

def devices_mesh(n={num_devices}):
    return Mesh(np.array(jax.devices()[:n]), ("x",))

def sharded(f, n={num_devices}, **jit):
    return jax.jit(jax.shard_map(f, mesh=devices_mesh(n), in_specs=P("x"), out_specs=P("x"),
                                 check_vma=False), **jit)

def psum(v):
    return jax.lax.psum(v, "x")

def check(y, x, n={num_devices}):
    want = reference.all_reduce("sum", np.split(np.asarray(x), n))[0]
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), want)

def operations():
    return strata_jax.stats()["all_reduce"]["operations"]

def left():
    return dict(strata_jax.stats()["compile"]["left"])

def keep_native(name):
    """Makes the compile hook leave an operation to XLA, as it does with what it cannot take."""
    from strata_jax.hlo.find import Finder
    take = Finder.native
    Finder.native = lambda self, graph, local, operation: (
        "kept by the test" if operation.name == name else take(self, graph, local, operation)
    )
'''


def ensure_fabric() -> None:
    """Puts this process on the fabric, once; call it in `setUpModule`."""
    if not strata_jax.stats()["active"]:
        strata_jax.init()


def devices_mesh(num_devices: int, axis_name: str = "x") -> Mesh:
    """Returns a mesh of one axis over the first devices."""
    return Mesh(np.array(jax.devices()[:num_devices]), (axis_name,))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns normally distributed float32 numbers, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def psum(v: Any) -> Any:
    """Our `psum` over axis x."""
    return strata_jax.psum(v, "x")


def on_mesh(
    f: Callable[..., Any],
    num_devices: int = 4,
    in_specs: Any = P("x"),
    out_specs: Any = P(),
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Returns the `shard_map` of `f` over axis x of the first devices."""
    mesh = devices_mesh(num_devices)
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)


def sharded(
    op: Callable[..., Any],
    mesh: Mesh,
    *,
    check_vma: bool = False,
    jit: bool = True,
    **jit_options: Any,
) -> Callable[..., Any]:
    """Returns `op` over all devices of the mesh.

    Args:
        op: gets and returns what one device holds.
        mesh: of any axes; all of them split the first axis of each argument and result, which is
            the rank in the mesh's order, and which `op` does not see.
        check_vma: as of `shard_map`.
        jit: False for the bare `shard_map`, to be transformed.
        **jit_options: for `jax.jit`.
    """
    spec = P(tuple(mesh.axis_names))

    def per_device(*args: Any) -> Any:
        results = op(*jax.tree.map(lambda a: a.reshape(a.shape[1:]), args))
        return jax.tree.map(lambda a: a.reshape((1, *a.shape)), results)

    mapped = jax.shard_map(
        per_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )
    return jax.jit(mapped, **jit_options) if jit else mapped


def per_device(result: jax.Array) -> list[np.ndarray]:
    """Returns what each device holds, read from its own buffer, in the order of the ranks."""
    shards = sorted(result.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0] for shard in shards]


def run(
    op: Callable[..., Any], shards: Sequence[np.ndarray], mesh: Mesh | None = None, **options: Any
) -> list[np.ndarray]:
    """Runs `op` in jit with one array a device; returns what each device got."""
    mesh = mesh or devices_mesh(len(shards))
    result = sharded(op, mesh, **options)(np.stack(shards))
    return per_device(jax.block_until_ready(result))


def bits(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array."""
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def assert_same_bits(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compares shape, dtype and every bit, device by device."""
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for rank, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == e.dtype, f"rank {rank}: dtype {a.dtype}, expected {e.dtype}"
        assert a.shape == e.shape, f"rank {rank}: shape {a.shape}, expected {e.shape}"
        if not np.array_equal(bits(a), bits(e)):
            wrong = np.flatnonzero(
                (bits(a).reshape(a.size, -1) != bits(e).reshape(a.size, -1)).any(1)
            )
            at = wrong[0]
            raise AssertionError(
                f"rank {rank}: {len(wrong)} of {a.size} elements differ; element {at} is "
                f"{a.reshape(-1)[at]!r}, expected {e.reshape(-1)[at]!r}"
            )


def assert_alike(actual: Sequence[np.ndarray]) -> None:
    """Checks that all devices hold the same bits."""
    assert_same_bits(actual, [actual[0]] * len(actual))


@contextlib.contextmanager
def kept_native(*names: str) -> Iterator[None]:
    """Makes the compile hook leave operations to XLA, as it does with what it cannot take."""
    take = Finder.native

    def leave(finder: Any, graph: Any, local: int, operation: Any) -> Any:
        kept = operation.name in names
        return "kept by the test" if kept else take(finder, graph, local, operation)

    with mock.patch.object(Finder, "native", leave):
        yield


class Moved(dict[str, Any]):
    """Counters of `strata_jax.stats()` that changed, by dotted name; 0 for the others."""

    def __missing__(self, name: str) -> int:
        return 0

    @property
    def left(self) -> dict[str, int]:
        """Collectives that stayed native, by reason."""
        prefix = "compile.left."
        return {name[len(prefix) :]: n for name, n in self.items() if name.startswith(prefix)}


def _flat(stats: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, int | float):
            found[prefix + name] = value
    return found


@contextlib.contextmanager
def counters() -> Iterator[Moved]:
    """Yields a dict that holds, after the block, what each counter moved by.

    Wait for the results inside the block: programs run asynchronously.
    """
    moved = Moved()
    before = _flat(strata_jax.stats())
    yield moved
    after = _flat(strata_jax.stats())
    moved.update({n: v - before.get(n, 0) for n, v in after.items() if v != before.get(n, 0)})


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def in_subprocess(
    code: str,
    *,
    env: Mapping[str, str] | None = None,
    num_devices: int = 4,
    timeout_s: float = 60.0,
    returncode: int | None = 0,
) -> Ended:
    """Runs code after PREAMBLE in a fresh process, and kills it and its children at the timeout.

    Args:
        code: Python, may be indented.
        env: environment variables to add.
        num_devices: CPU devices of the process.
        timeout_s: after which the test fails.
        returncode: what the process has to end with; None for anything.
    """
    source = PREAMBLE.format(num_devices=num_devices) + textwrap.dedent(code)
    environ = {n: v for n, v in os.environ.items() if not n.startswith(("STRATA_", "XLA_FLAGS"))}
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", source],
        env={**environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its children can be killed with it
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        raise AssertionError(
            f"still running after {timeout_s} s\n-- stdout\n{stdout}\n-- stderr\n{stderr}"
        ) from None
    ended = Ended(process.returncode, stdout, stderr, time.monotonic() - start)
    if returncode is not None and ended.returncode != returncode:
        raise AssertionError(
            f"ended with {ended.returncode}, expected {returncode}\n-- stdout\n{stdout}\n"
            f"-- stderr\n{stderr}"
        )
    return ended
