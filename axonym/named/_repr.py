"""Formats named arrays as a line of text, and as a table in notebooks; elements are shown for small arrays only."""

import html
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._ambient import get_entry_axes
from ._axis import format_axes
from ._base import NamedBase


MAX_SHOWN_ELEMENTS = 8


def format_array(x: NamedBase) -> str:
    """Formats element type, axes, mesh axes and, if there are few, the elements of an array as a line."""
    shape = getattr(x.array, "shape", None)
    if shape is None or len(shape) != len(x.names):  # JAX puts other objects than arrays into its trees
        return f"{type(x).__name__}({x.array!r}, {format_axes(x.names)})"
    axes = "".join(f", {name}: {size}" for name, size in zip(x.names, shape, strict=True))
    array: Any = x.array
    placement = str(array.sharding.spec) if any(_get_spec_entries(array)) else ""
    contents = _format_elements(array)
    return f"{type(x).__name__}({x.dtype}{axes}{placement and f', {placement}'}{contents and f', {contents}'})"


def format_array_html(x: NamedBase) -> str:
    """Formats the same as HTML: a row for each axis, with its size and its mesh axes."""
    if len(getattr(x.array, "shape", ())) != len(x.names):
        return f"<code>{html.escape(format_array(x))}</code>"
    sharded = any(_get_spec_entries(x.array))
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{size}</td>{_format_mesh_cell(entry) if sharded else ''}</tr>"
        for name, size, entry in zip(x.names, x.array.shape, _get_spec_entries(x.array), strict=True)
    )
    head = "<tr><th>axis</th><th>size</th>" + ("<th>mesh axes</th>" if sharded else "") + "</tr>"
    caption = f"<caption>{type(x).__name__}, {x.dtype}, {_format_bytes(x.nbytes)}</caption>"
    contents = _format_elements(x.array)
    return f"<table>{caption}{head}{rows}</table>" + (f"<pre>{html.escape(contents)}</pre>" if contents else "")


def _format_mesh_cell(entry: Any) -> str:
    return f"<td>{html.escape(', '.join(get_entry_axes(entry)))}</td>"


def _format_bytes(number: int) -> str:
    steps = min(int(math.log(number, 1024)), 3) if number else 0
    return f"{number / 1024**steps:.4g} {('bytes', 'KiB', 'MiB', 'GiB')[steps]}"


def _get_spec_entries(array: Any) -> tuple[Any, ...]:
    """Returns the entry of each axis in the spec of an array, None for axes that are not sharded."""
    spec = getattr(getattr(array, "sharding", None), "spec", None) or ()
    return (*spec, *(None,) * (len(array.shape) - len(spec)))


def _format_elements(array: Any) -> str:
    if not isinstance(array, jax.Array | np.ndarray) or array.size > MAX_SHOWN_ELEMENTS:
        return ""
    if isinstance(array, jax.Array) and not _can_read(array):
        return ""
    return np.array2string(np.asarray(array), separator=", ")


def _can_read(array: jax.Array) -> bool:
    """Returns whether the elements can be read: they are on this host, not traced, not deleted, not random keys."""
    if getattr(array, "sharding", None) is None or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return False
    return array.is_fully_addressable and not array.is_deleted()
