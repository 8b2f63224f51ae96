# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Permutations and broadcast against the oracle, bit by bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import cases
import one_process
import strata_jax
from cases import Case
from one_process import normal
from strata_jax import reference


def setUpModule() -> None:
    one_process.ensure_fabric()


def permute_case(shards, pairs, *, name="x", of=lambda v: v) -> Case:
    return Case(
        lambda v: strata_jax.ppermute(of(v), name, pairs),
        shards,
        reference.ppermute([of(s) for s in shards], pairs),
    )


def broadcast_case(shards, source, *, name="x", ranks=None, of=lambda v: v) -> Case:
    return Case(
        lambda v: strata_jax.pbroadcast(of(v), name, source),
        shards,
        reference.pbroadcast([of(s) for s in shards], source, ranks),
    )


def ring(num_devices: int, step: int = 1) -> list[tuple[int, int]]:
    return [(i, (i + step) % num_devices) for i in range(num_devices)]


def both(shards, of=lambda v: v) -> dict[str, Case]:
    """Returns a permutation with one rank that gets zeros, and a broadcast."""
    num_devices = len(shards)
    return {
        "permute": permute_case(shards, ring(num_devices)[1:] or [(0, 0)], of=of),
        "broadcast": broadcast_case(shards, num_devices // 2, of=of),
    }


def named(prefix: str, found: dict[str, Case]) -> dict[str, Case]:
    return {f"{prefix} {name}": case for name, case in found.items()}


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dtypes(self, num_devices):
        found = {}
        for dtype in cases.DTYPES:
            shards = list(cases.values(cases.dtype_of(dtype), (num_devices, 3, 5)))
            found |= named(dtype, both(shards))
        cases.check(found, x64=True)

    @parameterized.parameters(1, 3, 8)
    def test_sizes_and_shapes(self, num_devices):
        found = {}
        for shape in [(), (0, 3), (3, 0), (1, 1, 1, 9), *((size,) for size in cases.SIZES)]:
            found |= named(str(shape), both(list(normal(num_devices, *shape))))
        cases.check(found)

    @parameterized.parameters(("int8", 900_011), ("int4", 900_001), ("float32", 200_003))
    def test_large_and_unaligned(self, dtype, size):
        shards = list(cases.values(cases.dtype_of(dtype), (3, size)))
        cases.check(both(shards) | named("inner", both(shards, lambda v: v[1:-2])))

    def test_operands_inside_larger_arrays(self):
        shards = list(normal(4, 30, 40))
        found = {}
        for name, of in cases.PARTS.items():
            found |= named(name, both(shards, of))
        cases.check(found)

    def test_layouts(self):
        x = normal(4, 3, 5, 7)
        pairs = ring(4)
        cases.check_layouts(
            lambda v: strata_jax.ppermute(v, "x", pairs),
            lambda shards: reference.ppermute(shards, pairs),
            x,
        )
        cases.check_layouts(
            lambda v: strata_jax.pbroadcast(v, "x", 3),
            lambda shards: reference.pbroadcast(shards, 3),
            x,
        )


class PermutationsTest(parameterized.TestCase):
    def test_permutations(self):
        shards = list(normal(8, 7))
        rng = np.random.default_rng(0)
        perms = {
            "none": [],
            "one": [(2, 5)],
            "to itself": [(3, 3)],
            "identity": ring(8, 0),
            "ring": ring(8),
            "ring back": ring(8, -1),
            "+3": ring(8, 3),
            "pairs": [(0, 1), (1, 0), (6, 7), (7, 6)],
            "chain": [(i, i + 1) for i in range(7)],
            "two chains and a ring": [(0, 1), (1, 2), (4, 3), (5, 6), (6, 7), (7, 5)],
            "reversed": [(i, 7 - i) for i in range(8)],
        }
        for i in range(8):
            order = rng.permutation(8)
            perms[f"random {i}"] = [(int(a), int(b)) for a, b in enumerate(order)][: i + 1]
        found = {name: permute_case(shards, pairs) for name, pairs in perms.items()}
        for i in range(3):
            perm = [int(p) for p in rng.permutation(8)]
            found[f"shuffle {i}"] = Case(
                lambda v, p=perm: strata_jax.pshuffle(v, "x", p),
                shards,
                [shards[source] for source in perm],
            )
        cases.check(found)

    def test_perm_may_be_any_iterable(self):
        # Public reports 1703 and 1704.
        shards = list(normal(4, 7))
        perms = {
            "generator": lambda: ((i, (i + 1) % 4) for i in range(4)),
            "zip": lambda: zip(range(4), (1, 2, 3, 0), strict=True),
            "lists": lambda: [[i, (i + 1) % 4] for i in range(4)],
            "array": lambda: np.array(ring(4)),
        }
        want = reference.ppermute(shards, ring(4))
        found = {}
        for name, make in perms.items():
            found[name] = Case(lambda v, m=make: strata_jax.ppermute(v, "x", m()), shards, want)
            found[f"{name} of a pytree"] = Case(
                lambda v, m=make: sum(strata_jax.ppermute([v * 0, v], "x", m())), shards, want
            )
        cases.check(found)

    def test_there_and_back(self):
        # Public report 3757.
        shards = list(normal(8, 7))
        for step in (1, 3, 4, 7):
            got = one_process.run(
                lambda v, s=step: strata_jax.ppermute(
                    strata_jax.ppermute(v, "x", ring(8, s)), "x", ring(8, -s)
                ),
                shards,
            )
            one_process.assert_same_bits(got, shards)


class AxesTest(parameterized.TestCase):
    @parameterized.parameters("2x3", "2x1x4", "2x2x2 permuted", "4x2 permuted")
    def test_meshes(self, mesh):
        # Public report 15903: the order is that of the mesh.
        mesh = cases.meshes()[mesh]
        shards = list(normal(mesh.size, 7))
        found = {}
        for axes in cases.axes_of(mesh):
            ranks = cases.groups_of(mesh, axes)
            n = len(ranks[0])
            found[f"broadcast {axes}"] = broadcast_case(shards, n // 2, name=axes, ranks=ranks)
            if ranks[0] == sorted(ranks[0]):  # JAX refuses names in another order
                perm = ring(n)[n // 4 :]
                pairs = [(g[s], g[d]) for g in ranks for s, d in perm]
                found[f"permute {axes}"] = Case(
                    lambda v, a=axes, p=perm: strata_jax.ppermute(v, a, p),
                    shards,
                    reference.ppermute(shards, pairs),
                )
        cases.check(found, mesh)


def permute(v):
    return strata_jax.ppermute(v, "x", ring(4)[1:])


def permuted(shards):
    return reference.ppermute(shards, ring(4)[1:])


def shuffle(v):
    return strata_jax.pshuffle(v, "x", [2, 0, 3, 1])


def shuffled(shards):
    return [shards[source] for source in (2, 0, 3, 1)]


def broadcast(v):
    return strata_jax.pbroadcast(v, "x", 2)


def broadcasted(shards):
    return reference.pbroadcast(shards, 2)


OPS = {
    "ppermute": (permute, permuted),
    "pshuffle": (shuffle, shuffled),
    "pbroadcast": (broadcast, broadcasted),
}


class ProgramsTest(parameterized.TestCase):
    @parameterized.parameters(*OPS)
    def test_programs(self, name):
        cases.check_programs(*OPS[name], cases.integral(4, 2, 3))

    @parameterized.parameters(*OPS)
    def test_pmap_and_the_axis_of_vmap(self, name):
        # JAX maps whole permutations only.
        cases.check_mapped_axes(*OPS[name], normal(4, 2, 3), vmap=name != "ppermute")

    @parameterized.parameters(*OPS)
    def test_donated_operand(self, name):
        cases.check_donation(*OPS[name], normal(4, 2, 300))


class GradientsTest(parameterized.TestCase):
    def test_derivatives_of_ppermute(self):
        back = [(d, s) for s, d in ring(4)[1:]]
        cases.check_linear(
            permute, permuted, lambda c: reference.ppermute(c, back), cases.integral(4, 2, 3)
        )

    def test_derivatives_of_pbroadcast(self):
        def adjoint(cts):
            total = reference.all_reduce("sum", cts)[0]
            return [total if rank == 2 else total * 0 for rank in range(4)]

        cases.check_linear(
            broadcast, broadcasted, adjoint, cases.integral(4, 2, 3), check_vma=False
        )


class ArgumentsTest(parameterized.TestCase):
    def test_wrong_arguments_raise_as_in_jax(self):
        x = list(normal(4, 3))

        def raises(error, message, op):
            with self.assertRaisesRegex(error, message):
                one_process.run(op, x)

        raises(NameError, "unbound axis name", lambda v: strata_jax.ppermute(v, "no", ring(4)))
        raises(NameError, "unbound axis name", lambda v: strata_jax.pshuffle(v, "no", [0, 1]))
        raises(NameError, "unbound axis name", lambda v: strata_jax.pbroadcast(v, "no", 0))
        for pairs in ([(0, 1), (0, 2)], [(0, 1), (2, 1)]):
            raises(
                ValueError,
                "sources and destinations must be unique",
                lambda v, p=pairs: strata_jax.ppermute(v, "x", p),
            )
        raises(IndexError, "", lambda v: strata_jax.ppermute(v, "x", [(0, 4)]))
        raises(ValueError, "permutation", lambda v: strata_jax.pshuffle(v, "x", [0, 0, 1, 2]))
        raises(IndexError, "", lambda v: strata_jax.pbroadcast(v, "x", 4))
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            jax.jit(lambda v: strata_jax.ppermute(v, "x", ring(4)))(jnp.ones(3))


class OneOperationTest(parameterized.TestCase):
    @parameterized.product(op=[*OPS], dtype=("float32", "bfloat16", "int8"))
    def test_counters_and_program(self, op, dtype):
        name = "collective_broadcast" if op == "pbroadcast" else "collective_permute"
        x = normal(4, 5, 7).astype(cases.dtype_of(dtype))
        cases.check_one_operation(name, *OPS[op], x)


if __name__ == "__main__":
    absltest.main()
