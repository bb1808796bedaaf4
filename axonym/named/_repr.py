"""How named arrays are shown: a line of text, and a table in notebooks. Large arrays never show their elements."""

import html
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._ambient import get_entry_axes
from ._axis import format_axes
from ._base import NamedBase


MOST_SHOWN = 8
"""The number of elements up to which they are shown."""


def format_array(x: NamedBase) -> str:
    """Shows element type, axes, mesh axes and, if they are few, the elements of an array in a line."""
    shape = getattr(x.array, "shape", None)
    if shape is None or len(shape) != len(x.names):  # JAX puts other things than arrays into its trees
        return f"{type(x).__name__}({x.array!r}, {format_axes(x.names)})"
    axes = "".join(f", {name}: {size}" for name, size in zip(x.names, shape, strict=True))
    placement, contents = _placement(x.array), _contents(x.array)
    return f"{type(x).__name__}({x.dtype}{axes}{placement and f', {placement}'}{contents and f', {contents}'})"


def format_array_html(x: NamedBase) -> str:
    """Shows the same as HTML: a row for each axis, with its size and its mesh axes."""
    if len(getattr(x.array, "shape", ())) != len(x.names):
        return f"<code>{html.escape(format_array(x))}</code>"
    sharded = any(_entries(x.array))
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{size}</td>{_mesh_cell(entry) if sharded else ''}</tr>"
        for name, size, entry in zip(x.names, x.array.shape, _entries(x.array), strict=True)
    )
    head = "<tr><th>axis</th><th>size</th>" + ("<th>mesh axes</th>" if sharded else "") + "</tr>"
    caption = f"<caption>{type(x).__name__}, {x.dtype}, {_bytes(x.nbytes)}</caption>"
    contents = _contents(x.array)
    return f"<table>{caption}{head}{rows}</table>" + (f"<pre>{html.escape(contents)}</pre>" if contents else "")


def _mesh_cell(entry: Any) -> str:
    return f"<td>{html.escape(', '.join(get_entry_axes(entry)))}</td>"


def _bytes(number: int) -> str:
    steps = min(int(math.log(number, 1024)), 3) if number else 0
    return f"{number / 1024**steps:.4g} {('bytes', 'KiB', 'MiB', 'GiB')[steps]}"


def _entries(array: Any) -> tuple[Any, ...]:
    """Returns for each axis what the spec of an array's sharding says, None for those that nothing divides."""
    spec = getattr(getattr(array, "sharding", None), "spec", None) or ()
    return (*spec, *(None,) * (len(array.shape) - len(spec)))


def _placement(array: Any) -> str:
    return str(array.sharding.spec) if any(_entries(array)) else ""


def _contents(array: Any) -> str:
    if not isinstance(array, jax.Array | np.ndarray) or array.size > MOST_SHOWN:
        return ""
    if isinstance(array, jax.Array) and not _readable(array):
        return ""
    return np.array2string(np.asarray(array), separator=", ")


def _readable(array: jax.Array) -> bool:
    """Tells whether the elements can be shown: they are here, and not traced, deleted or random keys."""
    if getattr(array, "sharding", None) is None or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return False
    return array.is_fully_addressable and not array.is_deleted()
