"""Whole arrays compared: one truth value for two arrays, whatever the order of their axes."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from ._axis import check_rank
from ._base import N, NamedBase, check_named, with_array
from ._broadcasting import apply_broadcast, split_operand
from ._reduce import all as all_of


def allclose(
    a: N | ArrayLike,
    b: N | ArrayLike,
    rtol: Any = 1e-5,
    atol: Any = 1e-8,
    equal_nan: bool = False,
) -> N:
    """Returns whether all elements are nearly equal, broadcast by name; see `jax.numpy.allclose`.

    Args:
        a: Array of any axes, or a number.
        b: The same; at least one of the two is a named array.
        rtol: The difference allowed, relative to `b`.
        atol: The difference allowed beside that.
        equal_nan: Whether NaN equals NaN.

    Returns:
        Array without axes, which Python takes as a truth value.

    Raises:
        ValueError: If the arrays do not broadcast.
        TypeError: If neither is a named array, or one is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> bool(nym.allclose(x, nym.named([1.0, 1.0, 1.000001], "embed")))
        True
    """
    _check_one_named(a, b)
    return all_of(apply_broadcast(_close_or_nan if equal_nan else _close, a, b, rtol, atol))


def _close(a: Any, b: Any, rtol: Any, atol: Any) -> Any:
    return jnp.isclose(a, b, rtol, atol)


def _close_or_nan(a: Any, b: Any, rtol: Any, atol: Any) -> Any:
    return jnp.isclose(a, b, rtol, atol, equal_nan=True)


def array_equal(a: N | ArrayLike, b: N | ArrayLike, equal_nan: bool = False) -> N:
    """Returns whether two arrays have the same axes, in any order, and the same elements; see `jax.numpy.array_equal`.

    Args:
        a: Array of any axes, or a number.
        b: The same; at least one of the two is a named array.
        equal_nan: Whether NaN equals NaN.

    Returns:
        Array without axes, which Python takes as a truth value.

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
    x, left, right = _both(a, b)
    if left != right:
        return with_array(x, jnp.asarray(False), ())
    return all_of(apply_broadcast(_same_or_nan if equal_nan else jnp.equal, a, b))


def _same_or_nan(a: Any, b: Any) -> Any:
    return (a == b) | ((a != a) & (b != b))


def array_equiv(a: N | ArrayLike, b: N | ArrayLike) -> N:
    """Returns whether two arrays are equal once they are broadcast by name; see `jax.numpy.array_equiv`.

    Args:
        a: Array of any axes, or a number.
        b: The same; at least one of the two is a named array.

    Returns:
        Array without axes: False where the arrays do not broadcast.

    Raises:
        TypeError: If neither is a named array, or one is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> bool(nym.array_equiv(x, nym.ones({"embed": 3}))), bool(nym.array_equiv(x, nym.ones({"mlp": 3})))
        (True, False)
    """
    x, left, right = _both(a, b)
    if not (left.items() <= right.items() or right.items() <= left.items()):
        return with_array(x, jnp.asarray(False), ())
    return all_of(apply_broadcast(jnp.equal, a, b))


def _check_one_named(a: Any, b: Any) -> None:
    check_named(b if isinstance(b, NamedBase) else a)


def _both(a: Any, b: Any) -> tuple[Any, dict[str, int], dict[str, int]]:
    """Returns one of the arrays that is named, and the sizes of both by name."""
    _check_one_named(a, b)
    return (a if isinstance(a, NamedBase) else b, _sizes(a), _sizes(b))


def _sizes(x: Any) -> dict[str, int]:
    array, names = split_operand(x)
    sizes = jnp.shape(array)
    check_rank(names, sizes)
    return dict(zip(names, sizes, strict=True))
