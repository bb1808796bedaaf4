"""Elementwise arithmetic, extrema, rounding, copies and choices."""

import functools
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._ground.arguments import check_integer
from ..._ground.caches import cached_jit
from ..._ground.formats import format_value
from .._axis import Axis, Names, parse_one_axis
from .._base import A, N, NamedBase, check_named, with_array
from .._broadcasting import apply_binary, apply_broadcast, apply_unary
from .._numpy_input import check_values, parse_fill_positions
from .._operation import replicate_axes, run_operation
from . import _jitted


def split_pair(result: Any) -> tuple[Any, Any]:
    """Splits a named array that holds a pair into two named arrays; a plain pair stays as it is."""
    if not isinstance(result, NamedBase):
        return tuple(result)
    first, second = result.array
    return with_array(result, first), with_array(result, second)


def abs(x: A) -> A:
    """Returns the absolute value; see `jax.numpy.abs`. Alias: `absolute`.

    Example:
        >>> import axonym as nym
        >>> nym.abs(nym.named([-2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.abs, x)


def negative(x: A) -> A:
    """Returns `-x`; see `jax.numpy.negative`.

    Example:
        >>> import axonym as nym
        >>> nym.negative(nym.named([2.0], "i")).item()
        -2.0
    """
    return apply_unary(_jitted.negative, x)


def positive(x: A) -> A:
    """Returns `+x`; see `jax.numpy.positive`.

    Example:
        >>> import axonym as nym
        >>> nym.positive(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.positive, x)


def sign(x: A) -> A:
    """Returns the sign: -1, 0 or 1; see `jax.numpy.sign`.

    Example:
        >>> import axonym as nym
        >>> nym.sign(nym.named([-2.0], "i")).item()
        -1.0
    """
    return apply_unary(jnp.sign, x)


def square(x: A) -> A:
    """Returns `x * x`; see `jax.numpy.square`.

    Example:
        >>> import axonym as nym
        >>> nym.square(nym.named([3.0], "i")).item()
        9.0
    """
    return apply_unary(jnp.square, x)


def sqrt(x: A) -> A:
    """Returns the square root; see `jax.numpy.sqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.sqrt(nym.named([9.0], "i")).item()
        3.0
    """
    return apply_unary(jnp.sqrt, x)


def rsqrt(x: A) -> A:
    """Returns `1 / sqrt(x)`; see `jax.lax.rsqrt`.

    Example:
        >>> import axonym as nym
        >>> nym.rsqrt(nym.named([4.0], "i")).item()
        0.5
    """
    return apply_unary(jax.lax.rsqrt, x)


def reciprocal(x: A) -> A:
    """Returns `1 / x`; see `jax.numpy.reciprocal`.

    Example:
        >>> import axonym as nym
        >>> nym.reciprocal(nym.named([4.0], "i")).item()
        0.25
    """
    return apply_unary(jnp.reciprocal, x)


