# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Several hosts, each with several processes: what runs on the fabric, what between hosts."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import pytest

import two_hosts

pytestmark = pytest.mark.skipif(bool(two_hosts.missing()), reason=two_hosts.missing())

# Against the oracle bit for bit, as sums of small whole numbers are exact in any order; and in
# `counted` what the compile hook did with it.
_HEAD = """
import contextlib, zlib
import ml_dtypes
strata_jax.init(timeout_s=60)
n = num_devices
host = np.array(strata_jax.fabric._place.hosts)[[d.process_index for d in jax.devices()]]
inside = [[int(i) for i in np.flatnonzero(host == h)] for h in (0, 1)]
between = [list(pair) for pair in zip(*inside)]

def numbers(*shape, dtype="float32"):
    return np.random.default_rng(0).integers(-9, 9, (n, *shape)).astype(dtype)

def run(f, *xs):
    def of_one(*vs):
        return jax.tree.map(lambda r: r[None], f(*[v.reshape(v.shape[1:]) for v in vs]))
    return jax.block_until_ready(sharded(of_one)(*[place(x) for x in xs]))

@contextlib.contextmanager
def counted(operation=None, **expected):
    def snapshot():
        stats = strata_jax.stats()
        compiled = stats["compile"]
        found = {name: compiled[name] for name in ("native", "lowered", "split", "failed")}
        found["left"] = compiled["left"].get("crosses hosts", 0)
        found["ran"] = stats[operation]["operations"] if operation else 0
        return found
    before = snapshot()
    yield
    after = snapshot()
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved.pop("ran", 0) >= ("ran" in expected), operation
    expected.pop("ran", None)
    assert moved == expected, (operation, moved, expected)

def expect(y, parts):
    check(y, [np.asarray(part)[None] for part in parts])
"""

_OPERATIONS = (
    _HEAD
    + """
LARGE, SMALL = (64, 1024), (7, 8)
for shape in (LARGE, (16411,), (3, 91, 173)):  # divisible and odd ones
    x = numbers(*shape)
    for kind, op in (("sum", lax.psum), ("max", lax.pmax), ("min", lax.pmin)):
        with counted("reduce_scatter", split=1, ran=True):
            expect(run(lambda v: op(v, "x"), x), reference.all_reduce(kind, x))
x = numbers(*SMALL)
with counted(left=1):
    expect(run(lambda v: lax.psum(v, "x"), x), reference.all_reduce("sum", x))
with counted("all_reduce", native=1, ran=True):
    expect(run(lambda v: lax.psum(v, "x", axis_index_groups=inside), x),
           reference.all_reduce("sum", x, inside))
with counted(left=1):
    expect(run(lambda v: lax.psum(v, "x", axis_index_groups=between), numbers(*LARGE)),
           reference.all_reduce("sum", numbers(*LARGE), between))

# The same bits on all ranks, whatever the sum.
x = np.random.default_rng(1).standard_normal((n, 16411)).astype(np.float32)
y = run(lambda v: lax.psum(v, "x"), x)
want = reference.all_reduce("sum", x)[0]
got = [np.asarray(shard.data) for shard in y.addressable_shards]
np.testing.assert_allclose(got[0][0], want, rtol=1e-5, atol=1e-5)
say("bits", zlib.crc32(got[0].tobytes()), len({part.tobytes() for part in got}))

for dtype in ("int32", "int8", "float64", "complex64"):
    with jax.enable_x64(True), counted("reduce_scatter", split=1, ran=True):
        x = numbers(70_001, dtype=dtype)
        expect(run(lambda v: lax.psum(v, "x"), x), reference.all_reduce("sum", x))

# What is lowered early inside a host is left to XLA over hosts, and then split where it can be.
x = numbers(*LARGE, dtype="bfloat16")
with counted("all_reduce", lowered=1, ran=True):
    expect(run(lambda v: lax.psum(v, "x", axis_index_groups=inside), x),
           reference.all_reduce("sum", x, inside))
with counted("reduce_scatter", split=1, ran=True):
    expect(run(lambda v: lax.psum(v, "x"), x), reference.all_reduce("sum", x))

x = numbers(*LARGE)
for axis in (0, 1):
    with counted("all_gather", ran=True, **IN_ORDER):
        expect(run(lambda v: lax.all_gather(v, "x", axis=axis, tiled=True), x),
               reference.all_gather(x, axis, tiled=True))
    with counted("reduce_scatter", ran=True, **IN_ORDER):
        expect(run(lambda v: lax.psum_scatter(v, "x", scatter_dimension=axis, tiled=True), x),
               reference.reduce_scatter("sum", x, axis, tiled=True))
    with counted(left=1):
        expect(run(lambda v: lax.all_to_all(v, "x", axis, 1 - axis, tiled=True), x),
               reference.all_to_all(x, axis, 1 - axis, tiled=True))
    with counted("all_to_all", lowered=1, ran=True):
        groups = dict(axis_index_groups=inside)
        expect(run(lambda v: lax.all_to_all(v, "x", axis, 1 - axis, tiled=True, **groups), x),
               reference.all_to_all(x, axis, 1 - axis, groups=inside, tiled=True))
with counted(left=1):
    ring = [(i, (i + 1) % n) for i in range(n)]
    expect(run(lambda v: lax.ppermute(v, "x", ring), x), reference.ppermute(x, ring))
with counted("collective_permute", native=1, ran=True):
    pairs = [tuple(group[:2]) for group in inside]
    expect(run(lambda v: lax.ppermute(v, "x", pairs), x), reference.ppermute(x, pairs))
say("done")
"""
)


