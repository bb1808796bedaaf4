"""The linear layer: a contraction over named input axes, plus a bias."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._creation import zeros
from ..named._dot import check_dot_general, dot
from ..named._named_call import named_call
from ..random._sampling import as_plain_key
from ._export_axes import merge_axes, replace_axes
from ._gather_parameter import gather_parameter
from ._initializer import Initializer, check_init_scale, draw_scaled_normal, initialize_bias, initialize_weight
from ._inputs import check_input, format_layer_axes
from ._layer import Layer


def _make_node(dot_general: Any) -> Any:
    """Returns a function as a node of the tree without leaves, because transforms of JAX take arrays as leaves only."""
    if dot_general is not None:
        check_dot_general(dot_general)
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
        initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        dtype: Any = None,
        dot_general: Callable[..., Any] | None = None,
    ) -> "Linear":
        """Makes a layer with random weights.

        Args:
            In: The input axes, one or several.
            Out: The output axes, one or several; none may also be an input axis.
            key: A random key.
            use_bias: Whether to add a bias.
            out_first: Whether the output axes of the weight come before its input axes.
            init_scale: Factor of the weights.
            initializer: Draws the weight: a function of `jax.nn.initializers`, for which the number of inputs is the
                fan-in and the number of outputs the fan-out. If None, the weight is drawn from a normal distribution
                truncated at three standard deviations and scaled by `1 / sqrt(number of inputs)`.
            bias_initializer: Draws the bias as an array of one axis; zero if None.
            dtype: dtype of weight and bias; JAX's default float dtype if None.
            dot_general: Replacement for `jax.lax.dot_general` with the same arguments, as `Int8DotGeneral` in
                `axonym.quantization`. It may be a module with arrays of its own.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If an axis is both input and output.
            TypeError: If an initializer is not a function that returns an array, or `dot_general` not a function.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp = nym.make_axes(embed=4, mlp=8)
            >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
            >>> layer(nym.ones({"batch": 2, "embed": 4})).shape
            (batch: 2, mlp: 8)
            >>> init = jax.nn.initializers.he_normal()
            >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), initializer=init)
        """
        inputs, outputs = parse_axes(In), parse_axes(Out)
        if both := {axis.name for axis in inputs} & {axis.name for axis in outputs}:
            raise ValueError(
                f"{_format_linear(inputs, outputs)}: axis {min(both)!r} is both input and output; give one of them "
                "another name with `alias`"
            )
        check_init_scale(init_scale)
        axes = (*outputs, *inputs) if out_first else (*inputs, *outputs)
        dtype = float if dtype is None else dtype
        bias_key = None
        if use_bias and bias_initializer is not None:
            key, bias_key = jax.random.split(as_plain_key(key))
        if initializer is None:
            weight = draw_scaled_normal(key, axes, inputs, init_scale, dtype)
        else:
            weight = initialize_weight(initializer, key, inputs, outputs, axes, dtype) * init_scale
        bias = zeros(outputs, dtype) if use_bias else None
        if bias_initializer is not None and bias_key is not None:
            bias = initialize_bias(bias_initializer, bias_key, outputs, dtype)
        return Linear(weight, bias, inputs, outputs, dot_general)

    @property
    def out_first(self) -> bool:
        """Whether the output axes of the weight come before its input axes."""
        return not self.Out or self.weight.names[-1] != self.Out[-1].name

    def flatten_for_export(self) -> "Linear":
        """Returns the layer with several input axes, or none, merged into one, and the output axes likewise.

        Libraries without names have linear layers of one input and one output axis. The merged axes are called `__IN__`
        and `__OUT__`; axes that are neither input nor output, such as those of stacked layers, stay in front.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Heads, HeadDim = nym.make_axes(embed=8, heads=2, head_dim=4)
            >>> layer = nym.nn.Linear.init(Embed, (Heads, HeadDim), key=jax.random.key(0))
            >>> flat = layer.flatten_for_export()
            >>> flat.weight.shape, flat.unflatten_from_export(layer).weight.shape
            ((__OUT__: 8, embed: 8), (heads: 2, head_dim: 4, embed: 8))
        """
        return replace_linear_axes(self, merge_axes(self.In, "__IN__"), merge_axes(self.Out, "__OUT__"), self.out_first)

    def unflatten_from_export(self, template: "Linear") -> "Linear":
        """Returns the layer with the merged axes split into those of a template, whose values are not used."""
        return replace_linear_axes(self, template.In, template.Out, template.out_first)

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


def replace_linear_axes(layer: Linear, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...], out_first: bool) -> Linear:
    """Returns a layer with its axes merged into one, or one split into others, in this order of the weight."""
    weight = replace_axes(replace_axes(layer.weight, layer.Out, outputs), layer.In, inputs)
    order = (*outputs, *inputs) if out_first else (*inputs, *outputs)
    bias = None if layer.bias is None else replace_axes(layer.bias, layer.Out, outputs).rearrange((..., *outputs))
    return dataclasses.replace(layer, weight=weight.rearrange((..., *order)), bias=bias, In=inputs, Out=outputs)
