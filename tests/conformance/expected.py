# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Tests of JAX that read native collectives in HLO text, which strata_jax replaces, hence fail.

Reasons by test, without the folder; `*` stands for any characters. Each was read in JAX's source.
"""

_ONE_ALL_REDUCE = (
    "counts `all-reduce(` in the compiled text and wants one; ours is a custom call. On jax 0.10.2 "
    "it passes, as a program that donates stays native there"
)

_MESH_AXES = (
    "looks for `replica_group_mesh_axes` in the lowered text, after the values were right; ours is "
    "lowered to a call that lists the groups"
)

EXPECTED: dict[str, str] = {
    f"pjit_test.py::ShardingInTypesTest::{name}": _ONE_ALL_REDUCE
    for name in (
        "test_minibatch_scan_unreduced_custom_vjp",
        "test_minibatch_scan_unreduced_grad",
        "test_scan_over_layers_minibatch_unreduced_custom_vjp",
        "test_scan_over_layers_minibatch_unreduced_grad",
    )
} | {
    f"shard_map_test.py::ShardMapTest::{name}": _MESH_AXES
    for name in (
        "test_all_to_all_rgv3",
        "test_reduce_scatter_rgv3_multidim_mesh",
        "test_reduce_scatter_rgv3_multidim_mesh_tuple_sharding",
    )
}
