"""`haliax.util`: small helpers."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx

from ..named._array import NamedArray
from .jax_utils import is_jax_array_like


class Unspecified:
    """The class of `UNSPECIFIED`, the default of arguments for which None has a meaning."""


is_jax_or_hax_array_like = is_jax_array_like
NotSpecified = Unspecified
UNSPECIFIED = Unspecified()


class StringHolderEnum(type):
    """A metaclass for classes whose attributes are strings, over which one can iterate.

    Example:
        >>> import axonym.haliax as hax
        >>> class Color(metaclass=hax.util.StringHolderEnum):
        ...     RED = "red"
        >>> list(Color), Color.RED
        (['red'], 'red')
    """

    def __iter__(cls) -> Iterator[str]:
        """Iterates over the strings."""
        return (value for name, value in vars(cls).items() if not name.startswith("_") and isinstance(value, str))


def ensure_tuple(x: Any) -> tuple[Any, ...]:
    """Returns a sequence as a tuple, and anything else, strings included, as a tuple of one.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.util.ensure_tuple([1, 2]), hax.util.ensure_tuple("ab")
        ((1, 2), ('ab',))
    """
    return tuple(x) if isinstance(x, Sequence) and not isinstance(x, str) else (x,)


def maybe_untuple(x: Any) -> Any:
    """Returns the only element of a tuple of one, and anything else as it is.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.util.maybe_untuple((1,)), hax.util.maybe_untuple((1, 2))
        (1, (1, 2))
    """
    return x[0] if isinstance(x, tuple | list) and len(x) == 1 else x


def is_named_array(leaf: Any) -> bool:
    """Returns whether something is a named array; see `axonym.is_named_array`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.is_named_array(leaf=hax.ones({"i": 2}))
        True
    """
    return isinstance(leaf, NamedArray)


def safe_wraps(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Works as `functools.wraps`, for functions and for Equinox modules."""
    return lambda wrapper: safe_update_wrapper(wrapper, fn)


def safe_update_wrapper(wrapper: Any, wrapped: Any) -> Any:
    """Works as `functools.update_wrapper`, for functions and for Equinox modules."""
    if isinstance(wrapper, eqx.Module):
        return eqx.module_update_wrapper(wrapper)
    return functools.update_wrapper(wrapper, wrapped)
