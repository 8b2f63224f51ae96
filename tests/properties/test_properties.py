# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Random programs of 1 to 4 collectives on random meshes, against the oracle.

A few, the same in every run. `PROPERTY_PROGRAMS=5000 pytest tests/properties` runs that many,
others each time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from absl.testing import absltest
from hypothesis import strategies as st
from jax.sharding import Mesh

import cases
import one_process
import strata_jax
from strata_jax import reference

NUM_PROGRAMS = int(os.environ.get("PROPERTY_PROGRAMS", "0"))
SHORT = 150  # programs; 0.1 to 0.2 s each
DTYPES = (
    "float32 bfloat16 float16 float8_e5m2 float8_e4m3fn int32 int8 uint16 int4 uint2 bool "
    "complex64 float64 int64"
).split()
MESHES = [
    shape
    for num_axes in (1, 2, 3)
    for shape in itertools.product((1, 2, 3, 4, 5, 8), repeat=num_axes)
    if math.prod(shape) <= 8
]
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 12, 24)
MAX_ELEMENTS = 3000  # of one device's array


def setUpModule() -> None:
    one_process.ensure_fabric()


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation, over some axes of the mesh, within groups of indices along them."""

    op: str
    axes: tuple[str, ...] = ()
    groups: list[list[int]] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def on_device(self, v: jax.Array) -> jax.Array:
        """What a device does."""
        axes, groups, options = self.axes, self.groups, self.options
        match self.op:
            case "transpose":
                return v.T
            case "tail":
                return v[1:]
            case "ppermute" | "pbroadcast":
                return getattr(strata_jax, self.op)(v, axes, **options)
            case "all_to_all":
                return strata_jax.all_to_all(v, axes, **options, axis_index_groups=groups)
            case "ragged_all_to_all":
                rank = jax.lax.axis_index(options["mesh_axes"])
                ids = (jax.numpy.asarray(a)[rank] for a in options["ids"])
                return strata_jax.ragged_all_to_all(
                    v, v[::-1], *ids, axis_name=axes, axis_index_groups=groups
                )
            case _:
                op = getattr(strata_jax, self.op)
                return op(v, axes, axis_index_groups=groups, **options)

    def on_all(self, shards: Sequence[np.ndarray], mesh: Mesh) -> list[np.ndarray]:
        """What all devices have after it."""
        meetings = cases.groups_of(mesh, self.axes)
        ranks = [[m[i] for i in g] for m in meetings for g in self.groups or [range(len(m))]]
        options = self.options
        match self.op:
            case "transpose":
                return [s.T for s in shards]
            case "tail":
                return [s[1:] for s in shards]
            case "all_gather":
                return reference.all_gather(shards, **options, groups=ranks)
            case "all_to_all":
                return reference.all_to_all(shards, **options, groups=ranks)
            case "psum_scatter":
                dimension, tiled = options["scatter_dimension"], options["tiled"]
                return reference.reduce_scatter("sum", shards, dimension, tiled, ranks)
            case "ppermute":
                pairs = [(m[a], m[b]) for m in meetings for a, b in options["perm"]]
                return reference.ppermute(shards, pairs)
            case "pbroadcast":
                return reference.pbroadcast(shards, options["source"], ranks)
            case "ragged_all_to_all":
                outputs = [s[::-1] for s in shards]
                ids = [list(np.array(a)) for a in options["ids"]]
                return reference.ragged_all_to_all(shards, outputs, *ids, groups=ranks)
            case "psum":
                wide = [s.astype(np.int32) if s.dtype == bool else s for s in shards]
                return reference.all_reduce("sum", wide, ranks)
            case _:
                return reference.all_reduce(self.op.removeprefix("p"), shards, ranks)


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps, and what they begin with."""

    mesh_shape: tuple[int, ...]
    devices: list[int]
    dtype: str
    shape: tuple[int, ...]
    seed: int
    steps: list[Step] = dataclasses.field(default_factory=list)

    def mesh(self) -> Mesh:
        devices = np.array(jax.devices())[self.devices].reshape(self.mesh_shape)
        return Mesh(devices, ("x", "y", "z")[: devices.ndim])

    def shards(self) -> list[np.ndarray]:
        """Small whole numbers: their sums are exact in float32, in any order."""
        rng = np.random.default_rng(self.seed)
        dtype = cases.dtype_of(self.dtype)
        shape = (len(self.devices), *self.shape)
        low, high = (0, 2) if dtype.kind == "b" or "uint" in self.dtype else (-2, 3)
        numbers = rng.integers(low, high, shape)
        if dtype.name in ("int4", "uint2"):
            return list(numbers.astype(np.int8).astype(dtype))
        return list(numbers.astype(dtype))


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def steps(draw, mesh: Mesh, shape: tuple[int, ...], dtype: np.dtype) -> Step:
    """Draws a step that an array of this shape and dtype can take."""
    names = list(mesh.axis_names)
    axes = tuple(draw(st.permutations(names)))[: draw(st.integers(1, len(names)))]
    along = math.prod(mesh.shape[name] for name in axes)
    groups, size = None, along
    if draw(st.booleans()):
        size = draw(st.sampled_from(divisors(along)))
        order = draw(st.permutations(range(along)))
        groups = [list(order[i : i + size]) for i in range(0, along, size)]
    num_dims = len(shape)
    number = math.prod(shape)
    dims = range(-num_dims, num_dims)
    tiled = draw(st.booleans())
    cut = [
        d for d in dims if (shape[d] > 0 and shape[d] % size == 0 if tiled else shape[d] == size)
    ]
    full = [d for d in dims if shape[d] > 0]
    possible = ["ppermute", "pbroadcast", "psum"]
    if not np.issubdtype(dtype, np.complexfloating):
        possible += ["pmax", "pmin"]
    if number * size <= MAX_ELEMENTS and (full or not tiled):
        possible += ["all_gather"] * 3
    if cut:
        possible += ["all_to_all"] * 4 + ["psum_scatter"] * (0 if dtype.kind == "b" else 4)
    if num_dims:
        possible += ["ragged_all_to_all"] * 2
    if num_dims > 1:
        possible.append("transpose")
    if num_dims and shape[0] > 1:
        possible.append("tail")
    op = draw(st.sampled_from(possible))
    match op:
        case "transpose" | "tail":
            return Step(op)
        case "ppermute":
            axes = tuple(name for name in names if name in axes)  # JAX refuses another order
            sources = draw(st.permutations(range(along)))
            ends = draw(st.permutations(range(along)))
            num_pairs = draw(st.integers(0, along))
            return Step(op, axes, None, {"perm": list(zip(sources, ends, strict=True))[:num_pairs]})
        case "pbroadcast":
            return Step(op, axes, None, {"source": draw(st.integers(0, along - 1))})
        case "all_gather":
            places = full if tiled else range(-num_dims - 1, num_dims + 1)
            options = {"axis": draw(st.sampled_from(places)), "tiled": tiled}
        case "psum_scatter":
            options = {"scatter_dimension": draw(st.sampled_from(cut)), "tiled": tiled}
        case "all_to_all":
            options = {
                "split_axis": draw(st.sampled_from(cut)),
                "concat_axis": draw(st.sampled_from(dims)),
                "tiled": tiled,
            }
        case "ragged_all_to_all":
            rng = np.random.default_rng(draw(st.integers(0, 999)))
            num_slices = size * draw(st.integers(1, 2))
            ids = rng.integers(-1, shape[0] + 2, (4, mesh.size, num_slices))
            options = {"mesh_axes": tuple(names), "ids": ids.astype(np.int32).tolist()}
        case _:
            options = {}
    return Step(op, axes, groups, options)


