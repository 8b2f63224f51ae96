# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The oracle itself: its examples, and what it says to wrong arguments."""

from __future__ import annotations

import doctest

import numpy as np
from absl.testing import absltest, parameterized

from strata_jax import reference
from strata_jax.reference import move, reduce

TWO = [np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]])]


class ReferenceTest(parameterized.TestCase):
    @parameterized.parameters(move, reduce)
    def test_examples_of_the_docstrings(self, module):
        found = doctest.testmod(module, extraglobs={"np": np})
        self.assertEqual(found.failed, 0)
        self.assertGreaterEqual(found.attempted, 2)

    def test_worked_examples(self):
        same = [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
        np.testing.assert_array_equal(reference.all_to_all(TWO, 0, 0), same)
        across = [[[1, 5], [2, 6]], [[3, 7], [4, 8]]]
        np.testing.assert_array_equal(reference.all_to_all(TWO, 0, 1), across)
        wide = [[[1, 2, 5, 6]], [[3, 4, 7, 8]]]
        np.testing.assert_array_equal(reference.all_to_all(TWO, 0, -1, tiled=True), wide)
        parts = reference.reduce_scatter("sum", TWO, 1, tiled=True)
        np.testing.assert_array_equal(parts, [[[6], [10]], [[8], [12]]])
        groups = [[1, 0]]
        np.testing.assert_array_equal(
            reference.all_gather(TWO, groups=groups), [np.stack(TWO[::-1])] * 2
        )
        np.testing.assert_array_equal(reference.pbroadcast(TWO, 0, groups), [TWO[1]] * 2)

    def test_results_are_new_arrays(self):
        for results in (
            reference.all_gather(TWO, tiled=True, groups=[[0], [1]]),
            reference.reduce_scatter("max", TWO, tiled=True, groups=[[0], [1]]),
            reference.ppermute(TWO, [(0, 0), (1, 1)]),
            reference.pbroadcast(TWO, 0),
        ):
            for result in results:
                self.assertFalse(any(np.shares_memory(result, shard) for shard in TWO))

    @parameterized.named_parameters(
        ("unlike", lambda: reference.all_gather([TWO[0], TWO[0][0]]), "different shapes"),
        ("none", lambda: reference.ppermute([], []), "different shapes"),
        ("missing", lambda: reference.all_gather(TWO, groups=[[0]]), "must hold each rank"),
        ("sizes", lambda: reference.all_gather(TWO * 2, groups=[[0], [1, 2, 3]]), "one size"),
        ("axis", lambda: reference.all_gather(TWO, axis=3), "axis is 3, but the array has 3"),
        ("uneven", lambda: reference.all_to_all(TWO * 2, 0, 0, tiled=True), "a multiple of the 4"),
        ("unequal", lambda: reference.reduce_scatter("sum", TWO * 2), "equal to the 4 ranks"),
        ("twice", lambda: reference.ppermute(TWO, [(0, 1), (1, 1)]), "each destination"),
        ("nobody", lambda: reference.ppermute(TWO, [(2, 1)]), "each source"),
        ("source", lambda: reference.pbroadcast(TWO, 2), "source is 2, but a group has 2"),
        ("slices", lambda: reference.ragged_all_to_all(TWO, TWO, *[[np.arange(3)] * 2] * 4), "3 "),
    )
    def test_wrong_arguments(self, call, message):
        with self.assertRaisesRegex(ValueError, message):
            call()


if __name__ == "__main__":
    absltest.main()
