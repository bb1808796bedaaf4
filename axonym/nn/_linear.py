"""The linear layer: a contraction over named input axes, plus a bias."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from .. import random
from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._creation import zeros
from ..named._dot import dot
from ..named._named_call import named_call
from ._gather_parameter import gather_parameter
from ._inputs import check_input, format_layer_axes
from ._layer import Layer


def _make_node(dot_general: Any) -> Any:
    """Returns a function as a node of the tree without leaves, because transforms of JAX take arrays as leaves only."""
    return jax.tree_util.Partial(dot_general) if jax.tree_util.all_leaves([dot_general]) else dot_general


class Linear(Layer):
    """A linear map from input axes to output axes, with a bias: `dot(x, weight, axis=In) + bias`.

    Attributes:
        weight: Array with the output axes and the input axes.
        bias: Array with the output axes, or None.
        In: The axes contracted.
        Out: The axes of the result in their place.
        dot_general: Replacement for `jax.lax.dot_general`, a module or a function; or None.
    """

    weight: NamedArray
    bias: NamedArray | None
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)
    dot_general: Callable[..., Any] | None = eqx.field(default=None, converter=_make_node)

    @staticmethod
    def init(
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = True,
        init_scale: float = 1.0,
        dot_general: Callable[..., Any] | None = None,
    ) -> "Linear":
        """Makes a layer with random weights.

        Args:
            In: The input axes, one or several.
            Out: The output axes, one or several; none may also be an input axis.
            key: A random key.
            use_bias: Whether to add a bias, zero at first.
            out_first: Whether the output axes of the weight come before its input axes.
            init_scale: Factor of the weights, which are drawn from a normal distribution truncated at three standard
                deviations and scaled by `1 / sqrt(number of inputs)`.
            dot_general: Replacement for `jax.lax.dot_general` with the same arguments, as `Int8DotGeneral` in
                `axonym.quantization`. It may be a module with arrays of its own.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If an axis is both input and output.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp = nym.make_axes(embed=4, mlp=8)
            >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
            >>> layer(nym.ones({"batch": 2, "embed": 4})).shape
            (batch: 2, mlp: 8)
        """
        inputs, outputs = parse_axes(In), parse_axes(Out)
        if both := {axis.name for axis in inputs} & {axis.name for axis in outputs}:
            raise ValueError(
                f"{_format_linear(inputs, outputs)}: axis {min(both)!r} is both input and output; give one of them "
                "another name with `alias`"
            )
        scale = init_scale / math.sqrt(max(1, math.prod(axis.size for axis in inputs)))
        axes = (*outputs, *inputs) if out_first else (*inputs, *outputs)
        weight = random.truncated_normal(key, axes, -3, 3) * scale
        return Linear(weight, zeros(outputs) if use_bias else None, inputs, outputs, dot_general)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer.

        Args:
            x: Array with the input axes and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the other axes of `x`, then the output axes.

        Raises:
            ValueError: If `x` lacks an input axis or has an output axis.
        """
        check_input(_format_linear(self.In, self.Out), x, self.In, tuple(axis.name for axis in self.Out))
        result = dot(x, gather_parameter(self.weight), axis=self.In, dot_general=self.dot_general)
        return constrain_sharding(result if self.bias is None else result + gather_parameter(self.bias))


def _format_linear(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> str:
    return f"Linear ({format_layer_axes(inputs)} -> {format_layer_axes(outputs)})"
