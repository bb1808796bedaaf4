"""`compile_for`: compiles a function for devices that are not there, and tells what the compiler knows of it."""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ...mesh import create_mesh, set_mesh
from ...mesh._axis_sizes import format_mesh_shape
from ...named._array import NamedArray, is_named_array
from ...partitioning import axis_mapping, current_mapping, shard
from ...partitioning._active_mesh import get_active_mesh
from .._machine._described_devices import DescribedDevice, choose_devices
from .._machine._hardware import get_hardware
from .._program._saved_activations import find_saved_names
from .._program._xla_text import SHARDED_DIMENSION
from ._compile_cache import choose_cache_folder, fingerprint_module, read_cached, write_cached
from ._compiled_program import CompiledProgram, list_parameters, make_traceable
from ._compiler_process import CompileJob, CompileResult, find_versions, run_compiler


_LOWERING_PLATFORMS = {"gpu": "cuda"}  # of the others, the name of the platform
_SHARDING_ATTRIBUTES = ("sdy.sharding", "mhlo.sharding")


def compile_for(
    fn: Any,
    *args: Any,
    devices: str | Sequence[DescribedDevice] | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    mapping: Any = None,
    stop_early: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
    cache: bool | str | os.PathLike[str] = True,
    timeout: float = 3600.0,
) -> CompiledProgram:
    """Compiles a function for devices that are not there; nothing is run.

    The function is traced and lowered here, on a mesh of the described devices, and compiled in a child process by
    libtpu (`axonym[plan-tpu]`) or by XLA's plugin for NVIDIA GPUs (`axonym[plan-gpu]`); for CPUs, by JAX itself. The
    environment of the caller stays as it is, and its `XLA_FLAGS` and `LIBTPU_INIT_ARGS` do not count.

    Args:
        fn: A function of `named_jit`, `fsdp` or `jax.jit`, or a plain function, which `named_jit` compiles.
        args: Its arguments, which may be `jax.ShapeDtypeStruct`s, also in named arrays. Those on a mesh of the same
            axes keep their shardings.
        devices: A description such as `"v5e:16x16"`, or what [`described_devices`][axonym.planner.described_devices]
            returns; None if `mesh` has them.
        mesh: The sizes of the mesh axes by name, or a mesh; None for the active one. With `devices`, a mesh gives the
            sizes and types of the axes.
        mapping: The mapping that is active; named arrays of `args` without a sharding are sharded by it. The active
            mapping if None.
        stop_early: Whether to stop the compiler for TPUs before code generation: seconds instead of minutes. Memory
            and collectives are known then, cycles are not. That for CPUs, whose code tells nothing, always stops.
        compiler_options: Options of XLA by name, as for `jax.jit`. Those of `fn` itself do not count.
        cache: The folder for compiled programs; True for one in the user's folder of caches, False for none. A program
            is compiled again if it, an option or a version has changed.
        timeout: The seconds that the compiler may take.

    Returns:
        The compiled program, which `communication_report` takes.

    Raises:
        TypeError: If `devices` or `mesh` is not one of described devices.
        ValueError: If the mesh does not fit the devices, or the compiler refuses an option.
        ModuleNotFoundError: If the compiler is not installed; the message says how to install it.
        TimeoutError: If the compiler takes too long.
        OSError: If the disk is full.
        RuntimeError: If the compiler fails in another way; too little memory on a device is no error, see
            `CompiledProgram.fits`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.NamedArray(jax.ShapeDtypeStruct((64, 128), "bfloat16"), ("batch", "embed"))
        >>> program = nym.planner.compile_for(
        ...     lambda x: x * 2, x, devices="cpu:64", mesh={"data": 64}, mapping={"batch": "data"}, cache=False
        ... )
        >>> program.memory.argument_bytes, program.fits
        (256, True)
    """
    if not callable(fn):
        raise TypeError(f"`fn` is a function, not a {type(fn).__name__}; pass it before it is lowered or compiled")
    folder = choose_cache_folder(cache)
    described_mesh = _choose_mesh(devices, mesh)
    topology = described_mesh.devices.flat[0].topology
    platform = get_hardware(topology.hardware).platform
    versions = find_versions(topology)
    lowered, arguments, saved_names = _lower_for(
        fn, args, described_mesh, mapping, _LOWERING_PLATFORMS.get(platform, platform)
    )
    module = lowered.compiler_ir()
    argument_shardings, result_shardings = _list_shardings(module)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    job = CompileJob(
        bytecode=bytecode.getvalue(),
        fingerprint=fingerprint_module(module.operation.get_asm(enable_debug_info=True), __file__),
        topology=topology,
        order=tuple(device.id for device in described_mesh.devices.flat),
        # The compiler chooses the shardings that `jax.jit` leaves open.
        free_arguments=tuple(sharding is None for sharding in argument_shardings),
        free_results=tuple(sharding is None or "?" in sharding for sharding in result_shardings),
        compiler_options=dict(compiler_options or {}),
        stop_early=platform == "cpu" or (stop_early and platform == "tpu"),
    )
    result, is_cached = _compile_cached(job, versions, folder, timeout)
    if described_mesh.size > 1 and not any(SHARDED_DIMENSION.search(sharding or "") for sharding in argument_shardings):
        note = "no argument is sharded, so each device may compute all of it; pass `mapping`, or shapes with shardings"
        result = replace(result, notes=(*result.notes, note))
    return CompiledProgram(
        text=result.text,
        memory=result.memory,
        mesh=described_mesh,
        arguments=arguments,
        is_out_of_memory=result.is_out_of_memory,
        is_stopped=result.is_stopped,
        cpu_seconds=result.cpu_seconds,
        is_cached=is_cached,
        versions=versions,
        compiler_options=job.compiler_options,
        log=result.log,
        notes=result.notes,
        saved_names=saved_names,
        parameters=list_parameters(fn, args, len(arguments[0])),
    )


