"""Warnings of names and mesh axes that are probably mistyped."""

import re
import warnings

from jax.sharding import AbstractMesh, Mesh

from ...named._cache import cached_plan
from ...named._format import format_axes, suggest_name
from ...named._traceback import find_stacklevel
from ._mapping import AxisMapping


_WORD = re.compile(r"[^\W\d_]+")


def is_typo(one: str, other: str, shortest: int = 4) -> bool:
    """Returns whether two names differ only in letter case or by one slip of a typist, and hardly on purpose.

    A slip is two letters swapped, one left out or, in a long word, one changed. Names that differ in the first letter
    of a word (`patch` and `batch`), in digits, in a plural or in a short word (`pos_q` and `pos_k`) are intended, and
    so are names with fewer letters than `shortest`, unless two of three letters are swapped (`mpl` and `mlp`).
    """
    if one.casefold() == other.casefold():
        return True
    short, long = sorted((one, other), key=len)
    if len(short) < 3 or len(long) - len(short) > 1:
        return False
    at = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    if short[:at] + short[at : at + 2][::-1] + short[at + 2 :] == long:
        return len(short) >= shortest or short.isalpha()
    if len(short) < shortest:
        return False
    word = next((word for word in _WORD.finditer(long) if word.start() < at < word.end()), None)
    if word is None or len(word.group()) <= shortest:
        return False
    last = at + 1 == word.end()
    if len(short) < len(long):
        return short[at:] == long[at + 1 :] and not (last and long[at] == "s")
    return short[at + 1 :] == long[at + 1 :] and short[at].isalpha() and not last and len(word.group()) > 5


def warn_unknown_name(name: str, mapping: AxisMapping) -> None:
    """Warns if a name without an entry in a mapping looks like the name of an entry."""
    for known in mapping:
        if is_typo(name, known):
            _warn_once(
                f"axis {name!r} is replicated: the mapping has no {name!r}, but has {known!r}; correct the name, or "
                f"map {name!r} to None"
            )


def warn_unknown_mesh_axes(mapping: AxisMapping, mesh: Mesh | AbstractMesh) -> None:
    """Warns of entries whose mesh axes the mesh lacks, if they look mistyped: one mapping may serve several meshes."""
    for name in mapping:
        for axis in mapping.mesh_axes(name):
            if axis in mesh.axis_names:
                continue
            if name in mesh.axis_names:
                _warn_once(
                    f"{describe_unknown_mesh_axis(name, axis, mesh)}, but it has {name!r}; a mapping goes from names "
                    f"to mesh axes: should {axis!r} be sharded over {name!r}?"
                )
            elif any(is_typo(axis, known, 3) for known in mesh.axis_names):
                _warn_once(f"{describe_unknown_mesh_axis(name, axis, mesh)}{suggest_name(axis, mesh.axis_names)}")


def describe_unknown_mesh_axis(name: str, axis: str, mesh: Mesh | AbstractMesh) -> str:
    """Returns the message about an axis that is mapped to an unknown mesh axis."""
    sizes = format_axes(mesh.axis_names, tuple(mesh.shape.values()))
    return f"axis {name!r} is mapped to mesh axis {axis!r}, which the mesh {sizes} does not have"


@cached_plan
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=find_stacklevel())
