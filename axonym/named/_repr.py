"""How arrays are shown as text and as HTML."""

import html
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.formats import format_axes, format_bytes
from .._ground.jax_compat import is_traced
from ._axis_layout import get_entry_axes
from ._base import NamedBase


def find_edge_items(size: int, edge_items: int | None) -> np.ndarray:
    """Returns the positions of the first and the last elements of an axis; all positions if `edge_items` is None.

    Between them is position 0, in place of all elements that a summary leaves out.
    """
    if edge_items is None or size <= 2 * edge_items:
        return np.arange(size)
    return np.r_[0:edge_items, 0, size - edge_items : size]


def read_items(array: Any, positions: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns the elements at all combinations of positions; None if some of them are on other processes only."""
    if isinstance(array, np.ndarray):
        return np.asarray(array[np.ix_(*positions)], array.dtype)
    items = np.empty(tuple(map(len, positions)), array.dtype)
    is_read = np.zeros(items.shape, bool)
    for shard in array.addressable_shards:
        bounds = [entry.indices(size)[:2] for entry, size in zip(shard.index, array.shape, strict=True)]
        masks = [(start <= index) & (index < stop) for index, (start, stop) in zip(positions, bounds, strict=True)]
        target = np.ix_(*masks)
        if not is_read[target].all():  # replicas hold the same elements, which are copied from the device once
            shard_positions = [
                index[mask] - start for index, mask, (start, _) in zip(positions, masks, bounds, strict=True)
            ]
            items[target] = np.asarray(shard.data)[np.ix_(*shard_positions)]
            is_read[target] = True
    return items if is_read.all() else None


def format_array(x: NamedBase) -> str:
    """Formats element type, axes, spec and values of an array."""
    kind = type(x).__name__
    if not _has_named_shape(x):  # JAX puts other objects than arrays into its trees
        contents = _format_contents(x.array) if is_traced(x.array) else repr(x.array)
        return f"{kind}({contents}, {format_axes(x.names)})"
    items = [str(x.dtype), *(f"{name}: {size}" for name, size in zip(x.names, x.array.shape, strict=True))]
    spec = _get_spec(x.array)
    if any(spec):
        items.append(str(spec))
    head, contents = ", ".join(items), _format_contents(x.array)
    line = f"{kind}({head}, {contents})"
    if "\n" not in contents and len(line) <= np.get_printoptions()["linewidth"]:
        return line
    return f"{kind}({head},\n  {contents})"


def format_array_short(x: NamedBase) -> Any:
    """Formats element type, axes and mesh axes as Equinox shows arrays in modules: `f32[mlp: 16@model, embed: 8]`."""
    wl = importlib.import_module("wadler_lindig")  # which calls `__pdoc__`, and comes with Equinox
    if not _has_named_shape(x):
        return wl.TextDoc(format_array(x))
    kind = None
    if not isinstance(x.array, jax.Array):
        kind = "numpy" if isinstance(x.array, np.ndarray) else type(x.array).__name__
    texts = []
    for name, size, entry in zip(x.names, x.array.shape, _get_spec_entries(x.array), strict=True):
        text = f"{name}: {size}"
        if mesh_axes := ",".join(get_entry_axes(entry)):  # as JAX shows them in types: `@data`, `@(data,model)`
            text += f"@({mesh_axes})" if "," in mesh_axes else f"@{mesh_axes}"
        texts.append(text)
    return wl.array_summary((", ".join(texts),), str(x.dtype), kind)


def format_array_html(x: NamedBase) -> str:
    """Formats the same as HTML: a row for each axis, with its size and its mesh axes, and the values."""
    if not _has_named_shape(x):
        return f'<code style="{_FONT}">{html.escape(format_array(x))}</code>'
    entries = _get_spec_entries(x.array)
    titles = ("axis", "size", "mesh axes")[: 3 if any(entries) else 2]
    mesh_axes = [", ".join(get_entry_axes(entry)) for entry in entries]
    axes = zip(x.names, map(str, x.array.shape), mesh_axes, strict=True)
    rows = "".join([_format_row(titles, "th"), *(_format_row(axis[: len(titles)], "td") for axis in axes)])
    # Each element has its style, because the style sheets of notebooks align cells and wrap lines in their own way.
    caption = f"{type(x).__name__}, {x.dtype}, {format_bytes(x.nbytes)}"
    table = f'<table style="margin:0"><caption style="{_LEFT}">{html.escape(caption)}</caption>{rows}</table>'
    values = html.escape(_format_contents(x.array).replace("\n  ", "\n"))
    values = f'<pre style="{_FONT};margin:6px 0;white-space:pre">{values}</pre>'
    return f'<div style="overflow-x:auto">{table}{values}</div>'


_FONT = "font-family:monospace"  # columns of numbers, also where a style sheet gives all elements its own font
_LEFT = "text-align:left;white-space:nowrap"
_RIGHT = "text-align:right;white-space:nowrap"


def _format_row(cells: tuple[str, ...], tag: str) -> str:
    styles = zip(("th", tag, tag), (_LEFT, _RIGHT, _LEFT), cells, strict=False)
    elements = (f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for tag, style, cell in styles)
    return f"<tr>{''.join(elements)}</tr>"


def _has_named_shape(x: NamedBase) -> bool:
    return len(getattr(x.array, "shape", ())) == len(x.names) and hasattr(x.array, "dtype")


def _get_spec(array: Any) -> tuple[Any, ...]:
    """Returns the spec of an array, empty if it has none."""
    sharding = getattr(jax.typeof(array) if is_traced(array) else array, "sharding", None)
    return getattr(sharding, "spec", None) or ()


def _get_spec_entries(array: Any) -> tuple[Any, ...]:
    """Returns the entry of each axis in the spec of an array, None for axes that are not sharded."""
    spec = _get_spec(array)
    return (*spec, *(None,) * (len(array.shape) - len(spec)))


def _format_contents(array: Any) -> str:
    """Formats the values of an array, or why it has none that can be read here."""
    if is_traced(array):
        return f"traced as {array!r}".replace("\n", "\n  ")
    if isinstance(array, np.ndarray):
        return _format_values(array)
    if not isinstance(array, jax.Array):
        return type(array).__name__
    if array.is_deleted():
        return "deleted"
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():
            values = _format_values(jax.random.key_data(array))
        return f"key data\n  {values}" if "\n" in values else f"key data {values}"
    return _format_values(array)


def _format_values(array: Any) -> str:
    """Formats values as NumPy does, with its options."""
    options = np.get_printoptions()
    is_summary = array.size > options["threshold"]
    positions = [find_edge_items(size, options["edgeitems"] if is_summary else None) for size in array.shape]
    items = read_items(array, positions)
    if items is None:
        return "values on other processes"
    threshold = 0 if is_summary else items.size
    return np.array2string(items, separator=", ", threshold=threshold, prefix="  ", suffix=")")