@overload
def add(x: N, y: N | ArrayLike) -> N: ...
@overload
def add(x: ArrayLike, y: N) -> N: ...
@overload
def add(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def add(x: Any, y: Any) -> Any:
    """Returns `x + y`, broadcast by name; see `jax.numpy.add`.

    Example:
        >>> import axonym as nym
        >>> nym.add(nym.named([3.0], "i"), 2.0).item()
        5.0
    """
    return apply_binary(_jitted.add, x, y)


@overload
def subtract(x: N, y: N | ArrayLike) -> N: ...
@overload
def subtract(x: ArrayLike, y: N) -> N: ...
@overload
def subtract(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def subtract(x: Any, y: Any) -> Any:
    """Returns `x - y`, broadcast by name; see `jax.numpy.subtract`.

    Example:
        >>> import axonym as nym
        >>> nym.subtract(nym.named([3.0], "i"), 3.0).item()
        0.0
    """
    return apply_binary(_jitted.subtract, x, y)


@overload
def multiply(x: N, y: N | ArrayLike) -> N: ...
@overload
def multiply(x: ArrayLike, y: N) -> N: ...
@overload
def multiply(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def multiply(x: Any, y: Any) -> Any:
    """Returns `x * y`, broadcast by name; see `jax.numpy.multiply`.

    Example:
        >>> import axonym as nym
        >>> nym.multiply(nym.named([3.0], "i"), 2.0).item()
        6.0
    """
    return apply_binary(_jitted.multiply, x, y)


@overload
def divide(x: N, y: N | ArrayLike) -> N: ...
@overload
def divide(x: ArrayLike, y: N) -> N: ...
@overload
def divide(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def divide(x: Any, y: Any) -> Any:
    """Returns `x / y`, broadcast by name; see `jax.numpy.divide`. Alias: `true_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.divide(nym.named([3.0], "i"), 2.0).item()
        1.5
    """
    return apply_binary(jnp.true_divide, x, y)


@overload
def floor_divide(x: N, y: N | ArrayLike) -> N: ...
@overload
def floor_divide(x: ArrayLike, y: N) -> N: ...
@overload
def floor_divide(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def floor_divide(x: Any, y: Any) -> Any:
    """Returns `x / y` rounded down, broadcast by name; see `jax.numpy.floor_divide`.

    Example:
        >>> import axonym as nym
        >>> nym.floor_divide(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return apply_binary(jnp.floor_divide, x, y)


@overload
def mod(x: N, y: N | ArrayLike) -> N: ...
@overload
def mod(x: ArrayLike, y: N) -> N: ...
@overload
def mod(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def mod(x: Any, y: Any) -> Any:
    """Returns the remainder of `x / y`, of the sign of `y`, broadcast by name; see `jax.numpy.mod`. Alias: `remainder`.

    Example:
        >>> import axonym as nym
        >>> nym.mod(nym.named([3.0], "i"), 2.0).item()
        1.0
    """
    return apply_binary(jnp.remainder, x, y)


@overload
def power(x: N, y: N | ArrayLike) -> N: ...
@overload
def power(x: ArrayLike, y: N) -> N: ...
@overload
def power(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def power(x: Any, y: Any) -> Any:
    """Returns `x ** y`, broadcast by name; see `jax.numpy.power`. Alias: `pow`.

    Example:
        >>> import axonym as nym
        >>> nym.power(nym.named([3.0], "i"), 2.0).item()
        9.0
    """
    if type(y) is int:  # a static exponent lets `jax.numpy` multiply
        return apply_unary(cached_jit(_raise_to_integer, y), x)
    return apply_binary(jnp.power, x, y)


def _raise_to_integer(exponent: int, array: Any) -> Any:
    return jnp.power(array, exponent)


def fabs(x: A) -> A:
    """Returns the absolute value as a floating-point number; see `jax.numpy.fabs`.

    Example:
        >>> import axonym as nym
        >>> nym.fabs(nym.named([-2], "i")).item()
        2.0
    """
    return apply_unary(jnp.fabs, x)


def cbrt(x: A) -> A:
    """Returns the cube root; see `jax.numpy.cbrt`.

    Example:
        >>> import axonym as nym
        >>> nym.cbrt(nym.named([27.0], "i")).item()
        3.0
    """
    return apply_unary(jnp.cbrt, x)


@overload
def float_power(x: N, y: N | ArrayLike) -> N: ...
@overload
def float_power(x: ArrayLike, y: N) -> N: ...
@overload
def float_power(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def float_power(x: Any, y: Any) -> Any:
    """Returns `x ** y` as a floating-point number, broadcast by name; see `jax.numpy.float_power`.

    Example:
        >>> import axonym as nym
        >>> nym.float_power(nym.named([3], "i"), 2).item()
        9.0
    """
    return apply_binary(jnp.float_power, x, y)


@overload
def fmod(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmod(x: ArrayLike, y: N) -> N: ...
@overload
def fmod(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmod(x: Any, y: Any) -> Any:
    """Returns the remainder of `x / y`, of the sign of `x`, broadcast by name; see `jax.numpy.fmod`.

    Example:
        >>> import axonym as nym
        >>> nym.fmod(nym.named([-3.0], "i"), 2.0).item()
        -1.0
    """
    return apply_binary(jnp.fmod, x, y)


@overload
def divmod(x: N, y: N | ArrayLike) -> tuple[N, N]: ...
@overload
def divmod(x: ArrayLike, y: N) -> tuple[N, N]: ...
@overload
def divmod(x: ArrayLike, y: ArrayLike) -> tuple[jax.Array, jax.Array]: ...
def divmod(x: Any, y: Any) -> Any:
    """Returns `x // y` and `x % y`, broadcast by name; see `jax.numpy.divmod`.

    Example:
        >>> import axonym as nym
        >>> quotient, rest = nym.divmod(nym.named([7], "i"), 2)
        >>> quotient.item(), rest.item()
        (3, 1)
    """
    return split_pair(apply_binary(jnp.divmod, x, y))


@overload
def gcd(x: N, y: N | ArrayLike) -> N: ...
@overload
def gcd(x: ArrayLike, y: N) -> N: ...
@overload
def gcd(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def gcd(x: Any, y: Any) -> Any:
    """Returns the greatest common divisor of integers, broadcast by name; see `jax.numpy.gcd`.

    Example:
        >>> import axonym as nym
        >>> nym.gcd(nym.named([12], "i"), 18).item()
        6
    """
    return apply_binary(jnp.gcd, x, y)


@overload
def lcm(x: N, y: N | ArrayLike) -> N: ...
@overload
def lcm(x: ArrayLike, y: N) -> N: ...
@overload
def lcm(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def lcm(x: Any, y: Any) -> Any:
    """Returns the least common multiple of integers, broadcast by name; see `jax.numpy.lcm`.

    Example:
        >>> import axonym as nym
        >>> nym.lcm(nym.named([4], "i"), 6).item()
        12
    """
    return apply_binary(jnp.lcm, x, y)


@overload
def heaviside(x: N, y: N | ArrayLike) -> N: ...
@overload
def heaviside(x: ArrayLike, y: N) -> N: ...
@overload
def heaviside(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def heaviside(x: Any, y: Any) -> Any:
    """Returns the step function: 0 below 0, 1 above, `y` at 0, broadcast by name; see `jax.numpy.heaviside`.

    Example:
        >>> import axonym as nym
        >>> nym.heaviside(nym.named([0.0], "i"), 0.5).item()
        0.5
    """
    return apply_binary(jnp.heaviside, x, y)


absolute = abs
pow = power
remainder = mod
true_divide = divide


@overload
def maximum(x: N, y: N | ArrayLike) -> N: ...
@overload
def maximum(x: ArrayLike, y: N) -> N: ...
@overload
def maximum(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def maximum(x: Any, y: Any) -> Any:
    """Returns the larger of `x` and `y`, broadcast by name; see `jax.numpy.maximum`.

    Example:
        >>> import axonym as nym
        >>> nym.maximum(nym.named([3.0], "i"), 5.0).item()
        5.0
    """
    return apply_binary(_jitted.maximum, x, y)


@overload
def minimum(x: N, y: N | ArrayLike) -> N: ...
@overload
def minimum(x: ArrayLike, y: N) -> N: ...
@overload
def minimum(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def minimum(x: Any, y: Any) -> Any:
    """Returns the smaller of `x` and `y`, broadcast by name; see `jax.numpy.minimum`.

    Example:
        >>> import axonym as nym
        >>> nym.minimum(nym.named([3.0], "i"), 5.0).item()
        3.0
    """
    return apply_binary(_jitted.minimum, x, y)


@overload
def fmax(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmax(x: ArrayLike, y: N) -> N: ...
@overload
def fmax(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmax(x: Any, y: Any) -> Any:
    """Returns the larger of `x` and `y`, the number if one is NaN, broadcast by name; see `jax.numpy.fmax`.

    Example:
        >>> import axonym as nym
        >>> nym.fmax(nym.named([3.0], "i"), 5.0).item()
        5.0
    """
    return apply_binary(jnp.fmax, x, y)


@overload
def fmin(x: N, y: N | ArrayLike) -> N: ...
@overload
def fmin(x: ArrayLike, y: N) -> N: ...
@overload
def fmin(x: ArrayLike, y: ArrayLike) -> jax.Array: ...
def fmin(x: Any, y: Any) -> Any:
    """Returns the smaller of `x` and `y`, the number if one is NaN, broadcast by name; see `jax.numpy.fmin`.

    Example:
        >>> import axonym as nym
        >>> nym.fmin(nym.named([3.0], "i"), 5.0).item()
        3.0
    """
    return apply_binary(jnp.fmin, x, y)


def clip(x: A, min: Any = None, max: Any = None) -> A:
    """Limits the elements of `x` to a range; see `jax.numpy.clip`.

    Args:
        x: Array of any axes.
        min: Lower bound, a scalar or a named array; no bound if None.
        max: Upper bound, a scalar or a named array; no bound if None.

    Returns:
        Array with the broadcast axes.

    Raises:
        ValueError: If the operands do not broadcast by name, or a bound is a Python integer that does not fit the dtype
            of integers.

    Example:
        >>> import axonym as nym
        >>> nym.clip(nym.arange(nym.Axis("i", 4)), 1, 2).array
        Array([1, 1, 2, 2], dtype=int32)
    """
    for bound in (min, max):
        if type(bound) is int and isinstance(x, NamedBase):  # any other takes part in the promotion of dtypes
            check_values(bound, x.dtype)
    # A bound of None is no operand; with a single bound, clipping is one of these two functions.
    if (min is None) == (max is None):
        return apply_unary(jnp.clip, x) if min is None else apply_broadcast(jnp.clip, x, min, max)
    bounded: Any = x if min is None else maximum(x, min)
    return bounded if max is None else minimum(bounded, max)


def floor(x: A) -> A:
    """Returns the largest integer not above `x`; see `jax.numpy.floor`.

    Example:
        >>> import axonym as nym
        >>> nym.floor(nym.named([1.5], "i")).item()
        1.0
    """
    return apply_unary(jnp.floor, x)


def ceil(x: A) -> A:
    """Returns the smallest integer not below `x`; see `jax.numpy.ceil`.

    Example:
        >>> import axonym as nym
        >>> nym.ceil(nym.named([1.5], "i")).item()
        2.0
    """
    return apply_unary(jnp.ceil, x)


def rint(x: A) -> A:
    """Returns the nearest integer, halves to even; see `jax.numpy.rint`.

    Example:
        >>> import axonym as nym
        >>> nym.rint(nym.named([2.5], "i")).item()
        2.0
    """
    return apply_unary(jnp.rint, x)


def round(x: A, decimals: int = 0) -> A:
    """Returns `x` rounded to a number of decimals, halves to even; see `jax.numpy.round`. Alias: `around`.

    Example:
        >>> import axonym as nym
        >>> nym.round(nym.named([0.4375], "i"), 1).item() == nym.named(0.4, ()).item()
        True
    """
    decimals = check_integer("round: `decimals`", decimals)
    return apply_unary(lambda array: jnp.round(array, decimals), x)


def trunc(x: A) -> A:
    """Returns `x` rounded towards 0; see `jax.numpy.trunc`. Alias: `fix`.

    Example:
        >>> import axonym as nym
        >>> nym.trunc(nym.named([-2.5], "i")).item()
        -2.0
    """
    return apply_unary(jnp.trunc, x)


around = round
fix = trunc


def copy(x: A) -> A:
    """Returns a copy with its own memory; see `jax.numpy.copy`.

    Example:
        >>> import axonym as nym
        >>> nym.copy(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jnp.copy, x)


def ndim(x: NamedBase | ArrayLike) -> int:
    """Returns the number of axes, a plain integer; see `jax.numpy.ndim`.

    Example:
        >>> import axonym as nym
        >>> nym.ndim(nym.zeros({"batch": 2, "embed": 3}))
        2
    """
    return x.ndim if isinstance(x, NamedBase) else jnp.ndim(x)


@overload
def where(condition: N, x: N | ArrayLike, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: N, y: N | ArrayLike) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: N) -> N: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> jax.Array: ...
@overload
def where(condition: N, *, fill_value: Any = 0, new_axis: Axis) -> tuple[N, ...]: ...
def where(condition: Any, x: Any = None, y: Any = None, *, fill_value: Any = 0, new_axis: Axis | None = None) -> Any:
    """Takes elements of `x` where the condition is true and of `y` elsewhere; see `jax.numpy.where`.

    For the condition alone it returns the positions of its true elements, as many as the size of `new_axis`.

    Args:
        condition: Boolean array, or a scalar.
        x: Named array or scalar.
        y: Named array or scalar.
        fill_value: The position to use where there are fewer true elements than the size of `new_axis`; a scalar, or
            one for each axis.
        new_axis: Axis of the positions, if neither `x` nor `y` is given.

    Returns:
        Array with the broadcast axes; both branches are computed. It is named if one operand is, even the condition
        alone: `.scalar()` returns the plain array of a result without axes. For the condition alone, a tuple of integer
        arrays over the new axis, one for each axis of the condition.

    Raises:
        ValueError: If the operands do not broadcast by name, or only one of `x` and `y` is given.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.where(i < 2, i, -1).array
        Array([ 0,  1, -1, -1], dtype=int32)
        >>> (found,) = nym.where(i < 2, fill_value=-1, new_axis=nym.Axis("found", 3))
        >>> found.array
        Array([ 0,  1, -1], dtype=int32)
    """
    if new_axis is not None and x is None and y is None:
        check_named(condition)
        if not condition.names:
            raise ValueError("a condition without axes has no positions")
        new_axis = parse_one_axis(new_axis)
        fill = parse_fill_positions(fill_value)
        positions = cached_jit(_compute_positions, condition.names, new_axis)(condition.array, fill)
        return tuple(with_array(condition, array, (new_axis.name,)) for array in positions)
    if x is None or y is None or new_axis is not None:
        raise ValueError(
            "`where` needs both `x` and `y`, or neither of them and a `new_axis` for the positions of true elements"
        )
    return apply_broadcast(jnp.where, condition, x, y)


def _compute_positions(names: Names, new_axis: Axis, array: Any, fill_value: Any) -> tuple[Any, ...]:
    find_true = functools.partial(jnp.where, size=new_axis.size, fill_value=fill_value)
    # Replicated first: the new axis may have the name of one of the axes, and another size.
    array = replicate_axes(array, names, names)
    return run_operation(find_true, [names], (new_axis.name,), array)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Takes each element from the choice of its first true condition; see `jax.numpy.select`.

    Args:
        condlist: Boolean arrays, or scalars.
        choicelist: As many named arrays or scalars.
        default: Named array or scalar, for elements without a true condition.

    Returns:
        Array with the broadcast axes; all choices are computed.

    Raises:
        ValueError: If there is not one choice for each condition, or the operands do not broadcast by name.
        TypeError: If one of them is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 4))
        >>> nym.select([i < 1, i < 3], [-1, i * i], default=9).array
        Array([-1,  1,  4,  9], dtype=int32)
    """
    if not isinstance(condlist, Sequence) or not isinstance(choicelist, Sequence):
        raise TypeError(
            f"`select` takes a list of conditions and a list of choices, not {format_value(condlist)} and "
            f"{format_value(choicelist)}."
        )
    conditions, choices = tuple(condlist), tuple(choicelist)
    if not conditions or len(conditions) != len(choices):
        raise ValueError(
            f"`select` takes one choice for each condition, at least one: {len(conditions)} conditions and "
            f"{len(choices)} choices were given"
        )
    return apply_broadcast(_compute_select, *conditions, *choices, default)


def _compute_select(*operands: Any) -> Any:
    count = len(operands) // 2
    return jnp.select(operands[:count], operands[count:-1], operands[-1])
