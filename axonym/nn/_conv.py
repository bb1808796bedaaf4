"""Convolutions over named axes: the layers, and how each device convolves its shards."""

import abc
import functools
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import random
from .._ground.arguments import check_choice, check_integer
from .._ground.caches import cached_jit
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, Names, axis_name, check_selected_once, intern_names, parse_selection
from ..named._axis_layout import AxisLayout
from ..named._base import N, with_array
from ..named._broadcasting import get_array
from ..named._named_call import named_call
from ..named._operation import run_operation, use_operand_layout
from ..named._sharding import constrain_sharding, gather_parameter, reshard_by_name
from ..random._keys import as_plain_key
from ._layer import Layer, check_input
from ._linear import Initializer, initialize_bias, initialize_weight
from ._map_shards import find_layout, shard_map_by_name
from ._window import (
    ByAxis,
    Halo,
    Padding,
    Pairs,
    add_halo,
    find_padding,
    parse_by_axis,
    parse_padding,
    plan_halo,
)


class Convolution(NamedTuple):
    """A convolution along axes, in the terms of `jax.lax.conv_general_dilated`."""

    spatial: Names
    x_channels: str
    """The input channels in `x`."""
    weight_inputs: str
    """The input channels of one group in the weight."""
    weight_outputs: str
    """The output channels, which have the same name in the weight and in the result."""
    kernels: Names
    """The axes of the weight along the spatial axes."""
    wrapped: Pairs
    """How much is added to each spatial axis by `mode` at first."""
    mode: str
    """The mode of `jax.numpy.pad`."""
    padding: Pairs
    """How much is then padded with zeros."""
    strides: tuple[int, ...]
    input_dilation: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolve(x: N, weight: N, plan: Convolution) -> N:
    """Returns the convolution of named arrays; its axes are those of `x`, the output channels in place of the input."""
    names = intern_names(tuple(plan.weight_outputs if name == plan.x_channels else name for name in x.names))
    call = cached_jit(_convolve_arrays, x.names, weight.names, names, plan)
    return with_array(x, call(get_array(x), get_array(weight)), names)


def _convolve_arrays(x_names: Names, weight_names: Names, names: Names, plan: Convolution, x: Any, weight: Any) -> Any:
    """Convolves plain arrays, and states the communication: XLA's partitioner gets some sharded convolutions wrong.

    Devices exchange elements at the borders of shards along spatial axes, and sum over sharded input channels.
    """
    dtype = jnp.result_type(x, weight)
    arrays = x.astype(dtype), weight.astype(dtype)
    shapes = [jax.ShapeDtypeStruct(array.shape, dtype) for array in arrays]  # without their shardings
    shape = jax.eval_shape(functools.partial(convolve_by_position, x_names, weight_names, plan), *shapes).shape
    sharded_weight = tuple(name if name == plan.weight_outputs else "" for name in weight_names)
    with use_operand_layout((x_names, weight_names), arrays):
        layout = find_layout((x_names, sharded_weight, names), (x.shape, weight.shape, shape))
        if layout.mesh is None:
            # Without a mapping on an Auto mesh, shardings are not known, and the compiler divides the convolution. The
            # dimensions that it gets wrong are replicated. Without a mesh nothing changes.
            whole = {*x_names, *weight_names, *names} if plan.groups > 1 else {*plan.spatial}
            compute = functools.partial(convolve_by_position, x_names, weight_names, plan)
            operand_names = [x_names, weight_names]
            return run_operation(compute, operand_names, names, *arrays, whole=whole, misses_auto_shards=True)
        shard_names, result_names, halos, shard_plan = _divide_convolution(
            plan,
            layout,
            x=dict(zip(x_names, x.shape, strict=True)),
            weight=dict(zip(weight_names, weight.shape, strict=True)),
            result=dict(zip(names, shape, strict=True)),
        )
        contracted = layout.list_mesh_axes((shard_names[1][weight_names.index(plan.weight_inputs)],))

        def convolve_shards(x: Any, weight: Any) -> tuple[Any]:
            for axis, halo in halos.items():
                x = add_halo(x, x_names.index(axis), halo, layout, axis, 0)
            result = convolve_by_position(x_names, weight_names, shard_plan, x, weight)
            return (jax.lax.psum(result, contracted) if contracted else result,)

        call = shard_map_by_name(convolve_shards, layout, shard_names, (result_names,))
        (result,) = call(*map(reshard_by_name, arrays, shard_names))
        return reshard_by_name(result, names)


