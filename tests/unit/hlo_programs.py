# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Real modules for the tests of the compile hook: what XLA hands to it for small JAX programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _hlo
from jaxlib.mlir import ir

import strata_jax
from strata_jax import _compat
from strata_jax.hlo import find, rewrite, schema
from strata_jax.hlo.counters import Counters
from strata_jax.hlo.operations import ALL_REDUCE, BY_TARGET

NUM_DEVICES = 8
TYPES = {name: number for name, (number, _) in schema.PRIMITIVE_TYPES.items()}
if jax.config.jax_num_cpu_devices < NUM_DEVICES:
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)

_TRANSFORM = "strata_jax_test"


def mesh(*sizes: int) -> jax.sharding.Mesh:
    """Return a mesh of the 8 devices with axes i, j, ... of the given sizes (default: i of 8)."""
    sizes = sizes or (NUM_DEVICES,)
    names = tuple("ijk"[: len(sizes)])
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def with_mark(data: bytes, value: str = "on, test") -> bytes:
    """Return the module as one that our lowering has marked."""
    module = schema.HloModuleProto.FromString(data)
    kept = [entry for entry in module.frontend_attributes.map if entry.key != rewrite.MARK]
    del module.frontend_attributes.map[:]
    module.frontend_attributes.map.extend(kept)
    module.frontend_attributes.map.add(key=rewrite.MARK, value=value)
    return module.SerializeToString()


def capture(function: Any, *args: Any) -> bytes:
    """Return the module that the compile hook sees for a jitted function, marked as ours.

    The compilation may fail afterwards, as it does for a call whose handler is not registered.
    """
    seen: list[bytes] = []
    jax.clear_caches()  # else a program that was compiled before does not reach the hook
    with strata_jax.disabled():  # where another test switched it on: its hook would come first
        lowered = function.lower(*args)
    _compat.register_hlo_transform(_TRANSFORM, lambda data: seen.append(data))
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError:
        if not seen:
            raise
    finally:
        _compat.clear_hlo_transform(_TRANSFORM)
    return with_mark(seen[-1])


@functools.cache
def captured(name: str) -> bytes:
    """Return the module of one of `programs()`."""
    function, args = ALL[name]
    return capture(function, *args)


def compile_rewritten(function: Any, *args: Any, **options: Any) -> str:
    """Compile through the hook; return XLA's complaint, "" if there is none.

    Verifier and all later passes run. Without a handler the complaint is that there is none.
    """
    rewrite_marked = hook(**options)
    changed: list[bool] = []

    def callback(data: bytes) -> bytes | None:
        result = rewrite_marked(with_mark(data))
        changed.append(result is not None)
        return result

    jax.clear_caches()
    with strata_jax.disabled():  # where another test switched it on: its hook would come first
        lowered = function.lower(*args)
    _compat.register_hlo_transform(_TRANSFORM, callback)
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    finally:
        _compat.clear_hlo_transform(_TRANSFORM)
    if not any(changed):
        raise AssertionError("the hook changed nothing")
    return ""


def hook(
    strict: bool = False, hosts: Sequence[int] = (0,), counters: Counters | None = None
) -> Callable[[bytes], bytes | None]:
    """Return the compile hook, raising what it would only count."""
    counters = counters or Counters()

    def callback(data: bytes) -> bytes | None:
        return rewrite.rewrite(data, strict=strict, hosts=hosts, counters=counters)

    return callback


