# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Runs of `strata-jax bench` in tests, and tables of operations that misbehave."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
import textwrap

from absl.testing import parameterized

from strata_jax.tools import bench, bench_client, bench_contenders, main

PREPARE = {"op": "psum", "size_bytes": 4096, "dtype": "float32", "mode": "call"}

# A table of operations whose psum is replaced by what a test puts in.
OPS_TEMPLATE = """
import dataclasses, os, sys, time
from . import bench_ops as real

def build(request):
    {body}

OPS = dict(real.OPS)
OPS["psum"] = dataclasses.replace(OPS["psum"], build=build)
"""


def run(*argv: str, ops_file: str | None = None) -> tuple[int, str, str]:
    """Run `strata-jax bench` in this process; return its status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    args = main.make_parser().parse_args(["bench", *argv])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = bench.run(args, ops_file=ops_file)
    return status, out.getvalue(), err.getvalue()


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ops_file(self, body: str) -> str:
        path = self.folder / "ops.py"
        body = textwrap.indent(textwrap.dedent(body).strip(), "    ").strip()
        path.write_text(OPS_TEMPLATE.format(body=body))
        return str(path)

    def start(self, job: bench_contenders.Contender, **changes) -> bench_client.Worker:
        """Start a job, which ends with the test."""
        worker = bench_client.Worker(job, **{"x64": False, "deadline_s": 120, **changes})
        self.addCleanup(worker.close)
        return worker
