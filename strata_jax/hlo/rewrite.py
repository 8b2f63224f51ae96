# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The compile hook: the collectives of a marked module become Strata calls.

XLA calls it once a module, before scheduling: after partitioning, so that it sees what the
partitioner inserted, and after layout assignment and fusion. It works on the serialised proto. It
runs on a thread of XLA's in jaxlib 0.10 and on the caller's in later ones, so it uses no context of
a thread and imports nothing lazily.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from strata_jax.hlo import cost, schema
from strata_jax.hlo.absorb import absorb
from strata_jax.hlo.bind import add_error, bind, make_error
from strata_jax.hlo.combine import combine
from strata_jax.hlo.counters import Counters as Counters  # part of this interface
from strata_jax.hlo.counters import Tally
from strata_jax.hlo.find import CROSSES_HOSTS, Call, Finder, Left, device_table
from strata_jax.hlo.graph import Graph
from strata_jax.hlo.hosts import Splitter
from strata_jax.hlo.operations import BY_OPCODE, BY_TARGET, ONLY_OURS
from strata_jax.hlo.scan import Scan, scan_module

# Frontend attribute of the module that says how it was lowered. A value that starts with MARK_ON is
# ours; one that starts with MARK_DONATES would lose its donation by being changed (jaxlib 0.10).
MARK = "strata_jax"
MARK_ON = "on"
MARK_DONATES = "donates"

# The mark's key as an entry of a map in the proto: the name alone also stands in file names.
_MARK_BYTES = b"\x0a" + bytes([len(MARK)]) + MARK.encode() + b"\x12"
_COLLECTIVE_BYTES = tuple(name.encode() for name in (*BY_OPCODE, *BY_TARGET))
_FINISH_NAMES = {cost.INLINE: "inline", cost.LANE: "lane"}

DONATION = "donation"
LOST_DONATION = "lost donation"
HOOK_ERROR = "hook error"
SHARED_COMPUTATION = "shared computation"

# What there is in place of the operations that XLA's CPU compiler has not.
_INSTEAD = {
    "collective-broadcast": "psum of the source's array and of zeros elsewhere",
    "ragged-all-to-all": "all_to_all of slices that are padded to equal sizes",
}


