"""`CompiledProgram`, and how to compile and to read any function that users have."""

import contextlib
import functools
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from ..._ground.formats import format_bytes
from ...named._axis_layout import MeshLike
from ...partitioning._active_mesh import get_active_mesh
from ...partitioning.jit._named_jit import NamedCompiled, NamedLowered, named_jit, set_shape_sharding
from .._machine._described_devices import Topology
from .._machine._hardware import Hardware, get_hardware
from .._program._compiler_output import ProgramMemory
from .._program._hlo_program import HloProgram
from .._program._saved_activations import SavedName, find_saved_names


_ERROR_STREAM = threading.Lock()  # the process has one


@dataclass(frozen=True, repr=False)
class CompiledProgram:
    """A program that was compiled for devices that are not there; it cannot be called.

    Attributes:
        text: The optimized program, in XLA's text.
        memory: The memory that it takes on one device.
        mesh: The mesh of described devices.
        arguments: The arguments and keyword arguments with a `jax.ShapeDtypeStruct` in place of each array.
        is_out_of_memory: Whether the compiler says that it does not fit into the memory of a device.
        is_stopped: Whether the compiler was stopped before it generated code, so that the program has no estimates of
            cycles.
        cpu_seconds: The CPU time that the compiler took, also if the program is from the cache.
        is_cached: Whether the program is from the cache.
        versions: The versions of JAX and of the compiler, by package.
        compiler_options: XLA's options.
        log: The lines that the compiler wrote to its error stream.
        notes: What was done in another way than usual, and why.
        saved_names: The names that the function gives to what its loops save, with their shapes.
        parameters: The names of the parameters that the positional arguments are for.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), "float32"), ("batch", "embed"))
        >>> machine = {"devices": "cpu:8", "mesh": {"data": 8}, "mapping": {"batch": "data"}}
        >>> program = nym.planner.compile_for(lambda x: nym.sum(x, "batch"), x, **machine, cache=False)
        >>> program.memory.argument_bytes, program.memory.output_bytes
        (16, 16)
        >>> nym.planner.communication_report(program).count_bytes("mesh_axes")
        {('data',): 16}
    """

    text: str
    memory: ProgramMemory
    mesh: Mesh = field(hash=False)
    arguments: Any = field(hash=False)
    is_out_of_memory: bool
    is_stopped: bool
    cpu_seconds: float
    is_cached: bool
    versions: Mapping[str, str] = field(hash=False)
    compiler_options: Mapping[str, Any] = field(hash=False)
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    saved_names: tuple[SavedName, ...] = ()
    parameters: tuple[str, ...] = ()

    @functools.cached_property
    def hlo(self) -> HloProgram:
        """The instructions of `text`, parsed once for all reports: half of their CPU time, 0.07 s for 1 MB."""
        return HloProgram(self.text)

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self.mesh.devices.flat[0].topology

    @property
    def hardware(self) -> Hardware:
        """The figures of a device."""
        return get_hardware(self.topology.hardware)

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a device.

        For TPUs the compiler says so. For others the peak is compared with the memory that a device has for programs.
        """
        return not self.is_out_of_memory and self.memory.peak_bytes <= self.hardware.hbm_available

    def as_text(self) -> str:
        """Returns the optimized program, as `jax.stages.Compiled.as_text` does."""
        return self.text

    def memory_analysis(self) -> Any:
        """Returns the memory by the names of `jax.stages.Compiled.memory_analysis`, without the program itself."""
        figures = {name.replace("_bytes", "_size_in_bytes"): size for name, size in self.memory.to_dict().items()}
        figures["peak_memory_in_bytes"] = figures.pop("peak_size_in_bytes")
        return SimpleNamespace(**figures, generated_code_size_in_bytes=0)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}: {size}" for axis, size in self.mesh.shape.items())
        verdict = "fits" if self.fits else "does not fit"
        lines = [
            f"compiled for {self.topology}, mesh ({sizes}), in {self.cpu_seconds:.1f} CPU seconds",
            f"{format_bytes(self.memory.peak_bytes)} of {format_bytes(self.hardware.hbm_available)} on each device: "
            f"it {verdict}",
            "with " + ", ".join(f"{name} {number}" for name, number in self.versions.items()),
            *self.notes,
        ]
        return "\n".join(lines)


_COMPILED = (jax.stages.Compiled, NamedCompiled, CompiledProgram)
_LOWERED = (jax.stages.Lowered, NamedLowered)


@dataclass(frozen=True)
class ReportedProgram:
    """What reports read of a compiled function.

    Attributes:
        compiled: The function.
        args: Its arguments, with shape, dtype and sharding in place of each array.
        kwargs: Its keyword arguments, likewise.
        mesh: The mesh of arguments and results, the largest if there are several; the active mesh if none has one.
        hlo: Its instructions.
        log: The lines that the compiler wrote to the error stream; empty for what was compiled before.
        saved_names: The names of what its loops save; empty for what was lowered before, unless by `compile_for`.
    """

    compiled: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mesh: MeshLike | None
    hlo: HloProgram
    log: list[str]
    saved_names: tuple[SavedName, ...]

    @property
    def platform(self) -> str:
        """The platform of the devices of the mesh; empty if it has none."""
        devices = getattr(self.mesh, "devices", None)
        return devices.flat[0].platform if devices is not None and devices.size else ""


def read_program(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ReportedProgram:
    """Compiles a function unless it is compiled, and returns what reports read of it.

    Args:
        fn: A function, or what `lower` or `compile` of `named_jit` or `jax.jit` or `compile_for` returns.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    log: list[str] = []
    saved_names: tuple[SavedName, ...] = ()
    if isinstance(fn, (*_COMPILED, *_LOWERED)):
        if args or kwargs:
            raise TypeError("a function that is lowered has its arguments; pass it alone, or pass the function itself")
    elif callable(fn):
        traced = make_traceable(fn).trace(*args, **kwargs)
        saved_names = find_saved_names(traced.jaxpr)
        fn = traced.lower()
    else:
        raise TypeError(f"`fn` is a function, or what `lower` or `compile` returns; it was {type(fn).__name__}.")
    if isinstance(fn, CompiledProgram):
        args, kwargs = fn.arguments
        return ReportedProgram(fn, args, kwargs, fn.mesh, fn.hlo, [*fn.log], fn.saved_names)
    compiled: Any = fn
    if not isinstance(fn, _COMPILED):
        with capture_error_stream() as log:
            compiled = fn.compile()
    if isinstance(compiled, NamedCompiled):
        args, kwargs = compiled.arguments
    else:
        args, kwargs = jax.tree.map(set_shape_sharding, compiled.args_info, compiled.input_shardings)
    shapes = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.ShapeDtypeStruct)]
    shardings = [*(shape.sharding for shape in shapes), *jax.tree.leaves(compiled.output_shardings)]
    meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    mesh = max(meshes, key=lambda mesh: mesh.size, default=get_active_mesh())
    return ReportedProgram(compiled, args, kwargs, mesh, HloProgram(compiled.as_text() or ""), log, saved_names)


