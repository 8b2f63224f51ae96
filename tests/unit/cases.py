# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What every collective is put through: dtypes, meshes, programs, derivatives, one operation.

An `op` is what one device does, over axis x unless said otherwise; an `oracle` maps the arrays of
all devices to the results of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import one_process
from strata_jax import _compat

Op = Callable[[Any], Any]
Oracle = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

NUMS_DEVICES = (1, 2, 3, 4, 8)
INTEGERS = "int2 int4 uint2 uint4 int8 uint8 int16 uint16 int32 uint32".split()
FLOAT8S = (
    "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz"
).split()
FLOATS = ["float16", "bfloat16", "float32", *FLOAT8S]
WIDENED = ["float4_e2m1fn", "float8_e8m0fnu"]  # XLA computes with them in wider types
WIDE = ["int64", "uint64", "float64", "complex128"]  # need x64
# All that JAX has on CPU.
DTYPES = ["bool", *INTEGERS, *FLOATS, *WIDENED, "complex64", *WIDE]
# Elements of one row: around a vector, a cache line, a page; odd; none.
SIZES = (0, 1, 2, 7, 15, 63, 64, 65, 1025)
# Partitions of 8 devices; lists that are not ascending, too.
GROUPS = (
    None,
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 2, 4, 6], [1, 3, 5, 7]],
    [[7, 0], [3, 4], [1, 2], [6, 5]],
    [[i] for i in range(8)],
    [list(range(7, -1, -1))],
)
# Opcodes of a program that does more than the collective; parameters and bitcasts are free.
_OTHER_WORK = re.compile(
    r"slice|concatenate|copy|transpose|pad|gather|scatter|reduce|all-|collective|ragged"
)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def values(dtype: np.dtype, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random values over the whole range of integers, around 1 for floats; any bits for 8 bits."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.random(shape) > 0.6
    if np.issubdtype(dtype, np.complexfloating):
        parts = rng.standard_normal((2, *shape))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if dtype.name in INTEGERS or np.issubdtype(dtype, np.integer):
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        if dtype.itemsize == 8:
            return rng.integers(low, high, shape, dtype, endpoint=True)
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
    if dtype.name in FLOAT8S:
        return rng.integers(0, 256, shape, np.uint8).view(dtype)
    if dtype.name in WIDENED:
        return rng.choice(np.array([0.5, 1, 2, 4], np.float32), shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def integral(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers as float32: all sums and products of them are exact, in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def meshes() -> dict[str, Mesh]:
    """Returns meshes of several axes, of size 1 and of permuted devices."""
    devices = np.array(jax.devices())
    permuted = devices[[3, 1, 7, 5, 0, 2, 6, 4]]
    return {
        "2x3": Mesh(devices[:6].reshape(2, 3), ("x", "y")),
        "2x1x4": Mesh(devices.reshape(2, 1, 4), ("x", "y", "z")),
        "2x2x2 permuted": Mesh(permuted.reshape(2, 2, 2), ("x", "y", "z")),
        "4x2 permuted": Mesh(permuted.reshape(4, 2), ("x", "y")),
    }


def axes_of(mesh: Mesh) -> list[str | tuple[str, ...]]:
    """Returns the axis names of a mesh, alone and in tuples of every order."""
    names = [str(name) for name in mesh.axis_names]
    tuples = itertools.chain(*(itertools.permutations(names, n) for n in (2, 3)))
    return [*names, *tuples]


def groups_of(mesh: Mesh, axes: str | tuple[str, ...]) -> list[list[int]]:
    """Returns the ranks that meet in a collective over these axes, in the order of the axes."""
    axes = (axes,) if isinstance(axes, str) else axes
    names = list(mesh.axis_names)
    order = [names.index(n) for n in (*(n for n in names if n not in axes), *axes)]
    ranks = np.arange(mesh.size).reshape(mesh.devices.shape).transpose(order)
    return ranks.reshape(-1, int(np.prod([mesh.shape[n] for n in axes]))).tolist()


@dataclasses.dataclass(frozen=True)
class Case:
    """One use of a collective: what a device does, with what, and what each device must get."""

    op: Op
    shards: Sequence[Any]
    want: Sequence[np.ndarray]


def check(
    cases: Mapping[str, Case], mesh: Mesh | None = None, *, x64: bool = False, **options: Any
) -> None:
    """Runs all cases in one program, and compares every bit.

    Args:
        cases: by a name for the message.
        mesh: the devices; by default the first, on axis x.
        x64: whether 64-bit types exist.
        **options: of `one_process.sharded`.
    """
    mesh = mesh or one_process.devices_mesh(len(next(iter(cases.values())).shards))
    args = {n: jax.tree.map(lambda *a: np.stack(a), *case.shards) for n, case in cases.items()}
    with jax.enable_x64(True) if x64 else contextlib.nullcontext():
        f = one_process.sharded(lambda x: {n: cases[n].op(x[n]) for n in x}, mesh, **options)
        got = jax.block_until_ready(f(args))
    for name, case in cases.items():
        try:
            one_process.assert_same_bits(one_process.per_device(got[name]), case.want)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


# Parts of a matrix of at least 8 x 38, which a program makes of it before the operation.
PARTS: dict[str, Op] = {
    "tail": lambda v: v[1:],
    "row": lambda v: v[7],
    "odd": lambda v: v[3:, 1:38],
    "steps": lambda v: v[::2, ::3],
    "transposed": lambda v: v.T,
    "reversed": lambda v: v[::-1],
}


def check_layouts(op: Op, oracle: Oracle, x: np.ndarray) -> None:
    """Runs `op` on arrays whose dimensions lie in memory in every order, in one program.

    Args:
        op: what one device does.
        oracle: of `op`.
        x: one array a device, stacked.
    """
    mesh = one_process.devices_mesh(len(x))
    want = oracle(list(x))
    layouts = {
        str(order): Format(Layout((0, *order)), NamedSharding(mesh, P("x")))
        for order in itertools.permutations(range(1, x.ndim))
    }
    f = one_process.sharded(lambda v: jax.tree.map(op, v), mesh, in_shardings=(layouts,))
    got = f({order: jax.device_put(x, layout) for order, layout in layouts.items()})
    for result in got.values():
        one_process.assert_same_bits(one_process.per_device(result), want)


def check_programs(op: Op, oracle: Oracle, x: np.ndarray, *, pytrees: bool = True) -> None:
    """Runs `op` in loops, branches, nested functions, under vmap and on pytrees, in one program.

    Args:
        op: what one device does.
        oracle: of `op`.
        x: one array a device, stacked, of whole numbers.
        pytrees: whether `op` takes them.
    """

    def program(v: jax.Array) -> dict[str, Any]:
        first = op(v)
        _, each = jax.lax.scan(lambda c, i: (c, op(v + i)), 0, jnp.arange(3, dtype=v.dtype))
        looped = jax.lax.fori_loop(0, 3, lambda i, a: a + op(v + i.astype(v.dtype)), first * 0)
        _, last = jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, op(v * s[0])), (jnp.float32(0), first * 0)
        )
        total = one_process.psum(jnp.float32(1))
        taken, passed = (
            jax.lax.cond(flag, lambda a: op(a + 5), lambda a: op(a * 2) + 1, v)
            for flag in (total > 0, total < 0)
        )
        inner = jax.jit(lambda a: op(a + 7))
        batch = jnp.stack([v, v + 1])
        found = {
            "scan": list(each),
            "fori_loop": looped,
            "while_loop": last,
            "cond": (taken, passed),
            "nested jit": (inner(v), inner(v + 1)),
            "vmap": list(jax.vmap(op)(batch)),
            "vmap of the last axis": list(
                jnp.moveaxis(
                    jax.vmap(op, in_axes=-1, out_axes=-1)(jnp.moveaxis(batch, 0, -1)), -1, 0
                )
            ),
        }
        if pytrees:
            found["pytree"] = op({"a": v, "b": [v + 1, (v * 2,)], "none": None})
        return found

    f = [np.stack(oracle(list(x + i))) for i in range(8)]
    double = np.stack(oracle(list(x * 2)))
    want = {
        "scan": [f[0], f[1], f[2]],
        "fori_loop": f[0] + f[1] + f[2],
        "while_loop": double,
        "cond": (f[5], double + 1),
        "nested jit": (f[7], np.stack(oracle(list(x + 8)))),
        "vmap": [f[0], f[1]],
        "vmap of the last axis": [f[0], f[1]],
    }
    if pytrees:
        want["pytree"] = {"a": f[0], "b": [f[1], (double,)], "none": None}
    run = one_process.sharded(program, one_process.devices_mesh(len(x)))
    got = run(x)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, g), w in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(g), w, err_msg=jax.tree_util.keystr(path))
    run(x + 0)
    assert run._cache_size() == 1, "traced again at the second call"


