"""Gated linear units, and perceptrons of several layers that may use them."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import random
from .._ground.arguments import check_flag, check_function, check_integer
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, AxisSpec
from ..named._base import N, check_named
from ..named._named_call import named_call
from ..named._reduce._apply_reduction import apply_along
from ._activations import relu
from ._layer import Layer
from ._linear import Initializer, Linear


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
    return _apply_gate("geglu", functools.partial(jax.nn.gelu, approximate=approximate), x, axis, gate_first)


def reglu(x: N, axis: AxisSelector, *, gate_first: bool = False) -> N:
    """Returns the first half of an axis, gated by the second: `first * relu(second)`. Arguments as for `swiglu`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.reglu(nym.named([2.0, 4.0, -1.0, 1.0], "mlp"), "mlp").array
        Array([0., 4.], dtype=float32)
    """
    return _apply_gate("reglu", jax.nn.relu, x, axis, gate_first)


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


class MLP(Layer):
    """Linear layers applied in sequence, with an activation after each but the last.

    Attributes:
        layers: The linear layers.
        activation: The function between them.
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Any], Any] = eqx.field(static=True)

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[[Any], Any] = relu,
        *,
        key: jax.Array,
        use_bias: bool = True,
        use_final_bias: bool = True,
        out_first: bool = True,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        dtype: Any = None,
    ) -> "MLP":
        """Makes layers with random weights.

        Args:
            Input: The input axes.
            Output: The output axes.
            width: Size of the hidden axes, which are named `mlp` and `mlp2` in turn; or an `Axis` with another name.
            depth: Number of hidden layers; 0 gives a single linear layer.
            activation: Function of a named array.
            key: A random key.
            use_bias: Whether hidden layers add a bias.
            use_final_bias: Whether the last layer adds a bias.
            out_first: As for `Linear.init`.
            init_scale: As for `Linear.init`.
            initializer: As for `Linear.init`.
            bias_initializer: As for `Linear.init`.
            dtype: As for `Linear.init`.

        Returns:
            Layers sharded by the active mapping.

        Raises:
            TypeError: If `activation` is not a function, or `width` or `depth` not an integer.
            ValueError: If `depth` is negative, `width` is not positive, or an axis is both input and output of a layer.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Pixel, Label = nym.make_axes(pixel=64, label=10)
            >>> mlp = nym.nn.MLP.init(Pixel, Label, 32, 2, key=jax.random.key(0))
            >>> mlp(nym.ones({"batch": 4, "pixel": 64})).shape
            (batch: 4, label: 10)
        """
        depth = check_integer("MLP: `depth`", depth, 0)
        check_function("MLP: `activation`", activation, "axonym.nn.relu")
        hidden = width if isinstance(width, Axis) else Axis("mlp", check_integer("MLP: `width`", width, 1))
        # Two names in turn, because no axis may be both input and output of a layer.
        hidden_axes = [hidden, hidden.alias(f"{hidden.name}2")] * depth
        axes: list[AxisSpec] = [Input, *hidden_axes[:depth], Output]
        keys = random.split(key, depth + 1)
        layers = tuple(
            Linear.init(
                axes[i],
                axes[i + 1],
                key=keys[i],
                use_bias=use_final_bias if i == depth else use_bias,
                out_first=out_first,
                init_scale=init_scale,
                initializer=initializer,
                bias_initializer=bias_initializer,
                dtype=dtype,
            )
            for i in range(depth + 1)
        )
        return MLP(layers, activation)

    @property
    def In(self) -> tuple[Axis, ...]:
        """The input axes."""
        return self.layers[0].In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The output axes."""
        return self.layers[-1].Out

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layers.

        Args:
            x: Array with the input axes and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the other axes of `x`, then the output axes.

        Raises:
            ValueError: If `x` lacks an input axis.
        """
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)
