# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Every operation between processes, bit for bit as the oracle has it."""

from __future__ import annotations

import pytest

import launch

# Every operation on groups of all devices, of pairs across processes, and of halves; small ones,
# which go through mailboxes, and large ones, which are worked on by all; odd sizes and empty ones.
_OPERATIONS = '''
import ml_dtypes
strata_jax.init()
n = num_devices
half = [list(range(n // 2)), list(range(n // 2, n))]
crossed = [[i, n - 1 - i] for i in range(n // 2)]
GROUPS = [None, *([half, crossed] if n > 2 and n % 2 == 0 else [])]

def numbers(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(-9, 9, (n, *shape)) if np.dtype(dtype).kind in "iub" else (
        random.standard_normal((n, *shape)))
    return x.astype(dtype)

def run(f, *xs, **jit):
    """f of what one device holds; arrays of all devices by their first axis."""
    def of_one(*vs):
        return f(*[v.reshape(v.shape[1:]) for v in vs])[None]
    return sharded(of_one, **jit)(*[place(x) for x in xs])

def expect(y, parts):
    if y.size == 0:  # JAX does not split those
        return
    check(y, [np.asarray(part)[None] for part in parts])

SHAPES = [(0,), (1,), (33, 8, 5), (300_001,)]
for groups in GROUPS:
    m = len(groups[0]) if groups else n
    for shape in SHAPES:
        for dtype in ["float32"] if shape[0] < 1000 else ["bfloat16", "uint8"]:
            x = numbers(shape, dtype)
            for kind, op in (("sum", strata_jax.psum), ("max", strata_jax.pmax)):
                if kind == "max" and groups:
                    continue  # JAX has no groups there
                options = {"axis_index_groups": groups} if groups else {}
                expect(run(lambda v: op(v, "x", **options), x),
                       reference.all_reduce(kind, x, groups))
            expect(run(lambda v: strata_jax.all_gather(v, "x", axis_index_groups=groups), x),
                   reference.all_gather(x, groups=groups))
    for shape in ((1, 1), (5, 3001), (2, 200_003)):
        x = numbers((m * shape[0], shape[1]), "float32")
        expect(run(lambda v: strata_jax.psum_scatter(v, "x", tiled=True,
                                                     axis_index_groups=groups), x),
               reference.reduce_scatter("sum", x, groups=groups, tiled=True))
        expect(run(lambda v: strata_jax.all_to_all(v, "x", 0, 1, tiled=True,
                                                   axis_index_groups=groups), x),
               reference.all_to_all(x, 0, 1, groups=groups, tiled=True))
for shape in ((5,), (40_000,), (300_001,)):
    x = numbers(shape, "float32")
    pairs = [(i, (i + 1) % n) for i in range(n)]
    expect(run(lambda v: strata_jax.ppermute(v, "x", pairs), x), reference.ppermute(x, pairs))
    partial = [(0, n - 1)]
    expect(run(lambda v: strata_jax.ppermute(v, "x", partial), x), reference.ppermute(x, partial))
    expect(run(lambda v: strata_jax.pbroadcast(v, "x", n - 1), x), reference.pbroadcast(x, n - 1))
for rows, width in ((4, 3), (3000, 40)):
    random = np.random.default_rng(1)
    sizes = random.integers(0, rows // n + 1, (n, n)).astype(np.int32)
    starts = np.concatenate([np.zeros((n, 1), np.int32), np.cumsum(sizes, 1)[:, :-1]], 1)
    received = np.concatenate([np.zeros((1, n), np.int32), np.cumsum(sizes, 0)[:-1]], 0)
    x, out = numbers((rows, width), "float32"), numbers((rows + n, width), "float32", 2)
    arguments = [x, out, starts.astype(np.int32), sizes, received.astype(np.int32),
                 sizes.T.copy()]
    expect(run(lambda *v: strata_jax.ragged_all_to_all(*v, axis_name="x"), *arguments),
           reference.ragged_all_to_all(*[list(a) for a in arguments]))

# Loops, branches, several at once in one program, and plain jit, where XLA puts the collectives.
x, scale = numbers((64,), "float32"), np.float32(1 / n)
def loop(v):
    return lax.fori_loop(0, 50, lambda i, u: strata_jax.psum(u, "x") * scale, v)
want = list(x)
for _ in range(50):
    want = [w * scale for w in reference.all_reduce("sum", want)]
expect(run(loop, x), want)

def many(v):
    a, b = strata_jax.psum(v * 2, "x"), strata_jax.all_gather(v, "x")
    c = strata_jax.ppermute(v, "x", [(i, (i + 1) % n) for i in range(n)])
    return a + b.sum(0) * 0 + c * 0
for _ in range(200):
    y = run(many, x) if _ == 0 else y
expect(y, reference.all_reduce("sum", x * 2))

whole = place(numbers((8,), "float32"))
total = jax.jit(lambda v: v.sum(0), out_shardings=NamedSharding(mesh, P()))(whole)
np.testing.assert_array_equal(
    np.asarray(total.addressable_shards[0].data),
    reference.all_reduce("sum", numbers((8,), "float32"))[0])

stats = strata_jax.stats()
assert stats["compile"]["left"] == {}, stats["compile"]
for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
             "collective_broadcast", "ragged_all_to_all"):
    counts = stats[name]
    assert counts["failed"] == 0 and counts["across"] > 0, (name, counts)
assert stats["all_reduce"]["mailed"] > 0
say("all right")
'''


@pytest.mark.parametrize(("num_processes", "num_devices"), [(3, 1), (4, 2)], ids=str)
def test_operations(num_processes: int, num_devices: int) -> None:
    result = launch.run(
        _OPERATIONS,
        num_processes=num_processes,
        num_devices=num_devices,
        timeout_s=150,
        env={"STRATA_TIMEOUT_S": "60"},
    )
    for out in result.out:
        assert "all right" in out, result.report()