def check_mapped_axes(op: Op, oracle: Oracle, x: np.ndarray, *, vmap: bool = True) -> None:
    """Runs `op` over the axis of a `pmap`, and over that of a `vmap`, on one device.

    Args:
        op: what one device does.
        oracle: of `op`.
        x: one array a device, stacked.
        vmap: whether JAX can map it over a named axis of `vmap`.
    """
    want = oracle(list(x))
    pmapped = jax.pmap(op, axis_name="x", devices=jax.devices()[: len(x)])
    one_process.assert_same_bits(list(np.asarray(pmapped(x))), want)
    if vmap:
        vmapped = jax.jit(jax.vmap(op, axis_name="x"))
        one_process.assert_same_bits(list(np.asarray(vmapped(x))), want)


def check_donation(op: Op, oracle: Oracle, x: np.ndarray) -> None:
    """Runs `op` on an array whose memory the program may take for its results.

    Args:
        op: what one device does.
        oracle: of `op`.
        x: one array a device, stacked.
    """
    mesh = one_process.devices_mesh(len(x))
    want = oracle(list(x))
    programs = [lambda v: (op(v), v + 1)]
    if want[0].shape == x.shape[1:]:
        programs.append(lambda v: (op(v),))  # in place
    for program in programs:
        f = one_process.sharded(program, mesh, donate_argnums=0)
        # In XLA's own memory; device_put may borrow numpy's.
        placed = jax.jit(lambda v: v + 0, out_shardings=NamedSharding(mesh, P("x")))(x)
        got = f(placed)
        one_process.assert_same_bits(one_process.per_device(got[0]), want)
        for added in got[1:]:
            np.testing.assert_array_equal(np.asarray(added), x + 1)
        if _compat.JAX_VERSION >= (0, 11, 0):  # older ones may lose the donation
            assert placed.is_deleted()


