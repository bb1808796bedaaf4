"""Operations whose arguments, results or orders of axes differ from those of Axonym."""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .._ground.errors import find_stacklevel
from ..named import _creation, _dot, _einsum, _matrix, _search, _transforms
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name as get_name,
    parse_axes,
    parse_selection,
)
from ..named._base import NamedBase, with_array
from ..named._elementwise import _arithmetic
from ..named._index import At as NamedAt, Updates as NamedUpdates, dslice, index as index_by_name, take as take_by_name
from ..named._pattern_parser import REST, Term, parse_pattern
from ..named._reduce import _cumulative
from ..named._shape import _broadcast, _concatenate, _flatten, _rearrange, _slice
from ._axis_names import fill_ellipses, rearrange_for_partial_order


def is_axis_selection(x: Any) -> bool:
    """Returns whether a positional argument is a selection of axes, as the first argument of `dot` once was."""
    return isinstance(x, str | Axis) or (
        isinstance(x, tuple | list) and all(isinstance(item, str | Axis) for item in x)
    )


def _list_in_order(arrays: Any, excluded: Any = ()) -> Names:
    """Returns the names of all arrays in the order in which they first occur."""
    return tuple(dict.fromkeys(name for x in arrays for name in x.names if name not in excluded))


def dot(
    *arrays: Any,
    axis: Any = _dot._MISSING,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: Any = None,
    dot_general: Any = jax.lax.dot_general,
) -> Any:
    """Multiplies arrays and sums over axes; the result has the order in which axes first occur in the operands.

    Args:
        *arrays: Arrays of any axes.
        axis: The axes to sum over, `()` for none, or None for all.
        precision: As for `jax.lax.dot_general`.
        preferred_element_type: Element type in which the sum is kept and returned.
        out_axes: The order of the result, in which `...` means other axes.
        dot_general: Replacement for `jax.lax.dot_general` with the same arguments.

    Returns:
        Array with the axes that are not summed over.

    Raises:
        ValueError: As `axonym.dot`, if an operand lacks a contracted axis or a name has two sizes.

    Example:
        >>> import axonym.haliax as hax
        >>> x, y = hax.ones({"batch": 2, "pos": 3, "embed": 4}), hax.ones({"pos": 3, "embed": 4})
        >>> hax.dot(x, y, axis="embed").shape, hax.dot(y, x, axis="embed").shape
        ({'batch': 2, 'pos': 3}, {'pos': 3, 'batch': 2})
    """
    if arrays and is_axis_selection(arrays[0]):
        warnings.warn("`dot` takes its axes by keyword: `dot(x, y, axis=...)`.", DeprecationWarning, find_stacklevel())
        axis, arrays = arrays[0], arrays[1:]
    # Wrong arguments are left to `axonym.dot`, which says what is wrong with them.
    if axis is not _dot._MISSING and arrays and all(isinstance(x, NamedBase) for x in arrays):
        summed = None if axis is None else set(map(get_name, parse_selection(axis)))
        order = () if summed is None else _list_in_order(arrays, summed)
        out_axes = order if out_axes is None else rearrange_for_partial_order(out_axes, order)
    return _dot.dot(
        *arrays,
        axis=axis,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_axes=out_axes,
        dot_general=None if dot_general is jax.lax.dot_general else dot_general,
    )


def drop_commas(expression: str) -> str:
    """Returns an expression with spaces in place of the commas within braces, which are optional in Haliax."""
    return re.sub(r"\{[^{}]*\}", lambda braces: braces[0].replace(",", " "), expression)


def drop_result_braces(expression: str) -> str:
    """Returns an expression of `rearrange` without the braces of its result, whose axes have an order nonetheless."""
    operand, arrow, result = expression.partition("->")
    braces = re.fullmatch(r"(\s*)\{([^{}]*)\}(\s*)", result)
    return expression if braces is None else f"{operand}{arrow}{braces[1]} {braces[2]} {braces[3]}"


