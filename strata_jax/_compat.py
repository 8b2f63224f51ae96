# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""The only file that looks at JAX versions or touches JAX's private modules."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxlib
from absl import logging
from jax import lax
from jax._src import clusters, distributed, xla_bridge
from jax._src.interpreters import ad, batching, mlir
from jax._src.lax import parallel
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.sharding_impls import SPMDAxisContext
from jaxlib import _jax, _xla

# The window that is tested; DONATION_SINCE is the first release whose compile hook keeps donation.
OLDEST = (0, 10, 2)
NEWEST_TESTED = (0, 12, 0)
DONATION_SINCE = (0, 11, 0)

# Stage of the compile hook: before scheduling, in xla/service/xla_transform.h.
_PRE_SCHEDULER = 0

_launched = False  # register_launched_cluster() was called

ALLOCATOR_LIBRARY = "libjax_common.so"


def version_tuple(version: str) -> tuple[int, int, int]:
    """Returns the first three numbers of a version, e.g. (0, 12, 0) of "0.12.0.1"."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:3]]
    return cast("tuple[int, int, int]", tuple(numbers + [0] * (3 - len(numbers))))


JAX_VERSION = version_tuple(jax.__version__)


def donation_survives_hook() -> bool:
    """Whether a program that the hook changed still donates its buffers."""
    return JAX_VERSION >= DONATION_SINCE


def check_window(
    jax_version: str = jax.__version__, jaxlib_version: str = jaxlib.__version__
) -> None:
    """Raises for a JAX that is too old, logs a warning for one that is newer than tested."""
    for name, version in (("jax", jax_version), ("jaxlib", jaxlib_version)):
        if version_tuple(version) < OLDEST:
            raise RuntimeError(
                f"strata_jax needs {name} {'.'.join(map(str, OLDEST))} or newer, found {version}; "
                f"run: pip install --upgrade jax jaxlib"
            )
        if version_tuple(version) > NEWEST_TESTED:
            logging.warning(
                "strata_jax is tested up to %s %s, found %s; if results or compilation look "
                "wrong, pin %s or file an issue",
                name,
                ".".join(map(str, NEWEST_TESTED)),
                version,
                name,
            )


def running_ffi_api_version() -> tuple[int, int]:
    """Returns the FFI API version of the installed jaxlib, read from the header that it ships."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return int(found["MAJOR"]), int(found["MINOR"])


def register_ffi(
    types: dict[str, dict[str, object]], targets: dict[str, dict[str, object]]
) -> None:
    """Registers state types and handlers for CPU, at any time.

    Types go to jaxlib directly: until a backend exists jax.ffi queues both and flushes targets
    before types, which XLA refuses.
    """
    for name, capsules in types.items():
        _jax.register_custom_type(name, capsules)
    for name, stages in targets.items():
        jax.ffi.register_ffi_target(name, stages, platform="cpu")


def register_hlo_transform(name: str, callback: Callable[[bytes], bytes | None]) -> None:
    """Registers the compile hook. Not through jax.extend, which starts all backends."""
    _xla.register_xla_transform(name, _PRE_SCHEDULER, callback)


def clear_hlo_transform(name: str) -> None:
    """Removes the compile hook."""
    _xla.clear_xla_transform(name, _PRE_SCHEDULER)


def launched_as_distributed() -> bool:
    """Whether jax.distributed.initialize() was called."""
    return distributed.global_state.client is not None


def distributed_process_index() -> int:
    """Returns the index of this process in the jax.distributed job, 0 without one."""
    return int(distributed.global_state.process_id or 0)


def distributed_num_processes() -> int:
    """Returns the number of processes of the jax.distributed job, 1 without one."""
    return int(distributed.global_state.num_processes or 1)


def distributed_client() -> Any:
    """Returns the client of the coordination service, with its key-value store."""
    return distributed.global_state.client


