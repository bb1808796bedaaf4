"""Normalization: layers that scale activations by their statistics, and `standardize`."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype, check_integer, check_number
from .._ground.caches import cached_jit, cached_plan, jit_inline
from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSpec,
    Names,
    axis_name,
    check_selected_once,
    parse_axes,
    parse_selection,
)
from ..named._base import N, NamedBase, check_named, format_shape, get_plain_array, with_array
from ..named._broadcasting import check_scalar
from ..named._creation import ones, zeros
from ..named._elementwise._arithmetic import rsqrt, where
from ..named._named_call import format_scope, named_call
from ..named._operation import run_operation
from ..named._reduce._reductions import mean as compute_mean, var as compute_variance
from ..named._sharding import constrain_sharding, gather_parameter
from ..named._wide_sums import is_narrow_float, widen_float
from ._layer import Layer, cast_array, check_input, format_layer_axes, merge_axes, replace_axes, widen_array


class _Normalization(Layer):
    """Base class of the normalisations, which differ in whether they subtract the mean."""

    weight: NamedArray | None
    bias: NamedArray | None
    axis: tuple[Axis, ...] = eqx.field(static=True)
    eps: float = eqx.field(static=True)
    compute_dtype: Any = eqx.field(static=True, default=None)
    _function: ClassVar[str]
    _subtract_mean: ClassVar[bool]

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalises.

        Args:
            x: Array with the normalised axes and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes and the dtype of `x`.

        Raises:
            ValueError: If `x` lacks one of the axes.
        """
        dims = check_input(f"{type(self).__name__} ({format_layer_axes(self.axis)})", x, self.axis)
        wide = widen_array(x) if self.compute_dtype is None else cast_array(x, self.compute_dtype)
        names = tuple([axis.name for axis in self.axis])
        normalize = _jit_normalization(self._function, names, dims, float(self.eps), self._subtract_mean)
        result = with_array(wide, normalize(wide.array))
        return constrain_sharding(cast_array(scale_and_shift(result, self.weight, self.bias), x.dtype))

    @classmethod
    def _make(cls, axis: AxisSpec, eps: Any, use_weight: bool, use_bias: bool, dtype: Any, compute_dtype: Any) -> Self:
        """Makes a layer, after checking the arguments of `init`."""
        axes = parse_axes(axis)
        if not axes:
            raise ValueError(
                f"{cls.__name__}: there is no axis to normalise over; give one, such as `Axis('embed', 512)`"
            )
        if compute_dtype is not None:
            check_dtype(compute_dtype, f"{cls.__name__}: `compute_dtype`")
        eps = check_number(f"{cls.__name__}: `eps`", eps, least=0)
        return cls(*_make_weight_and_bias(axes, use_weight, use_bias, dtype), axes, eps, compute_dtype)

    def flatten_for_export(self) -> Self:
        """Returns the layer with several normalised axes merged into one, `__OUT`, for libraries without names."""
        return self._with_axes(merge_axes(self.axis, "__OUT"))

    def unflatten_from_export(self, template: Self) -> Self:
        """Returns the layer with the merged axis split into those of a template, whose values are not used."""
        return self._with_axes(template.axis)

    def _with_axes(self, axes: tuple[Axis, ...]) -> Self:
        weight = None if self.weight is None else replace_axes(self.weight, self.axis, axes)
        bias = None if self.bias is None else replace_axes(self.bias, self.axis, axes)
        return dataclasses.replace(self, weight=weight, bias=bias, axis=axes)


def _make_weight_and_bias(
    axes: AxisSpec, use_weight: bool, use_bias: bool, dtype: Any
) -> tuple[NamedArray | None, NamedArray | None]:
    """Returns a weight of 1 and a bias of 0, where they are asked for."""
    return ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None


def scale_and_shift(x: NamedArray, weight: NamedArray | None, bias: NamedArray | None) -> NamedArray:
    """Returns an array times a weight plus a bias, where they are given."""
    if weight is not None:
        x = x * gather_parameter(weight)
    return x if bias is None else x + gather_parameter(bias)


