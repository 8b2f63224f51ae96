# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Joining and leaving the fabric: init() and shutdown()."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from strata_jax import _compat, _core, _env, joining, leaving
from strata_jax.hlo import rewrite
from strata_jax.lowering import mark, rules

HOOK_NAME = "strata_jax"
# Seconds after which an operation fails: as XLA's own in one process, as Gloo's between them.
_TIMEOUT_S = 40.0
_ACROSS_TIMEOUT_S = 1800.0
# Microseconds that a rank looks again and again before its thread is given back.
_SPIN_US = 200.0

_compile_counters = rewrite.Counters()
_lock = threading.Lock()  # guards all below
_active = False
_installed = False  # handlers, hook and lowering rules are, for the life of the process
_arena_report: dict[str, Any] = {}
_hook: Callable[[bytes], bytes | None]  # the compile hook of the latest init()
_wakeup: tuple[int, int] | None = None  # our end of the signal pipe, the descriptor before it
_place = joining.ALONE
_unused_calls: dict[str, int] = {}  # calls of our functions before init(), by name


def init(*, strict: bool = False, timeout_s: float | None = None) -> None:
    """Puts this process's collectives on the fabric.

    From now on XLA's arrays are allocated in the arena, and the collectives of every program that
    is compiled, also one that calls only `jax.lax`, run zero-copy. Functions that were compiled
    before are traced again at their next call. May be called before or after arrays exist.

    In a job of several processes call `jax.distributed.initialize()` first, and call this in every
    process: it waits for all. The processes of one host then share their arrays' memory, and groups
    of devices on one host are on the fabric. Groups over several hosts stay native, but for large
    all-reduces, which run on the fabric inside each host and natively between hosts.

    Args:
        strict: raise when a program is compiled with a collective that has to stay native, instead
            of counting it in `stats()`. Also set by `STRATA_STRICT=1`.
        timeout_s: seconds after which an operation fails whose ranks are not all there, and after
            which this call gives up waiting for other processes. Also set by `STRATA_TIMEOUT_S`.
            Default: 40 s among the devices of a process, 1800 s across processes, whose death
            is noticed at once.

    Raises:
        RuntimeError: called twice without `shutdown()` between; JAX is older than supported; the
            running jaxlib does not take our handlers; the allocator of jaxlib cannot be found; JAX
            is configured for several processes but `jax.distributed.initialize()` was not called;
            another process of the job did not call this in time, or has another version or other
            settings.
        ValueError: `timeout_s` is not above 0; an environment variable `STRATA_*` has an unknown
            name or value.
    """
    global _active, _hook
    with _lock:
        if _active:
            raise RuntimeError(
                "strata_jax.init() was called, but it is already active in this process; call it "
                "once, or call strata_jax.shutdown() before you call it again"
            )
        settings = _env.read_settings()
        _compat.check_window()
        _check_ffi_api()
        _check_distributed()
        if timeout_s is None:
            timeout_s = settings.timeout_s
        elif not 0 < timeout_s <= 1e6:
            raise ValueError(
                f"strata_jax.init(): timeout_s is {timeout_s}, but must be a number of seconds "
                f"above 0, at most 1000000"
            )
        across_s = timeout_s or _ACROSS_TIMEOUT_S
        _core.configure(
            warn_s=settings.warn_s,
            fail_s=timeout_s or _TIMEOUT_S,
            fail_across_s=across_s,
            num_workers=settings.num_workers,
            isa=settings.isa,
            check_ragged=settings.check_ragged,
        )
        strict = strict or settings.strict
        # Before anything that cannot be undone: this is what an unknown jaxlib makes fail.
        _enter(settings, across_s, strict)
        _hook = rewrite.make_callback(strict=strict, hosts=_place.hosts, counters=_compile_counters)
        rules.use_hosts(_place.hosts)
        _install_once()
        _watch_interrupts()
        mark.switch_on(strict=strict)
        _active = True
    logging.info("strata_jax is on: %s kernels, arena %s", _core.isa(), _arena_report)


def _enter(settings: _env.Settings, timeout_s: float, strict: bool) -> None:
    """Puts the arena in front of the allocator, shared with the other processes of this host."""
    if _compat.distributed_num_processes() == 1:
        _enter_place(settings, timeout_s, joining.ALONE, None)
        return
    with joining.make_listener() as listener:
        place = joining.find_place(listener, timeout_s, settings.arena_bytes, f"strict={strict}")
        _enter_place(settings, timeout_s, place, listener)


def _enter_place(
    settings: _env.Settings,
    timeout_s: float,
    place: joining.Place,
    listener: socket.socket | None,
) -> None:
    global _arena_report, _place
    joined = _core.has_joined()
    if joined:
        _check_rejoined(place)
    shared = len(place.members) > 1
    _arena_report = _core.arena_install(
        reserve_bytes=place.arena_bytes if shared else settings.arena_bytes,
        keep_bytes=settings.keep_bytes,
        huge_pages=settings.huge_pages,
        populate=settings.populate,
        serve=settings.arena,
        num_processes=len(place.members),
        address=place.arena_address if shared else 0,
        library=_compat.ALLOCATOR_LIBRARY,
    )
    _core.arena_verify()
    if shared and not joined:
        assert listener is not None
        try:
            joining.join(listener, place, timeout_s, _spin_us(place, settings))
        except BaseException:
            _core.arena_uninstall()
            raise
        coordinator = _compat.coordinator_process_index()
        _core.start_fabric(
            coordinator=place.members.index(coordinator) if coordinator in place.members else -1,
            map_pages=settings.populate,
        )
    _place = place


