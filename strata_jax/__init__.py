# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Zero-copy collectives for JAX on memory fabrics.

Importing changes nothing; `strata_jax.init()` does. See README.md.
"""

try:
    from strata_jax import _core as _core
except ImportError as error:
    raise ImportError(
        f"strata_jax has no compiled module in {__path__[0]}: {error}. A checkout shadows the "
        f"installed package when Python is started in its folder; start it elsewhere, or install "
        f"the package with `pip install .` first"
    ) from error

from strata_jax._version import __version__ as __version__
from strata_jax.collectives.all_gather import all_gather as all_gather
from strata_jax.collectives.all_reduce import pmax as pmax
from strata_jax.collectives.all_reduce import pmean as pmean
from strata_jax.collectives.all_reduce import pmin as pmin
from strata_jax.collectives.all_reduce import psum as psum
from strata_jax.collectives.all_to_all import all_to_all as all_to_all
from strata_jax.collectives.permute import pbroadcast as pbroadcast
from strata_jax.collectives.permute import ppermute as ppermute
from strata_jax.collectives.permute import pshuffle as pshuffle
from strata_jax.collectives.ragged_all_to_all import ragged_all_to_all as ragged_all_to_all
from strata_jax.collectives.reduce_scatter import psum_scatter as psum_scatter
from strata_jax.fabric import disabled as disabled
from strata_jax.fabric import init as init
from strata_jax.fabric import shutdown as shutdown
from strata_jax.stats import stats as stats