@cached_plan
def _jit_normalization(
    function: str, names: Names, dims: tuple[int, ...], eps: float, subtract_mean: bool
) -> Callable[..., Any]:
    @jax.named_scope(format_scope(function, names))
    def normalize(array: jax.Array) -> jax.Array:
        return normalize_dims(dims, eps, subtract_mean, array)

    normalize.__name__ = function  # what profiles and logs call the program
    return jit_inline(normalize)


def normalize_dims(dims: tuple[int, ...], eps: float, subtract_mean: bool, array: jax.Array) -> jax.Array:
    if subtract_mean:
        array = array - jnp.mean(array, dims, keepdims=True)
    # Not `square`, whose derivative keeps another array of this size for the backward pass.
    return array * jax.lax.rsqrt(jnp.mean(array * array, dims, keepdims=True) + eps)


class RmsNorm(_Normalization):
    """Divides by the root mean square over axes, then multiplies by a weight (Zhang and Sennrich, 2019).

    Attributes:
        weight: Array with the normalised axes, or None.
        bias: Array with the normalised axes, or None.
        axis: The axes normalised over.
        eps: Added to the mean square.
        compute_dtype: The dtype to compute in; float32 at least if None.
    """

    _function = "rms_norm"
    _subtract_mean = False

    @staticmethod
    def init(
        axis: AxisSpec,
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = False,
        dtype: object = None,
        compute_dtype: object = None,
    ) -> "RmsNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            axis: The axes to normalise over, one or several.
            eps: Added to the mean square.
            use_weight: Whether to multiply by a weight.
            use_bias: Whether to add a bias.
            dtype: dtype of weight and bias.
            compute_dtype: The dtype to compute in; float32 at least if None. The result has that of the input.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If `compute_dtype` is not a dtype, or `eps` not a number.
            ValueError: If there is no axis, or `eps` is negative.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.RmsNorm.init(nym.Axis("embed", 4))
            >>> layer(nym.full({"batch": 1, "embed": 4}, 2.0)).array.round(3)
            Array([[1., 1., 1., 1.]], dtype=float32)
        """
        return RmsNorm._make(axis, eps, use_weight, use_bias, dtype, compute_dtype)


class LayerNorm(_Normalization):
    """Subtracts the mean, divides by the standard deviation, then applies weight and bias (Ba et al., 2016).

    Attributes:
        weight: Array with the normalised axes, or None.
        bias: Array with the normalised axes, or None.
        axis: The axes normalised over.
        eps: Added to the variance.
        compute_dtype: The dtype to compute in; float32 at least if None.
    """

    _function = "layer_norm"
    _subtract_mean = True

    @staticmethod
    def init(
        axis: AxisSpec,
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: object = None,
        compute_dtype: object = None,
    ) -> "LayerNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            axis: The axes to normalise over, one or several.
            eps: Added to the variance.
            use_weight: Whether to multiply by a weight.
            use_bias: Whether to add a bias.
            dtype: dtype of weight and bias.
            compute_dtype: The dtype to compute in; float32 at least if None. The result has that of the input.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If `compute_dtype` is not a dtype, or `eps` not a number.
            ValueError: If there is no axis, or `eps` is negative.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.LayerNorm.init(nym.Axis("embed", 2))
            >>> layer(nym.named([[1.0, 3.0]], ("batch", "embed"))).array.round(3)
            Array([[-1.,  1.]], dtype=float32)
        """
        return LayerNorm._make(axis, eps, use_weight, use_bias, dtype, compute_dtype)


