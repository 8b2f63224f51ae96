# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Zero-copy collectives for JAX on memory fabrics.

Importing changes nothing; `strata_jax.init()` does. See README.md.
"""

from strata_jax._version import __version__ as __version__
from strata_jax.collectives import pmax as pmax
from strata_jax.collectives import pmean as pmean
from strata_jax.collectives import pmin as pmin
from strata_jax.collectives import psum as psum
from strata_jax.fabric import disabled as disabled
from strata_jax.fabric import init as init
from strata_jax.fabric import shutdown as shutdown
from strata_jax.stats import stats as stats