def _check_rejoined(place: joining.Place) -> None:
    dead = [title for title, state in _core.other_processes() if state != "lives"]
    if dead:
        raise RuntimeError(
            f"strata_jax.init(): {', '.join(dead)} of this job has ended, so it cannot join again; "
            f"start the job again"
        )
    if (place.hosts, place.members) != (_place.hosts, _place.members):
        raise RuntimeError(
            "strata_jax.init(): this process has joined others before, and the job has changed "
            "since; start the job again"
        )


def _spin_us(place: joining.Place, settings: _env.Settings) -> float:
    """Returns how long a rank may look for others again and again: not without spare cores."""
    if settings.spin_us is not None:
        return settings.spin_us
    return _SPIN_US if len(place.members) <= place.records[place.members[0]]["cores"] else 0.0


def shutdown() -> None:
    """Leaves the fabric: programs compile natively again, new arrays come from the C library.

    Arrays in the arena stay valid; programs that were compiled before keep running, and complete.
    Compiled objects (`jax.jit(f).lower(x).compile()`) stay on the fabric.

    Raises:
        RuntimeError: `init()` was not called.
    """
    global _active
    with _lock:
        if not _active:
            raise RuntimeError(
                "strata_jax.shutdown() was called, but strata_jax is not active; "
                "call strata_jax.init() first"
            )
        mark.switch_off()
        _core.arena_uninstall()
        _unwatch_interrupts()
        _active = False


def disabled() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which functions are traced and compiled natively.

    What counts is where a function is traced and lowered: a program that was lowered inside and
    compiled outside is native, and the reverse.

    Example:
        >>> with disabled():
        ...     pass  # jitted functions called here run XLA's own collectives
    """
    return mark.disabled()


def is_active() -> bool:
    """Whether init() was called, and shutdown() not since."""
    return _active


def arena_report() -> dict[str, Any]:
    """Returns what init() found: patched slots, reserved bytes, backing."""
    return dict(_arena_report)


def compile_counters() -> dict[str, Any]:
    """Returns what the compile hook did so far."""
    return _compile_counters.snapshot()


def calls_before_init() -> dict[str, int]:
    """Returns how often our functions were traced while inactive, by name."""
    with _lock:
        return dict(_unused_calls)


def note_use(name: str) -> None:
    """Counts a call of one of our functions while strata_jax is inactive; warns at the first."""
    if _active:
        return
    with _lock:
        first = not _unused_calls
        _unused_calls[name] = _unused_calls.get(name, 0) + 1
    if first:
        logging.warning(
            "strata_jax.%s was called, but strata_jax.init() was not: it runs as jax.lax.%s. "
            "Call strata_jax.init() once at the start of the program",
            name,
            name,
        )


def _check_ffi_api() -> None:
    built, running = _core.FFI_API_VERSION, _compat.running_ffi_api_version()
    if built[0] != running[0] or built[1] > running[1]:
        raise RuntimeError(
            f"strata_jax was built for XLA FFI API {built[0]}.{built[1]}, but the installed jaxlib "
            f"has {running[0]}.{running[1]}, which takes only handlers of its own or an older "
            f"version; upgrade jaxlib, or install strata_jax from a wheel or with build isolation"
        )


def _check_distributed() -> None:
    if _compat.launched_as_distributed():
        return
    expected = os.environ.get("JAX_NUM_PROCESSES", "1")
    if expected != "1":
        raise RuntimeError(
            f"strata_jax.init() was called before jax.distributed.initialize(), although "
            f"JAX_NUM_PROCESSES={expected} says that this job has several processes; call "
            f"jax.distributed.initialize() first, then strata_jax.init()"
        )


def _install_once() -> None:
    global _installed
    if _installed:
        return
    _compat.register_ffi(_core.type_registrations(), _core.registrations())
    _compat.register_hlo_transform(HOOK_NAME, lambda data: _hook(data))
    rules.install()
    # Registered after JAX's own exit functions, hence run before them: those wait for programs.
    atexit.register(leaving.at_exit)
    _installed = True


def _watch_interrupts() -> None:
    """Lets SIGINT reach operations that wait; Python runs no signal handler while JAX blocks."""
    global _wakeup
    if threading.current_thread() is not threading.main_thread():
        logging.info(
            "strata_jax.init() is not on the main thread: Ctrl-C ends no waiting operation"
        )
        return
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    _wakeup = (write_fd, before)
    _core.watch_interrupts(read_fd, before)


def _unwatch_interrupts() -> None:
    global _wakeup
    if _wakeup is None or threading.current_thread() is not threading.main_thread():
        return
    write_fd, before = _wakeup
    current = signal.set_wakeup_fd(before, warn_on_full_buffer=False)
    if current != write_fd:
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)  # somebody came after us
    os.close(write_fd)
    _wakeup = None
