"""Whether the tree to restore, `like`, fits a checkpoint: leaves, axes, element types and static fields."""

import re
import warnings
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from .._ground.errors import find_stacklevel
from .._ground.formats import shorten_list, suggest_name
from ..state_dict._safetensors import AxisOrder
from ._tree_metadata import ARRAY_KINDS, LeafMetadata, format_leaf_axes


_MOST_PROBLEMS = 20  # that an error lists


def check_leaves(
    saved_leaves: Mapping[str, LeafMetadata],
    requested_leaves: Mapping[str, LeafMetadata],
    axis_order: AxisOrder,
    strict: bool,
    subject: str,
) -> None:
    """Raises a ValueError that lists all requested leaves that differ from the saved ones."""
    unused_paths = [path for path in saved_leaves if path not in requested_leaves]
    missing_paths = [path for path in requested_leaves if path not in saved_leaves]
    problems = []
    for path, leaf in requested_leaves.items():
        if path not in saved_leaves:
            problems.append(f"{path or 'the state'} is not in the checkpoint{suggest_name(path, unused_paths)}")
        elif (problem := _find_problem(saved_leaves[path], leaf, axis_order)) is not None:
            problems.append(f"{path or 'the state'} {problem}")
    if strict:
        for path in unused_paths:
            problems.append(f"{path} is in the checkpoint and not in `like`{suggest_name(path, missing_paths)}")
    if problems:
        remedies = _suggest_nesting(saved_leaves, missing_paths)
        if strict and unused_paths:
            remedies.append("`strict=False` leaves out what is not in `like`")
        raise ValueError(_list_lines(f"{subject} does not fit:", problems, remedies))


def check_widths(requested_leaves: Mapping[str, LeafMetadata], subject: str) -> None:
    """Raises a ValueError that lists the arrays whose elements JAX would narrow to 32 bits."""
    problems = []
    for path, leaf in requested_leaves.items():
        jax_dtype = str(jax.dtypes.canonicalize_dtype(jnp.dtype(leaf.dtype))) if leaf.kind == "array" else leaf.dtype
        if jax_dtype != leaf.dtype:
            narrowed = f"{path or 'the state'} would narrow {leaf.dtype} to {jax_dtype}"
            problems.append(f"{narrowed}, since `jax_enable_x64` is off")
    if problems:
        remedies = [
            "`jax.config.update('jax_enable_x64', True)` keeps all bits",
            "a `like` with NumPy arrays of these shapes and element types restores NumPy arrays",
        ]
        raise ValueError(_list_lines(f"{subject} has elements of 64 bits:", problems, remedies))


def _suggest_nesting(saved_leaves: Mapping[str, LeafMetadata], missing_paths: list[str]) -> list[str]:
    """Returns a line that names the part of the checkpoint with all missing leaves, or no line without such a part."""
    candidates = [
        {path.removesuffix(suffix) for path in saved_leaves if suffix and path.endswith(suffix)}
        for suffix in missing_paths
    ]
    prefixes = set.intersection(*candidates) if candidates else set()
    if not prefixes:
        return []
    prefix = min(prefixes, key=lambda prefix: (len(prefix), prefix))
    key = re.fullmatch(r"\[('\w+')\]", prefix)
    nested = f"`{{{key[1]}: like}}`" if key else "a `like` nested like that"
    return [f"the checkpoint has what is missing below {prefix}; pass {nested}"]


def _find_problem(saved_leaf: LeafMetadata, requested_leaf: LeafMetadata, axis_order: AxisOrder) -> str | None:
    """Returns why a leaf cannot be restored as requested, or None."""
    if not _is_same_kind(saved_leaf, requested_leaf):
        return f"is {requested_leaf} here and {saved_leaf} in the checkpoint"
    if saved_leaf.kind not in ARRAY_KINDS:
        return None
    if (saved_leaf.names, saved_leaf.shape) != (requested_leaf.names, requested_leaf.shape):
        difference = f"has {format_leaf_axes(requested_leaf)} here and {format_leaf_axes(saved_leaf)} in the checkpoint"
        if saved_leaf.names is None or requested_leaf.names is None:
            return difference
        sizes = dict(zip(saved_leaf.names, saved_leaf.shape, strict=True))
        if sizes != dict(zip(requested_leaf.names, requested_leaf.shape, strict=True)):
            return difference
        if axis_order == "error":
            return f"{difference}; `axis_order='transpose'` restores it in the order asked for"
    if saved_leaf.dtype != requested_leaf.dtype:
        remedy = "" if saved_leaf.kind == "key" else f"; restore {saved_leaf.dtype} and convert it with `astype`"
        return f"is {requested_leaf.dtype} here and {saved_leaf.dtype} in the checkpoint{remedy}"
    return None


def _is_same_kind(saved_leaf: LeafMetadata, requested_leaf: LeafMetadata) -> bool:
    if saved_leaf.kind in ARRAY_KINDS and requested_leaf.kind in ARRAY_KINDS:
        return (saved_leaf.kind == "key") == (requested_leaf.kind == "key")
    if saved_leaf.kind == requested_leaf.kind == "value":
        return saved_leaf.dtype == requested_leaf.dtype
    return saved_leaf.kind == requested_leaf.kind


_INTERLEAVING = ".interleaving"
"""The end of the path of a field of `axonym.nn.Stacked`."""


def warn_of_static_fields(saved_fields: Mapping[str, str], requested_fields: Mapping[str, str], subject: str) -> None:
    """Warns if static fields, which are not restored, differ from those of the modules that were saved.

    Raises:
        ValueError: If one of these fields says in which order arrays are stored.
    """
    changed_paths = [path for path, text in requested_fields.items() if saved_fields.get(path, text) != text]
    for path in changed_paths:
        if path.endswith(_INTERLEAVING):  # which says in which order arrays have their layers
            raise ValueError(
                f"{path} is {requested_fields[path]} here and was {saved_fields[path]}, so {subject} has its layers in "
                f"another order; restore into layers of `interleave{saved_fields[path]}`, and call "
                f"`interleave{requested_fields[path]}` then"
            )
    if changed_paths:
        changes = [f"{path} is {requested_fields[path]} here and was {saved_fields[path]}" for path in changed_paths]
        heading = f"{subject} was saved with other static fields, which stay as they are here:"
        warnings.warn(_list_lines(heading, changes, []), stacklevel=find_stacklevel())


def _list_lines(heading: str, problems: list[str], remedies: list[str]) -> str:
    return "\n  ".join([heading, *shorten_list(problems, _MOST_PROBLEMS), *remedies])
