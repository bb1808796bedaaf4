"""`haliax.wrap`: the types of reductions, and wrappers for functions of `jax.numpy`."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

from ..named._array import is_named_array
from ..named._axis import AxisSelection, find_axes
from ..named._base import NamedBase, with_array
from ..named._lift import lift
from ..named._shape._broadcast import broadcast_to
from ._adapt import adapt
from ._array import NamedArray


class ReductionFunction(Protocol):
    """A reduction such as `haliax.sum`, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> reduction: hax.ReductionFunction = hax.mean
    """

    def __call__(self, array: Any, axis: Any = None, where: Any = None, **kwargs: Any) -> Any:
        """Reduces an array over axes."""
        ...


class SimpleReductionFunction(Protocol):
    """A reduction without `where`, such as `haliax.argmax`, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> reduction: hax.SimpleReductionFunction = hax.argmax
    """

    def __call__(self, array: Any, axis: Any = None, **kwargs: Any) -> Any:
        """Reduces an array over axes."""
        ...


def unwrap_namedarrays(*a: Any) -> tuple[Any, ...]:
    """Returns the plain arrays of named arrays, and anything else as it is.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.wrap.unwrap_namedarrays(hax.ones({"i": 2}), 1.0)
        (Array([1., 1.], dtype=float32), 1.0)
    """
    return tuple(x.array if isinstance(x, NamedBase) else x for x in a)


def wrap_elemwise_unary(f: Callable[..., Any], a: Any, *args: Any, **kwargs: Any) -> Any:
    """Applies an elementwise function of plain arrays to a named array.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.wrap_elemwise_unary(jnp.exp, hax.zeros({"i": 2})).array
        Array([1., 1.], dtype=float32)
    """
    if not isinstance(a, NamedBase):
        return f(a, *args, **kwargs)
    return with_array(a, f(a.array, *args, **kwargs))


def wrap_elemwise_binary(op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an elementwise function of named arrays from one of two plain arrays.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.wrap_elemwise_binary(jnp.add)(hax.ones({"i": 2}), 1.0).array
        Array([2., 2.], dtype=float32)
    """
    return adapt(lift(op))


def wrap_axiswise_call(
    fn: Callable[..., Any], a: Any, axis: AxisSelection | None, *, single_axis_only: bool, **kwargs: Any
) -> Any:
    """Applies a function of plain arrays and axes by position, which keeps all axes, to axes by name.

    Args:
        fn: The function, such as `jax.numpy.cumsum`; called as `fn(array, axis=..., **kwargs)`.
        a: Array of any axes; a plain array is passed on with `axis` as it is.
        axis: The axes; with None, `fn` gets None and its result is returned as it is.
        single_axis_only: Whether `fn` takes one axis, an integer.
        **kwargs: Further arguments of `fn`.

    Returns:
        Array with the axes of `a`.

    Raises:
        ValueError: If an axis is missing, or `fn` takes one axis and several are given.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.wrap_axiswise_call(jnp.cumsum, hax.ones({"i": 3}), "i", single_axis_only=True).array
        Array([1., 2., 3.], dtype=float32)
    """
    if not isinstance(a, NamedBase):
        return fn(a, axis=axis, **kwargs)
    if axis is None:
        return fn(a.array, axis=None, **kwargs)
    dims = _find_dims(fn, a, axis, single_axis_only)
    return NamedArray(fn(a.array, axis=dims[0] if len(dims) == 1 else dims, **kwargs), a.names)


def wrap_reduction_call(
    fn: Callable[..., Any],
    a: Any,
    axis: AxisSelection | None,
    where: Any = None,
    single_axis_only: bool = False,
    supports_where: bool = True,
    **kwargs: Any,
) -> Any:
    """Applies a reduction of plain arrays over axes by position to axes by name, in each named array of a tree.

    Args:
        fn: The reduction, such as `jax.numpy.sum`; called as `fn(array, axis=..., **kwargs)`.
        a: Array of any axes, or a tree; plain arrays are passed on with `axis` as it is.
        axis: The axes reduced over; all of them if None.
        where: Boolean array of the elements that count.
        single_axis_only: Whether `fn` takes one axis, an integer.
        supports_where: Whether `fn` takes `where`.
        **kwargs: Further arguments of `fn`.

    Returns:
        Array with the remaining axes.

    Raises:
        ValueError: If an axis is missing, `fn` takes one axis and several are given, or it takes no `where`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.wrap_reduction_call(jnp.sum, hax.ones({"i": 3, "j": 2}), "i").array
        Array([3., 3.], dtype=float32)
    """
    if where is not None and not supports_where:
        raise ValueError(f"`{fn.__name__}` takes no `where`; select the elements before")

    def reduce(x: Any) -> Any:
        mask = {} if where is None else {"where": where}
        if not isinstance(x, NamedBase):
            return fn(x, axis=axis, **mask, **kwargs)
        if where is not None:  # functions of plain arrays broadcast by position
            mask = {"where": broadcast_to(where, x.axes).array}
        dims = None if axis is None else _find_dims(fn, x, axis, single_axis_only)
        array = fn(x.array, axis=dims[0] if dims and single_axis_only else dims, **mask, **kwargs)
        return NamedArray(array, [name for i, name in enumerate(x.names) if dims is not None and i not in dims])

    return jax.tree.map(reduce, a, is_leaf=is_named_array)


def _find_dims(fn: Callable[..., Any], x: NamedBase, axis: AxisSelection, single_axis_only: bool) -> tuple[int, ...]:
    """Returns the positions of axes."""
    dims = find_axes(x.names, x.array.shape, axis)
    if single_axis_only and len(dims) != 1:
        raise ValueError(f"`{fn.__name__}` takes one axis, {len(dims)} were given")
    return dims
