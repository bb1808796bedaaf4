"""Elementwise activation functions; each applies the `jax.nn` function of the same name if there is one.

They take plain arrays and numbers too, as those of `jax.nn` do.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._ground.arguments import check_flag
from ..named._base import A
from ..named._broadcasting import apply_unary


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


def elu(x: A, alpha: ArrayLike = 1.0) -> A:
    """Returns `x` where it is positive and `alpha * (exp(x) - 1)` elsewhere; see `jax.nn.elu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.elu(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(functools.partial(jax.nn.elu, alpha=alpha), x)


def leaky_relu(x: A, negative_slope: ArrayLike = 0.01) -> A:
    """Returns `x` where it is positive and `negative_slope * x` elsewhere; see `jax.nn.leaky_relu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.leaky_relu(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(functools.partial(jax.nn.leaky_relu, negative_slope=negative_slope), x)


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
    check_flag("gelu: `approximate`", approximate)
    return apply_unary(functools.partial(jax.nn.gelu, approximate=approximate), x)


def celu(x: A, alpha: ArrayLike = 1.0) -> A:
    """Returns `x` where it is positive and `alpha * (exp(x / alpha) - 1)` elsewhere; see `jax.nn.celu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.celu(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(functools.partial(jax.nn.celu, alpha=alpha), x)


def selu(x: A) -> A:
    """Returns `elu` scaled so that activations keep mean 0 and variance 1; see `jax.nn.selu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.selu(nym.named([1.0], "i")).item()
        1.050...
    """
    return apply_unary(jax.nn.selu, x)


def mish(x: A) -> A:
    """Returns `x * tanh(softplus(x))`; see `jax.nn.mish`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.mish(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jax.nn.mish, x)


def hard_sigmoid(x: A) -> A:
    """Returns `relu6(x + 3) / 6`; see `jax.nn.hard_sigmoid`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.hard_sigmoid(nym.named([3.0], "i")).item()
        1.0
    """
    return apply_unary(jax.nn.hard_sigmoid, x)


def hard_silu(x: A) -> A:
    """Returns `x * hard_sigmoid(x)`; see `jax.nn.hard_silu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.hard_silu(nym.named([3.0], "i")).item()
        3.0
    """
    return apply_unary(jax.nn.hard_silu, x)


def hard_swish(x: A) -> A:
    """Returns `x * hard_sigmoid(x)`, an alias of `hard_silu`; see `jax.nn.hard_swish`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.hard_swish(nym.named([-3.0], "i")).item()
        -0.0
    """
    return apply_unary(jax.nn.hard_swish, x)


def soft_sign(x: A) -> A:
    """Returns `x / (1 + abs(x))`; see `jax.nn.soft_sign`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.soft_sign(nym.named([1.0], "i")).item()
        0.5
    """
    return apply_unary(jax.nn.soft_sign, x)


def squareplus(x: A, b: ArrayLike = 4.0) -> A:
    """Returns `(x + sqrt(x**2 + b)) / 2`; see `jax.nn.squareplus`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.squareplus(nym.named([0.0], "i")).item()
        1.0
    """
    return apply_unary(functools.partial(jax.nn.squareplus, b=b), x)


def sparse_plus(x: A) -> A:
    """Returns 0 up to -1, `x` from 1, and `(x + 1)**2 / 4` between; see `jax.nn.sparse_plus`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.sparse_plus(nym.named([0.0], "i")).item()
        0.25
    """
    return apply_unary(jax.nn.sparse_plus, x)


def sparse_sigmoid(x: A) -> A:
    """Returns `(x + 1) / 2` limited to [0, 1], the derivative of `sparse_plus`; see `jax.nn.sparse_sigmoid`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.sparse_sigmoid(nym.named([0.0], "i")).item()
        0.5
    """
    return apply_unary(jax.nn.sparse_sigmoid, x)


def log1mexp(x: A) -> A:
    """Returns `log(1 - exp(-x))` for positive `x`, exactly for small and large `x`; see `jax.nn.log1mexp`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.log1mexp(nym.named([1.0], "i")).item()
        -0.458...
    """
    return apply_unary(jax.nn.log1mexp, x)


def identity(x: A) -> A:
    """Returns `x`, for a layer that takes an activation; see `jax.nn.identity`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.identity(nym.named([2.0], "i")).item()
        2.0
    """
    return apply_unary(jax.nn.identity, x)


def quick_gelu(x: A) -> A:
    """Returns `x * sigmoid(1.702 * x)`, an approximation of `gelu` (Hendrycks and Gimpel, 2016).

    Example:
        >>> import axonym as nym
        >>> nym.nn.quick_gelu(nym.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(_compute_quick_gelu, x)


@jax.jit
def _compute_quick_gelu(x: ArrayLike) -> jax.Array:
    x = jnp.asarray(x)
    return x * jax.nn.sigmoid(1.702 * x)


def relu_squared(x: A) -> A:
    """Returns the square of `max(x, 0)` (So et al., 2021).

    Example:
        >>> import axonym as nym
        >>> nym.nn.relu_squared(nym.named([3.0], "i")).item()
        9.0
    """
    return apply_unary(_compute_relu_squared, x)


@jax.jit
def _compute_relu_squared(x: ArrayLike) -> jax.Array:
    return jnp.square(jax.nn.relu(jnp.asarray(x)))
