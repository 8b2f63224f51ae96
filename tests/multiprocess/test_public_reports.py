# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Faults of collectives between processes that users reported in public.

Numbers are of jax-ml/jax unless a repository is named. Each runs on processes of one device and of
two; several share a job, as a job costs seconds.
"""

from __future__ import annotations

import pytest

import launch

_VALUES = """
strata_jax.init(timeout_s=60)
n = num_devices

def run(f, x, **jit):
    return sharded(lambda v: f(v[0])[None], **jit)(place(x))

def expect(y, parts):
    check(y, [np.asarray(part)[None] for part in parts])

# xla 16430: psum over processes of two devices each.
x = np.arange(n * 1000, dtype=np.float32).reshape(n, 1000)
expect(run(lambda v: strata_jax.psum(v, "x"), x), reference.all_reduce("sum", x))

# 21820: pmax of negative numbers, and of nothing but -inf.
import ml_dtypes
for dtype in ("float16", ml_dtypes.bfloat16, "float32"):
    for value in (-1.0, -np.inf):
        y = np.full((n, 5), value, np.dtype(dtype))
        expect(run(lambda v: strata_jax.pmax(v, "x"), y), list(y))

# 3123, 3150: psum of bools.
flags = np.arange(n)[:, None] != 1
expect(run(lambda v: strata_jax.psum(v, "x"), flags), [np.array([n - 1], np.int32)] * n)

# 23543, xla 13305: all_gather of bf16, alone and beside one of f32.
b = np.random.default_rng(0).standard_normal((n, 300)).astype(ml_dtypes.bfloat16)
expect(run(lambda v: strata_jax.all_gather(v, "x"), b), reference.all_gather(b))
both = sharded(lambda v, w: (strata_jax.all_gather(v[0], "x")[None],
                             strata_jax.all_gather(w[0], "x")[None]))(place(x), place(b))
for y, parts in zip(both, (reference.all_gather(x), reference.all_gather(b))):
    expect(y, parts)

# 15903: devices in another order: results follow the mesh.
order = np.random.default_rng(3).permutation(n)
turned = Mesh(np.array(jax.devices())[order], ("x",))
rows = np.arange(n * n * 2, dtype=np.float32).reshape(n, n * 2)
z = jax.make_array_from_callback(rows.shape, NamedSharding(turned, P("x")), lambda i: rows[i])
def scatter_gather(v):
    part = strata_jax.psum_scatter(v[0], "x", tiled=True)
    return strata_jax.all_gather(part, "x", tiled=True)[None]
y = jax.jit(jax.shard_map(scatter_gather, mesh=turned, in_specs=P("x"), out_specs=P("x"),
                          check_vma=False))(z)
for shard in y.addressable_shards:
    np.testing.assert_array_equal(np.asarray(shard.data)[0], rows.sum(0))

# 3757: there and back.
for by in (1, 3):
    there = [(i, (i + by) % n) for i in range(n)]
    back = [(b, a) for a, b in there]
    expect(run(lambda v: lax.ppermute(lax.ppermute(v, "x", there), "x", back), x), list(x))

# 1703, 1704: a generator of pairs.
expect(run(lambda v: strata_jax.ppermute(v, "x", ((i, (i + 1) % n) for i in range(n))), x),
       reference.ppermute(x, [(i, (i + 1) % n) for i in range(n)]))

# 24721, 15780: axis_index in a branch.
def branch(v):
    i = lax.axis_index("x")
    return strata_jax.psum(lax.cond(i > 0, lambda: i, lambda: 0 * i), "x") + v.astype(jnp.int32) * 0
