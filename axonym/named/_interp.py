"""Linear interpolation."""

from typing import Any

import jax.numpy as jnp

from ._base import N, check_named
from ._gufunc import apply_gufunc
from ._search import as_scalar_array, check_same_axis, check_vector, rename_axes_apart


def interp(x: N, xp: N, fp: N, left: Any = None, right: Any = None, period: Any = None) -> N:
    """Interpolates linearly between points; see `jax.numpy.interp`.

    Args:
        x: Coordinates to interpolate at, of any axes, which are independent of the axis of the points.
        xp: Coordinates of the points, an increasing array of one axis.
        fp: Values of the points, with the same axis.
        left: Value to the left of the points, by default the first of `fp`.
        right: Value to the right of the points, by default the last of `fp`.
        period: Period of periodic points; `left` and `right` are then ignored.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `xp` has more or less than one axis, or `fp` another axis.

    Example:
        >>> import axonym as nym
        >>> step, rate = nym.named([0.0, 10.0, 30.0], "point"), nym.named([0.0, 1.0, 0.0], "point")
        >>> nym.interp(nym.named([5.0, 20.0], "step"), step, rate)
        NamedArray(float32, step: 2, [0.5, 0.5])
    """
    check_named(x)
    check_vector("`xp`", xp)
    check_same_axis("`fp`", fp, "`xp`", xp)
    points = [rename_axes_apart(x, xp.array), rename_axes_apart(x, fp.array)]
    given = {"left": left, "right": right, "period": period}
    fixed = {key: value for key, value in given.items() if value is None or isinstance(value, str)}
    numbers = {key: as_scalar_array(f"`{key}`", x, value) for key, value in given.items() if key not in fixed}
    cores = ((), *(one.names for one in points), *(() for _ in numbers))
    arrays = (x, *points, *numbers.values())
    return apply_gufunc(_compute_interp, arrays, cores, ((),), numbers=tuple(numbers), **fixed)[0]


def _compute_interp(x: Any, xp: Any, fp: Any, *values: Any, numbers: tuple[str, ...], **fixed: Any) -> Any:
    dtype = jnp.result_type(x, xp, fp)
    if dtype == jnp.bfloat16:  # `jax.numpy.interp` does not take it
        x, xp, fp = (one.astype(jnp.float32) for one in (x, xp, fp))
    result = jnp.interp(x, xp.reshape(-1), fp.reshape(-1), **dict(zip(numbers, values, strict=True)), **fixed)
    return result.astype(dtype) if dtype == jnp.bfloat16 else result