@st.composite
def programs(draw) -> Program:
    """Draws a program whose steps fit together."""
    mesh_shape = draw(st.sampled_from(MESHES))
    program = Program(
        mesh_shape,
        list(draw(st.permutations(range(8))))[: math.prod(mesh_shape)],
        draw(st.sampled_from(DTYPES)),
        tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3))),
        draw(st.integers(0, 999)),
    )
    mesh, shards = program.mesh(), program.shards()
    for _ in range(draw(st.integers(1, 4))):
        program.steps.append(draw(steps(mesh, shards[0].shape, shards[0].dtype)))
        shards = program.steps[-1].on_all(shards, mesh)
    return program


def without_nan(array: np.ndarray) -> np.ndarray:
    """Returns the array with every NaN, whose bits arithmetic leaves open, as that of numpy."""
    if array.dtype.kind in "biu" or array.dtype.name in cases.INTEGERS:
        return array
    return np.where(np.isnan(array), np.array(np.nan).astype(array.dtype), array)


NIGHTLY = NUM_PROGRAMS > 0
SETTINGS = hypothesis.settings(
    max_examples=NUM_PROGRAMS or SHORT,
    derandomize=not NIGHTLY,
    database=None,
    deadline=None,
    print_blob=NIGHTLY,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.timeout(0 if NIGHTLY else 300)
class PropertiesTest(absltest.TestCase):
    @SETTINGS
    @hypothesis.given(programs())
    def test_random_programs(self, program):
        mesh, want = program.mesh(), program.shards()
        with jax.enable_x64(True), one_process.counters() as moved:

            def run(v):
                for step in program.steps:
                    v = step.on_device(v)
                return v

            got = one_process.run(run, want, mesh)
        for step in program.steps:
            want = step.on_all(want, mesh)
        one_process.assert_same_bits([without_nan(g) for g in got], [without_nan(w) for w in want])
        self.assertEmpty(moved.left)


if __name__ == "__main__":
    absltest.main()
