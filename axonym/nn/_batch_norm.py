"""Batch normalisation, with running statistics in an `equinox.nn.State`."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._arguments import check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._base import format_shape
from ..named._creation import ones, zeros
from ..named._elementwise._arithmetic import rsqrt, where
from ..named._format import format_value
from ..named._named_call import named_call
from ..named._reduce._reductions import mean as compute_mean
from ._inputs import cast_array, check_input, format_layer_axes, widen_array
from ._layer import Layer
from ._normalization import scale_and_shift


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
        weight, bias = ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None
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
        others = tuple(name for name in x.names if name not in {axis.name for axis in self.axis})
        if not others:
            raise ValueError(f"{layer}: the input {format_shape(x)} has no other axis to compute statistics over")
        wide, old = widen_array(x), state.get(self.statistics)
        if self.inference if inference is None else inference:
            mean, variance = self._get_running(old)
        else:
            mean = compute_mean(wide, others)
            centred = wide - mean
            variance = compute_mean(centred * centred, others)
            new = self._update_running(old, mean, variance)
            # Not `state.set`, which refuses values that are sharded otherwise, as after the first step on a mesh.
            own = state.substate(self.statistics)
            state = state.update(jax.tree.unflatten(jax.tree.structure(own), jax.tree.leaves(new)))
            if self.mode == "ema":
                mean, variance = new.mean, new.variance
        result = scale_and_shift((wide - mean) * rsqrt(variance + self.eps), self.weight, self.bias)
        return constrain_sharding(cast_array(result, x.dtype)), state

    def _update_running(self, old: BatchStatistics, mean: NamedArray, variance: NamedArray) -> BatchStatistics:
        past = jnp.where(old.batches == 0, 0.0, self.momentum) if self.mode == "ema" else self.momentum
        new = [past * one + (1 - past) * other for one, other in zip(old[1:], (mean, variance), strict=True)]
        return BatchStatistics(old.batches + 1, *(cast_array(constrain_sharding(one), old.mean.dtype) for one in new))

    def _get_running(self, old: BatchStatistics) -> tuple[NamedArray, NamedArray]:
        if self.mode == "ema":
            return old.mean, old.variance
        weight = jnp.where(
            old.batches == 0, 1.0, 1 - self.momentum**old.batches
        )  # of all batches, as the means began at 0
        return old.mean / weight, where(old.batches == 0, 1.0, old.variance / weight)