class _Names:
    """Makes instruction names that a module does not have."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = 0

    def __call__(self, stem: str) -> str:
        # Cheaper than reading the name of every instruction, and a false alarm does no harm.
        while True:
            name = f"{stem}.{self._count}"
            self._count += 1
            if name.encode() not in self._data:
                return name


class _Rewriter:
    """The work on one module."""

    def __init__(self, module: Any, scan: Scan, hosts: Sequence[int], names: _Names) -> None:
        self._module = module
        self._scan = scan
        self._finder = Finder(module, scan.computations, hosts)
        self._splitter = Splitter(module, hosts, names)
        self._names = names
        self._graphs: dict[int, Graph] = {}
        self.tally = Tally()
        self.left: list[Left] = list(scan.left)

    def _graph(self, computation: int) -> Graph:
        if computation not in self._graphs:
            self._graphs[computation] = Graph(self._scan.computations[computation])
        return self._graphs[computation]

    def _is_shared(self, computation: int) -> bool:
        """Say whether a computation runs for two places: one index would then be two operations."""
        while computation != self._module.entry_computation_id:
            sites = self._scan.callers.get(computation, [])
            if len(sites) != 1:
                return bool(sites)
            computation = sites[0][0]
        return False

    def leave_all(self, reason: str) -> None:
        """Leave every native collective that XLA can run as it is."""
        for computation, local, operation in self._scan.natives:
            if operation.opcode not in ONLY_OURS:
                graph = self._graph(computation)
                self.left.append(Left(graph.proto, graph.nodes[local], reason))

    def _fail(self, call: Call, problem: str) -> None:
        """Turn a call, or a collective that XLA cannot run, into an error at compile time."""
        what = f"{call.operation.opcode} {call.instruction.name} of module {self._module.name}"
        if problem == CROSSES_HOSTS and call.operation.opcode in ONLY_OURS:
            text = (
                f"{what} is over several hosts, but XLA's CPU compiler has no such operation, and "
                f"the fabric is inside one host; its groups have to be inside hosts. Use a mesh "
                f"axis or axis_index_groups of devices of one host, or between hosts "
                f"{_INSTEAD[call.operation.opcode]}."
            )
        else:
            text = (
                f"{what} was lowered to run on the fabric, but cannot: {problem}. It has to be one "
                f"that JAX can express, over devices of one host, in a computation that is called "
                f"from one place. Compile this program inside `with strata_jax.disabled():`, and "
                f"report it."
            )
        make_error(call.instruction, text, call.operation)
        self.tally.failed += 1

    def _over_hosts(self, call: Call) -> list[Call]:
        """Return the calls that a native collective over several hosts becomes, if any."""
        parts = self._splitter.split(call)
        if parts:
            self.tally.split += 1
        elif call.operation.opcode in ONLY_OURS:
            self._fail(call, call.problem)
        else:
            self.left.append(Left(call.graph.proto, call.instruction, call.problem))
        return parts

    def find(self, *, only_ours: bool = False) -> list[Call]:
        """Return the collectives that will be calls, without the conversions around them.

        Args:
            only_ours: only those that XLA cannot run.
        """
        lowered = [self._finder.lowered(self._graph(c), i, o) for c, i, o in self._scan.lowered]
        holders = {c for c, _, _ in self._scan.natives + self._scan.lowered}
        if any(self._is_shared(computation) for computation in holders):
            self.leave_all(SHARED_COMPUTATION)
            for call in lowered:
                self._fail(call, SHARED_COMPUTATION)
            return []
        calls = []
        for call in lowered:
            if call.problem:
                self._fail(call, call.problem)
            else:
                self.tally.absorbed += absorb(call, self._module, self._scan.computations)
                calls.append(call)
        for computation, local, operation in self._scan.natives:
            if only_ours and operation.opcode not in ONLY_OURS:
                continue
            graph = self._graph(computation)
            found = self._finder.native(graph, local, operation)
            if isinstance(found, str):
                self.left.append(Left(graph.proto, graph.nodes[local], found))
            elif found.problem:
                calls += self._over_hosts(found)
            else:
                self.tally.absorbed += absorb(found, self._module, self._scan.computations)
                self.tally.native += 1
                calls.append(found)
        self._splitter.finish()
        self.tally.lowered = sum(call.lowered for call in calls)
        return calls

    def rewrite(self, calls: list[Call]) -> None:
        """Merge the calls where that pays, decide how each completes, and write them."""
        counted: dict[int, set[int]] = {}
        for call in calls:
            counted.setdefault(call.graph.proto.id, set()).add(call.local)
        callers: dict[int, tuple[int, int]] = {}
        for computation in list(counted):
            while computation not in callers and self._scan.callers.get(computation):
                callers[computation] = site = self._scan.callers[computation][0]
                computation = site[0]
                counted.setdefault(computation, set()).add(site[1])
        depths = {c: self._graph(c).depths(locals_) for c, locals_ in counted.items()}

        by_computation: dict[int, list[Call]] = {}
        for call in calls:
            by_computation.setdefault(call.graph.proto.id, []).append(call)
        ordered: list[Call] = []
        for computation in self._module.computations:
            if computation.id in by_computation:
                graph = self._graph(computation.id)
                place = {local: index for index, local in enumerate(graph.nodes)}
                here = sorted(by_computation[computation.id], key=lambda c: place[c.local])
                here = combine(graph, here, depths[computation.id], self._names)
                graph.commit()
                counted[computation.id].update(call.local for call in here)
                ordered += here

        finishes = [cost.LANE] * len(ordered)
        # A native collective blocks, also one between hosts that a split has left.
        if not self.left and not self.tally.split and not self._scan.blocks:
            graphs = {c: self._graphs[c] for c in counted}
            smallest = min((c.group_size for c in ordered if c.group_size > 1), default=2)
            model = cost.CostModel(
                self._scan.computations, graphs, counted, depths, callers, smallest
            )
            finishes = [model.finish(call) for call in ordered]
        devices = device_table(self._module) or []
        bind(self._module.name, ordered, finishes, devices, self._names)
        self.tally.calls = len(ordered)
        self.tally.finish.update(_FINISH_NAMES[finish] for finish in finishes)


def _mark_of(module: Any) -> str:
    return next((e.value for e in module.frontend_attributes.map if e.key == MARK), "")


def _strict_text(opcode: str, name: str, module_name: str, reason: str) -> str:
    return (
        f"{f'{opcode} {name}'.strip()} of module {module_name} cannot run on the fabric: {reason}. "
        f"In strict mode no collective may stay native. Compile this program inside `with "
        f"strata_jax.disabled():`, or initialise with strata_jax.init(strict=False)."
    )


def rewrite(data: bytes, *, strict: bool, hosts: Sequence[int], counters: Counters) -> bytes | None:
    """Rewrite one module.

    Args:
        data: the serialised HloModuleProto.
        strict: make the program fail to compile where a collective stays native.
        hosts: number of the host of each process of the job, by process index; groups that are
            on several stay native.
        counters: where to count what was done.

    Returns:
        The new module, or None where nothing is to be changed.
    """
    start = time.perf_counter()
    module = schema.HloModuleProto.FromString(data)
    mark = _mark_of(module)
    if not mark.startswith((MARK_ON, MARK_DONATES)):
        return None
    scan = scan_module(module)
    if scan.is_bound:  # a module that went through the hook before
        return None
    names = _Names(data)
    rewriter = _Rewriter(module, scan, hosts, names)
    tally = rewriter.tally
    if mark.startswith(MARK_DONATES):
        rewriter.leave_all(DONATION)
        calls = rewriter.find(only_ours=True)
    else:
        calls = rewriter.find()
    if calls:
        rewriter.rewrite(calls)
    tally.left.update(left.reason for left in rewriter.left)
    if tally.left[DONATION] and counters.first(DONATION):
        logging.warning(
            "strata_jax: %s donates buffers, which this JAX would lose if its collectives were "
            "replaced; programs that donate stay native. Use jax 0.11 or newer (Python 3.12), or "
            "do not donate",
            module.name,
        )
    if mark.startswith(MARK_DONATES) and calls and counters.first(LOST_DONATION):
        logging.warning(
            "strata_jax: %s donates buffers and holds a collective that XLA itself cannot run on "
            "CPU; it runs, but this JAX then copies what is donated. Use jax 0.11 or newer (Python "
            "3.12)",
            module.name,
        )
    if strict and rewriter.left:
        left = rewriter.left[0]
        text = _strict_text(
            left.instruction.opcode, left.instruction.name, module.name, left.reason
        )
        add_error(module, text, names)
        tally.failed += 1
    changed = bool(calls) or tally.failed > 0
    tally.modules = int(changed)
    result = module.SerializeToString() if changed else None
    tally.seconds = time.perf_counter() - start
    counters.add(tally)
    return result


def _fail_module(data: bytes) -> bytes:
    module = schema.HloModuleProto.FromString(data)
    if _mark_of(module).startswith((MARK_ON, MARK_DONATES)):
        text = _strict_text("a collective", "", module.name, "the compile hook failed, see the log")
        add_error(module, text, _Names(data))
    result: bytes = module.SerializeToString()
    return result


def make_callback(
    *, strict: bool, hosts: Sequence[int], counters: Counters
) -> Callable[[bytes], bytes | None]:
    """Return the function to register as compile hook; it never raises.

    After an unexpected error the module is left as it is: native collectives work as without us,
    and calls of the lowering, which then lack their identity, fail when they are instantiated.
    """

    def callback(data: bytes) -> bytes | None:
        if _MARK_BYTES not in data or not any(word in data for word in _COLLECTIVE_BYTES):
            return None
        try:
            return rewrite(data, strict=strict, hosts=hosts, counters=counters)
        except Exception:  # pylint: disable=broad-except
            # An exception here would abort the process on jaxlib 0.10.
            if counters.first(HOOK_ERROR):
                logging.exception("strata_jax: the compile hook failed; programs compile natively")
            counters.add(Tally(left=Counter({HOOK_ERROR: 1})))
        try:
            return _fail_module(data) if strict else None
        except Exception:  # pylint: disable=broad-except
            return None

    return callback