def einsum(
    equation: str,
    *arrays: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    _dot_general: Any = None,
    out_sharding: Any = None,
    **axis_aliases: Any,
) -> Any:
    """Multiplies arrays and sums over the axes that the result lacks, in Haliax's order.

    Axes that `...` stands for have the order in which they first occur in the operands, and with one pair of braces
    for all operands, `...` in the result keeps the axes in the braces.

    Args:
        equation: The equation, as for `axonym.einsum`.
        *arrays: Arrays of any axes.
        precision: As for `jax.numpy.einsum`.
        preferred_element_type: Element type in which the sum is kept and returned.
        _dot_general: Not supported; use `dot`.
        out_sharding: The sharding of the result on an Explicit mesh, by position, as for `jax.numpy.einsum`.
        **axis_aliases: The axis that an identifier stands for.

    Returns:
        Array with the axes of the result, in that order.

    Raises:
        TypeError: If a `_dot_general` is given.

    Example:
        >>> import axonym.haliax as hax
        >>> x, y = hax.ones({"batch": 2, "embed": 3}), hax.ones({"embed": 3, "mlp": 4})
        >>> hax.einsum("{embed} -> ...", x, y).shape
        {'batch': 2, 'embed': 3, 'mlp': 4}
    """
    if _dot_general is not None:
        raise TypeError("`einsum` takes no `_dot_general`; use `dot(x, y, axis=..., dot_general=...)`.")
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    product = _multiply(drop_commas(equation), arrays, axis_aliases, options)
    if out_sharding is None:
        return product
    return with_array(product, jax.reshard(product.array, out_sharding))


def _multiply(equation: str, arrays: tuple[Any, ...], axis_aliases: dict[str, Any], options: dict[str, Any]) -> Any:
    """Returns the product of arrays by an equation, with the axes that `...` stands for where Haliax has them."""
    operands, arrow, result = equation.partition("->")
    if result.count("...") > 1:
        # Axonym's `einsum` takes one `...`: the axes are computed at the first one, then spread.
        prefix, _, suffix = result.partition("...")
        product = _multiply(f"{operands}->{prefix}...{suffix.replace('...', '')}", arrays, axis_aliases, options)
        return _spread_other_axes(product, result.split(), _list_in_order(arrays))
    has_shared_braces = bool(re.fullmatch(r"\s*\{[^{}]*\}\s*", operands))
    if has_shared_braces and "..." in equation:
        # In Haliax `...` keeps the axes in the braces, too. So the braces say nothing about what is summed over.
        equation = f"->{result}"
        axis_aliases = {name: axis for name, axis in axis_aliases.items() if name in result.split()}
    product = _einsum.einsum(equation, *arrays, **options, **axis_aliases)
    # With braces alone, axes that these do not name are kept, as if the result began with `...`.
    has_other_axes = "..." in result or (has_shared_braces and "..." not in operands)
    if not arrow or not has_other_axes:
        return product
    # What the result names stays at its two ends; between them is what `...` stands for.
    prefix, _, suffix = result.rpartition("...")
    first, last = len(prefix.split()), len(product.names) - len(suffix.split())
    free = [name for name in _list_in_order(arrays) if name in product.names[first:last]]
    return _rearrange.rearrange(product, (*product.names[:first], *free, *product.names[last:]))


def _spread_other_axes(product: Any, order: list[str], names: Names) -> Any:
    """Spreads the axes that are at the first `...` of an order over all `...` of it."""
    first, identifiers = order.index("..."), [item for item in order if item != "..."]
    last = len(product.names) - (len(identifiers) - first)
    names_by_identifier = dict(zip(identifiers, (*product.names[:first], *product.names[last:]), strict=True))
    partial_order = [names_by_identifier.get(item, ...) for item in order]
    return _rearrange.rearrange(
        product, rearrange_for_partial_order(partial_order, [name for name in names if name in product.names])
    )


def rearrange(array: Any, *args: Any, **kwargs: Any) -> Any:
    """Orders, splits and merges axes; an order may have several `...`.

    Args:
        array: Array of any axes.
        *args: An order of axes, or an expression such as `"b (h d) -> b h d"`. Braces around its result have no effect.
        **kwargs: The axes or sizes that identifiers of an expression stand for.

    Returns:
        Array with the axes in that order.

    Raises:
        ValueError: If an axis is missing or left out, or the expression cannot be parsed.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.rearrange(hax.ones({"a": 2, "b": 3, "c": 4}), (..., "c", "a", ...)).shape
        {'c': 4, 'a': 2, 'b': 3}
    """
    order = args[0] if args else kwargs.pop("axes", None)
    order = kwargs.pop("expression") if order is None else order
    for bindings in args[1:]:  # a dict by position, as in `rearrange(x, "b (h d) -> b h d", {"h": 4})`
        kwargs.update(bindings)
    if isinstance(order, str):
        order = _name_other_axes(drop_result_braces(drop_commas(order)))
    elif isinstance(array, NamedBase):
        order = rearrange_for_partial_order(order, array.axes)
    else:
        order = tuple(order)
    return _rearrange.rearrange(array, order, **kwargs)