def check_linear(
    op: Op, oracle: Oracle, adjoint: Oracle, x: np.ndarray, *, check_vma: bool = True
) -> None:
    """Compares all derivatives of `op`, which is linear, with the adjoint.

    Args:
        op: what one device does.
        oracle: of `op`.
        adjoint: maps the cotangents of all devices to those of their operands.
        x: one array a device, stacked, of whole numbers.
        check_vma: whether `op` passes JAX's replication checks outside its gradient.
    """
    want = oracle(list(x))
    ct = integral(len(x), *want[0].shape, seed=1)

    @jax.custom_vjp
    def tripled(v: jax.Array) -> jax.Array:
        return op(v)

    tripled.defvjp(lambda v: (op(v), v), lambda v, c: tuple(3 * t for t in jax.vjp(op, v)[1](c)))

    def derivatives(v: jax.Array, c: jax.Array) -> dict[str, jax.Array]:
        return {
            "vjp": jax.vjp(op, v)[1](c)[0],
            "linear_transpose": jax.linear_transpose(op, v)(c)[0],
            "jvp": jax.jvp(op, (v,), (v,))[1],
            "grad": jax.grad(lambda a: jnp.sum(c * op(a)))(v),
            "checkpoint": jax.grad(lambda a: jnp.sum(c * jax.checkpoint(lambda b: op(b * b))(a)))(
                v
            ),
            "custom_vjp": jax.vjp(tripled, v)[1](c)[0],
            "vmap of vjp": jax.vmap(lambda t: jax.vjp(op, v)[1](t)[0])(jnp.stack([c]))[0],
        }

    back = np.stack(adjoint(list(ct)))
    expected = {
        "vjp": back,
        "linear_transpose": back,
        "jvp": np.stack(want),
        "grad": back,
        "checkpoint": 2 * x * back,
        "custom_vjp": 3 * back,
        "vmap of vjp": back,
    }
    mesh = one_process.devices_mesh(len(x))
    got = one_process.sharded(derivatives, mesh)(x, ct)
    for name, value in expected.items():
        np.testing.assert_array_equal(np.asarray(got[name]), value, err_msg=name)
    for checks in (False, True) if check_vma else (False,):
        mapped = one_process.sharded(op, mesh, check_vma=checks, jit=False)
        (outside,) = jax.jit(lambda a, c, f=mapped: jax.vjp(f, a)[1](c))(x, ct)
        np.testing.assert_array_equal(np.asarray(outside), back, err_msg=f"outside, {checks}")
        transposed = jax.linear_transpose(mapped, x)
        assert "token" not in str(jax.make_jaxpr(transposed)(ct))  # public report 16303


def check_one_operation(name: str, op: Op, oracle: Oracle, x: np.ndarray) -> None:
    """Checks that `op` alone is one operation and one copy, with nothing else in the program.

    Args:
        name: of the operation in `stats()`.
        op: what one device does.
        oracle: of `op`.
        x: one array a device, stacked.
    """
    mesh = one_process.devices_mesh(len(x))
    placed = jax.device_put(x, NamedSharding(mesh, P("x")))
    want = oracle(list(x))
    with one_process.counters() as moved:
        compiled = one_process.sharded(op, mesh).lower(placed).compile()
        got = one_process.per_device(jax.block_until_ready(compiled(placed)))
    one_process.assert_same_bits(got, want)
    operations = {key: n for key, n in moved.items() if key.endswith(".operations")}
    assert operations == {f"{name}.operations": 1}, operations
    assert not moved.left, moved.left
    assert moved[f"{name}.bytes"] == x.nbytes, moved[f"{name}.bytes"]
    written = sum(w.nbytes for w in want)
    assert moved[f"{name}.written_bytes"] == written, moved[f"{name}.written_bytes"]
    text = compiled.as_text()
    targets = re.findall(r'custom_call_target="(\w+)"', text)
    assert targets == [f"strata_{name}"], targets
    opcodes = re.findall(r"^ *(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z-]+)\(", text, re.MULTILINE)
    assert "custom-call" in opcodes, text
    assert not [opcode for opcode in opcodes if _OTHER_WORK.search(opcode)], text
