"""Where an instruction of a compiled program comes from: the layer, the pass, the axes, and the line of the source."""

import importlib
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ..named._cache import cached_plan
from ..report._op_name import AXES_SCOPE, is_in_backward_pass, split_op_name
from ._hlo_program import HloInstruction, HloProgram


Pass: TypeAlias = Literal["forward", "backward", "recomputed"]

_LIBRARIES = ("axonym", "equinox", "jax")
_MOST_STEPS = 6


class Origin(NamedTuple):
    """Where an instruction comes from.

    Attributes:
        layer: The scopes that it is in, such as `Stacked/up`; empty for none.
        operation: The operation of Axonym, such as `dot(embed -> mlp)`, or the primitive of JAX.
        axes: The axis names of that operation.
        run_in: The pass that it belongs to: backward also has what is added up for gradients, and recomputed is what
            `jax.checkpoint` did not save.
        source: The innermost line outside of Axonym, JAX, Equinox and Python's own library, as `file:line`.
    """

    layer: str
    operation: str
    axes: tuple[str, ...]
    run_in: Pass
    source: str


def find_origin(program: HloProgram, one: HloInstruction) -> Origin:
    """Returns where an instruction comes from; if it does not say, where what calls it or what it takes comes from."""
    near = [one, *(call for call in program.find_calls(one.computation) if call.opcode != "while")]
    return make_origin(program, next((found for found in walk_sources(program, near) if found.op_name), one))


def join_origins(origins: Sequence[Origin]) -> Origin:
    """Returns where several arrays come from that the compiler has made one instruction for."""
    layers, operations = (dict.fromkeys(filter(None, names)) for names in list(zip(*origins, strict=True))[:2])
    axes = tuple(dict.fromkeys(name for origin in origins for name in origin.axes))
    return origins[0]._replace(layer=" + ".join(layers), operation=" + ".join(operations), axes=axes)


def make_origin(program: HloProgram, one: HloInstruction) -> Origin:
    """Returns what an instruction itself says of where it comes from."""
    layer, operation = split_op_name(one.op_name)
    names = (name for scope in AXES_SCOPE.findall(operation) for name in re.split(r" -> |, ", scope))
    if "rematted_computation" in one.op_name:
        run_in: Pass = "recomputed"
    else:
        run_in = "backward" if is_in_backward_pass(one.op_name) else "forward"
    axes = tuple(dict.fromkeys(filter(None, names)))
    return Origin(layer, operation, axes, run_in, find_source(program.find_frames(one)))


def walk_sources(program: HloProgram, start: Sequence[HloInstruction]) -> Iterator[HloInstruction]:
    """Yields instructions and what they take, the nearest first, up to the beginning of a loop's turn."""
    found = {id(one): one for one in start}
    yield from found.values()
    near = [*found.values()]
    for _ in range(_MOST_STEPS):
        near = [other for one in near for other in _find_taken(program, one) if id(other) not in found]
        found |= {id(one): one for one in near}
        yield from near


def _find_taken(program: HloProgram, one: HloInstruction) -> Sequence[HloInstruction]:
    """Returns what an instruction takes; for a parameter of a fusion, what the fusion passes for it."""
    if one.opcode != "parameter":
        return program.find_operands(one)
    at = int(one.rest.partition(")")[0])
    calls = [call for call in program.find_calls(one.computation) if call.opcode != "while"]
    return [program.find_operands(call)[at] for call in calls if at < len(program.find_operands(call))]


def find_source(frames: Sequence[tuple[str, int]]) -> str:
    """Returns the innermost line of the user as `file:line`: outside of installed packages if there is such a line."""
    own, installed = _list_library_folders()
    lines = [f"{file}:{line}" for file, line in frames if not file.startswith(own)]
    return next((line for line in lines if not line.startswith(installed)), lines[0] if lines else "")


@cached_plan
def _list_library_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the folders of Axonym and what it is built on, and those of all installed packages."""
    files = (importlib.import_module(name).__file__ for name in _LIBRARIES)
    paths = sysconfig.get_paths()
    own = (*(f"{Path(file).parent}/" for file in files if file), "<frozen")
    return own, tuple(f"{paths[name]}/" for name in ("stdlib", "purelib", "platlib"))
