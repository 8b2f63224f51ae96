# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""`strata-jax demo`: run the first example, data-parallel training on handwritten digits."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys

from strata_jax.tools import host

EXAMPLE = "01_train_digits.py"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `demo` subcommand."""
    parser = commands.add_parser(
        "demo",
        help="train on handwritten digits with 4 devices",
        description=f"Run examples/{EXAMPLE}: data-parallel training on real images, 4 devices.",
    )
    parser.set_defaults(run=run)


def find_example(root: pathlib.Path) -> pathlib.Path | None:
    """Find the example: inside the installed package, else beside it in a checkout."""
    for folder in (root / "strata_jax" / "examples", root / "examples"):
        if (folder / EXAMPLE).is_file():
            return folder / EXAMPLE
    return None


def run(args: argparse.Namespace) -> int:
    """Run the example in its own process and return its exit status."""
    del args
    if importlib.util.find_spec("sklearn") is None:
        print(
            "strata-jax demo: the example reads scikit-learn's handwritten digits, but "
            "scikit-learn is not installed here; it comes with the extra named examples. "
            "Run: pip install 'strata_jax[examples]'",
            file=sys.stderr,
        )
        return 1
    root = host.package_root()
    example = find_example(root)
    if example is None:
        print(
            f"strata-jax demo: looked for {EXAMPLE} in {root / 'strata_jax' / 'examples'} and "
            f"{root / 'examples'}, found it in neither; it is part of every install. Install "
            "strata_jax again.",
            file=sys.stderr,
        )
        return 1
    # A checkout that is not installed is found through PYTHONPATH; an installed one does not mind.
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    return subprocess.run([sys.executable, str(example)], env=env, check=False).returncode
