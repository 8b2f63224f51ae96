# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The mark on a module: whether, and by which version of us, its collectives are to be taken.

It is a frontend attribute, so it travels into the module's proto, where the compile hook reads it
on whichever thread compiles, and into the key of the persistent compilation cache, where it keeps
programs of different modes apart.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax

from strata_jax import _compat
from strata_jax._version import __version__

ATTRIBUTE = "strata_jax"
_ON = f"on, {__version__}"
_STRICT = f"{_ON}, strict"  # another mark: a program cached before may hold native collectives
OFF = "off"
# The program donates buffers, on a JAX whose compile hook would lose that.
DONATES = "donates"

_context: Any = None  # a JAX user context, part of jit's cache key; made by the first switch_on()
_lowering = threading.local()  # the mark of the module that this thread is lowering


def switch_on(*, strict: bool) -> None:
    """Marks modules as ours from now on; jitted functions are traced again."""
    global _context
    on = _STRICT if strict else _ON
    if _context is None:
        _context = jax.make_user_context(default_value=on)
        _compat.wrap_lowering(_mark)
    else:
        _context.set_global(on)


def switch_off() -> None:
    """Marks modules as native from now on; jitted functions are traced again."""
    if _context is not None:
        _context.set_global(OFF)


def disabled() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which modules are native."""
    return contextlib.nullcontext() if _context is None else _context(OFF)


def lowering_ours() -> bool:
    """Whether this thread is lowering a module that is ours and not for export."""
    return getattr(_lowering, "mark", OFF) in (_ON, _STRICT)


def active() -> bool:
    """Whether the compile hook will see the module that this thread is lowering."""
    return getattr(_lowering, "mark", OFF) != OFF


@contextlib.contextmanager
def _mark(module: _compat.ModuleInfo) -> Iterator[dict[str, str]]:
    before = getattr(_lowering, "mark", OFF)
    mark = _context.value
    if not module.for_cpu:
        mark = OFF
    elif mark != OFF and module.donates and not _compat.donation_survives_hook():
        mark = DONATES
    # An exported module is compiled, and marked, again where it is loaded; calls of ours in it
    # would be refused by jax.export.
    _lowering.mark = OFF if module.for_export else mark
    try:
        yield {} if module.for_export else {ATTRIBUTE: mark}
    finally:
        _lowering.mark = before
