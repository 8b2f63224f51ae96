# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The installed package: what is in it, what it needs, and that the tests use it."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

from absl.testing import absltest

import strata_jax
from strata_jax import _core

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PACKAGE = pathlib.Path(strata_jax.__file__).parent
# What glibc and GCC bring; all of it is in the manylinux policies.
SYSTEM_LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}

# Of the names that start with an underscore, what the stable ABI has and nanobind uses.
STABLE_PRIVATE = {
    "_PyObject_GC_New",
    "_Py_Dealloc",
    "_Py_DecRef",
    "_Py_FalseStruct",
    "_Py_IncRef",
    "_Py_NoneStruct",
    "_Py_NotImplementedStruct",
    "_Py_TrueStruct",
}


def distribution() -> importlib.metadata.Distribution:
    """Returns the installed distribution; skips the test in a checkout that is not installed."""
    try:
        found = importlib.metadata.distribution("strata_jax")
    except importlib.metadata.PackageNotFoundError:
        raise unittest.SkipTest("strata_jax is not installed; run: pip install .") from None
    if not any(str(f) == "strata_jax/__init__.py" for f in found.files or ()):
        raise unittest.SkipTest("strata_jax is installed in editable mode; run: pip install .")
    return found


class InstalledTest(absltest.TestCase):
    def test_tests_import_what_is_installed(self):
        # Also when pytest runs in the checkout, whose strata_jax/ has no compiled module.
        installed = distribution().locate_file("strata_jax/__init__.py")
        self.assertEqual(
            pathlib.Path(strata_jax.__file__).resolve(), pathlib.Path(str(installed)).resolve()
        )

    def test_pytest_does_not_put_the_checkout_on_the_path(self):
        distribution()
        pytest = pathlib.Path(sysconfig.get_path("scripts")) / "pytest"
        if not pytest.exists():
            self.skipTest("this interpreter has no pytest command")
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for folder in ("strata_jax", "tests/unit"):
                (root / folder).mkdir(parents=True)
            shutil.copy(CHECKOUT / "pyproject.toml", root)
            (root / "strata_jax" / "__init__.py").write_text("raise ImportError('the checkout')\n")
            (root / "tests" / "unit" / "test_it.py").write_text(
                f"import strata_jax\ndef test_it(): assert strata_jax.__file__ == "
                f"{strata_jax.__file__!r}\n"
            )
            env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
            result = subprocess.run(
                [sys.executable, "-P", str(pytest), "-p", "no:cacheprovider"],
                cwd=root,
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("1 passed", result.stdout)

    def test_version(self):
        self.assertEqual(distribution().version, strata_jax.__version__)

    def test_files(self):
        names = {str(f) for f in distribution().files or ()}
        package = {n for n in names if n.startswith("strata_jax/") and "__pycache__" not in n}
        self.assertContainsSubset({"strata_jax/py.typed", "strata_jax/_core.pyi"}, package)
        self.assertTrue(any(re.fullmatch(r"strata_jax-.*/licenses/LICENSE", n) for n in names))
        examples = {f"strata_jax/examples/{f.name}" for f in CHECKOUT.glob("examples/*.py")}
        self.assertNotEmpty(examples)
        self.assertContainsSubset(examples, package)
        # Nothing but sources, the stub, the marker and exactly one compiled module.
        compiled = [n for n in package if n.endswith(".so")]
        self.assertLen(compiled, 1, compiled)
        strange = {n for n in package if not n.endswith((".py", ".md"))}
        self.assertEqual(
            strange, {"strata_jax/py.typed", "strata_jax/_core.pyi", *compiled}, "build leftovers"
        )
        outside = {n.split("/")[0] for n in names - package if not n.startswith("strata_jax")}
        self.assertContainsSubset(outside, {".."})  # the console script

    def test_tag(self):
        wheel = distribution().read_text("WHEEL") or ""
        tag = re.search(r"^Tag: (\S+)$", wheel, re.MULTILINE)[1]
        name = pathlib.Path(_core.__file__).name
        if sys.version_info >= (3, 12):
            self.assertStartsWith(tag, "cp312-abi3-linux_")
            self.assertEqual(name, "_core.abi3.so")
        else:
            self.assertStartsWith(tag, "cp311-cp311-linux_")
            self.assertEqual(name, f"_core{sysconfig.get_config_var('EXT_SUFFIX')}")

    def test_stub_names(self):
        def is_public(name: str) -> bool:
            return not name.startswith("_")

        tree = ast.parse((PACKAGE / "_core.pyi").read_text())
        stub = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        stub |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}
        self.assertEqual(set(filter(is_public, stub)), set(filter(is_public, dir(_core))))

    def test_runs_from_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, "-P", str(HERE / "smoke.py")],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(str(PACKAGE), result.stdout)


@unittest.skipUnless(shutil.which("readelf"), "readelf is not installed (Debian: binutils)")
class SharedObjectTest(absltest.TestCase):
    def readelf(self, *flags: str) -> str:
        command = ["readelf", "--wide", *flags, _core.__file__]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_needs_only_the_system(self):
        dynamic = self.readelf("--dynamic")
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        self.assertContainsSubset(needed, SYSTEM_LIBRARIES)
        self.assertNotRegex(dynamic, r"\(R(UN)?PATH\)")
        self.assertNotIn("TEXTREL", dynamic)
        self.assertRegex(self.readelf("--program-headers"), r"GNU_STACK .* RW ")

    def test_undefined_symbols(self):
        # Weak ones may stay undefined.
        symbols = re.findall(r" GLOBAL +DEFAULT +UND (\S+)", self.readelf("--dyn-syms"))
        self.assertNotEmpty(symbols)
        # What carries no version comes from the interpreter.
        self.assertEmpty([s for s in symbols if "@" not in s and not re.match(r"_?Py", s)])
        if sys.version_info >= (3, 12):
            private = {s for s in symbols if s.startswith("_Py")}
            self.assertContainsSubset(private, STABLE_PRIVATE)

    def test_exports_only_its_entry(self):
        symbols = re.findall(
            r"(?:FUNC|OBJECT) +GLOBAL +DEFAULT +\d+ (\S+)", self.readelf("--dyn-syms")
        )
        self.assertContainsSubset({"PyInit__core"}, set(symbols))
        self.assertEmpty([s for s in symbols if "strata" in s])


if __name__ == "__main__":
    absltest.main()