def rewritten(data: bytes, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return the module after the hook, None if unchanged, and the counters."""
    counters = Counters()
    result = hook(counters=counters, **options)(data)
    return None if result is None else parse(result), counters.snapshot()


def devices_of(num_devices: int) -> Any:
    """Let so many devices of this process be those of a process, for what asks for their hosts."""
    return mock.patch.object(find, "PROCESS_SHIFT", num_devices.bit_length() - 1)


def only(module: Any, computation: int) -> Any:
    """Return a module with one of the computations."""
    part = schema.HloModuleProto()
    part.computations.extend(c for c in module.computations if c.id == computation)
    return part


def parse(data: bytes) -> Any:
    """Return the module as our subset of the proto."""
    return schema.HloModuleProto.FromString(data)


def text(data: bytes) -> str:
    """Return XLA's text of a module, which also is a check that XLA can read it."""
    return _hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()


def instructions(module: Any) -> list[Any]:
    """Return all instructions of a module in order."""
    return [i for computation in module.computations for i in computation.instructions]


def calls(module: Any) -> list[Any]:
    """Return the Strata calls of a module in order."""
    return [
        i
        for i in instructions(module)
        if i.opcode == "custom-call" and i.custom_call_target in BY_TARGET
    ]


def attributes_of(call: Any) -> dict[str, Any]:
    """Return the attributes of a call as MLIR reads them, as XLA does."""
    values: dict[str, Any] = {}
    with ir.Context():
        for entry in ir.DictAttr(ir.Attribute.parse(call.backend_config.decode())):
            attribute = entry.attr
            if isinstance(attribute, ir.DenseI64ArrayAttr):
                values[entry.name] = list(attribute)
            else:
                values[entry.name] = attribute.value
    return values


def sharded(function: Callable[..., Any], **options: Any) -> Any:
    """Return a jitted shard_map over the 8 devices."""
    options = {"mesh": mesh(), "in_specs": P("i"), "out_specs": P("i"), **options}
    return jax.jit(jax.shard_map(function, **options))


def lowered_all_reduce(x: Any, *, kind: int = 0, groups: Any = (tuple(range(8)),)) -> Any:
    """Emit what our lowering writes for an all-reduce."""
    flat = np.array([i for group in groups for i in group], np.int64)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(ALL_REDUCE.target, shape)
    return call(
        x,
        kind=np.int64(kind),
        groups=flat,
        group_size=np.int64(len(groups[0])),
        in_axis=np.int64(-1),
        out_axis=np.int64(-1),
    )


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    """Return an array of ones."""
    return jnp.ones(shape or (8, 16), dtype)


def _loops(x: jax.Array) -> jax.Array:
    x = jax.lax.fori_loop(0, 3, lambda _, v: jax.lax.psum(v, "i") * 0.1, x)
    x, _ = jax.lax.scan(lambda v, _: (jax.lax.pmax(jnp.sin(v), "i"), None), x, length=4)
    return jax.lax.cond(
        x.sum() > 0, lambda v: jax.lax.psum(v, "i"), lambda v: jax.lax.pmin(v * 2, "i"), x
    )


def _many(x: jax.Array) -> Any:
    return [jax.lax.psum(x * k, "i") for k in range(6)] + [
        jax.lax.psum((x * k).astype(np.int32), "i") for k in range(3)
    ]


def _callback_beside(x: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.lax.psum(x, "i") + jax.pure_callback(np.sin, shape, x)


def _partly_manual() -> Any:
    axes = mesh(2, 4)
    inner = jax.shard_map(
        lambda v: jax.lax.psum(v, "i"),
        mesh=axes,
        in_specs=P("i"),
        out_specs=P(),
        axis_names={"i"},
    )
    return jax.jit(inner, in_shardings=NamedSharding(axes, P("i", "j")))


def _auto() -> Any:
    axes = mesh(2, 4)
    rows, columns = NamedSharding(axes, P("i", "j")), NamedSharding(axes, P("j"))
    whole = NamedSharding(axes, P())
    return jax.jit(
        lambda a, b: (a @ b, a.max(), a.min(1), jnp.any(a > 3), jnp.prod(a)),
        in_shardings=(rows, columns),
        out_shardings=(whole,) * 5,
    )


def _ragged(*operands: jax.Array) -> jax.Array:
    return jax.lax.ragged_all_to_all(*operands, axis_name="i")


def _resharded() -> Any:
    rows, columns = NamedSharding(mesh(), P("i")), NamedSharding(mesh(), P(None, "i"))
    return jax.jit(lambda v: v * 2, in_shardings=rows, out_shardings=columns)


def programs() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return name -> (jitted function, arguments): their collectives can all become calls."""
    x = ones()

    def psum(v: jax.Array) -> jax.Array:
        return jax.lax.psum(v, "i")

    groups = [[0, 3, 5, 6], [1, 2, 4, 7]]
    uneven = [[0, 1, 2, 3, 4, 5], [7, 6]]
    return {
        "psum": (sharded(psum, out_specs=P()), (x,)),
        "psum unchecked": (sharded(psum, check_vma=False), (x,)),
        "pmax": (sharded(lambda v: jax.lax.pmax(v, "i"), out_specs=P()), (x,)),
        "pmin": (sharded(lambda v: jax.lax.pmin(v, "i"), out_specs=P()), (x,)),
        "loops": (sharded(_loops, check_vma=False), (x,)),
        "many": (sharded(_many, out_specs=P()), (x,)),
        "tree": (sharded(lambda *v: jax.lax.psum(v, "i"), out_specs=P()), (x, x, ones(8))),
        "axis_index_groups": (
            sharded(lambda v: jax.lax.psum(v, "i", axis_index_groups=groups), check_vma=False),
            (x,),
        ),
        "uneven groups": (
            sharded(lambda v: jax.lax.pmax(v, "i", axis_index_groups=uneven), check_vma=False),
            (x,),
        ),
        "bfloat16": (sharded(psum, out_specs=P()), (ones(dtype=jnp.bfloat16),)),
        "float16": (sharded(psum, out_specs=P()), (ones(dtype=np.float16),)),
        "int32": (sharded(psum, out_specs=P()), (ones(dtype=np.int32),)),
        "bool": (sharded(lambda v: jax.lax.pmax(v, "i"), out_specs=P()), (ones(dtype=bool),)),
        "complex64": (sharded(psum, out_specs=P()), (ones(dtype=np.complex64),)),
        "two axes": (
            sharded(
                lambda v: jax.lax.psum(v, ("j", "i")) + jax.lax.psum(v, "j"),
                mesh=mesh(2, 4),
                in_specs=P(("i", "j")),
                out_specs=P(("i", "j")),
                check_vma=False,
            ),
            (x,),
        ),
        "gradient": (
            sharded(
                jax.grad(lambda w, v: psum(jnp.sin(v @ w)).sum()),
                in_specs=(P(), P("i")),
                out_specs=P(),
            ),
            (ones(16, 4), x),
        ),
        "host callback": (sharded(_callback_beside, check_vma=False), (x,)),
        "partly manual": (_partly_manual(), (x,)),
        "auto": (_auto(), (ones(8, 32), ones(32, 4))),
        "all_gather": (sharded(lambda v: jax.lax.all_gather(v, "i"), check_vma=False), (x,)),
        "all_gather of the minor axis": (
            sharded(lambda v: jax.lax.all_gather(v, "i", axis=1, tiled=True), check_vma=False),
            (ones(16, 16),),
        ),
        "psum_scatter": (
            sharded(lambda v: jax.lax.psum_scatter(v, "i", tiled=True), check_vma=False),
            (ones(64, 16),),
        ),
        "all_to_all": (
            sharded(lambda v: jax.lax.all_to_all(v, "i", 0, 1, tiled=True), check_vma=False),
            (ones(64, 16),),
        ),
        "ppermute": (
            sharded(lambda v: jax.lax.ppermute(v, "i", [(0, 1), (3, 2), (1, 0)]), check_vma=False),
            (x,),
        ),
        "ragged_all_to_all": (
            sharded(_ragged, check_vma=False),
            (ones(64, 4), jnp.zeros((128, 4), np.float32), *[jnp.ones(64, np.int32)] * 4),
        ),
        "resharded": (_resharded(), (ones(64, 64),)),
        "pmap": (jax.pmap(psum, axis_name="i"), (x,)),
    }


ALL = programs()

# Those around whose collectives something is taken away.
ABSORBED = ("bfloat16", "all_gather of the minor axis", "all_to_all", "auto", "resharded")