def _name_other_axes(expression: str) -> str:
    """Returns an expression with identifiers in place of the `...` of its result, if the operand has none.

    In Haliax they may stand for axes that the operand names: each for those up to the next axis that the result names.
    """
    parsed = parse_pattern(expression)
    result = parsed.result
    result_names = [... if term.name == REST else term.name for term in result.flat]
    operand = parsed.operands[0] if len(parsed.operands) == 1 else None
    if operand is None or not operand.ordered or operand.rest or not any(term.name == REST for term in result.terms):
        return expression
    names = [term.name for term in operand.flat]
    filled_names = list(fill_ellipses(result_names, names))
    items: list[str] = []
    for term in result.terms:
        if term.name == REST:
            while filled_names and filled_names[0] not in result_names:
                items.append(_quote_name(filled_names.pop(0)))
        else:
            items.append(_format_term(term))
            del filled_names[: 1 if term.parts is None else len(term.parts)]
    return f"{expression.partition('->')[0]}-> {' '.join(items)}"


def _format_term(term: Term) -> str:
    name = _quote_name(term.name)
    return name if term.parts is None else f"({name}: {' '.join(map(_format_term, term.parts))})"


def _quote_name(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def index(array: Any, slices: Any) -> Any:
    """Selects elements by named axis: `index(x, {"pos": 3})` is `x["pos", 3]`.

    Args:
        array: Array of any axes.
        slices: Axes and indices.

    Returns:
        Array with the remaining axes and those of the index arrays. Several index arrays follow NumPy: their axes take
        the place of the indexed axes if these are adjacent, and come first if not. An axis that an index array shares
        with `x` counts as indexed.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"a": 2, "b": 3, "c": 4})
        >>> x["a", hax.named([0, 1], "i"), "c", hax.named([1, 2], "j")].shape
        {'j': 2, 'i': 2, 'b': 3}
    """
    return _order_index_axes(array, slices, index_by_name(array, slices))


def take(array: Any, axis: AxisSelector, index: Any, **options: Any) -> Any:
    """Selects elements along one axis; new axes come first if the index shares other axes with the array.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"batch": 2, "pos": 3, "vocab": 4})
        >>> hax.take(x, "vocab", hax.named([[0, 1, 2], [1, 2, 3]], ("batch", "i"))).shape
        {'i': 3, 'batch': 2, 'pos': 3}
    """
    result = take_by_name(array, axis, index, **options)
    array_names = [name for name in array.names if name != get_name(axis)]
    if not isinstance(index, NamedBase) or not set(array_names) & set(index.names):
        return result
    new_names = [name for name in index.names if name not in array_names]
    return _rearrange.rearrange(result, (*new_names, *array_names))


def _order_index_axes(x: Any, items: Any, result: Any) -> Any:
    """Returns the elements with the axes of the indices where Haliax, and NumPy, put them."""
    pairs = items.items() if isinstance(items, Mapping) else zip(items[::2], items[1::2], strict=True)
    index_names: list[tuple[str, ...]] = []
    index_sizes: list[int] = []
    indexed_dims: set[int] = set()
    for axis, index in pairs:
        name = get_name(axis)
        if isinstance(index, dslice):
            index_names.append((name,))
            index_sizes.append(index.length)
        elif isinstance(index, NamedBase) and index.names:
            index_names.append(index.names)
            index_sizes.append(index.size)
            indexed_dims |= {x.names.index(index_name) for index_name in index.names if index_name in x.names}
        elif isinstance(index, slice) or getattr(index, "ndim", 0) or isinstance(index, list):
            continue  # the axis stays where it is
        indexed_dims.add(x.names.index(name))
    if not index_names or len(indexed_dims) < 2:
        return result
    # Haliax broadcasts index arrays to the largest one, and puts the axes that it lacks first.
    order = index_names[index_sizes.index(max(index_sizes))]
    for names in index_names:
        order = (*(name for name in names if name not in order), *order)
    other_names = [name for name in result.names if name not in order]
    first_dim, last_dim = min(indexed_dims), max(indexed_dims)
    # As in NumPy, new axes take the place of adjacent ones, and come first otherwise.
    is_adjacent = len(indexed_dims) == last_dim + 1 - first_dim
    start = sum(name in other_names for name in x.names[:first_dim]) if is_adjacent else 0
    return _rearrange.rearrange(result, (*other_names[:start], *order, *other_names[start:]))


class At(NamedAt[Any]):
    """The elements of an array chosen by an index: the result of `x.at[...]`."""

    __slots__ = ("_items",)

    def __init__(self, x: Any, items: Any) -> None:
        """Parses the index."""
        super().__init__(x, items)
        self._items = items

    def get(self, *, fill_value: Any = None, mode: Any = None, **options: Any) -> Any:
        """Returns the elements; with `fill_value`, this value for indices out of range."""
        if mode is None and fill_value is not None:
            mode = "fill"
        elements = super().get(fill=fill_value if mode == "fill" else None, mode=mode, **options)
        return _order_index_axes(self._x, self._items, elements)


class Updates(NamedUpdates[Any]):
    """The value of `x.at`."""

    def __getitem__(self, items: Any) -> At:
        """Chooses elements, as `index` does."""
        return At(self._x, items)


def broadcast_axis(a: Any, axis: Any) -> Any:
    """Adds leading axes that an array lacks.

    Args:
        a: Array of any axes.
        axis: The axes; those that the array has already are skipped.

    Returns:
        Array with the new axes first.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.broadcast_axis(hax.ones({"embed": 3}), hax.make_axes(batch=2, embed=3)).shape
        {'batch': 2, 'embed': 3}
    """
    axes = [new_axis for new_axis in parse_axes(axis) if not a.has_axis(new_axis)]
    return _broadcast.broadcast_axis(a, axes) if axes else a


def flatten_axes(array: Any, old_axes: AxisSelection, new_axis: AxisSelector) -> Any:
    """Merges axes into one, in an array or in a spec of axes.

    Args:
        array: Array of any axes, or axes.
        old_axes: The axes to merge; with none, an axis of size 1 is added first.
        new_axis: The merged axis, a name or an `Axis`.

    Returns:
        Array or tuple of axes, with the new axis at the position of the first old axis.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.flatten_axes(hax.ones({"a": 2, "b": 3, "c": 4}), ("a", "b"), "ab").shape
        {'ab': 6, 'c': 4}
        >>> hax.flatten_axes(hax.make_axes(a=2, b=3, c=4), ("a", "b"), "ab")
        (Axis(name='ab', size=6), Axis(name='c', size=4))
    """
    if isinstance(array, NamedBase):
        if not parse_selection(old_axes):
            return _broadcast.expand(array, new_axis)
        return _flatten.flatten_axes(array, old_axes, new_axis)
    axes = parse_axes(array)
    old_names = set(map(get_name, parse_selection(old_axes)))
    merged = [axis for axis in axes if axis.name in old_names]
    size = math.prod(axis.size for axis in merged)
    new = Axis(get_name(new_axis), size)
    if isinstance(new_axis, Axis) and new_axis != new:
        raise ValueError(f"the axes merged into {new_axis.name!r} have {size} elements, not {new_axis.size}")
    position = axes.index(merged[0]) if merged else 0
    other_axes = [axis for axis in axes if axis not in merged]
    return (*other_axes[:position], new, *other_axes[position:])


def flatten_all_axes_but(
    a: Any, axis_name: str, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[Any, Callable[[Any], Any]]:
    """Merges the given axes into one, and returns a function that splits it again.

    Despite its name, and as in Haliax, the axes given are the ones merged.

    Args:
        a: Array of any axes.
        axis_name: Name of the merged axis.
        axis: The axes to merge.
        reorder_to_front: Whether the merged axis comes first.

    Returns:
        The array, and a function that splits the merged axis of an array, in the order of `a` if it has all its axes.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"batch": 2, "pos": 3, "embed": 4})
        >>> flat, unflatten = hax.core.flatten_all_axes_but(x, "token", ("batch", "pos"))
        >>> flat.shape, unflatten(flat).shape
        ({'token': 6, 'embed': 4}, {'batch': 2, 'pos': 3, 'embed': 4})
    """
    merged = tuple(map(a.resolve_axis, parse_selection(axis)))
    flat = flatten_axes(a, merged, axis_name)
    if reorder_to_front:
        flat = _rearrange.rearrange(flat, (axis_name, ...))

    def unflatten(y: Any) -> Any:
        if merged:
            y = _flatten.unflatten_axis(y, axis_name, merged)
        else:  # of size 1, added by `flatten_axes`
            y = _broadcast.squeeze(y, axis_name)
        return _rearrange.rearrange(y, a.names) if set(y.names) == set(a.names) else y

    return flat, unflatten


def split(a: Any, axis: AxisSelector, new_axes: Any) -> list[Any]:
    """Splits an array along an axis, into a list.

    Example:
        >>> import axonym.haliax as hax
        >>> [part.shape for part in hax.split(hax.ones({"a": 3}), "a", hax.make_axes(b=1, c=2))]
        [{'b': 1}, {'c': 2}]
    """
    return list(_concatenate.split(a, axis, new_axes))


def unbind(array: Any, axis: AxisSelector) -> list[Any]:
    """Returns the slices of an array along an axis, as a list.

    Example:
        >>> import axonym.haliax as hax
        >>> len(hax.unbind(hax.ones({"a": 3, "b": 2}), "a"))
        3
    """
    return list(_concatenate.unbind(array, axis))


def tile(a: Any, reps: Mapping[AxisSelector, int]) -> Any:
    """Repeats an array along axes; one that it lacks is added first.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.tile(hax.ones({"a": 3}), {"a": 2, "b": 4}).shape
        {'b': 4, 'a': 6}
    """
    new_axes = [Axis(get_name(axis), count) for axis, count in reps.items() if get_name(axis) not in a.names]
    array_reps = {axis: count for axis, count in reps.items() if get_name(axis) in a.names}
    return broadcast_axis(_concatenate.tile(a, array_reps), new_axes)


def tril(array: Any, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> Any:
    """Sets elements above the `k`th diagonal of two axes to zero, and moves these axes to the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.tril(hax.ones({"a": 2, "b": 2, "c": 3}), "a", "b").shape
        {'c': 3, 'a': 2, 'b': 2}
    """
    return _matrix.tril(_rearrange.rearrange(array, (..., axis1, axis2)), axis1, axis2, k)


def triu(array: Any, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> Any:
    """Sets elements below the `k`th diagonal of two axes to zero, and moves these axes to the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.triu(hax.ones({"a": 2, "b": 2, "c": 3}), "a", "b").shape
        {'c': 3, 'a': 2, 'b': 2}
    """
    return _matrix.triu(_rearrange.rearrange(array, (..., axis1, axis2)), axis1, axis2, k)


def cumsum(a: Any, axis: AxisSelector | None = None, *, dtype: Any = None) -> Any:
    """Returns the cumulative sum along an axis; without one, a plain array over all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.cumsum(hax.ones({"a": 3}), "a").array
        Array([1., 2., 3.], dtype=float32)
    """
    if axis is None:
        return jnp.cumsum(a.array, dtype=dtype)
    return _cumulative.cumsum(a, axis, dtype=dtype)


def cumprod(a: Any, axis: AxisSelector | None = None, dtype: Any = None) -> Any:
    """Returns the cumulative product along an axis; without one, a plain array over all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.cumprod(hax.full({"a": 3}, 2.0), "a").array
        Array([2., 4., 8.], dtype=float32)
    """
    if axis is None:
        return jnp.cumprod(a.array, dtype=dtype)
    return _cumulative.cumprod(a, axis, dtype=dtype)


def nancumprod(a: Any, axis: AxisSelector, dtype: Any = None) -> Any:
    """Returns the cumulative product along an axis, in which nan counts as 1.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nancumprod(hax.named([2.0, float("nan")], "a"), "a").array
        Array([2., 2.], dtype=float32)
    """
    return _cumulative.nancumprod(a, axis, dtype=dtype)


def sort(a: Any, axis: AxisSelector | None) -> Any:
    """Sorts along an axis; without one, returns a plain array of all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.sort(hax.named([2, 1], "a"), "a").array
        Array([1, 2], dtype=int32)
    """
    return jnp.sort(a.array, axis=None) if axis is None else _cumulative.sort(a, axis)


def argsort(a: Any, axis: AxisSelector | None, *, stable: bool = True) -> Any:
    """Returns the indices that sort along an axis; without one, a plain array for all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.argsort(hax.named([2, 1], "a"), "a").array
        Array([1, 0], dtype=int32)
    """
    if axis is None:
        return jnp.argsort(a.array, axis=None, stable=stable)
    return _cumulative.argsort(a, axis, stable=stable)


def rename(array: Any, renames: Any) -> Any:
    """Gives axes other names; names that the array lacks are ignored.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.rename(hax.ones({"pos": 2}), {"pos": "key_pos", "other": "more"}).shape
        {'key_pos': 2}
    """
    return _broadcast.rename(array, {old: new for old, new in renames.items() if get_name(old) in array.names})


def updated_slice(array: Any, start: Any, update: Any) -> Any:
    """Replaces a slice; for a start that is a named array, each element of its axes has a slice of its own.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.zeros({"batch": 2, "pos": 3})
        >>> hax.updated_slice(x, {"pos": hax.named([0, 2], "batch")}, hax.ones({"batch": 2, "pos": 1})).array
        Array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    start_names = dict.fromkeys(
        name for position in start.values() if isinstance(position, NamedBase) for name in position.names
    )
    if not start_names:
        _check_update_fits(array, start, update)
        return _slice.updated_slice(array, start, update)
    if isinstance(update, NamedBase) and (extra := [name for name in update.names if name not in array.names]):
        raise ValueError(
            f"the update has the axes {', '.join(extra)} that are not in the original array with shape {array.shape}"
        )
    if missing := [name for name in start_names if name not in array.names]:
        raise ValueError(f"axis {missing[0]!r} of a start is not found in the array ({', '.join(array.names)})")
    # One start for each element of these axes, and an update along all others.
    update_each = _transforms.vmap(_slice.updated_slice, tuple(start_names))
    return _rearrange.rearrange(update_each(array, start, update), array.names)


def _check_update_fits(array: Any, start: Any, update: Any) -> None:
    """Raises a ValueError if an update at a start that is a number runs over the end of an axis."""
    for axis, position in start.items():
        name = get_name(axis)
        if not (isinstance(position, int) and array.has_axis(name)):
            continue
        size = update.axis_size(name) if isinstance(update, NamedBase) and update.has_axis(name) else 1
        if position >= 0 and position + size > array.axis_size(name):
            raise ValueError(
                f"an update of {size} elements at {position} runs over the end of axis {name!r} of size "
                f"{array.axis_size(name)}; start earlier or update fewer elements"
            )


def linspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> Any:
    """Makes evenly spaced numbers; an axis given by name gets 50 of them.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.linspace("x", start=0.0, stop=1.0).shape
        {'x': 50}
    """
    axis = Axis(axis, 50) if isinstance(axis, str) else axis
    return _creation.linspace(axis, start=start, stop=stop, endpoint=endpoint, dtype=dtype)


def unique_all(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements, their first positions, the inverse and the counts.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_all(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 0], [1, 0, 1], [1, 2]]
    """
    return _search.unique(
        array,
        Unique,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
        fill_value=fill_value,
    )


def unique_counts(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements and how often they occur.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_counts(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 2]]
    """
    return _search.unique(array, Unique, return_counts=True, axis=axis, fill_value=fill_value)


def unique_inverse(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements and for each element its position among them.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_inverse(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 0, 1]]
    """
    return _search.unique(array, Unique, return_inverse=True, axis=axis, fill_value=fill_value)


def unique_values(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.unique_values(hax.named([2, 1, 2], "i"), hax.Axis("u", 2)).array.tolist()
        [1, 2]
    """
    return _search.unique(array, Unique, axis=axis, fill_value=fill_value)


def where(condition: Any, x: Any = None, y: Any = None, fill_value: Any = 0, new_axis: Axis | None = None) -> Any:
    """Chooses between elements, or returns the positions where a condition is True; see `axonym.where`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.where(hax.arange(hax.Axis("i", 3)) > 1, 1, 0).array.tolist()
        [0, 0, 1]
    """
    if new_axis is None:
        return _arithmetic.where(condition, x, y)
    return _arithmetic.where(condition, fill_value=0 if fill_value is None else fill_value, new_axis=new_axis)