def _divide_convolution(
    plan: Convolution, layout: AxisLayout, x: dict[str, int], weight: dict[str, int], result: dict[str, int]
) -> tuple[tuple[Names, Names], Names, dict[str, Halo], Convolution]:
    """Divides a convolution among devices.

    Args:
        plan: The convolution.
        layout: How the axes are sharded.
        x: The sizes of the axes of the input.
        weight: Those of the weight.
        result: Those of the result.

    Returns:
        The names by which both operands and the result are sharded, with "" for dimensions that each device needs as a
        whole; what devices exchange along spatial axes that stay sharded; and the convolution of one device.
    """
    halos: dict[str, Halo] = {}
    for index, name in enumerate(plan.spatial):
        halo = plan_halo(
            layout.count_shards((name,)),
            x[name],
            result[name],
            window=plan.dilation[index] * (weight[plan.kernels[index]] - 1) + 1,
            stride=plan.strides[index],
            start=plan.padding[index][0],
            spread=plan.input_dilation[index],
        )
        if halo is not None and not any(plan.wrapped[index]):  # `mode` pads from the whole axis
            halos[name] = halo

    groups, inputs, outputs = plan.groups, plan.x_channels, plan.weight_outputs
    if groups > 1:  # the devices divide the groups, by input or output channels
        group_axis = outputs if layout.count_shards((outputs,)) > 1 else inputs
        if groups % layout.count_shards((group_axis,)):  # a group would be split
            group_axis = ""
        groups //= layout.count_shards((group_axis,))
        inputs = outputs = group_axis
    elif {*layout.list_mesh_axes((inputs,))} & {*layout.list_mesh_axes((outputs,))}:
        inputs = ""  # a mesh axis shards one axis of the weight only

    sharded_by = {name: "" for name in plan.spatial if name not in halos}
    sharded_by |= {plan.x_channels: inputs, plan.weight_outputs: outputs}
    weight_sharded_by = {plan.weight_outputs: outputs}
    if plan.groups == 1:
        weight_sharded_by[plan.weight_inputs] = inputs
    padding = dict(zip(plan.spatial, plan.padding, strict=True)) | {name: halos[name].padding for name in halos}
    x_names, result_names = (tuple(sharded_by.get(name, name) for name in names) for names in (x, result))
    weight_names = tuple(weight_sharded_by.get(name, "") for name in weight)
    plan = plan._replace(groups=groups, padding=tuple(padding.values()))
    return (x_names, weight_names), result_names, halos, plan


