"""How treescope shows named arrays: the names of their axes, their values and their shardings.

Imported when treescope asks for it, because treescope is optional.
"""

from typing import Any

import jax
import numpy as np
from treescope import rendering_parts as parts
from treescope.external.jax_support import JAXArrayAdapter
from treescope.ndarray_adapters import NamedPositionlessAxisInfo, NDArrayAdapter, ShardingInfo

from .._ground.jax_compat import is_traced
from ._base import NamedBase, format_shape
from ._broadcasting import align_axes
from ._repr import find_edge_items, format_array, read_items


_MAX_LINES = 15  # longer ones are folded, as treescope folds plain arrays


def render_array(x: NamedBase, path: str | None) -> Any:
    """Renders the text of an array, which folds into a line without values."""
    text = format_array(x)
    if "\n" not in text:
        return parts.text(text)
    is_long = text.count("\n") > _MAX_LINES
    return parts.build_custom_foldable_tree_node(
        label=parts.fold_condition(collapsed=parts.abbreviation_color(parts.text(f"<{_summarize_array(x)}>"))),
        contents=parts.fold_condition(expanded=parts.text(text)),
        path=path,
        expand_state=parts.ExpandState.COLLAPSED if is_long else parts.ExpandState.WEAKLY_EXPANDED,
    )


def _summarize_array(x: NamedBase) -> str:
    return f"{type(x).__name__} {x.dtype}{format_shape(x)}"


class NamedArrayAdapter(NDArrayAdapter[NamedBase]):
    """Describes a named array to treescope; the methods are those of its class `NDArrayAdapter`."""

    def get_axis_info_for_array_data(self, array: NamedBase) -> tuple[NamedPositionlessAxisInfo, ...]:
        return tuple(NamedPositionlessAxisInfo(name, size) for name, size in array.shape.items())

    def get_array_data_with_truncation(
        self, array: NamedBase, mask: Any, edge_items_per_axis: tuple[int | None, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes = tuple(array.array.shape)
        positions = list(map(find_edge_items, sizes, edge_items_per_axis))
        items = read_items(array.array, positions)
        assert items is not None  # `should_autovisualize` has refused arrays that cannot be read
        is_visible = np.asarray(True if mask is None else mask)
        if isinstance(mask, NamedBase):
            is_visible = np.asarray(align_axes(is_visible, mask.names, array.names))
        is_visible = np.broadcast_to(is_visible, sizes)[np.ix_(*positions)]
        for dim, edge in enumerate(edge_items_per_axis):
            if edge is not None:  # the position after the first elements stands for those left out
                is_visible[(slice(None),) * dim + (edge,)] = False
        return items, is_visible

    def get_array_summary(self, array: NamedBase, fast: bool) -> str:
        return _summarize_array(array)

    def get_numpy_dtype(self, array: NamedBase) -> np.dtype | None:
        return array.dtype if isinstance(array.dtype, np.dtype) else None

    def get_sharding_info_for_array_data(self, array: NamedBase) -> ShardingInfo | None:
        plain = array.array
        return JAXArrayAdapter().get_sharding_info_for_array_data(plain) if isinstance(plain, jax.Array) else None

    def should_autovisualize(self, array: NamedBase) -> bool:
        plain: Any = array.array
        if isinstance(plain, np.ndarray):
            return True
        if not isinstance(plain, jax.Array) or is_traced(plain):
            return False
        return not plain.is_deleted() and (plain.is_fully_addressable or plain.is_fully_replicated)