class GroupNorm(Layer):
    """Splits channels into groups and normalises each, then applies weight and bias (Wu and He, 2018).

    One group is layer normalisation over channels and other axes, a group for each channel instance normalisation.

    Attributes:
        weight: Array with the channels, or None.
        bias: Array with the channels, or None.
        Channels: The axis that is split into groups.
        groups: The number of groups.
        axis: The names of the other axes normalised over.
        eps: Added to the variance.
    """

    weight: NamedArray | None
    bias: NamedArray | None
    Channels: Axis = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    axis: Names = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    @staticmethod
    def init(
        Channels: Axis,
        groups: int,
        axis: AxisSelection = (),
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
    ) -> "GroupNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            Channels: The axis that is split into groups of neighbours.
            groups: The number of groups.
            axis: More axes over which each group is normalised, such as height and width, by name.
            eps: Added to the variance.
            use_weight: Whether to multiply by a weight for each channel.
            use_bias: Whether to add a bias for each channel.
            dtype: dtype of weight and bias.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If `Channels` is not an `Axis`.
            ValueError: If the number of channels is not divisible by the number of groups, or an axis occurs twice.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.GroupNorm.init(nym.Axis("channels", 4), 2)
            >>> layer(nym.named([1.0, 3.0, 5.0, 5.0], "channels")).array.round(3)
            Array([-1.,  1.,  0.,  0.], dtype=float32)
        """
        if not isinstance(Channels, Axis):
            raise TypeError(f"GroupNorm: `Channels` is an `Axis`, not {Channels!r}.")
        groups, eps = check_integer("GroupNorm: `groups`", groups, 1), check_number("GroupNorm: `eps`", eps, least=0)
        if Channels.size % groups:
            raise ValueError(f"GroupNorm ({Channels}): the number of channels is not divisible by {groups} groups")
        names = tuple(map(axis_name, parse_selection(axis)))
        check_selected_once((Channels.name, *names))
        weight, bias = _make_weight_and_bias(Channels, use_weight, use_bias, dtype)
        return GroupNorm(weight, bias, Channels, groups, names, eps)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalises.

        Args:
            x: Array with the channels, the other axes normalised over, and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes and the dtype of `x`.

        Raises:
            ValueError: If `x` lacks one of the axes.
        """
        dim, *dims = check_input(f"GroupNorm ({self.Channels})", x, (self.Channels, *self.axis))
        wide = widen_array(x)
        normalize = cached_jit(_normalize_groups, wide.names, dim, tuple(dims), self.groups, float(self.eps))
        result = scale_and_shift(with_array(wide, normalize(wide.array)), self.weight, self.bias)
        return constrain_sharding(cast_array(result, x.dtype))


def _normalize_groups(
    names: Names, dim: int, dims: tuple[int, ...], groups: int, eps: float, array: jax.Array
) -> jax.Array:
    def normalize(array: jax.Array) -> jax.Array:
        shape = array.shape
        grouped = array.reshape((*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))
        # The group dimension before the channels moves the dimensions after it by one.
        grouped_dims = (dim + 1, *(axis_dim + (axis_dim > dim) for axis_dim in dims))
        return normalize_dims(grouped_dims, eps, True, grouped).reshape(shape)

    # By the compiler, because groups need not be divisible by the mesh axes of the channels.
    return run_operation(normalize, [names], names, array, by_compiler=True, sizes=array.shape)


class BatchStatistics(NamedTuple):
    """The running statistics of a `BatchNorm`: the number of batches seen, and the weighted means over them.

    Example:
        >>> import axonym as nym
        >>> import equinox as eqx
        >>> layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(nym.Axis("channels", 3))
        >>> state.get(layer.statistics).variance.shape
        (channels: 3)
    """

    batches: jax.Array
    mean: NamedArray
    variance: NamedArray


