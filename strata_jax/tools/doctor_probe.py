# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""What `strata-jax doctor` learns in a process of its own, where a fault harms nobody.

Prints one JSON object a line, one for each stage that was reached, so that the stage that failed
is known even when the process dies in it.
"""

from __future__ import annotations

import json
from typing import Any

NUM_DEVICES = 4
# 64 KiB a device: above the size from which the arena serves XLA's allocations.
_NUM_ELEMENTS = 16384


def self_test() -> dict[str, Any]:
    """Sum over the devices and compare by bits; say how the counters moved."""
    import jax
    import numpy as np

    import strata_jax

    before = strata_jax.stats()["all_reduce"]
    spec: Any = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("x",))
    rows = np.random.default_rng(0).normal(size=(NUM_DEVICES, _NUM_ELEMENTS)).astype(np.float32)
    total = jax.jit(
        jax.shard_map(
            lambda x: strata_jax.psum(x * 1.5, "x"), mesh=mesh, in_specs=spec("x"), out_specs=spec()
        )
    )(rows)
    expected = rows[0] * np.float32(1.5)
    for row in rows[1:]:  # in rank order, as the package promises
        expected = expected + row * np.float32(1.5)
    bits = expected.view(np.uint32)
    wrong = sum(
        int(np.count_nonzero(np.asarray(s.data)[0].view(np.uint32) != bits))
        for s in total.addressable_shards
    )
    after = strata_jax.stats()["all_reduce"]
    return {"wrong": wrong, "moved": {key: after[key] - before[key] for key in before}}


def main() -> None:
    """Go through the stages."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    from strata_jax import _compat

    window = {"oldest": _compat.OLDEST, "newest": _compat.NEWEST_TESTED}
    _say("window", {**window, "donation_since": _compat.DONATION_SINCE})
    _say("ffi_running", _compat.running_ffi_api_version())

    from strata_jax import _core

    _say("ffi_built", _core.FFI_API_VERSION)
    _say("isa", _core.isa())

    import strata_jax

    strata_jax.init()
    _say("init", strata_jax.stats())
    _say("self_test", self_test())


def _say(stage: str, value: Any) -> None:
    print(json.dumps({stage: value}), flush=True)


if __name__ == "__main__":
    main()
