"""The axis of the coefficients, and functions of a single polynomial applied over all other axes."""

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax.numpy as jnp

from ..named._axis import AxisSelection, AxisSelector, Names, find_axis
from ..named._base import N, NamedBase, check_named, format_shape
from ..named._gufunc import apply_gufunc


def find_coefficient_axis(x: Any, axis: AxisSelector | None, what: str = "coefficients") -> str:
    """Returns the name of the axis given, or of the only axis."""
    check_named(x)
    if axis is not None:
        return x.names[find_axis(x.names, x.array.shape, axis)]
    if len(x.names) != 1:
        raise ValueError(f"which axis of {format_shape(x)} has the {what}? Give it as `axis`")
    return x.names[0]


def find_common_axis(p: NamedBase, q: NamedBase, axis: AxisSelector | None) -> str:
    """Returns the name of the coefficient axis of two polynomials, which may differ in size."""
    name, other = find_coefficient_axis(p, axis), find_coefficient_axis(q, axis)
    if name != other:
        raise ValueError(
            f"the coefficients are along axis {name!r} of {format_shape(p)} and axis {other!r} of {format_shape(q)}; "
            "`rename` one of them"
        )
    return name


def parse_count(name: str, value: Any) -> int:
    """Returns an argument as a nonnegative integer; raises a TypeError or ValueError that names it."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, not {type(value).__name__}.") from None
    if count < 0:
        raise ValueError(f"`{name}` must not be negative, it is {count}")
    return count


def apply_to_polynomials(
    fn: Callable[..., Any],
    signature: str,
    arrays: Sequence[N],
    cores: Sequence[AxisSelection],
    outs: Sequence[Names],
    **options: Hashable,
) -> tuple[N, ...]:
    """Applies a module-level function of single polynomials, vectorised by its signature; see `apply_gufunc`."""
    return apply_gufunc(
        _vectorize_function, arrays, cores, outs, one=fn, signature=signature, options=tuple(options.items())
    )


def _vectorize_function(
    *arrays: Any, one: Callable[..., Any], signature: str, options: tuple[tuple[str, Any], ...]
) -> Any:
    return jnp.vectorize(functools.partial(one, **dict(options)), signature=signature)(*arrays)
