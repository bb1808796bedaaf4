"""Root-mean-square and layer normalisation over named axes, with statistics in float32 at least."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._arguments import check_dtype, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, Names, parse_axes
from ..named._base import with_array
from ..named._broadcasting import jit_inline
from ..named._cache import cached_plan
from ..named._creation import ones, zeros
from ..named._named_call import format_scope, name_compiled, named_call
from ._export_axes import merge_axes, replace_axes
from ._gather_parameter import gather_parameter
from ._inputs import cast_array, check_input, format_layer_axes, widen_array
from ._layer import Layer


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


def _parse_options(layer: str, axis: AxisSpec, eps: Any, compute_dtype: Any) -> tuple[tuple[Axis, ...], float]:
    """Returns the axes and the epsilon of a layer, checked."""
    axes = parse_axes(axis)
    if not axes:
        raise ValueError(f"{layer}: there is no axis to normalise over; give one, such as `Axis('embed', 512)`")
    if compute_dtype is not None:
        check_dtype(compute_dtype, f"{layer}: `compute_dtype`")
    return axes, check_number(f"{layer}: `eps`", eps, least=0)


def scale_and_shift(x: NamedArray, weight: NamedArray | None, bias: NamedArray | None) -> NamedArray:
    """Returns an array times a weight plus a bias, where they are given."""
    if weight is not None:
        x = x * gather_parameter(weight)
    return x if bias is None else x + gather_parameter(bias)


@cached_plan
def _jit_normalization(
    function: str, names: Names, dims: tuple[int, ...], eps: float, subtract_mean: bool
) -> Callable[..., Any]:
    scope = format_scope(function, names)
    return jit_inline(name_compiled(scope, functools.partial(normalize_dims, dims, eps, subtract_mean)))


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
        axes, eps = _parse_options("RmsNorm", axis, eps, compute_dtype)
        weight, bias = ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None
        return RmsNorm(weight, bias, axes, eps, compute_dtype)


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
        axes, eps = _parse_options("LayerNorm", axis, eps, compute_dtype)
        weight, bias = ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None
        return LayerNorm(weight, bias, axes, eps, compute_dtype)
