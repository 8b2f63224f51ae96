# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""A plain numpy oracle of the collectives: slow, obvious, and bit-exact.

Tests compare against it, and so can a user who doubts a result. It holds all ranks' data in one
process, one array a rank in and one out, and needs neither JAX nor devices.
"""

from strata_jax.reference.move import all_gather as all_gather
from strata_jax.reference.move import all_to_all as all_to_all
from strata_jax.reference.move import pbroadcast as pbroadcast
from strata_jax.reference.move import ppermute as ppermute
from strata_jax.reference.move import ragged_all_to_all as ragged_all_to_all
from strata_jax.reference.reduce import KINDS as KINDS
from strata_jax.reference.reduce import all_reduce as all_reduce
from strata_jax.reference.reduce import reduce_scatter as reduce_scatter
