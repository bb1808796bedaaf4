"""Values, derivatives and integrals of polynomials."""

import operator
from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelector
from ..named._base import N, format_shape, with_array
from ..named._broadcasting import split_operand
from ..named._gufunc import apply_gufunc
from ._coefficients import coefficient_axis


def polyval(p: N, x: Any, axis: AxisSelector | None = None) -> N:
    """Computes the values of polynomials; see `jax.numpy.polyval`.

    Args:
        p: Coefficients, highest power first.
        x: Where: a scalar or a named array, whose axes are lined up by name with the other axes of `p`.
        axis: The axis of the coefficients; the only one there is if None.

    Returns:
        Array with the axes of `x` or the other axes of `p`, whichever are more.

    Raises:
        ValueError: If the axis is not there or not clear, `x` has it too, or the other axes do not broadcast.
        TypeError: If `p` is not a named array, or `x` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> p = nym.named([1.0, 0.0, 2.0], "power")
        >>> nym.poly.polyval(p, nym.named([0.0, 1.0, 3.0], "x")).array
        Array([ 2.,  3., 11.], dtype=float32)
    """
    name = coefficient_axis(p, axis)
    return apply_gufunc(_values, (p, _lined(p, x, name)), (name, ()), ((),))[0]


def _lined(p: N, x: Any, name: str) -> N:
    array, names = split_operand(x)
    if name in names:
        raise ValueError(
            f"{format_shape(x)} has axis {name!r} of the coefficients {format_shape(p)} too; `rename` one of them"
        )
    return with_array(p, jnp.asarray(array), names)


def _values(p: Any, x: Any) -> Any:
    return jnp.polyval(jnp.moveaxis(p, -1, 0), x)


def polyder(p: N, m: int = 1, axis: AxisSelector | None = None) -> N:
    """Derives polynomials; see `jax.numpy.polyder`.

    Args:
        p: Coefficients, highest power first.
        m: How often.
        axis: The axis of the coefficients; the only one there is if None.

    Returns:
        Coefficients of the derivative, `m` fewer. Their axis stands behind the others.

    Raises:
        ValueError: If the axis is not there or not clear, or `m` is negative.
        TypeError: If `p` is not a named array, or `m` no integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyder(nym.named([1.0, 2.0, 3.0], "power")).array
        Array([2., 2.], dtype=float32)
    """
    name = coefficient_axis(p, axis)
    return apply_gufunc(_derived, (p,), (name,), ((name,),), m=_times(m, "derived"))[0]


def _derived(p: Any, m: int) -> Any:
    def derived(one: Any) -> Any:
        return jnp.polyder(one, m)

    return jnp.vectorize(derived, signature="(n)->(k)")(p)


def polyint(p: N, m: int = 1, k: Any = None, axis: AxisSelector | None = None) -> N:
    """Integrates polynomials; see `jax.numpy.polyint`.

    Args:
        p: Coefficients, highest power first.
        m: How often.
        k: The constants of integration: a scalar for all, or a named array of other axes of `p`, with the axis of the
            coefficients in size `m` if each integration has its own; zeros if None.
        axis: The axis of the coefficients, by name if `k` has it too; the only one there is if None.

    Returns:
        Coefficients of the integral, `m` more. Their axis stands behind the others.

    Raises:
        ValueError: If the axis is not there or not clear, `k` has it in another size, its other axes do not broadcast,
            or `m` is negative.
        TypeError: If `p` is not a named array, `k` is a plain array with axes, or `m` no integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyint(nym.named([2.0, 2.0], "power"), k=3.0).array
        Array([1., 2., 3.], dtype=float32)
    """
    name, times = coefficient_axis(p, axis), _times(m, "integrated")
    array, names = split_operand(0 if k is None else k)
    constants, own = with_array(p, jnp.asarray(array), names), name in names
    if own and constants.axis_size(name) != times:
        raise ValueError(
            f"{times} integrations need as many constants along axis {name!r}, there are {constants.axis_size(name)} "
            f"in {format_shape(constants)}"
        )
    cores = (name, name if own else ())
    return apply_gufunc(_integrated, (p, constants), cores, ((name,),), m=times, own=own)[0]


def _integrated(p: Any, k: Any, m: int, own: bool) -> Any:
    def integrated(one: Any, constants: Any) -> Any:
        return jnp.polyint(one, m, constants)

    return jnp.vectorize(integrated, signature="(n),(m)->(k)" if own else "(n),()->(k)")(p, k)


def _times(m: int, done: str) -> int:
    try:
        times = operator.index(m)
    except TypeError:
        raise TypeError(f"How often a polynomial is {done} is an integer, not {type(m).__name__}.") from None
    if times < 0:
        raise ValueError(f"a polynomial is {done} zero times or more, not {times} times")
    return times