class BatchNorm(Layer, eqx.nn.StatefulLayer):
    """Normalises channels by their mean and variance over all other axes (Ioffe and Szegedy, 2015).

    Running statistics, for inference, are in a state that is passed and returned, as for `equinox.nn.BatchNorm`. The
    statistics of a sharded batch are those of the whole batch.

    Attributes:
        weight: Array with the channels, or None.
        bias: Array with the channels, or None.
        statistics: Where the state holds the `BatchStatistics`.
        axis: The axes of the channels.
        eps: Added to the variance.
        momentum: The weight of the past in running statistics.
        mode: Which statistics are used in training, "batch" or "ema".
        inference: Whether running statistics are used and not changed; `equinox.nn.inference_mode` switches it.
    """

    weight: NamedArray | None
    bias: NamedArray | None
    statistics: eqx.nn.StateIndex[BatchStatistics]
    axis: tuple[Axis, ...] = eqx.field(static=True)
    eps: float = eqx.field(static=True)
    momentum: float = eqx.field(static=True)
    mode: Literal["batch", "ema"] = eqx.field(static=True)
    inference: bool

    @staticmethod
    def init(
        axis: AxisSpec,
        eps: float = 1e-5,
        *,
        momentum: float = 0.99,
        mode: Literal["batch", "ema"] = "batch",
        use_weight: bool = True,
        use_bias: bool = True,
        inference: bool = False,
        dtype: Any = None,
    ) -> "BatchNorm":
        """Makes a layer with weight 1 and bias 0; `equinox.nn.make_with_state` separates it from its state.

        Args:
            axis: The axes of the channels, one or several: statistics are over all axes but these.
            eps: Added to the variance.
            momentum: The weight of the past in running statistics, between 0 and 1.
            mode: Which statistics are used in training: those of the batch, "batch"; or the running ones, "ema", which
                gradients see through the batch that was added last.
            use_weight: Whether to multiply by a weight for each channel.
            use_bias: Whether to add a bias for each channel.
            inference: Whether running statistics are used and not changed.
            dtype: dtype of weight and bias. Running statistics are in float32.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If the mode is not known, or a number is out of its range.

        Example:
            >>> import axonym as nym
            >>> import equinox as eqx
            >>> layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(nym.Axis("channels", 1), momentum=0.5)
            >>> x = nym.named([[1.0], [3.0]], ("batch", "channels"))
            >>> y, state = layer(x, state)
            >>> y.array[:, 0].round(3), state.get(layer.statistics).mean.array
            (Array([-1.,  1.], dtype=float32), Array([1.], dtype=float32))
            >>> y, state = eqx.nn.inference_mode(layer)(x, state)
        """
        if mode not in ("batch", "ema"):
            raise ValueError(f"BatchNorm: `mode` is 'batch' or 'ema', not {mode!r}")
        eps = check_number("BatchNorm: `eps`", eps, least=0)
        momentum = check_number("BatchNorm: `momentum`", momentum, least=0, most=1)
        axes = parse_axes(axis)
        statistics = BatchStatistics(jnp.zeros((), jnp.int32), zeros(axes), zeros(axes))
        weight, bias = _make_weight_and_bias(axes, use_weight, use_bias, dtype)
        index = eqx.nn.StateIndex(statistics)
        # To pyright, the abstract `__call__` of `StatefulLayer` is a field.
        return BatchNorm(weight, bias, index, axes, eps, momentum, mode, inference)  # pyright: ignore[reportCallIssue]

    @named_call
    def __call__(
        self, x: NamedArray, state: eqx.nn.State, *, key: jax.Array | None = None, inference: bool | None = None
    ) -> tuple[NamedArray, eqx.nn.State]:
        """Normalises.

        Args:
            x: Array with the channels and at least one other axis.
            state: The state made with the layer, or returned by its last call, which must not be used again.
            key: Not used; accepted so that all layers have the same signature.
            inference: Whether running statistics are used and not changed; the layer's own setting if None.

        Returns:
            Array with the axes and the dtype of `x`, and the new state.

        Raises:
            ValueError: If `x` lacks an axis of the channels, or has no other axis.
        """
        layer = f"BatchNorm ({format_layer_axes(self.axis)})"
        check_input(layer, x, self.axis)
        if not isinstance(state, eqx.nn.State):
            raise TypeError(
                f"{layer}: `state` must be the `equinox.nn.State` that `equinox.nn.make_with_state` made with the "
                f"layer, not {format_value(state)}."
            )
        batch_names = tuple(name for name in x.names if name not in {axis.name for axis in self.axis})
        if not batch_names:
            raise ValueError(f"{layer}: the input {format_shape(x)} has no other axis to compute statistics over")
        wide, running = widen_array(x), state.get(self.statistics)
        if self.inference if inference is None else inference:
            mean, variance = self._correct_running(running)
        else:
            mean = compute_mean(wide, batch_names)
            centred = wide - mean
            variance = compute_mean(centred * centred, batch_names)
            running = self._update_running(running, mean, variance)
            # Not `state.set`, which refuses values that are sharded otherwise, as after the first step on a mesh.
            substate = state.substate(self.statistics)
            state = state.update(jax.tree.unflatten(jax.tree.structure(substate), jax.tree.leaves(running)))
            if self.mode == "ema":
                mean, variance = running.mean, running.variance
        result = scale_and_shift((wide - mean) * rsqrt(variance + self.eps), self.weight, self.bias)
        return constrain_sharding(cast_array(result, x.dtype)), state

    def _update_running(self, running: BatchStatistics, mean: NamedArray, variance: NamedArray) -> BatchStatistics:
        momentum = self.momentum
        if self.mode == "ema":  # starts at the statistics of the first batch
            momentum = jnp.where(running.batches == 0, 0.0, momentum)
        new_mean = momentum * running.mean + (1 - momentum) * mean
        new_variance = momentum * running.variance + (1 - momentum) * variance
        return BatchStatistics(
            running.batches + 1,
            cast_array(constrain_sharding(new_mean), running.mean.dtype),
            cast_array(constrain_sharding(new_variance), running.mean.dtype),
        )

    def _correct_running(self, running: BatchStatistics) -> tuple[NamedArray, NamedArray]:
        """Returns the running mean and variance, corrected in mode "batch" for having begun at 0."""
        if self.mode == "ema":
            return running.mean, running.variance
        weight = jnp.where(running.batches == 0, 1.0, 1 - self.momentum**running.batches)
        return running.mean / weight, where(running.batches == 0, 1.0, running.variance / weight)


