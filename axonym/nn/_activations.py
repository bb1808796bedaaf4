"""Elementwise activation functions; each applies the `jax.nn` function of the same name."""

import functools

import jax

from ..named._axis import AxisSelector
from ..named._base import A, N, check_named
from ..named._broadcasting import apply_unary
from ..named._reduce._apply_reduction import apply_along


def relu(x: A) -> A:
    """Returns `max(x, 0)`; see `jax.nn.relu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.relu(nym.named([-1.0], "i")).item()
        0.0
    """
    return apply_unary(jax.nn.relu, x)


def relu6(x: A) -> A:
    """Returns `min(max(x, 0), 6)`; see `jax.nn.relu6`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.relu6(nym.named([8.0], "i")).item()
        6.0
    """
    return apply_unary(jax.nn.relu6, x)


def sigmoid(x: A) -> A:
    """Returns `1 / (1 + exp(-x))`; see `jax.nn.sigmoid`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.sigmoid(nym.named([0.0], "i")).item()
        0.5
    """
    return apply_unary(jax.nn.sigmoid, x)


def silu(x: A) -> A:
    """Returns `x * sigmoid(x)`; see `jax.nn.silu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.silu(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jax.nn.silu, x)


def swish(x: A) -> A:
    """Returns `x * sigmoid(x)`, an alias of `silu`; see `jax.nn.swish`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.swish(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jax.nn.swish, x)


def softplus(x: A) -> A:
    """Returns `log(1 + exp(x))`; see `jax.nn.softplus`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.softplus(nym.named([0.0], "i")).item()
        0.693...
    """
    return apply_unary(jax.nn.softplus, x)


def log_sigmoid(x: A) -> A:
    """Returns `log(sigmoid(x))`; see `jax.nn.log_sigmoid`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.log_sigmoid(nym.named([0.0], "i")).item()
        -0.693...
    """
    return apply_unary(jax.nn.log_sigmoid, x)


def elu(x: A) -> A:
    """Returns `x` where it is positive and `exp(x) - 1` elsewhere; see `jax.nn.elu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.elu(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jax.nn.elu, x)


def leaky_relu(x: A) -> A:
    """Returns `x` where it is positive and `0.01 * x` elsewhere; see `jax.nn.leaky_relu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.leaky_relu(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jax.nn.leaky_relu, x)


def hard_tanh(x: A) -> A:
    """Returns `x` limited to [-1, 1]; see `jax.nn.hard_tanh`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.hard_tanh(nym.named([3.0], "i")).item()
        1.0
    """
    return apply_unary(jax.nn.hard_tanh, x)


def gelu(x: A, approximate: bool = True) -> A:
    """Returns `x` times the normal distribution function of `x`; see `jax.nn.gelu`.

    Args:
        x: Array of any axes.
        approximate: Whether to use the approximation by `tanh`.

    Returns:
        Array with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.gelu(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(functools.partial(jax.nn.gelu, approximate=approximate), x)


def glu(x: N, axis: AxisSelector) -> N:
    """Returns the first half of an axis, gated by the second: `first * sigmoid(second)`; see `jax.nn.glu`.

    Args:
        x: Array with the axis.
        axis: The axis, of even size.

    Returns:
        Array with the axes of `x`, this one with half the size.

    Raises:
        ValueError: If the axis is missing or has an odd size.

    Example:
        >>> import axonym as nym
        >>> nym.nn.glu(nym.named([2.0, 4.0, 0.0, 0.0], "mlp"), "mlp").array
        Array([1., 2.], dtype=float32)
    """
    check_named(x)
    if x.axis_size(axis) % 2:
        raise ValueError(f"`glu` takes an axis of even size, not ({x.resolve_axis(axis)})")
    return apply_along(jax.nn.glu, x, axis)
