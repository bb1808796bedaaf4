"""`haliax.nn.activations`: elementwise functions, with Haliax's names for their arguments."""

from typing import Any

import jax

from ... import nn
from ...named._broadcasting import apply_unary
from .._adapt import adapt, adapt_all, make_getattr


globals().update(
    adapt_all(nn, {"a=x": "elu gelu hard_tanh leaky_relu log_sigmoid relu relu6 sigmoid silu softplus swish"})
)
glu = adapt(nn.glu)


def celu(a: Any) -> Any:
    """See `jax.nn.celu`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.celu(hax.named([1.0], "i")).item()
        1.0
    """
    return apply_unary(jax.nn.celu, a)


def hard_sigmoid(a: Any) -> Any:
    """See `jax.nn.hard_sigmoid`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.hard_sigmoid(hax.named([3.0], "i")).item()
        1.0
    """
    return apply_unary(jax.nn.hard_sigmoid, a)


def hard_silu(a: Any) -> Any:
    """See `jax.nn.hard_silu`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.hard_silu(hax.named([3.0], "i")).item()
        3.0
    """
    return apply_unary(jax.nn.hard_silu, a)


hard_swish = hard_silu


def quick_gelu(x: Any) -> Any:
    """Returns `x * sigmoid(1.702 * x)`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.quick_gelu(hax.named([0.0], "i")).item()
        0.0
    """
    return x * nn.sigmoid(x * 1.702)


def relu_squared(x: Any) -> Any:
    """Returns the square of `max(x, 0)`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.relu_squared(hax.named([3.0], "i")).item()
        9.0
    """
    positive = nn.relu(x)
    return positive * positive


def selu(a: Any) -> Any:
    """See `jax.nn.selu`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.selu(hax.named([0.0], "i")).item()
        0.0
    """
    return apply_unary(jax.nn.selu, a)


def soft_sign(a: Any) -> Any:
    """See `jax.nn.soft_sign`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.soft_sign(hax.named([1.0], "i")).item()
        0.5
    """
    return apply_unary(jax.nn.soft_sign, a)


__getattr__ = make_getattr("haliax.nn.activations")
