"""Where an instruction of a compiled program comes from: the layer, the pass, the axes, and the line of the source."""

import importlib
import itertools
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ..._ground.caches import cached_plan
from ...named._foreign_names import find_named_function
from ...report._time_by_layer import AXES_SCOPE, is_in_backward_pass, split_op_name
from . import _xla_text as xla
from ._hlo_program import HloInstruction, HloProgram


Pass: TypeAlias = Literal["forward", "backward", "recomputed"]

_LIBRARIES = ("axonym", "equinox", "jax")
_MOST_STEPS = 6  # from an instruction to those that it takes something from


class Origin(NamedTuple):
    """Where an instruction comes from.

    Attributes:
        layer: The scopes that it is in, such as `Stacked/up`; empty for none.
        operation: The operation of Axonym, such as `dot(embed -> mlp)` or `roll`, or the primitive of JAX.
        axes: The axis names of that operation.
        run_in: The pass that it belongs to. Sums of gradients are backward; recomputed is what `jax.checkpoint` did
            not save.
        source: The innermost line outside of Axonym, JAX, Equinox and Python's own library, as `file:line`.
    """

    layer: str
    operation: str
    axes: tuple[str, ...]
    run_in: Pass
    source: str


def find_origin(hlo: HloProgram, instruction: HloInstruction) -> Origin:
    """Returns where an instruction comes from: otherwise the origin of its callers, then of its operands."""
    nearest = [instruction, *_find_callers(hlo, instruction)]
    named = (source for source in walk_sources(hlo, nearest) if source.op_name)
    source = next(named, instruction)
    op_name = source.op_name
    layer, operation = split_op_name(op_name)
    names = (name for scope in AXES_SCOPE.findall(operation) for name in xla.AXES_SEPARATOR.split(scope))
    run_in: Pass = "forward"
    if "rematted_computation" in op_name:  # JAX's scope of what `jax.checkpoint` computes again
        run_in = "recomputed"
    elif is_in_backward_pass(op_name):
        run_in = "backward"
    axes = tuple(dict.fromkeys(filter(None, names)))
    frames = hlo.find_frames(source)
    if frames:
        # Of compiled functions only those of the user are layers, and not such as JAX's own `jit(_roll_static)`.
        libraries, _ = _list_library_folders()
        callers = {function.rpartition(".")[2] for file, _, function in frames if not file.startswith(libraries)}
        functions = {name for name in xla.COMPILED_FUNCTION.findall(op_name) if name not in callers}
        layer = "/".join(scope for scope in layer.split("/") if scope not in functions)
    if "(" not in operation and " + " not in operation:
        operation = _find_called_function(frames) or operation
    return Origin(layer, operation, axes, run_in, find_source(frames))


def join_origins(origins: Sequence[Origin]) -> Origin:
    """Returns where several arrays come from that the compiler has made one instruction for."""
    layers = dict.fromkeys(origin.layer for origin in origins if origin.layer)
    operations = dict.fromkeys(origin.operation for origin in origins if origin.operation)
    axes = tuple(dict.fromkeys(name for origin in origins for name in origin.axes))
    return origins[0]._replace(layer=" + ".join(layers), operation=" + ".join(operations), axes=axes)


def walk_sources(hlo: HloProgram, start: Sequence[HloInstruction]) -> Iterator[HloInstruction]:
    """Yields instructions and what they take, the nearest first, up to the beginning of a loop's turn."""
    visited = {id(instruction) for instruction in start}
    nearest = [*start]
    yield from nearest
    for _ in range(_MOST_STEPS):
        operands = {id(operand): operand for instruction in nearest for operand in _find_operands(hlo, instruction)}
        nearest = [operand for key, operand in operands.items() if key not in visited]
        visited |= operands.keys()
        yield from nearest


def _find_operands(hlo: HloProgram, instruction: HloInstruction) -> Sequence[HloInstruction]:
    """Returns what an instruction takes; for a parameter of a fusion, what the fusion passes for it."""
    if instruction.opcode != "parameter":
        return hlo.find_operands(instruction)
    number = instruction.parameter_number
    passed = [hlo.find_operands(call) for call in _find_callers(hlo, instruction)]
    return [operands[number] for operands in passed if number < len(operands)]


def _find_callers(hlo: HloProgram, instruction: HloInstruction) -> list[HloInstruction]:
    """Returns the instructions that call the computation of an instruction, without loops."""
    return [call for call in hlo.find_calls(instruction.computation) if call.opcode != "while"]


def _find_called_function(frames: Sequence[tuple[str, int, str]]) -> str:
    """Returns the function of Axonym that the innermost line of the user, or a layer, calls; empty for none."""
    libraries, _ = _list_library_folders()
    own_frames = itertools.takewhile(lambda frame: frame[0].startswith(libraries), frames)
    functions = [function for _, _, function in own_frames if find_named_function(function)]
    return functions[-1] if functions else ""


def find_source(frames: Sequence[tuple[str, int, str]]) -> str:
    """Returns the innermost line of the user as `file:line`: outside of installed packages if there is such a line."""
    libraries, installed = _list_library_folders()
    lines = [f"{file}:{line}" for file, line, _ in frames if not file.startswith(libraries)]
    return next((line for line in lines if not line.startswith(installed)), lines[0] if lines else "")


@cached_plan
def _list_library_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the folders of Axonym and what it is built on, and those of all installed packages."""
    files = (importlib.import_module(name).__file__ for name in _LIBRARIES)
    paths = sysconfig.get_paths()
    libraries = (*(f"{Path(file).parent}/" for file in files if file), "<frozen")
    return libraries, tuple(f"{paths[name]}/" for name in ("stdlib", "purelib", "platlib"))