@pytest.mark.parametrize(
    ("hosts", "num_devices", "in_order"),
    [
        ((0, 0, 1, 1), 1, "split=1"),
        # Two devices of one host, two of the other, and again: XLA gathers those.
        ((0, 1, 0, 1), 2, "left=1"),
    ],
)
def test_operations(hosts: Sequence[int], num_devices: int, in_order: str) -> None:
    code = f"IN_ORDER = dict({in_order})\n{_OPERATIONS}"
    if in_order != "split=1":
        code = code.replace("ran=True, **IN_ORDER", "**IN_ORDER")
    said = two_hosts.run(code, hosts=hosts, num_devices=num_devices)
    assert said.count("done") == len(hosts)
    assert len(re.findall(r"^bits \d+ 1$", said, re.M)) == len(hosts), said
    assert len(set(re.findall(r"^bits (\d+)", said, re.M))) == 1, said


_PROGRAMS = (
    _HEAD
    + """
# Loops, branches, many at once, trees of arrays, gradients, and collectives of the partitioner.
x = 8 * np.abs(numbers(16411)) + 8
def loop(v):
    v = lax.fori_loop(0, 20, lambda _, u: lax.psum(u, "x") / n, v)
    return lax.cond(lax.psum(v[0], "x") > 0, lambda u: lax.psum(u + 1, "x"), lambda u: u, v)
with counted("reduce_scatter", split=2, left=1, ran=True):
    expect(run(loop, x), [n * (x.sum(0) / n + 1)] * n)

sizes = (1, 5, 4096, 16411, 40_000)
x = numbers(40_000)
with counted("reduce_scatter", split=1, ran=True):
    ys = run(lambda v: lax.psum([v[:k] for k in sizes], "x"), x)
for k, y in zip(sizes, ys):
    expect(y, reference.all_reduce("sum", x[:, :k]))

def mixed(v):
    inner = lax.psum(v, "x", axis_index_groups=inside)
    ring = lax.ppermute(v, "x", [(i, (i + 1) % n) for i in range(n)])
    return lax.psum(v, "x"), inner, ring, lax.pmax(v, "x")
for _ in range(2):
    total, inner, ring, most = run(mixed, x)
    expect(total, reference.all_reduce("sum", x))
    expect(inner, reference.all_reduce("sum", x, inside))
    expect(ring, list(np.roll(x, 1, axis=0)))
    expect(most, reference.all_reduce("max", x))

w = np.random.default_rng(2).standard_normal((256, 64)).astype(np.float32)
batch = np.random.default_rng(3).standard_normal((8 * n, 256)).astype(np.float32)
def loss(w, b):
    return jnp.tanh(b @ w).sum()
with counted("reduce_scatter", split=1, ran=True):
    sharding = NamedSharding(mesh, P())
    gradient = jax.jit(jax.grad(loss), out_shardings=sharding)(
        jax.make_array_from_callback(w.shape, sharding, lambda i: w[i]), place(batch))
    (shard, *_) = gradient.block_until_ready().addressable_shards
np.testing.assert_allclose(
    np.asarray(shard.data), batch.T @ (1 - np.tanh(batch @ w) ** 2), rtol=1e-3, atol=1e-3)

# Over hosts there is no pbroadcast and no ragged_all_to_all; inside there is.
offsets = np.zeros((n, n), np.int32)
ragged = [x, x.copy(), offsets, offsets, offsets, offsets]
for f, arrays, hint in (
    (lambda v: lax.pbroadcast(v, "x", 0), [x], "psum of the source's array"),
    (lambda *v: lax.ragged_all_to_all(*v, axis_name="x"), ragged, "padded to equal sizes"),
):
    try:
        with counted(failed=1):
            run(f, *arrays)
        raise AssertionError("no error")
    except jax.errors.JaxRuntimeError as error:
        assert "over several hosts" in str(error) and hint in str(error), error
pairs_mesh = Mesh(np.array(jax.devices())[np.array(inside)], ("h", "i"))
f = jax.shard_map(lambda v: lax.pbroadcast(v, "i", 1), mesh=pairs_mesh, in_specs=P(("h", "i")),
                  out_specs=P(("h", "i")), check_vma=False)
with counted("collective_broadcast", lowered=1, ran=True):
    at = NamedSharding(pairs_mesh, P(("h", "i")))
    ordered = x[np.array(inside).reshape(-1)]
    y = jax.jit(f)(jax.make_array_from_callback(x.shape, at, lambda i: ordered[i]))
    for shard in y.addressable_shards:
        row = shard.index[0].start
        source = row // len(inside[0]) * len(inside[0]) + 1
        np.testing.assert_array_equal(np.asarray(shard.data)[0], ordered[source])
say("done")
"""
)


