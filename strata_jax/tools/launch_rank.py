# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The first lines of a rank of `strata-jax launch`; then the script runs as if it were alone.

Run as a file, not as a module of the package, which would import JAX: a script may still set
environment variables that JAX reads when it is imported.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import runpy
import signal
import sys
import types
from collections.abc import Callable, Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Run `launch_rank.py LAUNCHER {script,module} TARGET ARGUMENT...`."""
    launcher, kind, target = sys.argv[1:4]
    _die_with(int(launcher))
    _import_as_the_script_would(target if kind == "script" else None)
    sys.meta_path.insert(0, _AfterImport(_ON_IMPORT))
    # Pipes are block-buffered otherwise: lines would come late, and the last ones not at all where
    # the process is killed.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = [target, *sys.argv[4:]]
    sys.excepthook = _excepthook
    if kind == "script":
        _run_script(target)
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Report an exception as the interpreter does, without the frames of this file."""
    ours = (__file__, runpy.run_module.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    # It goes by the exception's own traceback from Python 3.13 on.
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _die_with(launcher: int) -> None:
    """Let the kernel kill this process when the launcher dies, however it dies.

    The signal comes when the thread that started this process ends: the launcher starts ranks from
    its main thread, which ends last. Not done between fork and exec, where Python code may deadlock
    as the launcher has threads of the coordination service; so look whether it died before.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(128 + signal.SIGKILL)


def _import_as_the_script_would(script: str | None) -> None:
    """Replace this file's folder on the path by what Python would put there."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if script is None else os.path.dirname(os.path.realpath(script))
    root = str(pathlib.Path(__file__).resolve().parents[2])
    if root not in sys.path:  # a checkout that is not installed
        sys.path.append(root)


def _run_script(path: str) -> None:
    """Run a file as the main module, which stays it for the life of the process."""
    path = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __loader__=loader, __package__=None, __builtins__=builtins
    )
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs functions after modules were imported, whenever that is."""

    def __init__(self, functions: dict[str, Callable[[], None]]):
        self._functions = dict(functions)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as if this finder were not there, and wrap its loader."""
        function = self._functions.pop(name, None)
        if function is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                break
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        exec_module = loader.exec_module

        def exec_and_call(module: types.ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module  # the class's own again
            exec_module(module)
            function()

        loader.exec_module = exec_and_call  # type: ignore[method-assign]
        return spec


def _import_strata() -> None:
    importlib.import_module("strata_jax._compat")


def _register_cluster() -> None:
    sys.modules["strata_jax._compat"].register_launched_cluster()


# Two steps, as either may be imported first and imports the other.
_ON_IMPORT = {"jax": _import_strata, "strata_jax._compat": _register_cluster}


if __name__ == "__main__":
    main()
