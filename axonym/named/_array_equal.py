"""Equality of entire arrays, in any order of their axes."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from ._axis import check_rank
from ._base import N, NamedBase, check_named, with_array
from ._broadcasting import apply_broadcast, split_operand
from ._elementwise._logic import isclose
from ._reduce._reductions import all as all_of


def allclose(a: N | ArrayLike, b: N | ArrayLike, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> N:
    """Returns whether all elements are nearly equal, broadcast by name; see `jax.numpy.allclose`.

    Args:
        a: Array of any axes, or a number.
        b: Array of any axes, or a number; at least one of the two is a named array.
        rtol: Relative tolerance, a factor of `abs(b)`.
        atol: Absolute tolerance.
        equal_nan: Whether NaN equals NaN.

    Returns:
        Boolean array without axes.

    Raises:
        ValueError: If the arrays do not broadcast.
        TypeError: If neither is a named array, or one is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> bool(nym.allclose(x, nym.named([1.0, 1.0, 1.000001], "embed")))
        True
    """
    _find_named_operand(a, b)
    return all_of(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a: N | ArrayLike, b: N | ArrayLike, equal_nan: bool = False) -> N:
    """Returns whether two arrays have the same axes, in any order, and the same elements; see `jax.numpy.array_equal`.

    Args:
        a: Array of any axes, or a number.
        b: Array of any axes, or a number; at least one of the two is a named array.
        equal_nan: Whether NaN equals NaN.

    Returns:
        Boolean array without axes.

    Raises:
        TypeError: If neither is a named array, or one is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> bool(nym.array_equal(x, x.rearrange(("embed", "batch"))))
        True
        >>> bool(nym.array_equal(x, x.rename({"embed": "mlp"})))
        False
    """
    x = _find_named_operand(a, b)
    a_sizes, b_sizes = _get_sizes(a), _get_sizes(b)
    if a_sizes != b_sizes:
        return with_array(x, jnp.asarray(False), ())
    return all_of(apply_broadcast(_is_equal_or_nan if equal_nan else jnp.equal, a, b))


def _is_equal_or_nan(a: Any, b: Any) -> Any:
    return (a == b) | ((a != a) & (b != b))  # only NaN differs from itself


def array_equiv(a: N | ArrayLike, b: N | ArrayLike) -> N:
    """Returns whether two arrays are equal after broadcasting by name; see `jax.numpy.array_equiv`.

    Args:
        a: Array of any axes, or a number.
        b: Array of any axes, or a number; at least one of the two is a named array.

    Returns:
        Boolean array without axes, False if the arrays do not broadcast.

    Raises:
        TypeError: If neither is a named array, or one is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> bool(nym.array_equiv(x, nym.ones({"embed": 3}))), bool(nym.array_equiv(x, nym.ones({"mlp": 3})))
        (True, False)
    """
    x = _find_named_operand(a, b)
    a_sizes, b_sizes = _get_sizes(a), _get_sizes(b)
    if not (a_sizes.items() <= b_sizes.items() or b_sizes.items() <= a_sizes.items()):
        return with_array(x, jnp.asarray(False), ())
    return all_of(apply_broadcast(jnp.equal, a, b))


def _find_named_operand(a: Any, b: Any) -> Any:
    """Returns the first operand that is a named array; raises a TypeError if neither is."""
    x = a if isinstance(a, NamedBase) or not isinstance(b, NamedBase) else b
    check_named(x)
    return x


def _get_sizes(x: Any) -> dict[str, int]:
    array, names = split_operand(x)
    sizes = jnp.shape(array)
    check_rank(names, sizes)
    return dict(zip(names, sizes, strict=True))
