# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `strata-jax bench`: rows, table, workers, and answers that are wrong."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import types

import numpy as np
from absl.testing import absltest, parameterized

import bench_runs
from strata_jax.tools import (
    bench,
    bench_cases,
    bench_client,
    bench_contenders,
    bench_links,
    bench_ops,
    bench_plan,
    bench_programs,
    bench_rows,
    main,
    table,
)

# The contract of the JSON file.
ROW_KEYS = (
    "op dtype devices processes mode size_bytes median_us p99_us algbw_gbps busbw_gbps wrong "
    "baseline baseline_median_us speedup tuned_median_us tuned_speedup ceiling_share"
).split()

# Operations whose chains compute, other than what all dtypes do alike.
ARITHMETIC_CHAINS = ("psum", "pmean", "psum_scatter", "independent")


def size_near(op: bench_ops.Op, size_bytes: int, dtype: str, num_devices: int) -> int:
    """Return a size that the operation can have."""
    unit = op.unit_bytes(bench_cases.ITEM_BYTES[dtype], num_devices)
    return max(size_bytes // unit, 1) * unit


class RealRunTest(bench_runs.TestCase):
    def test_rows_and_table(self):
        path = self.folder / "rows.json"
        argv = ["psum", "add_one", "--devices", "2", "--sizes", "4K,64K", "--repeat", "2"]
        status, out, err = bench_runs.run(*argv, "--json", str(path))
        self.assertEqual(status, 0, err)
        content = json.loads(path.read_text())
        self.assertEqual(content["version"], 1)
        self.assertGreater(content["ceiling_gbps"], 0.1)
        self.assertEqual(set(content["host"]["huge_pages"]), {"enabled", "defrag", "shmem_enabled"})
        rows = content["rows"]
        self.assertEqual(
            [(row["op"], row["size_bytes"]) for row in rows],
            [("psum", 4096), ("psum", 65536), ("add_one", 4096), ("add_one", 65536)],
        )
        for row in rows:
            self.assertEqual(list(row), ROW_KEYS)
            self.assertEqual(
                [row[key] for key in ("dtype", "devices", "processes", "mode", "wrong")],
                ["float32", 2, 1, "call", 0],
            )
            self.assertEqual(row["baseline"], "lax")
            seconds = row["median_us"] / 1e6
            self.assertGreater(seconds, 1e-6)
            self.assertGreaterEqual(row["p99_us"], row["median_us"])
            # With 2 devices the factor 2(n-1)/n is 1, as that of add_one.
            self.assertAlmostEqual(row["algbw_gbps"], row["size_bytes"] / seconds / 1e9)
            self.assertAlmostEqual(row["busbw_gbps"], row["algbw_gbps"])
            self.assertAlmostEqual(row["speedup"], row["baseline_median_us"] / row["median_us"])
            self.assertAlmostEqual(row["tuned_speedup"], row["tuned_median_us"] / row["median_us"])
            least = 2 * row["size_bytes"] / (content["ceiling_gbps"] * 1e9)
            self.assertAlmostEqual(row["ceiling_share"], least / seconds)
        for text in ("size:", "2(n-1)/n", "huge pages:", "ceiling:", "GLIBC_TUNABLES=", "jaxlib"):
            self.assertIn(text, out)
        lines = [line for line in out.splitlines() if line and line[0] == " "]
        lines = [line for line in lines if "size:" not in line]
        self.assertLen(lines, 8)  # for each operation two lines of titles and two rows
        self.assertLen({len(line.rstrip()) // 2 for line in lines if "spread" in line}, 1)

    def test_chain_without_baseline_has_none_of_its_numbers(self):
        path = self.folder / "rows.json"
        argv = ["psum", "all_gather", "--mode", "chain", "--dtype", "float64", "--sizes", "4K"]
        argv += ["--devices", "3", "--against", "none", "--repeat", "1", "--json", str(path)]
        status, out, err = bench_runs.run(*argv)
        self.assertEqual(status, 0, err)
        content = json.loads(path.read_text())
        self.assertEqual([row["op"] for row in content["rows"]], ["psum", "all_gather"])
        # Bus bandwidth by algbw, and bytes copied by the size: all_gather reads 3 shards, writes 9.
        for row, factor, copied in zip(content["rows"], (4 / 3, 2), (3, 6), strict=True):
            self.assertEqual((row["mode"], row["wrong"]), ("chain", 0))
            for key in ("baseline", "speedup", "tuned_median_us", "tuned_speedup"):
                self.assertIsNone(row[key])
            self.assertAlmostEqual(row["busbw_gbps"], row["algbw_gbps"] * factor)
            least_s = copied * 4096 / (content["ceiling_gbps"] * 1e9)
            self.assertAlmostEqual(row["ceiling_share"], least_s / (row["median_us"] / 1e6))
        self.assertIn(f"\n  {bench_ops.OPS['all_gather'].note}\n", out)

    def test_wrong_answer_fails(self):
        ops_file = self.ops_file(
            """
            case = real.OPS["psum"].build(request)
            return dataclasses.replace(case, function=lambda x: case.function(x).at[3].add(1))
            """
        )
        argv = ["psum", "--sizes", "4K", "--repeat", "1", "--against", "none"]
        status, out, _ = bench_runs.run(*argv, ops_file=ops_file)
        self.assertEqual(status, 1)
        # One element on each of 2 devices, seen before and after the timing.
        self.assertIn("WRONG: 4 elements", out)

    def test_error_in_an_operation_is_shown(self):
        ops_file = self.ops_file("raise ValueError('no such thing')")
        argv = ["psum", "--sizes", "4K", "--against", "none"]
        status, _, err = bench_runs.run(*argv, ops_file=ops_file)
        self.assertEqual(status, 1)
        self.assertIn("the ours worker", err)
        self.assertIn("ValueError: no such thing", err)


class WorkerTest(bench_runs.TestCase):
    def worker(self, kind: str, num_devices: int = 2, **changes) -> bench_client.Worker:
        jobs = bench_contenders.contenders(
            "lax", num_processes=1, num_devices=num_devices, staged=False
        )
        [job] = [job for job in jobs if job.kind == kind]
        return self.start(job, **changes)

    def test_death_is_reported(self):
        ops_file = self.ops_file("print('last words', file=sys.stderr, flush=True); os._exit(7)")
        worker = self.worker("lax", ops_file=ops_file)
        with self.assertRaisesRegex(
            bench_client.WorkerError, r'lax worker .*"prepare": it left with status 7(.|\n)*last wo'
        ):
            worker.ask("prepare", **bench_runs.PREPARE)

    def test_hang_is_reported(self):
        worker = self.worker("lax", ops_file=self.ops_file("time.sleep(100)"))
        worker.hello()
        worker.deadline_s = 0.2
        with self.assertRaisesRegex(bench_client.WorkerError, "lax worker .* within 0.2 s"):
            worker.ask("prepare", **bench_runs.PREPARE)

    def test_baseline_never_loads_strata_jax(self):
        flags = "--xla_disable_hlo_passes=cpu-all-reduce-combiner"
        worker = self.worker("tuned", xla_flags=flags)
        self.assertEqual(worker.ask("prepare", **bench_runs.PREPARE), {"wrong": 0})
        process = pathlib.Path(f"/proc/{worker.pids[0]}")
        self.assertNotIn("strata_jax/_core", (process / "maps").read_text())
        # The C library cuts the tunables into pieces, in place.
        environ = (process / "environ").read_bytes().decode().replace("\0", ":")
        self.assertIn(f":GLIBC_TUNABLES={bench_contenders.TUNABLES}:", environ)
        self.assertRegex(environ, f":XLA_FLAGS=[^:]*{flags}:")

    def test_every_operation_is_right_in_every_dtype_and_mode(self):
        worker = self.worker("ours", num_devices=3)
        for name, op in bench_ops.OPS.items():
            dtypes = set(op.dtypes) & {"float32", "bfloat16", "int8"}
            for dtype, mode in itertools.product(sorted(dtypes), op.modes):
                if name.startswith("gradients") and (dtype, mode) != ("float32", "call"):
                    continue  # one of them is enough: hundreds of collectives to compile
                if mode == "chain" and dtype != "float32" and name not in ARITHMETIC_CHAINS:
                    continue  # moves bytes as in float32
                with self.subTest(op=name, dtype=dtype, mode=mode):
                    case = {"op": name, "size_bytes": size_near(op, 8192, dtype, 3)}
                    case |= {"dtype": dtype, "mode": mode}
                    self.assertEqual(worker.ask("prepare", **case), {"wrong": 0})

    @parameterized.parameters("pbroadcast", "ragged_all_to_all")
    def test_baseline_does_what_lax_lacks(self, name):
        case = {"op": name, "size_bytes": 2048, "dtype": "float32", "mode": "chain"}
        worker = self.worker("lax", num_devices=3)
        self.assertEqual(worker.ask("prepare", **case), {"wrong": 0})

    def test_baseline_that_loads_strata_jax_is_refused(self):
        body = "sys.path.insert(0, {!r}); import strata_jax; return real.OPS['psum'].build(request)"
        worker = self.worker(
            "lax", ops_file=self.ops_file(body.format(str(bench.host.package_root())))
        )
        with self.assertRaisesRegex(bench_client.WorkerError, "has imported strata_jax"):
            worker.ask("prepare", **bench_runs.PREPARE)


class CountWrongTest(parameterized.TestCase):
    def case(self, answer: np.ndarray, tolerance: float) -> bench_cases.Case:
        return bench_cases.Case(lambda: None, (), [[answer, answer]], tolerance)

    def result(self, *shards: np.ndarray) -> types.SimpleNamespace:
        shards = [
            types.SimpleNamespace(device=types.SimpleNamespace(id=i), data=data)
            for i, data in enumerate(shards)
        ]
        return types.SimpleNamespace(addressable_shards=shards[::-1])

    def test_each_device_is_compared(self):
        right = np.arange(4.0)
        wrong = np.array([0, 1, 2, 4.0])
        case = self.case(right, 1e-6)
        self.assertEqual(bench_cases.count_wrong(self.result(right, right), case), 0)
        self.assertEqual(bench_cases.count_wrong(self.result(right, wrong), case), 1)

    def test_nan_is_wrong(self):
        case = self.case(np.zeros(2), 1e-6)
        nan = np.array([0, math.nan])
        self.assertEqual(bench_cases.count_wrong(self.result(nan, nan), case), 2)

    def test_integers_are_compared_by_bits(self):
        big = np.array([1 << 24, (1 << 24) + 1], np.int32)
        self.assertEqual(bench_cases.count_wrong(self.result(big, big - 1), self.case(big, 0)), 2)


class OpsTest(parameterized.TestCase):
    # Shares of the size on 4 devices. Bus bandwidth is nccl-tests', whose size of an all-gather is
    # that of a result.
    @parameterized.parameters(
        ("psum", 4, 4, 3 / 2), ("pmean", 4, 4, 3 / 2), ("pmax", 4, 4, 3 / 2),
        ("all_gather", 4, 16, 4 * 3 / 4), ("psum_scatter", 4, 1, 3 / 4),
        ("all_to_all", 4, 4, 3 / 4), ("all_to_all_axis", 4, 4, 3 / 4), ("ppermute", 4, 4, 1),
        ("pbroadcast", 1, 4, 1), ("ragged_all_to_all", 4, 4, 3 / 4), ("add_one", 4, 4, 1),
        # Of an all-gather whose result has the size, and of weights that all devices share.
        ("independent", 4 + 4 + 1 + 4 + 4 + 4, 4 + 4 + 4 + 1 + 4 + 4, 2 * 3 / 2 + 3 * 3 / 4 + 1),
        ("fsdp", 1 + 4, 4 + 1, 2 * 3 / 4),
    )  # fmt: skip
    def test_bytes_and_bus_bandwidth(self, name, read, written, factor):
        op = bench_ops.OPS[name]
        self.assertEqual(op.read_bytes(4, 1 << 20), read << 20)
        self.assertEqual(op.written_bytes(4, 1 << 20), written << 20)
        self.assertEqual(op.moved_bytes(4, 1 << 20), read + written << 20)
        self.assertAlmostEqual(op.busbw_factor(4), factor)

    def test_size_that_cannot_be_divided_is_refused(self):
        status, _, err = bench_runs.run("all_to_all", "--devices", "3", "--sizes", "4K")
        self.assertEqual(status, 2)
        self.assertIn("multiples of 1536 from 1536 up. Choose 4608", err)

    @parameterized.parameters(2, 3, 7)
    def test_own_sizes_are_rounded_up(self, num_devices):
        argv = ["bench", "all_to_all", "psum_scatter", "--devices", str(num_devices)]
        rows = bench_plan.make_plan(main.make_parser().parse_args(argv)).rows
        self.assertLen(rows, 10)
        for row in rows:
            op = bench_ops.OPS[row.op]
            unit = op.unit_bytes(4, num_devices)
            self.assertEqual(row.size_bytes % unit, 0)
            self.assertIn(True, [0 <= row.size_bytes - size < unit for size in op.default_sizes])

    @parameterized.parameters((1, 2), (8, 8), (1000, 3), (131072, 8))
    def test_ragged_counts_use_all_rows(self, num_rows, num_devices):
        counts = bench_links.ragged_counts(num_rows, num_devices)
        self.assertEqual(counts.sum(axis=0).tolist(), [num_rows] * num_devices)
        self.assertEqual(counts.sum(axis=1).tolist(), [num_rows] * num_devices)
        self.assertGreaterEqual(counts.min(), 0)
        if num_rows >= num_devices**2:
            self.assertAlmostEqual(counts.max() / counts.min(), num_devices, delta=0.1)


class PiecesTest(parameterized.TestCase):
    @parameterized.parameters(1 << 20, 100, 101, 12345)
    def test_gradient_shapes_add_up(self, num_elements):
        shapes = bench_programs.gradient_shapes(num_elements)
        self.assertLen(shapes, bench_programs.NUM_GRADIENTS)
        self.assertEqual(sum(map(math.prod, shapes)), num_elements)
        self.assertGreater(min(map(math.prod, shapes)), 0)

    def test_gradient_shapes_differ(self):
        self.assertGreater(len(set(bench_programs.gradient_shapes(1 << 20))), 10)

    def test_percentile(self):
        self.assertEqual(bench_rows.percentile(range(1, 101), 0.99), 99)
        self.assertEqual(bench_rows.percentile(range(1, 1001), 0.99), 990)
        self.assertEqual(bench_rows.percentile([5.0], 0.99), 5.0)
        self.assertEqual(bench_rows.percentile([1.0, 2.0, 3.0], 0.99), 3.0)

    @parameterized.parameters(
        (0.0001234, "0.000"), (9.8765, "9.877"), (98.765, "98.77"), (987.65, "987.6"),
        (98765.4, "98765"), (None, "-"),
    )  # fmt: skip
    def test_numbers(self, value, text):
        self.assertEqual(table.format_number(value), text)

    def test_rows_end_where_their_titles_end(self):
        row = dict.fromkeys(ROW_KEYS, 1234.5) | {"size_bytes": 64 << 20, "wrong": 0}
        titles = table.head("lax").splitlines()[0]
        for spread in (0.05, 0.5):
            line = table.row_line(row, spread)
            self.assertLen(line, len(titles))
            for title, value in (("size", "64M"), ("#wrong", "0")):
                end = titles.index(title) + len(title)
                self.assertEndsWith(line[:end], value)
            self.assertEqual(line[-1], "!" if spread > 0.1 else " ")


if __name__ == "__main__":
    absltest.main()