def test_programs() -> None:
    assert two_hosts.run(_PROGRAMS).count("done") == 4


def _processes_with(text: str) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def _wait_until_gone(text: str) -> None:
    deadline = time.monotonic() + 10
    while _processes_with(text):
        assert time.monotonic() < deadline, _processes_with(text)
        time.sleep(0.05)


@pytest.fixture
def jobs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep the scripts of this test's jobs apart; returns what their command lines have in them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return str(tmp_path)


def test_a_rank_that_fails_ends_the_job(jobs: str) -> None:
    code = "import sys, time; 1 / (int(sys.argv[2]) - 3); time.sleep(60)"
    start = time.monotonic()
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        two_hosts.run(code, preamble=False)
    assert time.monotonic() - start < 50
    _wait_until_gone(jobs)


def test_a_job_that_hangs_is_killed(jobs: str) -> None:
    with pytest.raises(AssertionError, match="none after 3 s"):
        two_hosts.run("import time; time.sleep(60)", preamble=False, timeout_s=3)
    _wait_until_gone(jobs)


def test_nothing_is_left_when_the_starter_is_killed(jobs: str) -> None:
    code = (
        f"import sys, tempfile; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        f"import two_hosts; tempfile.tempdir = {jobs!r}\n"
        "two_hosts.run('import time; time.sleep(60)', preamble=False)"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code]) as starter:
        try:
            deadline = time.monotonic() + 30
            while sum("job.py 4 " in command for command in _processes_with(jobs)) < 4:
                assert time.monotonic() < deadline, _processes_with(jobs)
                time.sleep(0.05)
        finally:
            starter.kill()
    _wait_until_gone(jobs)


def test_the_two_hosts_cannot_share_memory() -> None:
    said = two_hosts.run(
        """
        import os, socket, sys
        print(sys.argv[2], socket.gethostname(), os.stat("/proc/self/ns/net").st_ino, flush=True)
        """,
        preamble=False,
    )
    names, networks = {}, {}
    for line in said.splitlines():
        rank, name, network = line.split()
        names[int(rank)], networks[int(rank)] = name, network
    assert [names[i] for i in range(4)] == [two_hosts.ADDRESSES[i] for i in (0, 0, 1, 1)]
    assert networks[0] == networks[1] != networks[2] == networks[3]