def convolve_by_position(x_names: Names, weight_names: Names, plan: Convolution, x: Any, weight: Any) -> Any:
    """Convolves plain arrays, with all axes of `x` that are neither spatial nor channels merged into one batch axis."""
    core_names = (*plan.spatial, plan.x_channels)
    batch_dims = [dim for dim, name in enumerate(x_names) if name not in core_names]
    if len(batch_dims) != 1:
        core_dims = [dim for dim, name in enumerate(x_names) if name in core_names]
        order = (*batch_dims, *core_dims)
        moved = jnp.transpose(x, order)
        batch_shape, core_shape = moved.shape[: len(batch_dims)], moved.shape[len(batch_dims) :]
        merged_names = ("", *(x_names[dim] for dim in core_dims))
        merged = moved.reshape((math.prod(batch_shape), *core_shape))
        result = convolve_by_position(merged_names, weight_names, plan, merged, weight)
        inverse_order = sorted(range(len(order)), key=order.__getitem__)
        return jnp.transpose(result.reshape((*batch_shape, *result.shape[1:])), inverse_order)

    if any(map(any, plan.wrapped)):
        wrapped = dict(zip(plan.spatial, plan.wrapped, strict=True))
        x = jnp.pad(x, [wrapped.get(name, (0, 0)) for name in x_names], plan.mode)
    x_dims = (*batch_dims, x_names.index(plan.x_channels), *map(x_names.index, plan.spatial))
    weight_dims = tuple(map(weight_names.index, (plan.weight_outputs, plan.weight_inputs, *plan.kernels)))
    return jax.lax.conv_general_dilated(
        x,
        weight,
        plan.strides,
        plan.padding,
        plan.input_dilation,
        plan.dilation,
        jax.lax.ConvDimensionNumbers(x_dims, weight_dims, x_dims),
        plan.groups,
    )


_MODES = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