def _compile_cached(
    job: CompileJob, versions: Mapping[str, str], folder: Path | None, timeout: float
) -> tuple[CompileResult, bool]:
    """Returns a compiled program, and whether it is from the cache."""
    if folder is None:
        return run_compiler(job, timeout), False
    if cached := read_cached(folder, job, versions):
        return cached, True
    result = run_compiler(job, timeout)
    try:
        if not result.notes:
            write_cached(folder, job, versions, result)
    except OSError as error:
        result = replace(result, notes=(*result.notes, f"not kept for the next time: {error}"))
    return result, False


def _choose_mesh(devices: Any, mesh: Any) -> Mesh:
    """Returns the mesh of described devices that the arguments of `compile_for` describe."""
    devices = None if devices is None else choose_devices(devices)
    if isinstance(mesh, Mapping):
        if devices is None:
            raise ValueError("`mesh` has only sizes; give `devices` as well, such as 'v5e:16x16'")
        mesh = create_mesh(mesh, devices=devices)
    elif devices is not None:
        mesh = _move_mesh(get_active_mesh() if mesh is None else mesh, devices, is_active=mesh is None)
    elif mesh is None:
        mesh = jax.sharding.get_mesh()
    if not isinstance(mesh, Mesh) or mesh.empty or not isinstance(mesh.devices.flat[0], DescribedDevice):
        raise TypeError(
            "`compile_for` needs a mesh of described devices; give `devices='v5e:16x16', mesh={'data': 256}` or make "
            "one with `create_mesh(..., devices=described_devices(...))`"
        )
    return mesh


def _move_mesh(mesh: Any, devices: Sequence[DescribedDevice], is_active: bool) -> Mesh:
    """Returns a mesh of the same axes on described devices."""
    remedy = f"give the sizes of its axes, as in `mesh={{'data': {len(devices)}}}`"
    if mesh is None:
        raise ValueError(f"`devices` need a mesh, and none is active; {remedy}")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"`mesh` is a mesh or the sizes of its axes by name, not a {type(mesh).__name__}; {remedy}")
    if mesh.size != len(devices):
        raise ValueError(
            f"{'the active mesh' if is_active else '`mesh`'} {format_mesh_shape(mesh.axis_names, mesh.axis_sizes)} has "
            f"{mesh.size} devices, but '{devices[0].topology}' has {len(devices)}; {remedy}"
        )
    return create_mesh(dict(mesh.shape), axis_types=mesh.axis_types, devices=devices)


def _lower_for(fn: Any, args: Any, mesh: Mesh, mapping: Any, platform: str) -> tuple[Any, Any, Any]:
    """Returns a function lowered for a platform that this process may not have, its arguments, and what it names."""
    active = contextlib.nullcontext() if mapping is None else axis_mapping(mapping)
    with set_mesh(mesh.abstract_mesh), active:
        args = jax.tree.map(lambda leaf: _move_leaf(leaf, mesh), args)
        if current_mapping() is not None:

            def shard_leaf(leaf: Any) -> Any:
                if isinstance(leaf, NamedArray) and getattr(leaf.array, "sharding", None) is None:
                    return shard(leaf)
                return leaf

            args = jax.tree.map(shard_leaf, args, is_leaf=is_named_array)
        traced = make_traceable(fn).trace(*args)
        try:
            lowered = traced.lower(lowering_platforms=(platform,))
        except ValueError as error:
            if "lowering platform" not in str(error):
                raise
            raise ValueError(
                f"the function cannot be lowered for {platform} on this machine: callbacks such as `jax.debug.print` "
                f"need the device; leave them out. JAX's error: {error}"
            ) from error
        arguments = getattr(traced, "arguments", (args, {}))
        return lowered, arguments, find_saved_names(traced.jaxpr)


def _move_leaf(leaf: Any, mesh: Mesh) -> Any:
    """Returns the shape of an array, with its sharding on the described mesh if it is on one of the same axes."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    moved = None
    if isinstance(sharding, NamedSharding) and dict(sharding.mesh.shape) == dict(mesh.shape):
        moved = NamedSharding(mesh.abstract_mesh, sharding.spec, memory_kind=sharding.memory_kind)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=moved, weak_type=getattr(leaf, "weak_type", False))


def _list_shardings(module: Any) -> tuple[list[str | None], list[str | None]]:
    """Returns the shardings of the arguments and of the results of a lowered program, None for those it lacks."""

    def find_sharding(attributes: Any) -> str | None:
        return next((str(attributes[name]) for name in _SHARDING_ATTRIBUTES if name in attributes), None)

    main = next(function for function in module.body.operations if str(function.attributes["sym_name"]) == '"main"')
    return [*map(find_sharding, main.arg_attrs)], [*map(find_sharding, main.result_attrs)]
