# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What strata_jax did in this process: never silent about what stayed native."""

from __future__ import annotations

from typing import Any

from strata_jax import _core, fabric
from strata_jax._version import __version__


def stats() -> dict[str, Any]:
    """Returns counters of this process since it started; cheap, and safe from any thread.

    Returns:
        A dict of plain numbers and strings (it can be written as JSON):

        * `version`, `active`: of strata_jax; whether it is on.
        * `arena`: `reserved_bytes`, `committed_bytes`, `in_use_bytes` and its peak, `kept_bytes`
          (free pages kept for the next arrays) and `keep_limit_bytes`; numbers of `allocations`,
          `frees`, `hits` (served from pages that were there already) and `fresh` ones; `fallbacks`
          to the C library by reason; `quarantined_bytes` are freed, but a process that was given up
          may still write there; `slots` of jaxlib's allocator that are patched. Empty before
          `init()`.
        * `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `collective_permute`,
          `collective_broadcast`, `ragged_all_to_all`: `operations` (meetings of all ranks), `calls`
          (ranks in them), `buffers`, operand `bytes` of all ranks, `written_bytes` (stored to all
          results, each once), `registered_bytes` (operand and result both in the arena), `failed`
          operations. Those with ranks in other processes (`across`) count what is of this one. What
          lay outside the arena was copied for the others: small operands into a mailbox (`mailed`
          operations), large ones as `staged_bytes`. All else ran zero-copy: inputs read and outputs
          written in place.
        * `pending`: operations in which ranks are waiting now.
        * `compile`: `modules` that were changed; `native` collectives in them that became calls,
          `lowered` ones; `split` ones over several hosts that became calls inside each host and a
          native one between hosts; `absorbed` buffers around which XLA's copies were taken away;
          `calls` left after small ones were merged, how they `finish`; `seconds` spent; `left`:
          collectives that stayed native, by reason.
        * `before_init`: calls of our functions while inactive, by name.
    """
    core: dict[str, Any] = _core.stats()
    if core["arena"]:
        core["arena"]["slots"] = fabric.arena_report().get("slots", {})
    return {
        "version": __version__,
        "active": fabric.is_active(),
        **core,
        "compile": fabric.compile_counters(),
        "before_init": fabric.calls_before_init(),
    }
