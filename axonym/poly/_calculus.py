"""Values, derivatives and integrals of polynomials."""

from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelector
from ..named._base import N, format_shape, with_array
from ..named._broadcasting import split_operand
from ..named._gufunc import apply_gufunc
from ._coefficient_axis import apply_to_polynomials, find_coefficient_axis, parse_count


def polyval(p: N, x: Any, axis: AxisSelector | None = None) -> N:
    """Evaluates polynomials; see `jax.numpy.polyval`.

    Args:
        p: Coefficients, highest power first.
        x: The points: a scalar or a named array, which broadcasts by name with the other axes of `p`.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Array with the other axes of `p` and the axes of `x`, broadcast by name.

    Raises:
        ValueError: If the axis is missing or ambiguous, `x` has it also, or the other axes do not broadcast.
        TypeError: If `p` is not a named array, or `x` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> p = nym.named([1.0, 0.0, 2.0], "power")
        >>> nym.poly.polyval(p, nym.named([0.0, 1.0, 3.0], "x")).array
        Array([ 2.,  3., 11.], dtype=float32)
    """
    name = find_coefficient_axis(p, axis)
    return apply_gufunc(_evaluate_polynomials, (p, _as_points(p, x, name)), (name, ()), ((),))[0]


def _as_points(p: N, x: Any, name: str) -> N:
    array, names = split_operand(x)
    if name in names:
        raise ValueError(
            f"axis {name!r} of {format_shape(x)} is the axis of the coefficients {format_shape(p)}; `rename` one of "
            "them"
        )
    return with_array(p, jnp.asarray(array), names)


def _evaluate_polynomials(p: Any, x: Any) -> Any:
    return jnp.polyval(jnp.moveaxis(p, -1, 0), x)


def polyder(p: N, m: int = 1, axis: AxisSelector | None = None) -> N:
    """Differentiates polynomials; see `jax.numpy.polyder`.

    Args:
        p: Coefficients, highest power first.
        m: The order of the derivative.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Coefficients of the derivative, `m` fewer. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, or `m` is negative.
        TypeError: If `p` is not a named array, or `m` is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyder(nym.named([1.0, 2.0, 3.0], "power")).array
        Array([2., 2.], dtype=float32)
    """
    name = find_coefficient_axis(p, axis)
    return apply_to_polynomials(jnp.polyder, "(n)->(k)", (p,), (name,), ((name,),), m=parse_count("m", m))[0]


def polyint(p: N, m: int = 1, k: Any = None, axis: AxisSelector | None = None) -> N:
    """Integrates polynomials; see `jax.numpy.polyint`.

    Args:
        p: Coefficients, highest power first.
        m: The number of integrations.
        k: The constants of integration: a scalar for all, or a named array of other axes of `p`, with the axis of the
            coefficients in size `m` if each integration has its own; zero if None.
        axis: The axis of the coefficients, by name if `k` has it; by default the only one.

    Returns:
        Coefficients of the integral, `m` more. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, `k` has it in another size, its other axes do not broadcast,
            or `m` is negative.
        TypeError: If `p` is not a named array, `k` is a plain array with axes, or `m` is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyint(nym.named([2.0, 2.0], "power"), k=3.0).array
        Array([1., 2., 3.], dtype=float32)
    """
    name, times = find_coefficient_axis(p, axis), parse_count("m", m)
    array, names = split_operand(0 if k is None else k)
    constants, own = with_array(p, jnp.asarray(array), names), name in names
    if own and constants.axis_size(name) != times:
        raise ValueError(
            f"{times} integrations need {times} constants along axis {name!r}, not {constants.axis_size(name)} "
            f"as in {format_shape(constants)}"
        )
    cores = (name, name if own else ())
    signature = "(n),(m)->(k)" if own else "(n),()->(k)"
    return apply_to_polynomials(_integrate_polynomial, signature, (p, constants), cores, ((name,),), m=times)[0]


def _integrate_polynomial(p: Any, k: Any, *, m: int) -> Any:
    return jnp.polyint(p, m, k)
