"""`CompiledProgram`: what the compiler knows of a program for devices that are not there."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jax.sharding import Mesh

from ..report._table import format_bytes
from ._buffer_assignment import ProgramMemory
from ._described_devices import Topology
from ._hardware import Hardware, get_hardware
from ._hlo_program import HloProgram
from ._saved_activations import SavedName


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
        schedule: The seconds of instructions by name in XLA's own schedule; empty but for GPUs.
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
    schedule: Mapping[str, float] = field(default_factory=dict, hash=False)
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
