# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Ragged all-to-all against the oracle, bit by bit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import cases
import one_process
from cases import Case
from one_process import normal
from ragged_routes import DOCUMENTED, Route, arrays, call, case, random_sizes, route
from strata_jax import _compat, reference


def setUpModule() -> None:
    one_process.ensure_fabric()


class ValuesTest(parameterized.TestCase):
    def test_documented_example(self):
        shards = [tuple(np.array(a[rank], np.int32) for a in DOCUMENTED) for rank in range(2)]
        want = [np.array([1, 3, 0, 0], np.int32), np.array([2, 2, 4, 0], np.int32)]
        lax = Case(lambda v: jax.lax.ragged_all_to_all(*v, axis_name="x"), shards, want)
        cases.check({"ours": Case(lambda v: call(*v), shards, want), "jax.lax": lax})
        one_process.assert_same_bits(reference.ragged_all_to_all(*zip(*shards, strict=True)), want)

    @parameterized.parameters(*cases.NUMS_DEVICES)
    def test_dtypes(self, num_devices):
        path = route(random_sizes(num_devices, 2, num_devices))
        found = {}
        for dtype in cases.DTYPES:
            # Rows of 3: those of 2 and 4 bits begin inside bytes.
            x = cases.values(cases.dtype_of(dtype), (2, num_devices, 6 * num_devices, 3))
            found[dtype] = case(list(x[0]), list(x[1]), path)
        cases.check(found, x64=True)

    @parameterized.product(
        dtype=["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    )
    def test_types_of_offsets(self, dtype):
        operands, outputs = arrays(4, 30, 3)
        found = {
            str(n): case(operands, outputs, route(random_sizes(4, n), dtype=np.dtype(dtype)))
            for n in (1, 2)
        }
        cases.check(found, x64=True)

    @parameterized.parameters(1, 3, 8)
    def test_shapes(self, num_devices):
        path = route(random_sizes(num_devices))
        rows = 4 * num_devices
        shapes = [(), (1,), (0,), (1, 1, 9), (2, 0, 3), (5, 3), (64,), (65,)]
        found = {}
        for shape in shapes:
            found[f"{shape}"] = case(*arrays(num_devices, rows, *shape), path)
        nothing = route(np.zeros((num_devices, num_devices), int))
        for in_rows, out_rows in ((0, 0), (0, 5), (5, 0), (5, 5)):
            operands = list(normal(num_devices, in_rows, 3))
            outputs = list(normal(num_devices, out_rows, 3, seed=1))
            found[f"rows {in_rows} {out_rows}"] = case(operands, outputs, nothing)
            if not in_rows or not out_rows:  # every row is outside a buffer
                found[f"bad rows {in_rows} {out_rows}"] = case(operands, outputs, path)
        cases.check(found)

    @parameterized.parameters(2, 4, 8)
    def test_several_slices_and_hot_receivers(self, num_devices):
        n = num_devices
        found = {
            f"{k} slices": case(*arrays(n, 4 * n * k, 5), route(random_sizes(n, k, k)))
            for k in (1, 2, 3)
        }
        hot, alone, itself = np.zeros((3, n, n), int)
        hot[:, n - 1] = 7  # all to one
        alone[1] = 5  # one to all
        np.fill_diagonal(itself, 6)
        for name, sizes in (("hot", hot), ("alone", alone), ("itself", itself)):
            found[name] = case(*arrays(n, 7 * n, 5), route(sizes))
        cases.check(found)

    @parameterized.parameters(("int8", 101), ("int4", 101), ("float32", 64), ("float32", 1))
    def test_large(self, dtype, columns):
        rows = 400_000 // columns
        sizes = random_sizes(4, high=rows // 4)
        x = cases.values(cases.dtype_of(dtype), (2, 4, rows, columns))
        cases.check({"large": case(list(x[0]), list(x[1]), route(sizes))})

    def test_operands_inside_larger_arrays(self):
        operands, outputs = arrays(4, 40, 9)
        path = route(random_sizes(4))
        parts = {
            "tail": lambda v: v[1:],
            "steps": lambda v: v[::2],
            "reversed": lambda v: v[::-1],
        }
        found = {n: case(operands, outputs, path, of=of) for n, of in parts.items()}
        cases.check(found)

    def test_transposed_arrays(self):
        # XLA's translator refuses its own operation here: its result has another layout.
        path = route(random_sizes(4))

        def op(v):
            v = v.transpose(2, 1, 0)
            return call(v, v, *path.of(jax.lax.axis_index("x")))

        x = list(normal(4, 5, 3, 20))
        transposed = [shard.transpose(2, 1, 0) for shard in x]
        want = reference.ragged_all_to_all(transposed, transposed, *path.lists())
        one_process.assert_same_bits(one_process.run(op, x), want)

    def test_layouts(self):
        path = route(random_sizes(4))

        def op(v):
            return call(v, v * 2, *path.of(jax.lax.axis_index("x")))

        def oracle(shards):
            return reference.ragged_all_to_all(shards, [s * 2 for s in shards], *path.lists())

        cases.check_layouts(op, oracle, normal(4, 20, 3, 5))


class BadOffsetsTest(parameterized.TestCase):
    """What happens is defined, and the same in every run."""

    @parameterized.product(num_devices=(1, 2, 4), dtype=("int8", "int32", "int64"))
    def test_rows_outside_the_buffers(self, num_devices, dtype):
        info = np.iinfo(dtype)
        rng = np.random.default_rng(num_devices)
        found = {}
        for turn in range(4):
            shape = (4, num_devices, 2 * num_devices)
            ids = rng.integers(-6, 16, shape).astype(dtype)
            extreme = rng.random(shape) < 0.2
            ids[extreme] = rng.choice([info.min, info.max, info.max - 1], int(extreme.sum()))
            found[str(turn)] = case(*arrays(num_devices, 8, 3), Route(*ids))
        cases.check(found, x64=True)

    @parameterized.parameters(2, 4)
    def test_of_overlapping_writes_the_last_counts(self, num_devices):
        rng = np.random.default_rng(num_devices)
        found = {}
        for slices in (1, 3):
            for turn in range(3):
                shape = (num_devices, num_devices * slices)
                inputs, outputs = rng.integers(0, 6, (2, *shape)).astype(np.int32)
                sizes = rng.integers(0, 6, shape).astype(np.int32)
                found[f"{slices} {turn}"] = case(
                    *arrays(num_devices, 10, 300), Route(inputs, sizes, outputs, sizes)
                )
        cases.check(found)

    @parameterized.named_parameters(
        ("outside", "input_offsets", 3, "rows outside the buffers"),
        ("outside_the_result", "output_offsets", 4, "rows outside the buffers"),
        ("negative_size", "send_sizes", -1, "rows outside the buffers"),
        ("unlike_the_sender", "recv_sizes", 2, "recv_sizes"),
        ("overlapping", "output_offsets", 0, "two writes to one row"),
    )
    def test_checks(self, kind, value, message):
        index = ["input_offsets", "send_sizes", "output_offsets", "recv_sizes"].index(kind) + 2
        one_process.in_subprocess(
            f"""
            strata_jax.init()
            args = [np.array(a, np.int32) for a in {DOCUMENTED!r}]
            f = sharded(lambda *v: strata_jax.ragged_all_to_all(
                *(a[0] for a in v), axis_name="x")[None], 2)
            want = [[1, 3, 0, 0], [2, 2, 4, 0]]
            np.testing.assert_array_equal(f(*args), want)
            # Of the slice of device 1 for device 0, or what device 0 expects of it.
            at = (0, 1) if {kind!r} == "recv_sizes" else (1, 0)
            args[{index}][at] = {value}
            try:
                print(jax.block_until_ready(f(*args)))
                raise SystemExit("no error")
            except Exception as error:
                assert {message!r} in str(error), error
                assert "rank 1" in str(error) or "rank 0" in str(error), error
            """,
            env={"STRATA_CHECK_RAGGED": "1"},
        )


class AxesTest(parameterized.TestCase):
    def test_axis_index_groups(self):
        found = {}
        for i, groups in enumerate(cases.GROUPS):
            n = len(groups[0]) if groups else 8
            sizes = np.random.default_rng(i).integers(0, 4, (8, n))
            found[f"{i}"] = case(*arrays(8, 32, 3), route(sizes, groups), groups=groups)
        cases.check(found)

    @parameterized.parameters("2x3", "2x1x4", "2x2x2 permuted", "4x2 permuted")
    def test_meshes(self, mesh):
        # Public report 15903: the order is that of the mesh.
        mesh = cases.meshes()[mesh]
        found = {}
        for axes in cases.axes_of(mesh):
            ranks = cases.groups_of(mesh, axes)
            sizes = np.random.default_rng(0).integers(0, 4, (mesh.size, len(ranks[0])))
            path = route(sizes, ranks)
            found[f"{axes}"] = case(*arrays(mesh.size, 32, 3), path, name=axes, ranks=ranks)
        cases.check(found, mesh)


class ProgramsTest(parameterized.TestCase):
    def test_programs(self):
        x = cases.integral(4, 26, 3)
        cases.check_programs(self._op(True), self._oracle, x, pytrees=False)
        cases.check_mapped_axes(self._op(False), self._oracle, x, vmap=False)
        cases.check_donation(self._op(False), self._oracle, x)

    PATH = route(random_sizes(4, 2))

    def _op(self, batched: bool):
        """Returns a function of the operand, on which vmap makes the offsets depend or not."""

        def op(v):
            ids = self.PATH.of(jax.lax.axis_index("x"))
            zero = v[0, 0].astype(jnp.int32) * 0 if batched else jnp.int32(0)
            return call(v, v * 0 + 3, *(a + zero for a in ids))

        return op

    def _oracle(self, shards):
        outputs = [s * 0 + 3 for s in shards]
        return reference.ragged_all_to_all(shards, outputs, *self.PATH.lists())

    def test_vmap_with_one_set_of_offsets(self):
        x = cases.integral(4, 2, 26, 3)
        got = one_process.run(jax.vmap(self._op(False)), list(x))
        want = np.stack([np.stack(self._oracle(list(x[:, i]))) for i in range(2)], 1)
        one_process.assert_same_bits(got, list(want))

    def test_axis_of_vmap_is_refused_as_by_jax(self):
        with self.assertRaises(NotImplementedError):
            jax.vmap(lambda *v: call(*v), axis_name="x")(*(jnp.array(a) for a in DOCUMENTED))

    @parameterized.parameters(0, 1)
    def test_vmap_with_offsets_of_its_own(self, axis):
        paths = [route(random_sizes(4, seed=i)) for i in range(3)]
        operands, outputs = zip(*(arrays(4, 16, 2) for _ in paths), strict=True)
        want = [
            np.stack(reference.ragged_all_to_all(o, out, *path.lists()))
            for o, out, path in zip(operands, outputs, paths, strict=True)
        ]
        ids = [np.stack(kind, 1) for kind in zip(*map(dataclasses.astuple, paths), strict=True)]
        args = [np.moveaxis(np.stack(a), 0, 1) for a in (operands, outputs)]
        ids = [np.moveaxis(a, 1, 1 + axis) for a in ids]
        f = one_process.sharded(
            jax.vmap(call, in_axes=(0, 0, *[axis] * 4)), one_process.devices_mesh(4)
        )
        got = np.asarray(f(*args, *ids))
        one_process.assert_same_bits(list(np.moveaxis(got, 1, 0)), want)

    def test_donated_output_is_written_in_place(self):
        operands, outputs = arrays(4, 16, 300)
        path = route(random_sizes(4))
        mesh = one_process.devices_mesh(4)
        f = one_process.sharded(call, mesh, donate_argnums=1)
        sharding = jax.sharding.NamedSharding(mesh, jax.P("x"))
        placed = jax.jit(lambda v: v + 0, out_shardings=sharding)(np.stack(outputs))
        got = f(np.stack(operands), placed, *dataclasses.astuple(path))
        want = reference.ragged_all_to_all(operands, outputs, *path.lists())
        one_process.assert_same_bits(one_process.per_device(got), want)
        if _compat.JAX_VERSION >= (0, 11, 0):
            self.assertTrue(placed.is_deleted())


class GradientsTest(parameterized.TestCase):
    @parameterized.product(num_devices=(1, 2, 4), slices=(1, 2))
    def test_operand_and_output(self, num_devices, slices):
        # Public report 26915. Sizes are not zero: see the next test.
        rng = np.random.default_rng(slices)
        sizes = 1 + rng.integers(0, 3, (num_devices, num_devices * slices))
        self._check(route(sizes), rows=4 * num_devices * slices)

    def test_slices_of_no_rows(self):
        self._check(route(random_sizes(4, 2)), rows=30)

    def _check(self, path: Route, rows: int) -> None:
        num_devices = len(path.send_sizes)
        x, out = (cases.integral(num_devices, n, 2, seed=n) for n in (rows + 1, rows + 3))
        ct = cases.integral(*out.shape, seed=5)

        def derivatives(operand, output, c, *ids):
            def op(a, b):
                return call(a, b, *ids)

            def remat(a, b):
                return jnp.sum(c * jax.checkpoint(lambda p, q: op(p * p, q))(a, b))

            return {
                "vjp": jax.vjp(op, operand, output)[1](c),
                "jvp": jax.jvp(op, (operand, output), (output[:1] * 0 + operand, output))[1],
                "checkpoint": jax.grad(remat, argnums=(0, 1))(operand, output),
                "linear_transpose": jax.linear_transpose(lambda a: op(a, output * 0), operand)(c),
            }

        want = reference.ragged_all_to_all(list(x), list(out), *path.lists())
        # By the oracle: the matrix of the map, which moves rows, from the rows' numbers.
        numbers = np.arange(1, 1 + x.shape[0] * x.shape[1], dtype=np.int64).reshape(x.shape[:2])
        moved = reference.ragged_all_to_all(
            list(numbers), list(np.zeros(out.shape[:2], np.int64)), *path.lists()
        )
        of_operand, of_output = np.zeros_like(x), ct.copy()
        for rank, sources in enumerate(moved):
            for row, source in enumerate(sources):
                if source:
                    of_operand[np.unravel_index(source - 1, numbers.shape)] += ct[rank, row]
                    of_output[rank, row] = 0
        f = one_process.sharded(derivatives, one_process.devices_mesh(num_devices))
        got = f(x, out, ct, *dataclasses.astuple(path))
        expected = {
            "vjp": (of_operand, of_output),
            "jvp": np.stack(want),
            "checkpoint": (2 * x * of_operand, of_output),
            "linear_transpose": (of_operand,),
        }
        for (where, g), w in zip(
            jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_array_equal(g, w, err_msg=jax.tree_util.keystr(where))


class ArgumentsTest(parameterized.TestCase):
    def test_wrong_arguments_raise_as_in_jax(self):
        good = [jnp.array(a[0]) for a in DOCUMENTED]

        def raises(error, message, name="x", **changed):
            args = [changed.get(f"a{i}", a) for i, a in enumerate(good)]
            mesh = one_process.devices_mesh(2)
            f = one_process.sharded(lambda v: call(*args, name=name), mesh)
            with self.assertRaisesRegex(error, message):
                f(np.zeros((2, 1)))

        raises(NameError, "unbound axis name", name="nope")
        for i, kind in enumerate(
            ("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), start=2
        ):
            raises(ValueError, f"{kind} must be integer", **{f"a{i}": jnp.ones(2)})
            bad = jnp.ones((2, 2), jnp.int32)
            raises(ValueError, f"{kind} must be rank 1", **{f"a{i}": bad})
        # Public report 33123.
        with self.assertRaisesRegex(NameError, "unbound axis name"):
            call(*good)


class OneOperationTest(parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16", "int8")
    def test_counters(self, dtype):
        operands, outputs = (
            [a.astype(cases.dtype_of(dtype)) for a in kind] for kind in arrays(4, 16, 5)
        )
        path = route(random_sizes(4))
        f = one_process.sharded(call, one_process.devices_mesh(4))
        args = (np.stack(operands), np.stack(outputs), *dataclasses.astuple(path))
        with one_process.counters() as moved:
            got = one_process.per_device(f(*args))
        want = reference.ragged_all_to_all(operands, outputs, *path.lists())
        one_process.assert_same_bits(got, want)
        self.assertEmpty(moved.left)
        self.assertEqual(moved["ragged_all_to_all.operations"], 1)
        self.assertEqual(moved["ragged_all_to_all.bytes"], sum(a.nbytes for a in args))
        # Every row is written once, or stays where it is.
        self.assertLessEqual(moved["ragged_all_to_all.written_bytes"], args[1].nbytes)
        sent = int(path.send_sizes.sum()) * args[0][0, 0].nbytes
        self.assertGreaterEqual(moved["ragged_all_to_all.written_bytes"], sent)


if __name__ == "__main__":
    absltest.main()
