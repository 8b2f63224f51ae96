# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Rules for the source tree: both builds agree, files are short and carry the licence."""

from __future__ import annotations

import pathlib
import re
import subprocess

from absl.testing import absltest

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
LICENCE = "Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0"
NO_COMMENTS = {"LICENSE", ".gitignore", ".clang-format", "pyproject.toml", "py.typed"}


def sources() -> list[pathlib.Path]:
    """Returns the files of the project, without what builds left behind."""
    skipped = {".git", "build", "dist", "__pycache__"}
    found = []
    for path in CHECKOUT.rglob("*"):
        parts = path.relative_to(CHECKOUT).parts
        hidden_folder = any(p.startswith(".") and p != ".ci" for p in parts[:-1])
        if hidden_folder or skipped & set(parts) or any(p.startswith("bazel-") for p in parts):
            continue
        if path.is_file() and path.suffix != ".so" and not parts[0].endswith(".egg-info"):
            found.append(path)
    return found


class SourcesTest(absltest.TestCase):
    def test_both_builds_list_the_same_sources(self):
        exist = {str(p.relative_to(CHECKOUT)) for p in CHECKOUT.glob("xla_ffi/**/*.cc")}
        bazel = re.findall(r'"(xla_ffi/[\w/]+\.cc)"', (CHECKOUT / "BUILD").read_text())
        core = (CHECKOUT / "xla_ffi" / "core.cmake").read_text()
        module = (CHECKOUT / "xla_ffi" / "CMakeLists.txt").read_text()
        cmake = set(re.findall(r"\$\{core\}/(\w+\.cc)", core))
        cmake = {f"xla_ffi/core/{name}" for name in cmake}
        cmake |= {
            f"xla_ffi/{name}"
            for name in re.findall(r"\$\{CMAKE_CURRENT_LIST_DIR\}/(platform/\w+\.cc)", core)
        }
        cmake |= {f"xla_ffi/{name}" for name in re.findall(r"[\s(]([\w/]+\.cc)\b", module)}
        self.assertNotEmpty(exist)
        self.assertEqual(set(bazel), exist)
        self.assertLen(bazel, len(exist), "a source is compiled twice")
        self.assertEqual(cmake, exist)

    def test_both_builds_give_kernels_the_same_flags(self):
        core = (CHECKOUT / "xla_ffi" / "core.cmake").read_text()
        build = (CHECKOUT / "BUILD").read_text()
        for isa in ("avx2", "avx512"):
            cmake = re.search(rf"kernels_{isa}\.cc PROPERTIES COMPILE_OPTIONS\s+\"(.*)\"", core)[1]
            rule = re.search(rf'name = "kernels_{isa}".*?deps', build, re.DOTALL)[0]
            self.assertEqual(re.findall(r'"(-m[^"]+)"', rule), cmake.split(";"))

    def test_files_are_short(self):
        for path in sources():
            if path.name != "LICENSE":
                self.assertLessEqual(len(path.read_bytes().splitlines()), 600, path)

    def test_licence(self):
        for path in sources():
            if path.name not in NO_COMMENTS and path.suffix not in (".md", ".png", ".json"):
                self.assertIn(LICENCE, "".join(path.read_text().splitlines()[:2]), path)

    def test_ci_scripts_parse(self):
        for path in (CHECKOUT / ".ci").iterdir():
            if path.is_file() and path.read_bytes().startswith(b"#!"):
                subprocess.run(["bash", "-n", str(path)], check=True)


if __name__ == "__main__":
    absltest.main()
