# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What processes that run JAX's tests say while they live, and what is left of those that die."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from typing import Any


class Log:
    """Reads the lines of JSON that a process appends to a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the events since the last call; an unfinished line waits for the next."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        return [json.loads(line) for line in data.splitlines()]


def last_words(output: pathlib.Path) -> str:
    """Return what a dead process said: the crash report of Python, or the last lines."""
    text = output.read_text(errors="replace") if output.exists() else ""
    at = text.rfind("Fatal Python error")
    if at < 0:
        return text[-1500:]
    lines = text[max(0, at - 700) :].splitlines()
    frames = ("/_pytest/", "/pluggy/", "/unittest/", "<frozen runpy>")  # in every stack, no news
    return "\n".join(line for line in lines if not any(f in line for f in frames))[:2500]


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; SIGABRT first, at which Python prints all stacks."""
    for number, wait_s in ((signal.SIGABRT, 10), (signal.SIGKILL, 60)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