def standardize(
    x: N,
    axis: AxisSelection | None = None,
    *,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    where: Any = None,
) -> N:
    """Subtracts the mean and divides by the standard deviation over axes; see `jax.nn.standardize`.

    The variance is the mean of the squared differences from the mean; JAX subtracts the squared mean from the mean
    square, which is less exact.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        mean: A mean to use, a number or a named array of some of the axes; computed from `x` if None.
        variance: A variance to use, likewise.
        epsilon: Added to the variance.
        where: Boolean array with some of the axes of `x`; elements where it is False do not count in mean and variance.

    Returns:
        Array with the axes of `x`.

    Raises:
        TypeError: If `x` is not a named array, or a mean or variance not a number.
        ValueError: If `x` lacks an axis, or `epsilon` is negative.

    Example:
        >>> import axonym as nym
        >>> nym.nn.standardize(nym.named([1.0, 3.0], "i"), "i").array.round(3)
        Array([-1.,  1.], dtype=float32)
    """
    check_named(x)
    for moment in (mean, variance):
        if moment is not None and not isinstance(moment, NamedBase):
            check_scalar(moment)
    if not isinstance(epsilon, jax.Array):
        check_number("standardize: `epsilon`", epsilon, least=0)
    dtype = jnp.result_type(*[get_plain_array(value) for value in (x, mean, variance) if value is not None])
    wide = with_array(x, widen_float(x.array))  # a variance may be too large for float16
    mean = compute_mean(wide, axis, where=where) if mean is None else mean
    variance = compute_variance(wide, axis, where=where) if variance is None else variance
    # An `epsilon` that is a JAX scalar does not widen the result.
    float_dtype = wide.dtype if jnp.issubdtype(wide.dtype, jnp.inexact) else jnp.result_type(float)
    result = (wide - mean) * rsqrt(variance + jnp.asarray(epsilon, float_dtype))
    return with_array(result, result.array.astype(dtype)) if is_narrow_float(dtype) else result
