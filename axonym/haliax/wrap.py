"""`haliax.wrap`: the types of reductions, and wrappers for functions of `jax.numpy`."""

from collections.abc import Callable
from typing import Any, Protocol

from ..named._base import NamedBase, with_array
from ..named._lift import lift
from ._adapt import adapt


class ReductionFunction(Protocol):
    """A reduction such as `haliax.sum`, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> reduction: hax.ReductionFunction = hax.mean
    """

    def __call__(self, array: Any, axis: Any = None, *, where: Any = None, **kwargs: Any) -> Any:
        """Reduces an array over axes."""
        ...


class SimpleReductionFunction(Protocol):
    """A reduction without `where`, such as `haliax.argmax`, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> reduction: hax.SimpleReductionFunction = hax.argmax
    """

    def __call__(self, array: Any, axis: Any = None) -> Any:
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
    return with_array(a, f(a.array, *args, **kwargs)) if isinstance(a, NamedBase) else f(a, *args, **kwargs)


def wrap_elemwise_binary(op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an elementwise function of named arrays from one of two plain arrays.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.wrap_elemwise_binary(jnp.add)(hax.ones({"i": 2}), 1.0).array
        Array([2., 2.], dtype=float32)
    """
    return adapt(lift(op))
