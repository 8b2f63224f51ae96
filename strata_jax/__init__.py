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
from strata_jax.collectives import pmax as pmax
from strata_jax.collectives import pmean as pmean
from strata_jax.collectives import pmin as pmin
from strata_jax.collectives import psum as psum
from strata_jax.fabric import disabled as disabled
from strata_jax.fabric import init as init
from strata_jax.fabric import shutdown as shutdown
from strata_jax.stats import stats as stats
