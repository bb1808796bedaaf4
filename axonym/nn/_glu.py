"""Gated linear units: the first half of an axis times an activation of its second half (Shazeer, 2020)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..named._arguments import check_flag
from ..named._axis import AxisSelector
from ..named._base import N, check_named
from ..named._reduce._apply_reduction import apply_along


def glu(x: N, axis: AxisSelector) -> N:
    """Returns the first half of an axis, gated by the second: `first * sigmoid(second)`; see `jax.nn.glu`.

    The two halves of a sharded axis are on different devices, so the axis is gathered. Under tensor parallelism, let
    the layer before make an axis of size 2 besides, as in `Out=(Axis("gate", 2), Mlp)`, and gate with its elements.

    Args:
        x: Array with the axis.
        axis: The axis, of even size.

    Returns:
        Array with the axes of `x`, this one with half the size.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If the axis is missing or has an odd size.

    Example:
        >>> import axonym as nym
        >>> nym.nn.glu(nym.named([2.0, 4.0, 0.0, 0.0], "mlp"), "mlp").array
        Array([1., 2.], dtype=float32)
    """
    _check_even_axis("glu", x, axis)
    return apply_along(jax.nn.glu, x, axis)


def swiglu(x: N, axis: AxisSelector, *, gate_first: bool = False) -> N:
    """Returns the first half of an axis, gated by the second: `first * silu(second)`.

    Args:
        x: Array with the axis, which is gathered if it is sharded; see `glu`.
        axis: The axis, of even size.
        gate_first: Whether the first half is the gate, `silu(first) * second`, as in checkpoints that store the weights
            of gate and values in this order.

    Returns:
        Array with the axes of `x`, this one with half the size.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If the axis is missing or has an odd size.

    Example:
        >>> import axonym as nym
        >>> nym.nn.swiglu(nym.named([2.0, 4.0, 0.0, 1.0], "mlp"), "mlp").array.round(3)
        Array([0.   , 2.924], dtype=float32)
    """
    return _apply_gate("swiglu", jax.nn.silu, x, axis, gate_first)


def geglu(x: N, axis: AxisSelector, *, gate_first: bool = False, approximate: bool = True) -> N:
    """Returns the first half of an axis, gated by the second: `first * gelu(second)`. Arguments as for `swiglu`.

    Args:
        x: Array with the axis, which is gathered if it is sharded; see `glu`.
        axis: The axis, of even size.
        gate_first: Whether the first half is the gate.
        approximate: Whether `gelu` is approximated by `tanh`.

    Returns:
        Array with the axes of `x`, this one with half the size.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If the axis is missing or has an odd size.

    Example:
        >>> import axonym as nym
        >>> nym.nn.geglu(nym.named([2.0, 4.0, 0.0, 10.0], "mlp"), "mlp", approximate=False).array
        Array([ 0., 40.], dtype=float32)
    """
    check_flag("geglu: `approximate`", approximate)
    return _apply_gate("geglu", jax.nn.gelu if approximate else _compute_exact_gelu, x, axis, gate_first)


def reglu(x: N, axis: AxisSelector, *, gate_first: bool = False) -> N:
    """Returns the first half of an axis, gated by the second: `first * relu(second)`. Arguments as for `swiglu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.reglu(nym.named([2.0, 4.0, -1.0, 1.0], "mlp"), "mlp").array
        Array([0., 4.], dtype=float32)
    """
    return _apply_gate("reglu", jax.nn.relu, x, axis, gate_first)


def _compute_exact_gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _check_even_axis(function: str, x: Any, axis: AxisSelector) -> None:
    check_named(x)
    if x.axis_size(axis) % 2:
        raise ValueError(f"`{function}` takes an axis of even size, not ({x.resolve_axis(axis)})")


def _apply_gate(function: str, activation: Callable[..., Any], x: N, axis: AxisSelector, gate_first: bool) -> N:
    _check_even_axis(function, x, axis)
    return apply_along(_gate_halves, x, axis, activation=activation, gate_first=gate_first)


def _gate_halves(x: jax.Array, axis: int, activation: Callable[..., Any], gate_first: bool) -> jax.Array:
    first, second = jnp.split(x, 2, axis)
    return activation(first) * second if gate_first else first * activation(second)
