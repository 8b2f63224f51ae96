# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Replica groups in every form, against XLA: its own all-reduce runs with the same lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl.testing import absltest, parameterized

import hlo_programs as programs
import strata_jax
from strata_jax import _compat
from strata_jax.hlo import schema
from strata_jax.hlo.groups import GroupCache, replica_groups

_NUM_DEVICES = programs.NUM_DEVICES
_FORMS = (
    "replica_groups",
    "collective_device_list",
    "iota_collective_device_list",
    "mesh_axes_replica_group_list",
)
_Fill = Callable[[Any], None]


def _in_mesh(
    sizes: Sequence[int],
    axes: Sequence[Sequence[int]],
    device_ids: Sequence[int] = (),
    iota: tuple[Sequence[int], Sequence[int]] | None = None,
) -> _Fill:
    """Each of `axes` is (index,) or, for a sub-axis, (index, pre_size, size)."""

    def fill(instruction: Any) -> None:
        groups = instruction.mesh_axes_replica_group_list
        for index, size in enumerate(sizes):
            groups.mesh.axes.add(name=f"a{index}", size=size)
        groups.mesh.device_ids.extend(device_ids)
        if iota is not None:
            groups.mesh.iota_transform.reshape_dims.extend(iota[0])
            groups.mesh.iota_transform.transpose_perm.extend(iota[1])
        for index, *sub_axis in axes:
            reference = groups.axes.add(mesh_axis_index=index)
            if sub_axis:
                reference.sub_axis_info.pre_size, reference.sub_axis_info.size = sub_axis

    return fill


def _in_iota(dims: Sequence[int], perm: Sequence[int], num_groups: int) -> _Fill:
    def fill(instruction: Any) -> None:
        groups = instruction.iota_collective_device_list
        groups.num_replica_groups = num_groups
        groups.num_devices_per_group = _NUM_DEVICES // num_groups
        groups.iota_reshape_dims.extend(dims)
        groups.iota_transpose_perm.extend(perm)

    return fill


def _in_list(lists: Sequence[Sequence[int]], deprecated: bool = False) -> _Fill:
    def fill(instruction: Any) -> None:
        place = instruction if deprecated else instruction.collective_device_list
        for ids in lists:
            place.replica_groups.add(replica_ids=ids)

    return fill


def _read(fill: _Fill) -> tuple[tuple[int, ...], ...]:
    instruction = schema.HloInstructionProto()
    fill(instruction)
    return replica_groups(instruction, _NUM_DEVICES)


class GroupsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("list", _in_list([[0, 3, 5, 6], [1, 2, 4, 7]])),
        ("uneven_list", _in_list([[0, 3, 5], [1, 2, 4, 6, 7]])),
        ("deprecated_list", _in_list([[7, 0], [1, 2], [3, 4], [6, 5]], deprecated=True)),
        ("mesh_outer", _in_mesh([2, 4], [(0,)])),
        ("mesh_inner", _in_mesh([2, 4], [(1,)])),
        ("mesh_both", _in_mesh([2, 4], [(1,), (0,)])),
        ("mesh_axis_of_one", _in_mesh([2, 1, 4], [(1,), (2,)])),
        ("sub_axis_first", _in_mesh([2, 4], [(1, 1, 2)])),
        ("sub_axis_last", _in_mesh([2, 4], [(1, 2, 2)])),
        ("axis_and_sub_axis", _in_mesh([2, 4], [(0,), (1, 2, 2)])),
        ("sub_axis_in_the_middle", _in_mesh([8], [(0, 2, 2)])),
        ("two_sub_axes", _in_mesh([8], [(0, 4, 2), (0, 1, 2)])),
        ("mesh_device_ids", _in_mesh([2, 4], [(0,)], device_ids=[7, 6, 5, 4, 2, 3, 0, 1])),
        ("mesh_iota", _in_mesh([2, 4], [(0,)], iota=([4, 2], [1, 0]))),
        ("mesh_iota_three", _in_mesh([2, 4], [(1,)], iota=([2, 2, 2], [2, 0, 1]))),
        ("iota", _in_iota([8], [0], 4)),
        ("iota_no_perm", _in_iota([8], [], 2)),
        ("iota_transposed", _in_iota([4, 2], [1, 0], 2)),
        ("iota_three", _in_iota([2, 2, 2], [1, 2, 0], 4)),
    )
    def test_members_as_xla_sees_them(self, fill: _Fill) -> None:
        parsed: list[Any] = []

        def replace_groups(data: bytes) -> bytes | None:
            module = programs.parse(data)
            for instruction in programs.instructions(module):
                if instruction.opcode == "all-reduce":
                    for form in _FORMS:
                        instruction.ClearField(form)
                    fill(instruction)
                    parsed.append(replica_groups(instruction, _NUM_DEVICES))
            return module.SerializeToString() if parsed else None

        psum = programs.sharded(lambda v: jax.lax.psum(v, "i"), check_vma=False)
        jax.clear_caches()
        _compat.register_hlo_transform("strata_jax_groups_test", replace_groups)
        try:
            # A power of two for each device: the sum tells its members.
            with strata_jax.disabled():  # where another test switched it on
                sums = np.asarray(psum((1 << np.arange(_NUM_DEVICES)).astype(np.float32)))
        finally:
            _compat.clear_hlo_transform("strata_jax_groups_test")
        self.assertLen(parsed, 1)
        for device, value in enumerate(sums):
            members = [d for d in range(_NUM_DEVICES) if int(value) >> d & 1]
            group = next(g for g in parsed[0] if device in g)
            self.assertEqual(sorted(group), members)

    def test_list_keeps_rank_order(self) -> None:
        self.assertEqual(_read(_in_list([[6, 0], [3, 1, 2]])), ((6, 0), (3, 1, 2)))

    def test_mesh_ranks_follow_the_listed_axes(self) -> None:
        self.assertEqual(_read(_in_mesh([2, 4], [(0,), (1,)])), (tuple(range(8)),))
        self.assertEqual(_read(_in_mesh([2, 4], [(1,), (0,)])), ((0, 4, 1, 5, 2, 6, 3, 7),))
        self.assertEqual(_read(_in_mesh([8], [(0, 4, 2), (0, 1, 2)])), ((0, 4, 1, 5), (2, 6, 3, 7)))

    def test_iota_ranks_follow_the_transpose(self) -> None:
        self.assertEqual(_read(_in_iota([4, 2], [1, 0], 2)), ((0, 2, 4, 6), (1, 3, 5, 7)))

    def test_mesh_device_ids_are_partitions(self) -> None:
        self.assertEqual(
            _read(_in_mesh([2, 4], [(0,)], device_ids=[7, 6, 5, 4, 2, 3, 0, 1])),
            ((7, 2), (6, 3), (5, 0), (4, 1)),
        )

    def test_no_list_is_all(self) -> None:
        self.assertEqual(_read(lambda instruction: None), (tuple(range(8)),))

    def test_ids_are_python_integers(self) -> None:
        self.assertIs(type(_read(_in_iota([8], [0], 4))[0][0]), int)

    def test_cache_tells_forms_and_contents_apart(self) -> None:
        cache: GroupCache = {}
        fills = (
            _in_list([[0, 1], [2, 3]]),
            _in_list([[1, 0], [2, 3]]),
            _in_iota([8], [0], 4),
            _in_iota([8], [0], 2),
            _in_mesh([2, 4], [(0,)]),
        )
        for fill in fills * 2:
            instruction = schema.HloInstructionProto()
            fill(instruction)
            self.assertEqual(replica_groups(instruction, _NUM_DEVICES, cache), _read(fill))
        self.assertLen(cache, len(fills))

    def test_contradiction(self) -> None:
        with self.assertRaises(ValueError):
            _read(_in_iota([3], [0], 2))


if __name__ == "__main__":
    absltest.main()