def make_traceable(fn: Any) -> Any:
    """Returns the function itself if `named_jit` or `jax.jit` made it, otherwise `named_jit` of it."""
    if type(fn).__module__ == "flax.nnx.transforms.compilation":
        raise TypeError(
            "a function of `nnx.jit` does not show its program; compile a function of `nnx.split((model, optimizer))` "
            "with `jax.jit` that merges both and returns the new state"
        )
    # Not `lower`, which functions of `equinox.filter_jit` have, too, with other stages.
    return fn if hasattr(fn, "trace") else named_jit(fn)


def list_parameters(fn: Any, args: Sequence[Any], count: int) -> tuple[str, ...]:
    """Returns the names of the parameters of a function that its arguments are for.

    Where a name is not known, its number stands for it.
    """
    parameters = ()
    if count == len(args):  # static arguments of `jax.jit` do not count, so positions would differ
        with contextlib.suppress(TypeError, ValueError):  # raised for what is lowered and for some builtin functions
            parameters = inspect.signature(fn).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return tuple(names[number] if number < len(names) else str(number) for number in range(count))


@contextlib.contextmanager
def capture_error_stream() -> Iterator[list[str]]:
    """Collects what the process, XLA included, writes to its error stream, and writes it there afterwards."""
    lines: list[str] = []
    with _ERROR_STREAM, tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        error_stream = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(error_stream, 2)
            os.close(error_stream)
            file.seek(0)
            text = file.read()
            lines += text.decode(errors="replace").splitlines()
            os.write(2, text)