def try_get(client: Any, key: str, timeout_s: float) -> str | None:
    """Returns a value of the key-value store, None if it is not there in time."""
    try:
        return str(client.blocking_key_value_get(key, int(1000 * timeout_s)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def has_backend() -> bool:
    """Whether JAX has looked for devices. Doing so waits for all processes of the job."""
    return bool(xla_bridge.backends_are_initialized())


def coordinator_process_index() -> int:
    """Returns the index of the process that holds the coordination service; -1: the launcher."""
    launcher = os.environ.get("JAX_COORDINATOR_ADDRESS") if _launched else None
    return -1 if distributed.global_state.coordinator_address == launcher else 0


def at_distributed_shutdown(may_shut_down: Callable[[], bool]) -> None:
    """Calls a function when JAX, at exit, is about to leave the job: its programs have ended then.

    Where it returns false JAX does not leave, as that would wait for processes that are dead: what
    it would have ended stays as it is, and ends with this process.
    """
    state = distributed.global_state
    shutdown = state.shutdown

    def ask_and_shut_down() -> None:
        if may_shut_down():
            shutdown()
            return
        for held in (state.preemption_sync_manager, state.client, state.service):
            # For ever: the last reference would do what shutdown() does.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

    state.shutdown = ask_and_shut_down  # type: ignore[method-assign]


def start_coordination_service(address: str, num_processes: int) -> Any:
    """Starts JAX's coordination service in this process, which is not one of the job's.

    Where process 0 holds it, as by default, all others abort when process 0 dies. Recoverable: a
    process that dies does not take the others with it, and nobody waits for it at the end.

    Args:
        address: host and port; a port that is taken crashes this process.
        num_processes: processes of the job.

    Returns:
        The service; it ends with `shutdown()`.
    """
    return _jax.get_distributed_runtime_service(address, num_processes, recoverable=True)


def register_launched_cluster() -> None:
    """Lets a bare `jax.distributed.initialize()` find its arguments in the environment.

    JAX reads the coordinator's address from there, but not the number of processes and the index
    of this one, which it asks of a known kind of cluster.
    """
    global _launched

    class LaunchedCluster(clusters.ClusterEnv):
        name = "strata_jax"

        @classmethod
        def is_env_present(cls) -> bool:
            return {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} <= os.environ.keys()

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: int | None, override_coordinator_port: str | None
        ) -> str:
            del timeout_secs, override_coordinator_port
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

    # The first that is present counts; the launcher may run inside a job of another kind.
    _launched = True
    clusters.ClusterEnv._cluster_types.remove(LaunchedCluster)
    clusters.ClusterEnv._cluster_types.insert(0, LaunchedCluster)
    # A warning that proxies may be in the way; the launcher has exempted the service from them.
    jax.config.update("jax_check_proxy_envs", False)


class ModuleInfo:
    """What the mark needs to know of a module that JAX is about to lower."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.for_cpu = "cpu" in kwargs["platforms"]
        self.for_export = bool(kwargs["lowering_parameters"].for_export)
        self.donates = any(kwargs["donated_args"])


def wrap_lowering(
    around: Callable[[ModuleInfo], contextlib.AbstractContextManager[dict[str, str]]],
) -> None:
    """Wraps the lowering of every module, for good.

    Args:
        around: enters before a module is lowered; the frontend attributes that it yields are put on
            the module, where the compile hook and the compilation cache's key see them.
    """
    lower = mlir.lower_jaxpr_to_module

    def lower_and_mark(*args: Any, **kwargs: Any) -> Any:
        with around(ModuleInfo(kwargs)) as attributes:
            result = lower(*args, **kwargs)
        if attributes:
            with result.module.context:
                operation = result.module.operation
                values: dict[str, ir.Attribute] = {}
                if "mhlo.frontend_attributes" in operation.attributes:
                    old: Any = ir.DictAttr(operation.attributes["mhlo.frontend_attributes"])
                    values.update((entry.name, entry.attr) for entry in old)
                values.update((name, ir.StringAttr.get(text)) for name, text in attributes.items())
                operation.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(values)
        return result

    mlir.lower_jaxpr_to_module = lower_and_mark


# The primitives of all-reduce by the kind that they reduce with.
ALL_REDUCE_PRIMITIVES = {
    parallel.psum_p: "sum",
    parallel.psum_invariant_p: "sum",
    parallel.pmax_p: "max",
    parallel.pmin_p: "min",
}

ALL_GATHER_PRIMITIVES = (
    parallel.all_gather_p,
    parallel.all_gather_invariant_p,
    parallel.all_gather_reduced_p,
)
REDUCE_SCATTER_PRIMITIVES = (parallel.reduce_scatter_p, parallel.unreduced_reduce_scatter_p)
ALL_TO_ALL_PRIMITIVE = parallel.all_to_all_p
PPERMUTE_PRIMITIVE = parallel.ppermute_p
PBROADCAST_PRIMITIVE = parallel.pbroadcast_p
RAGGED_ALL_TO_ALL_PRIMITIVE = parallel.ragged_all_to_all_p

LoweringRule = Callable[..., Sequence[Any]]

# JAX's lowering of a broadcast, which it registers for GPUs alone.
lower_pbroadcast: LoweringRule = parallel._pbroadcast_lowering


def install_pbroadcast_start() -> None:
    """Gives the start of an asynchronous `pbroadcast` (jax 0.10) JAX's lowering for GPUs on CPU."""
    primitive = getattr(parallel, "pbroadcast_start_p", None)
    if primitive is not None:
        rule = parallel._start_lowering(parallel._pbroadcast_lowering)
        mlir.register_lowering(primitive, rule, platform="cpu")


def override_cpu_lowering(
    primitive: Any,
    rule: Callable[[LoweringRule], LoweringRule],
    *,
    original: LoweringRule | None = None,
) -> None:
    """Puts `rule(original)` in front of a primitive's lowering on CPU, for good.

    Args:
        primitive: the primitive.
        rule: makes the new rule from the old one.
        original: the old one; None for that which JAX has for any platform.
    """
    if original is None:
        original = mlir._lowerings[primitive].rule
    mlir.register_lowering(primitive, rule(original), platform="cpu")


def manual_replica_groups(
    ctx: Any, axis_name: Any, axis_index_groups: Any
) -> list[list[int]] | None:
    """Returns the replica groups over named axes, None outside a fully manual region."""
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, SPMDAxisContext):
        return None
    if set(axis_context.manual_axes) != set(axis_context.mesh.axis_names):
        return None
    axes = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if any(isinstance(axis, int) for axis in axes):
        return None
    groups = parallel._replica_groups(axis_context, axes, axis_index_groups)
    return [list(map(int, group)) for group in groups]


