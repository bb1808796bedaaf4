"""Compiled functions, from what users have: functions, lowered or compiled ones, of `named_jit` and of `jax.jit`."""

import inspect
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from ..partitioning.jit._named_jit import named_jit
from ..partitioning.jit._stages import NamedCompiled, NamedLowered, set_shape_sharding
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh
from ._compiled_program import CompiledProgram
from ._hlo_program import HloProgram
from ._spmd_warnings import capture_error_stream


_COMPILED = (jax.stages.Compiled, NamedCompiled, CompiledProgram)
_LOWERED = (jax.stages.Lowered, NamedLowered)


def compile_function(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[str]]:
    """Returns a compiled function and the lines that the compiler wrote to the error stream."""
    if isinstance(fn, (*_COMPILED, *_LOWERED)):
        if args or kwargs:
            raise TypeError("a function that is lowered has its arguments; pass it alone, or pass the function itself")
    elif callable(fn):
        fn = make_traceable(fn).lower(*args, **kwargs)
    else:
        raise TypeError(f"`fn` is a function, or what `lower` or `compile` returns; it was {type(fn).__name__}.")
    if isinstance(fn, _COMPILED):
        return fn, [*fn.log] if isinstance(fn, CompiledProgram) else []
    with capture_error_stream() as lines:
        compiled = fn.compile()
    return compiled, lines


def trace_function(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a traced function; None for one that is lowered or compiled."""
    if isinstance(fn, (*_COMPILED, *_LOWERED)) or not callable(fn):
        return None
    return make_traceable(fn).trace(*args, **kwargs)


def make_traceable(fn: Any) -> Any:
    """Returns a function of `named_jit` or `jax.jit`; `equinox.filter_jit` has `lower`, but its stages are others."""
    return fn if hasattr(fn, "trace") else named_jit(fn)


def parse_program(compiled: Any) -> HloProgram:
    """Returns the instructions of a compiled function."""
    return compiled.hlo if isinstance(compiled, CompiledProgram) else HloProgram(compiled.as_text() or "")


def list_arguments(compiled: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a compiled function, with shape, dtype and sharding in place of each array."""
    if isinstance(compiled, NamedCompiled | CompiledProgram):
        return compiled.arguments
    return jax.tree.map(set_shape_sharding, compiled.args_info, compiled.input_shardings)


def list_parameters(fn: Any, args: Sequence[Any], count: int) -> tuple[str, ...]:
    """Returns the names of the parameters of a function that its arguments are for.

    They are numbers for one that is lowered, and if only some of the arguments count, as with static ones of `jax.jit`.
    """
    try:
        parameters = [*inspect.signature(fn).parameters.values()] if count == len(args) else []
    except (TypeError, ValueError):
        parameters = []
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return tuple(names[at] if at < len(names) else str(at) for at in range(count))


def find_mesh(compiled: Any, arguments: Any) -> MeshLike | None:
    """Returns the mesh of arguments and results, the largest if there are several; the active mesh if none has one."""
    if isinstance(compiled, CompiledProgram):
        return compiled.mesh
    shapes = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.ShapeDtypeStruct)]
    shardings = [*(shape.sharding for shape in shapes), *jax.tree.leaves(compiled.output_shardings)]
    found = [one.mesh for one in shardings if isinstance(one, NamedSharding)]
    return max(found, key=lambda mesh: mesh.size, default=get_active_mesh())


def get_platform(mesh: MeshLike | None) -> str:
    """Returns the platform of the devices of a mesh; empty if it has none."""
    devices = getattr(mesh, "devices", None)
    return devices.flat[0].platform if devices is not None and devices.size else ""
