"""`dot`, `einsum` and `rearrange`, whose results have the order of axes that Haliax gives them."""

import re
import warnings
from typing import Any

import jax

from ..named import _dot, _einsum
from ..named._axis import Axis, Names, axis_name, parse_selection
from ..named._base import NamedBase, with_array
from ..named._pattern_parser import REST, Term, parse_pattern
from ..named._shape import _rearrange
from ..named._traceback import find_stacklevel
from ._axis_names import fill_ellipses, rearrange_for_partial_order


def is_axis_selection(x: Any) -> bool:
    """Returns whether a positional argument is a selection of axes, as the first argument of `dot` once was."""
    return isinstance(x, str | Axis) or (isinstance(x, tuple | list) and all(isinstance(one, str | Axis) for one in x))


def _list_in_order(arrays: Any, left_out: Any = ()) -> Names:
    """Returns the names of all arrays in the order in which they first occur."""
    return tuple(dict.fromkeys(name for x in arrays for name in x.names if name not in left_out))


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
        text = "`dot` takes its axes by keyword: `dot(x, y, axis=...)`."
        warnings.warn(text, DeprecationWarning, find_stacklevel())
        axis, arrays = arrays[0], arrays[1:]
    if axis is not _dot._MISSING and arrays and all(isinstance(x, NamedBase) for x in arrays):
        summed = None if axis is None else {axis_name(one) for one in parse_selection(axis)}
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
    inside = re.fullmatch(r"(\s*)\{([^{}]*)\}(\s*)", result)
    return expression if inside is None else f"{operand}{arrow}{inside[1]} {inside[2]} {inside[3]}"


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
    if out_sharding is not None:
        options = {"precision": precision, "preferred_element_type": preferred_element_type, **axis_aliases}
        product = einsum(equation, *arrays, **options)
        return with_array(product, jax.reshard(product.array, out_sharding))
    equation = drop_commas(equation)
    operands, arrow, result = equation.partition("->")
    if result.count("...") > 1:
        before, _, after = result.partition("...")
        equation = f"{operands}->{before}...{after.replace('...', '')}"
        options = {"precision": precision, "preferred_element_type": preferred_element_type, **axis_aliases}
        return _spread_other_axes(einsum(equation, *arrays, **options), result.split(), _list_in_order(arrays))
    shared = bool(re.fullmatch(r"\s*\{[^{}]*\}\s*", operands))
    if shared and "..." in equation:
        equation = f"->{result}"
        axis_aliases = {name: axis for name, axis in axis_aliases.items() if name in result.split()}
    product = _einsum.einsum(
        equation, *arrays, precision=precision, preferred_element_type=preferred_element_type, **axis_aliases
    )
    if not arrow or not (shared or "..." in result) or (shared and "..." in operands and "..." not in result):
        return product
    before, _, after = result.partition("...") if "..." in result else ("", "", result)
    first, last = len(before.split()), len(product.names) - len(after.split())
    free = [name for name in _list_in_order(arrays) if name in product.names[first:last]]
    return _rearrange.rearrange(product, (*product.names[:first], *free, *product.names[last:]))


def _spread_other_axes(product: Any, order: list[str], names: Names) -> Any:
    """Returns an array that has all other axes at the first `...` of an order, with them at the several `...` of it."""
    first, stated = order.index("..."), [one for one in order if one != "..."]
    behind = len(stated) - first
    found = dict(zip(stated, (*product.names[:first], *product.names[len(product.names) - behind :]), strict=True))
    partial = [found.get(one, ...) for one in order]
    return _rearrange.rearrange(
        product, rearrange_for_partial_order(partial, [name for name in names if name in product.names])
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
    for bindings in args[1:]:
        kwargs.update(bindings)
    if not isinstance(order, str):
        if isinstance(array, NamedBase):
            order = rearrange_for_partial_order(order, array.axes)
        else:
            order = tuple(order)
    else:
        order = _name_other_axes(drop_result_braces(drop_commas(order)))
    return _rearrange.rearrange(array, order, **kwargs)


def _name_other_axes(expression: str) -> str:
    """Returns an expression with identifiers in place of the `...` of its result, if the operand has none.

    In Haliax they may stand for axes that the operand names. Of several, each takes the axes before those after it.
    """
    parsed = parse_pattern(expression)
    result, flat = parsed.result, [... if term.name == REST else term.name for term in parsed.result.flat]
    operand = parsed.operands[0] if len(parsed.operands) == 1 else None
    if operand is None or not operand.ordered or operand.rest or not any(term.name == REST for term in result.terms):
        return expression
    names = [term.name for term in operand.flat]
    filled = list(fill_ellipses(flat, names, [name for name in names if name not in flat]))
    found: list[str] = []
    for term in result.terms:
        if term.name == REST:
            stop = next((at for at, name in enumerate(filled) if name in flat), len(filled))
            found, filled = [*found, *map(_quote_name, filled[:stop])], filled[stop:]
        else:
            found.append(_format_term(term))
            filled = filled[1 if term.parts is None else len(term.parts) :]
    return f"{expression.partition('->')[0]}-> {' '.join(found)}"


def _format_term(term: Term) -> str:
    name = _quote_name(term.name)
    return name if term.parts is None else f"({name}: {' '.join(map(_format_term, term.parts))})"


def _quote_name(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'