def mesh_device_ids(ctx: Any) -> list[int] | None:
    """Returns the global device id of each partition of a manual region.

    None for an `AbstractMesh`, whose devices are known only later if not from `jax.set_mesh`.
    """
    mesh = ctx.module_context.axis_context.mesh
    if not isinstance(mesh, jax.sharding.Mesh):
        return None
    return [int(device.id) for device in mesh.devices.flat]


def permutation_pairs(ctx: Any, axis_name: Any, perm: Any) -> list[list[int]]:
    """Returns (source, target) partitions of a `ppermute`; raises as JAX for a bad `perm`."""
    pairs, _ = parallel._pcollectives_lowering_common(
        ctx, axis_name=axis_name, perm=perm, op_name="ppermute"
    )
    return [[int(source), int(target)] for source, target in pairs]


def reshape(ctx: Any, value: Any, aval: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """Returns a value while it is lowered, and its aval, in another shape."""
    aval = aval.update(shape=tuple(shape))
    return hlo.reshape(mlir.aval_to_ir_type(ctx.module_context, aval), value), aval


_ragged = RAGGED_ALL_TO_ALL_PRIMITIVE
_batch_ragged_alike = batching.fancy_primitive_batchers[_ragged]
_batch_pbroadcast_apart = batching.fancy_primitive_batchers[PBROADCAST_PRIMITIVE]


def fix_rules() -> None:
    """Puts right the gradients and batching of collectives that JAX has wrong, for good.

    Each rule below is as JAX has it (jax/_src/lax/parallel.py, 0.10.2 to 0.12.0.1) but for the
    fault named.
    """
    ad.primitive_transposes[_ragged] = _transpose_ragged
    batching.fancy_primitive_batchers[_ragged] = _batch_ragged
    ad.deflinear2(ALL_TO_ALL_PRIMITIVE, _transpose_all_to_all)
    ad.deflinear2(PBROADCAST_PRIMITIVE, _transpose_pbroadcast)
    batching.fancy_primitive_batchers[PBROADCAST_PRIMITIVE] = _batch_pbroadcast


def _transpose_all_to_all(
    cotangent: Any, operand: Any, *, split_axis: int, concat_axis: int, **params: Any
) -> tuple[Any]:
    """Sends the parts back.

    JAX goes through `all_to_all` again, which inserts an axis where the first call was not tiled;
    but the primitive is tiled always.
    """
    del operand
    result = ALL_TO_ALL_PRIMITIVE.bind(
        cotangent, split_axis=concat_axis, concat_axis=split_axis, **params
    )
    return (result,)


def _transpose_pbroadcast(
    cotangent: Any, operand: Any, *, axis_name: Any, source: int
) -> tuple[Any]:
    """Gives the source the sum of the cotangents. JAX fills an array with an array, which fails."""
    del operand
    total = lax.psum(cotangent, axis_name)
    is_source = lax.axis_index(axis_name) == source
    return (jnp.where(is_source, total, lax.full_like(total, 0)),)


def _batch_pbroadcast(
    axis_data: Any, values: Sequence[Any], dims: Sequence[Any], *, axis_name: Any, source: int
) -> tuple[Any, Any]:
    """Repeats the source's member of a batch. JAX indexes with a list, which fails."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if names != (axis_data.name,) or dims[0] is None:
        result: tuple[Any, Any] = _batch_pbroadcast_apart(
            axis_data, values, dims, axis_name=axis_name, source=source
        )
        return result
    member = lax.index_in_dim(values[0], source, dims[0], keepdims=False)
    return jnp.broadcast_to(member, (axis_data.size, *member.shape)), 0


def _transpose_ragged(
    cotangent: Any,
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
) -> list[Any]:
    """Sends the rows back; the cotangent of `output` is zero where rows were written.

    JAX marks the first row of each slice with 1 and the row after its last with -1, and adds up.
    Where slices begin at one row, as those of no rows do, it marks once but takes away twice. And
    its exchange of the offsets ignores the groups.
    """
    if type(cotangent) is ad.Zero:
        zeros = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in (operand, output)]
        return zeros + [None] * 4
    received_at, sent_from = (
        lax.all_to_all(offsets, axis_name, 0, 0, tiled=True, axis_index_groups=axis_index_groups)
        for offsets in (output_offsets, input_offsets)
    )
    operand_ct = output_ct = None
    if ad.is_undefined_primal(operand):
        operand_ct = _ragged.bind(
            cotangent,
            ad.zeros_like_aval(operand.aval),
            received_at,
            recv_sizes,
            sent_from,
            send_sizes,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
        )
    if ad.is_undefined_primal(output):
        edges = jnp.zeros(cotangent.shape[0] + 1, jnp.int32)
        edges = edges.at[received_at].add(1).at[received_at + recv_sizes].add(-1)
        kept = (jnp.cumsum(edges)[:-1] == 0).reshape(-1, *[1] * (cotangent.ndim - 1))
        kept = jnp.broadcast_to(kept, cotangent.shape)
        output_ct = lax.select(kept, cotangent, lax.full_like(cotangent, 0))
    return [operand_ct, output_ct, None, None, None, None]


def _batch_ragged(
    axis_data: Any, values: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """Gives every member of a batch its own offsets and sizes; JAX fails where they have one."""
    values, dims = list(values), list(dims)
    if axis_data.name not in params["axis_name"] and any(dim is not None for dim in dims):
        for i in range(2, len(values)):
            if dims[i] is None:
                values[i] = lax.broadcast_in_dim(
                    values[i], (*values[i].shape, axis_data.size), (0,)
                )
                dims[i] = 1
    result: tuple[Any, Any] = _batch_ragged_alike(axis_data, values, dims, **params)
    return result
