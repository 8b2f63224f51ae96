# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Entry point of the console script `strata-jax`.

Neither this file nor the argument parsers of the subcommands import JAX, so `--help` and a wrong
argument answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from strata_jax import _version
from strata_jax.tools import bench, demo, doctor, launch


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of `strata-jax` with all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="strata-jax",
        description="Zero-copy collectives for JAX on one host: try, check and measure them, and "
        "launch programs of several processes.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="{bench,doctor,demo,launch}")
    for module in (bench, doctor, demo, launch):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: arguments without the program's name; `sys.argv[1:]` when None.

    Returns:
        The exit status: 0 success, 1 a wrong answer or a failed check, 2 a wrong argument.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.version:
        print(f"strata_jax {_version.__version__}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        print(f"strata-jax {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