expect(run(branch, x[:, :3]), [np.full(3, n * (n - 1) // 2, np.int32)] * n)

# 34755, 26203: ragged_all_to_all, which XLA has not on CPU, as its documentation has it.
if n == 2:
    arguments = [[[1, 2, 2], [3, 4, 0]], [[0] * 4] * 2, [[0, 1]] * 2, [[1, 2], [1, 1]],
                 [[0, 0], [1, 2]], [[1, 1], [2, 1]]]
    y = sharded(lambda *v: strata_jax.ragged_all_to_all(*[u[0] for u in v], axis_name="x")[None])(
        *[place(np.array(a, np.int32)) for a in arguments])
    expect(y, np.array([[1, 3, 0, 0], [2, 2, 4, 0]], np.int32))

# 15982: the gradient through shard_map of all_to_all is the all_to_all back.
square = np.arange(n * n, dtype=np.float32).reshape(n * n, 1)
weights = square * 3 + 1
moved = jax.shard_map(lambda v: strata_jax.all_to_all(v, "x", 0, 0, tiled=True), mesh=mesh,
                      in_specs=P("x"), out_specs=P("x"), check_vma=False)
gradient = jax.jit(jax.grad(lambda v, w: (moved(v) * w).sum()))(place(square), place(weights))
check(gradient, weights.reshape(n, n, 1).transpose(1, 0, 2))

# 3970: each local gradient once.
scalar = jax.shard_map(lambda v: strata_jax.psum((v * v).sum(), "x"), mesh=mesh,
                       in_specs=P("x"), out_specs=P())
check(jax.jit(jax.grad(scalar))(place(x)), 2 * x[:, None])
say("all right")
"""

_ORDER = """
strata_jax.init(timeout_s=60)
n = num_devices
x = np.arange(n * 8, dtype=np.float32).reshape(n, 8)

def settle(i, y):
    # jax 0.10 deadlocks with some 30 launches on several devices in flight, also natively.
    if jax.__version_info__ < (0, 11) and jax.local_device_count() > 1 and i % 16 == 15:
        jax.block_until_ready(y)

# netket 1479, 654, 14, 12701: two independent all-reduces of different sizes, many times.
def two(v):
    return strata_jax.psum(v, "x"), strata_jax.psum(jnp.tile(v, (1, 700)) * 2, "x")
f, a = sharded(two), place(x)
for i in range(300):
    small, large = f(a)
    settle(i, large)
check(small, [x.sum(0)[None]] * n)
check(large, [np.tile(x.sum(0) * 2, 700)[None]] * n)

# mpi4jax 2: permutes and reductions whose order could be swapped.
ring = [(i, (i + 1) % n) for i in range(n)]
def several(v):
    p, q = lax.ppermute(v, "x", ring), lax.ppermute(v * 2, "x", [(b, a) for a, b in ring])
    return strata_jax.psum(p, "x") + lax.ppermute(strata_jax.psum(q, "x"), "x", ring)
g = sharded(several)
for i in range(100):
    y = g(a)
    settle(i, y)
check(y, [3 * x.sum(0)[None]] * n)

# 5065, 6896: dispatches without waiting.
h = sharded(lambda v: strata_jax.psum(v, "x"))
ones = place(np.ones((n, 8), np.float32))
for i in range(2000):
    y = h(ones)
    settle(i, y)
check(y, [np.full((1, 8), n, np.float32)] * n)

# 11620: a result that nobody uses.
unused = sharded(lambda v: (strata_jax.psum(v, "x"), v + 1)[1])
check(unused(a), x[:, None] + 1)

# 25671: ordered callbacks and a psum; JAX orders on one device alone.
seen = []
local = Mesh(np.array(jax.local_devices()[:1]), ("y",))
from jax.experimental import io_callback
@jax.jit
def calls(v):
    for i in range(5):
        io_callback(lambda u, i=i: seen.append(i), None, v, ordered=True)
    return v
jax.block_until_ready(calls(jnp.zeros(3)))
jax.effects_barrier()
assert seen == [0, 1, 2, 3, 4], seen
def with_callback(v):
    u = jax.pure_callback(lambda u: u * 2, jax.ShapeDtypeStruct(v.shape, v.dtype), v)
    return strata_jax.psum(u, "x")
check(sharded(with_callback)(a), [2 * x.sum(0)[None]] * n)

# 25783: process_allgather has the documented shapes.
gathered = multihost_utils.process_allgather(np.arange(3.0, dtype=np.float32) + rank)
assert gathered.shape == (num_ranks, 3), gathered.shape
np.testing.assert_array_equal(gathered, np.arange(3.0) + np.arange(num_ranks)[:, None])
tiled = multihost_utils.process_allgather(np.full(3, rank, np.float32), tiled=True)
assert tiled.shape == (3 * num_ranks,), tiled.shape
whole = multihost_utils.process_allgather(place(x), tiled=True)
np.testing.assert_array_equal(whole, x)

# 40831: one comes late to psum_scatter.
if rank == 1:
    time.sleep(4)
y = sharded(lambda v: strata_jax.psum_scatter(v[0], "x", tiled=True)[None])(
    place(np.ones((n, 2 * n), np.float32)))
check(y, np.full((n, 1, 2), n, np.float32))
stats = strata_jax.stats()
assert stats["all_reduce"]["failed"] == stats["reduce_scatter"]["failed"] == 0
say("all right")
"""


@pytest.mark.parametrize("num_devices", [1, 2])
def test_values(num_devices: int) -> None:
    result = launch.run(_VALUES, num_devices=num_devices, timeout_s=120)
    assert all("all right" in out for out in result.out), result.report()


@pytest.mark.parametrize("num_devices", [1, 2])
def test_hangs_and_order(num_devices: int) -> None:
    result = launch.run(_ORDER, num_devices=num_devices, timeout_s=120)
    assert all("all right" in out for out in result.out), result.report()


def test_process_allgather_in_a_job_of_one() -> None:
    # 25783, too.
    launch.run(
        """
        strata_jax.init()
        assert multihost_utils.process_allgather(np.arange(3.0)).shape == (1, 3)
        assert multihost_utils.process_allgather(np.arange(3.0), tiled=True).shape == (3,)
        """,
        num_processes=1,
    )
