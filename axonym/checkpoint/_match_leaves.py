"""Whether the leaves that are asked for are those of a checkpoint: everything that differs is reported at once."""

import re
import warnings
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ..named._axis import Names
from ..named._format import format_axes, suggest_name
from ..named._traceback import find_stacklevel
from ..state_dict._load_safetensors import AxisOrder
from ._leaf import ARRAYS, Leaf


_SHOWN = 20


def check_leaves(
    saved: Mapping[str, Leaf], wanted: Mapping[str, Leaf], axis_order: AxisOrder, strict: bool, where: str
) -> None:
    """Checks the leaves that are asked for; raises a ValueError that lists all that differ."""
    unused = [path for path in saved if path not in wanted]
    problems = []
    for path, leaf in wanted.items():
        if path not in saved:
            problems.append(f"{path or 'the state'} is not in the checkpoint{suggest_name(path, unused)}")
        elif (problem := _find_problem(saved[path], leaf, axis_order)) is not None:
            problems.append(f"{path or 'the state'} {problem}")
    if strict:
        missing = [path for path in wanted if path not in saved]
        problems += [f"{path} is in the checkpoint and not in `like`{suggest_name(path, missing)}" for path in unused]
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        partly = ["`strict=False` leaves out what is not in `like`"] if strict and unused else []
        nested = _suggest_nesting(saved, [path for path in wanted if path not in saved])
        raise ValueError("\n  ".join([f"{where} does not fit:", *problems[:_SHOWN], *more, *nested, *partly]))


def check_widths(wanted: Mapping[str, Leaf], where: str) -> None:
    """Checks that JAX keeps the bits of all arrays; raises a ValueError that lists those that it would narrow."""
    problems = []
    for path, leaf in wanted.items():
        jax_dtype = str(jax.dtypes.canonicalize_dtype(jnp.dtype(leaf.dtype))) if leaf.kind == "array" else leaf.dtype
        if jax_dtype != leaf.dtype:
            narrowed = f"{path or 'the state'} would narrow {leaf.dtype} to {jax_dtype}"
            problems.append(f"{narrowed}, since `jax_enable_x64` is off")
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        remedies = [
            "`jax.config.update('jax_enable_x64', True)` keeps all bits",
            "a `like` with NumPy arrays of these shapes and element types restores NumPy arrays",
        ]
        first = f"{where} has elements of 64 bits:"
        raise ValueError("\n  ".join([first, *problems[:_SHOWN], *more, *remedies]))


def _suggest_nesting(saved: Mapping[str, Leaf], missing: list[str]) -> list[str]:
    """Returns a line that says below which path a checkpoint has all leaves that are missing at their own."""
    found = [{path.removesuffix(one) for path in saved if one and path.endswith(one)} for one in missing]
    prefixes = set.intersection(*found) if found else set()
    if not prefixes:
        return []
    prefix = min(prefixes, key=lambda prefix: (len(prefix), prefix))
    key = re.fullmatch(r"\[('\w+')\]", prefix)
    nested = f"`{{{key[1]}: like}}`" if key else "a `like` nested like that"
    return [f"the checkpoint has what is missing below {prefix}; pass {nested}"]


def _find_problem(saved: Leaf, wanted: Leaf, axis_order: AxisOrder) -> str | None:
    """Returns why a leaf cannot be restored as asked for, or None."""
    if not _is_same_kind(saved, wanted):
        return f"is {wanted} here and {saved} in the checkpoint"
    if saved.kind not in ARRAYS:
        return None
    sizes = [None if one.names is None else dict(zip(one.names, one.shape, strict=True)) for one in (saved, wanted)]
    same_order = saved.names == wanted.names and saved.shape == wanted.shape
    if not same_order and (None in sizes or sizes[0] != sizes[1]):
        return f"has {_format_axes(wanted)} here and {_format_axes(saved)} in the checkpoint"
    if not same_order and axis_order == "error":
        how = "; `axis_order='transpose'` restores it in the order asked for"
        return f"has {_format_axes(wanted)} here and {_format_axes(saved)} in the checkpoint{how}"
    if saved.dtype != wanted.dtype:
        remedy = "" if saved.kind == "key" else f"; restore {saved.dtype} and convert it with `astype`"
        return f"is {wanted.dtype} here and {saved.dtype} in the checkpoint{remedy}"
    return None


def _is_same_kind(saved: Leaf, wanted: Leaf) -> bool:
    if saved.kind in ARRAYS and wanted.kind in ARRAYS:
        return (saved.kind == "key") == (wanted.kind == "key")
    return saved.kind == wanted.kind and (saved.kind != "value" or saved.dtype == wanted.dtype)


def _format_axes(leaf: Leaf) -> str:
    return f"shape {leaf.shape}" if leaf.names is None else f"axes {format_axes(leaf.names, leaf.shape)}"


def find_order(saved: Names | None, wanted: Names | None) -> tuple[int, ...] | None:
    """Returns the position in the checkpoint of each axis that is asked for, None if they are in order."""
    if saved is None or wanted is None or saved == wanted:
        return None
    return tuple(saved.index(name) for name in wanted)


def warn_of_static_fields(saved: Mapping[str, str], wanted: Mapping[str, str], where: str) -> None:
    """Warns if static fields, which are not restored, differ from those of the modules that were saved."""
    different = [path for path, text in wanted.items() if saved.get(path, text) != text]
    if different:
        shown = [f"{path} is {wanted[path]} here and was {saved[path]}" for path in different[:_SHOWN]]
        more = [f"and {len(different) - _SHOWN} more"] if len(different) > _SHOWN else []
        first = f"{where} was saved with other static fields, which stay as they are here:"
        warnings.warn("\n  ".join([first, *shown, *more]), stacklevel=find_stacklevel())
