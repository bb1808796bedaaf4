"""The linear layer over named axes, and the weights that layers start with."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype, check_number
from .._ground.formats import format_axes, format_value
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, check_unique_names, get_names_and_sizes, parse_axes
from ..named._base import get_plain_array
from ..named._creation import zeros
from ..named._dot import check_dot_general, dot
from ..named._named_call import named_call
from ..named._operation import run_operation
from ..named._sharding import constrain_sharding, gather_parameter, mapping_context, place_array
from ..named._wide_sums import widen_float_dtype
from ..random import truncated_normal
from ..random._keys import as_plain_key
from ._layer import Layer, check_input, format_layer_axes, merge_axes, replace_axes


Initializer: TypeAlias = Callable[..., Any]
"""Function of a key, a shape and a dtype, as `jax.nn.initializers` has them."""


def initialize_weight(
    initializer: Initializer,
    key: jax.Array,
    In: AxisSpec,
    Out: AxisSpec,
    axes: AxisSpec | None = None,
    dtype: Any = None,
) -> NamedArray:
    """Draws a weight with an initializer of `jax.nn.initializers`, for which the axes give fan-in and fan-out.

    The initializer draws an array whose last two axes are the input axes and the output axes, each merged into one, as
    JAX's initializers expect it. The values are therefore the same in each order of `axes`.

    Args:
        initializer: Function of a key, a shape and a dtype, such as `jax.nn.initializers.he_normal()`. It gets float32
            for floats of fewer bits, to which its result is then rounded.
        key: A random key.
        In: The input axes, whose sizes multiply to the fan-in.
        Out: The output axes, whose sizes multiply to the fan-out.
        axes: All axes of the weight in order, the output axes and then the input axes if None. Axes that are neither
            input nor output are the window of a convolution, whose sizes count in both fans.
        dtype: dtype of the weight; JAX's default float dtype if None.

    Returns:
        Array with these axes, sharded by the active mapping. Under a mapping no device holds more than its shard.

    Raises:
        TypeError: If `initializer` is not a function that returns an array, or an axis has no size.
        ValueError: If a name occurs twice, or `axes` lacks an input or output axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Embed, Heads, HeadDim = nym.make_axes(embed=100, heads=20, head_dim=50)
        >>> init = jax.nn.initializers.lecun_normal()  # variance 1 / fan-in
        >>> weight = nym.nn.initialize_weight(init, jax.random.key(0), Embed, (Heads, HeadDim))
        >>> weight.shape, round(weight.var().item(), 4)
        ((heads: 20, head_dim: 50, embed: 100), 0.01)
    """
    inputs, outputs = parse_axes(In), parse_axes(Out)
    order = (*outputs, *inputs) if axes is None else parse_axes(axes)
    if missing := [axis for axis in (*inputs, *outputs) if axis not in order]:
        raise ValueError(f"the axes {format_axes(*get_names_and_sizes(order))} of a weight lack its axis {missing[0]}")
    window = tuple(axis for axis in order if axis not in inputs and axis not in outputs)
    shape = (*(axis.size for axis in window), _count_elements(inputs), _count_elements(outputs))
    return _draw_parameter(initializer, key, shape, (*window, *inputs, *outputs), order, dtype)


def draw_scaled_normal(key: jax.Array, axes: tuple[Axis, ...], In: AxisSpec, scale: float, dtype: Any) -> NamedArray:
    """Draws from a normal distribution truncated at three standard deviations, times `scale / sqrt(inputs)`."""
    check_init_scale(scale)
    return truncated_normal(key, axes, -3, 3, float if dtype is None else dtype) * (scale / math.sqrt(count_fan(In)))


def check_init_scale(scale: Any) -> None:
    """Raises an error for a factor that is not a number; it may be traced, such as another one for each layer."""
    if not isinstance(get_plain_array(scale), jax.Array):
        check_number("`init_scale`", scale)


def count_fan(axes: AxisSpec) -> int:
    """Returns the number of elements of the input or output axes of a weight, at least 1."""
    return max(1, _count_elements(parse_axes(axes)))


def initialize_bias(initializer: Initializer, key: jax.Array, Out: tuple[Axis, ...], dtype: Any) -> NamedArray:
    """Draws a bias, for which the initializer gets a shape of one axis."""
    return _draw_parameter(initializer, key, (_count_elements(Out),), Out, Out, dtype)


def _count_elements(axes: tuple[Axis, ...]) -> int:
    return math.prod(axis.size for axis in axes)


def _draw_parameter(
    initializer: Initializer,
    key: jax.Array,
    shape: tuple[int, ...],
    drawn_axes: tuple[Axis, ...],
    order: tuple[Axis, ...],
    dtype: Any,
) -> NamedArray:
    """Draws a plain array of a shape, splits it into the axes drawn, and puts these in order."""
    if not callable(initializer):
        raise TypeError(
            "An initializer is a function of a key, a shape and a dtype, such as `jax.nn.initializers.he_normal()`, "
            f"not {format_value(initializer)}."
        )
    names, sizes = get_names_and_sizes(order)
    check_unique_names(names)
    check_dtype(dtype)
    drawn_names = [axis.name for axis in drawn_axes]
    dtype = jnp.result_type(float if dtype is None else dtype)
    drawn_dtype = widen_float_dtype(dtype)

    def draw_values(key: Any) -> jax.Array:
        values = initializer(key, shape, drawn_dtype)
        name = getattr(initializer, "__name__", type(initializer).__name__)
        if callable(values):
            raise TypeError(f"The initializer `{name}` returned a function; call it first: `{name}()`.")
        if jnp.shape(values) != shape:
            raise TypeError(f"The initializer `{name}` returned shape {jnp.shape(values)}, {shape} was asked for.")
        values = jnp.reshape(values, tuple(axis.size for axis in drawn_axes))
        if drawn_dtype != dtype:
            values = values.astype(dtype)
        return jnp.transpose(values, tuple(map(drawn_names.index, names)))

    def draw_named(key: Any) -> NamedArray:
        array = run_operation(draw_values, [()], names, key, by_compiler=True, sizes=sizes)
        return constrain_sharding(NamedArray(array, names))

    plain_key = as_plain_key(key)
    # Compiled anew for each call, because functions of users are not cached; without a mapping nothing is sharded.
    return draw_named(plain_key) if mapping_context.value is None else place_array(jax.jit(draw_named)(plain_key))


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
        if clash := {axis.name for axis in inputs} & {axis.name for axis in outputs}:
            raise ValueError(
                f"{_format_linear(inputs, outputs)}: axis {min(clash)!r} is both input and output; give one of them "
                "another name with `alias`"
            )
        check_init_scale(init_scale)
        axes = (*outputs, *inputs) if out_first else (*inputs, *outputs)
        dtype = float if dtype is None else dtype
        bias_key = key
        if use_bias and bias_initializer is not None:  # otherwise the weight is drawn with the key as it is
            key, bias_key = jax.random.split(as_plain_key(key))
        if initializer is None:
            weight = draw_scaled_normal(key, axes, inputs, init_scale, dtype)
        else:
            weight = initialize_weight(initializer, key, inputs, outputs, axes, dtype) * init_scale
        bias = zeros(outputs, dtype) if use_bias else None
        if use_bias and bias_initializer is not None:
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
        weight = gather_parameter(self.weight, may_be_reduced=self.dot_general is None)
        result = dot(x, weight, axis=self.In, dot_general=self.dot_general)
        return constrain_sharding(result if self.bias is None else result + gather_parameter(self.bias))


def _format_linear(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> str:
    return f"Linear ({format_layer_axes(inputs)} -> {format_layer_axes(outputs)})"


def replace_linear_axes(layer: Linear, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...], out_first: bool) -> Linear:
    """Returns a layer with its axes merged into one, or one split into others, in this order of the weight."""
    weight = replace_axes(replace_axes(layer.weight, layer.Out, outputs), layer.In, inputs)
    order = (*outputs, *inputs) if out_first else (*inputs, *outputs)
    bias = None if layer.bias is None else replace_axes(layer.bias, layer.Out, outputs).rearrange((..., *outputs))
    return dataclasses.replace(layer, weight=weight.rearrange((..., *order)), bias=bias, In=inputs, Out=outputs)