class _Convolution(Layer):
    """Base class of the convolutions, which differ in how their windows move."""

    weight: NamedArray
    bias: NamedArray | None
    Spatial: Names = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    kernel_size: tuple[int, ...] = eqx.field(static=True)
    stride: tuple[int, ...] = eqx.field(static=True)
    padding: str | Pairs = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    padding_mode: str = eqx.field(static=True)
    _modes: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def _plan(self, x: NamedArray) -> Convolution:
        """Returns the convolution for an input of these sizes."""

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer.

        Args:
            x: Array with the spatial axes, the input channels, and any others in any order.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes of `x`, the output channels in place of the input channels, and other sizes of the
            spatial axes; sharded by the active mapping.

        Raises:
            ValueError: If `x` lacks a spatial axis or the input channels, has the output channels already, or is
                shorter than the window along a spatial axis.
        """
        check_input(self._describe(), x, (*self.Spatial, self.In), (self.Out.name,))
        result = convolve(x, gather_parameter(self.weight, may_be_reduced=False), self._plan(x))
        return constrain_sharding(result if self.bias is None else result + gather_parameter(self.bias))

    def _describe(self) -> str:
        return _format_convolution(type(self), self.In, self.Out)

    def _make_plan(self, wrapped: Pairs, padding: Pairs, strides: Any, input_dilation: Any) -> Convolution:
        return Convolution(
            spatial=self.Spatial,
            x_channels=self.In.name,
            weight_inputs=_make_group_axis(self.In, self.groups).name,
            weight_outputs=self.Out.name,
            kernels=tuple(_name_kernel_axis(name) for name in self.Spatial),
            wrapped=wrapped,
            mode=_MODES[self.padding_mode],
            padding=padding,
            strides=strides,
            input_dilation=input_dilation,
            dilation=self.dilation,
            groups=self.groups,
        )

    def _count_window(self) -> tuple[int, ...]:
        """Returns how many elements of the input a window spans along each axis."""
        return tuple(step * (size - 1) + 1 for size, step in zip(self.kernel_size, self.dilation, strict=True))


def _format_convolution(kind: type[_Convolution], inputs: Axis, outputs: Axis) -> str:
    return f"{kind.__name__} ({inputs} -> {outputs})"


def _name_kernel_axis(name: str) -> str:
    """Returns the name of the axis of a weight along a spatial axis, which is not sharded as the spatial axis is."""
    return f"kernel_{name}"


def _make_group_axis(inputs: Axis, groups: int) -> Axis:
    """Returns the axis of a weight with the input channels of one group."""
    return inputs if groups == 1 else Axis(f"{inputs.name}_per_group", inputs.size // groups)


def _parse_options(
    kind: type[_Convolution],
    Spatial: AxisSelection,
    In: Axis,
    Out: Axis,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    padding_mode: str,
) -> dict[str, Any]:
    """Returns the static fields of a layer, checked."""
    for axis in (In, Out):
        if not isinstance(axis, Axis):
            raise TypeError(f"{kind.__name__}: the channels are an `Axis` each, not {axis!r}.")
    layer, names = _format_convolution(kind, In, Out), intern_names(tuple(map(axis_name, parse_selection(Spatial))))
    check_selected_once(names)
    if not names:
        raise ValueError(f"{layer}: there is no spatial axis; name at least one, or use `Linear`")
    groups = check_integer(f"{layer}: `groups`", groups, 1)
    if In.name == Out.name:
        raise ValueError(
            f"{layer}: axis {In.name!r} is both input and output; give one of them another name with `alias`"
        )
    if clash := {In.name, Out.name} & set(names):
        raise ValueError(f"{layer}: axis {min(clash)!r} is both spatial and channels")
    if In.size % groups or Out.size % groups:
        raise ValueError(f"{layer}: both numbers of channels must be divisible by `groups`, which is {groups}")
    check_choice(f"{layer}: `padding_mode`", padding_mode, kind._modes)
    return {
        "Spatial": names,
        "In": In,
        "Out": Out,
        "kernel_size": parse_by_axis(layer, "kernel_size", kernel_size, names),
        "stride": parse_by_axis(layer, "stride", stride, names),
        "padding": parse_padding(layer, padding, names),
        "dilation": parse_by_axis(layer, "dilation", dilation, names),
        "groups": groups,
        "padding_mode": padding_mode,
    }


def _draw_parameters(
    options: dict[str, Any],
    key: jax.Array,
    use_bias: bool,
    initializer: Initializer | None,
    bias_initializer: Initializer | None,
    dtype: Any,
) -> tuple[NamedArray, NamedArray | None]:
    """Returns weight and bias, drawn uniformly up to `1 / sqrt(fan-in)` unless initializers are given."""
    dtype = float if dtype is None else dtype
    weight_key, bias_key = jax.random.split(as_plain_key(key))
    group, outputs = _make_group_axis(options["In"], options["groups"]), options["Out"]
    sizes = zip(options["Spatial"], options["kernel_size"], strict=True)
    axes = (outputs, group, *(Axis(_name_kernel_axis(name), size) for name, size in sizes))
    bound = 1 / math.sqrt(max(1, group.size * math.prod(options["kernel_size"])))
    if initializer is None:
        weight = random.uniform(weight_key, axes, dtype, -bound, bound)
    else:
        weight = initialize_weight(initializer, weight_key, group, outputs, axes, dtype)
    if not use_bias:
        return weight, None
    if bias_initializer is None:
        return weight, random.uniform(bias_key, outputs, dtype, -bound, bound)
    return weight, initialize_bias(bias_initializer, bias_key, (outputs,), dtype)


class Conv(_Convolution):
    """A convolution: a linear map of windows that slide along the spatial axes, with a bias; see `equinox.nn.Conv`.

    Attributes:
        weight: Array with the output channels, the input channels, and an axis `kernel_*` for each spatial axis. With
            several groups, the axis of the input channels has the channels of one group and the name `*_per_group`.
        bias: Array with the output channels, or None.
        Spatial: The names of the spatial axes.
        In: The axis of the input channels.
        Out: The axis of the output channels.
        kernel_size: The size of the window along each spatial axis.
        stride: How far the window moves each time, along each spatial axis.
        padding: The name of the padding, or pairs of numbers.
        dilation: The distance of the elements of a window along each spatial axis.
        groups: Into how many groups the channels are split.
        padding_mode: Which values are padded.
    """

    _modes = ("zeros", "circular", "reflect", "replicate")

    @staticmethod
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: ByAxis,
        *,
        stride: ByAxis = 1,
        padding: Padding = 0,
        dilation: ByAxis = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "zeros",
        initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        dtype: Any = None,
        key: jax.Array,
    ) -> "Conv":
        """Makes a layer with random weights.

        Args:
            Spatial: The spatial axes by name or as `Axis`, one or several; their sizes are not used.
            In: The axis of the input channels.
            Out: The axis of the output channels.
            kernel_size: The size of the window: a number, one for each spatial axis in order, or a mapping by name. The
                same holds for the next options.
            stride: How far the window moves each time.
            padding: `"VALID"` for none; `"SAME"` for as much as keeps sizes, divided by the stride, the odd element at
                the end, or for `"SAME_LOWER"` at the start; or numbers: how much is added at both ends, or a pair.
            dilation: The distance of the elements of a window.
            groups: Into how many groups the channels are split; the outputs of a group depend on its inputs only.
            use_bias: Whether to add a bias.
            padding_mode: Which values are padded: "zeros"; "circular", the other end; "reflect", the elements next to
                the end, in reverse; or "replicate", the last element.
            initializer: Draws the weight, as for `Linear.init`; the window counts in fan-in and fan-out. If None, it is
                drawn uniformly up to `1 / sqrt(fan-in)`.
            bias_initializer: Draws the bias as an array of one axis; drawn as the weight if None.
            dtype: dtype of weight and bias; JAX's default float dtype if None.
            key: A random key.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If the channels are not an `Axis` each, or an option is not made of integers.
            ValueError: If a name occurs twice, the channels are not divisible by the groups, an option is given for
                other axes, or a padding is not known.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Rgb, Channels = nym.make_axes(rgb=3, channels=16)
            >>> layer = nym.nn.Conv.init(("height", "width"), Rgb, Channels, 3, padding="SAME", key=jax.random.key(0))
            >>> layer(nym.ones({"batch": 2, "height": 8, "width": 6, "rgb": 3})).shape
            (batch: 2, height: 8, width: 6, channels: 16)
        """
        options = _parse_options(Conv, Spatial, In, Out, kernel_size, stride, padding, dilation, groups, padding_mode)
        return Conv(*_draw_parameters(options, key, use_bias, initializer, bias_initializer, dtype), **options)

    def _plan(self, x: NamedArray) -> Convolution:
        sizes = tuple(x.axis_size(name) for name in self.Spatial)
        pads = find_padding(self._describe(), self.padding, self.Spatial, sizes, self._count_window(), self.stride)
        no_pads, ones = ((0, 0),) * len(sizes), (1,) * len(sizes)
        wrapped, padding = (no_pads, pads) if self.padding_mode == "zeros" else (pads, no_pads)
        return self._make_plan(wrapped, padding, self.stride, ones)


class ConvTranspose(_Convolution):
    """A transposed convolution, whose sizes go the other way than those of `Conv`; see `equinox.nn.ConvTranspose`.

    An input of the size that `Conv` would make of an output, with the same options, gives this output (Dumoulin and
    Visin, 2016).

    Attributes:
        weight: Array with the output channels, the input channels, and an axis `kernel_*` for each spatial axis. With
            several groups, the axis of the input channels has the channels of one group and the name `*_per_group`.
        bias: Array with the output channels, or None.
        Spatial: The names of the spatial axes.
        In: The axis of the input channels.
        Out: The axis of the output channels.
        kernel_size: The size of the window along each spatial axis.
        stride: The stride of the corresponding convolution.
        padding: The padding of the corresponding convolution.
        dilation: The distance of the elements of a window along each spatial axis.
        groups: Into how many groups the channels are split.
        padding_mode: Which values are padded.
        output_padding: How much longer the result is along each spatial axis.
    """

    output_padding: tuple[int, ...] = eqx.field(static=True)
    _modes = ("zeros", "circular")

    @staticmethod
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: ByAxis,
        *,
        stride: ByAxis = 1,
        padding: Padding = 0,
        output_padding: ByAxis = 0,
        dilation: ByAxis = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "zeros",
        initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        dtype: Any = None,
        key: jax.Array,
    ) -> "ConvTranspose":
        """Makes a layer with random weights. Arguments as for `Conv.init`, and one more.

        Args:
            Spatial: The spatial axes by name or as `Axis`, one or several; their sizes are not used.
            In: The axis of the input channels.
            Out: The axis of the output channels.
            kernel_size: The size of the window: a number, one for each spatial axis in order, or a mapping by name.
            stride: The stride of the corresponding convolution.
            padding: The padding of the corresponding convolution.
            output_padding: How much longer the result is, less than the stride: several sizes of an output give the
                same size of the input if the stride is more than 1. For `"SAME"`, the result is so much shorter.
            dilation: The distance of the elements of a window.
            groups: Into how many groups the channels are split.
            use_bias: Whether to add a bias.
            padding_mode: "zeros", or "circular" with padding `"SAME"` or `"SAME_LOWER"` and without `output_padding`.
            initializer: Draws the weight; as for `Conv.init`.
            bias_initializer: Draws the bias; as for `Conv.init`.
            dtype: dtype of weight and bias; JAX's default float dtype if None.
            key: A random key.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If the channels are not an `Axis` each, or an option is not made of integers.
            ValueError: As for `Conv.init`, and if `output_padding` is not less than the stride, or circular padding is
                asked for with options that it does not have.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Channels, Rgb = nym.make_axes(channels=16, rgb=3)
            >>> layer = nym.nn.ConvTranspose.init(
            ...     ("height", "width"), Channels, Rgb, 4, stride=2, key=jax.random.key(0)
            ... )
            >>> layer(nym.ones({"height": 3, "width": 2, "channels": 16})).shape
            (height: 8, width: 6, rgb: 3)
        """
        kind = ConvTranspose
        options = _parse_options(kind, Spatial, In, Out, kernel_size, stride, padding, dilation, groups, padding_mode)
        layer = _format_convolution(kind, In, Out)
        extra = parse_by_axis(layer, "output_padding", output_padding, options["Spatial"], 0)
        if any(size >= step for size, step in zip(extra, options["stride"], strict=True)):
            raise ValueError(f"{layer}: `output_padding` must be less than `stride` along each axis")
        if padding_mode == "circular" and (any(extra) or options["padding"] not in ("SAME", "SAME_LOWER")):
            raise ValueError(
                f"{layer}: circular padding needs `padding='SAME'` or 'SAME_LOWER', and no `output_padding`"
            )
        parameters = _draw_parameters(options, key, use_bias, initializer, bias_initializer, dtype)
        return ConvTranspose(*parameters, **options, output_padding=extra)

    def _plan(self, x: NamedArray) -> Convolution:
        pads = tuple(map(self._transpose_padding, range(len(self.Spatial))))
        ones, wrapped = (1,) * len(pads), ((0, 0),) * len(pads)
        if self.padding_mode == "circular":
            # Whole elements are wrapped; zeros between elements, which make up the rest, are padded.
            steps = [*zip(pads, self.stride, strict=True)]
            wrapped = tuple((before // step, after // step) for (before, after), step in steps)
            pads = tuple((before % step, after % step) for (before, after), step in steps)
        return self._make_plan(wrapped, pads, ones, self.stride)

    def _transpose_padding(self, index: int) -> tuple[int, int]:
        """Returns how much is padded along one axis: relationship 14 of Dumoulin and Visin (2016)."""
        span, extra = self._count_window()[index] - 1, self.output_padding[index]
        if self.padding == "VALID":
            before = after = 0
        elif isinstance(self.padding, str):
            total = span - self.stride[index] + extra + 1
            total, extra = max(total, 0), max(-total, 0)
            before = (total + (self.padding == "SAME_LOWER")) // 2
            after = total - before
        else:
            before, after = self.padding[index]
        return span - before, span - after + extra
