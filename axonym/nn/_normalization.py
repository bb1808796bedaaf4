"""Normalisation over named axes: root-mean-square and layer normalisation. Statistics are kept in float32 at least."""

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._base import with_array
from ..named._cached_jit import cached_jit
from ..named._creation import ones, zeros
from ._parameters import cast, check_input, in_use, shown, widened


class RmsNorm(eqx.Module):
    """Divides by the root mean square over axes, then multiplies by a weight (Zhang and Sennrich, 2019).

    Attributes:
        weight: Array with the normalised axes, or None.
        bias: Array with the normalised axes, or None.
        axis: The axes normalised over.
        eps: Added to the mean square.
    """

    weight: NamedArray | None
    bias: NamedArray | None
    axis: tuple[Axis, ...] = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    @staticmethod
    def init(
        axis: AxisSpec, eps: float = 1e-5, *, use_weight: bool = True, use_bias: bool = False, dtype: object = None
    ) -> "RmsNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            axis: The axes to normalise over, one or several.
            eps: Added to the mean square.
            use_weight: Whether to multiply by a weight.
            use_bias: Whether to add a bias.
            dtype: Element type of weight and bias.

        Returns:
            A layer sharded as the mapping in force says.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.RmsNorm.init(nym.Axis("embed", 4))
            >>> layer(nym.full({"batch": 1, "embed": 4}, 2.0)).array.round(3)
            Array([[1., 1., 1., 1.]], dtype=float32)
        """
        axes = parse_axes(axis)
        return RmsNorm(ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None, axes, eps)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalises.

        Args:
            x: Array with the normalised axes and any others.
            key: Not used; accepted so that layers can be called alike.

        Returns:
            Array with the axes and the element type of `x`.

        Raises:
            ValueError: If `x` lacks one of the axes.
        """
        dims = check_input(f"RmsNorm ({shown(self.axis)})", x, self.axis)
        return _finished(_normalised(x, dims, self.eps), self.weight, self.bias, x)


class LayerNorm(eqx.Module):
    """Subtracts the mean, divides by the standard deviation, then applies weight and bias (Ba et al., 2016).

    Attributes:
        weight: Array with the normalised axes, or None.
        bias: Array with the normalised axes, or None.
        axis: The axes normalised over.
        eps: Added to the variance.
    """

    weight: NamedArray | None
    bias: NamedArray | None
    axis: tuple[Axis, ...] = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    @staticmethod
    def init(
        axis: AxisSpec, eps: float = 1e-5, *, use_weight: bool = True, use_bias: bool = True, dtype: object = None
    ) -> "LayerNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            axis: The axes to normalise over, one or several.
            eps: Added to the variance.
            use_weight: Whether to multiply by a weight.
            use_bias: Whether to add a bias.
            dtype: Element type of weight and bias.

        Returns:
            A layer sharded as the mapping in force says.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.LayerNorm.init(nym.Axis("embed", 2))
            >>> layer(nym.named([[1.0, 3.0]], ("batch", "embed"))).array.round(3)
            Array([[-1.,  1.]], dtype=float32)
        """
        axes = parse_axes(axis)
        return LayerNorm(ones(axes, dtype) if use_weight else None, zeros(axes, dtype) if use_bias else None, axes, eps)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalises.

        Args:
            x: Array with the normalised axes and any others.
            key: Not used; accepted so that layers can be called alike.

        Returns:
            Array with the axes and the element type of `x`.

        Raises:
            ValueError: If `x` lacks one of the axes.
        """
        dims = check_input(f"LayerNorm ({shown(self.axis)})", x, self.axis)
        return _finished(_normalised(x, dims, self.eps, centred=True), self.weight, self.bias, x)


def _normalised(x: NamedArray, dims: tuple[int, ...], eps: float, *, centred: bool = False) -> NamedArray:
    wide = widened(x)
    return with_array(wide, cached_jit(_unit, dims, float(eps), centred)(wide.array))


def _unit(dims: tuple[int, ...], eps: float, centred: bool, array: jax.Array) -> jax.Array:
    if centred:
        array = array - jnp.mean(array, dims, keepdims=True)
    # Not `square`, whose derivative keeps another array of this size for the backward pass.
    return array * jax.lax.rsqrt(jnp.mean(array * array, dims, keepdims=True) + eps)


def _finished(scaled: NamedArray, weight: NamedArray | None, bias: NamedArray | None, x: NamedArray) -> NamedArray:
    if weight is not None:
        scaled = scaled * in_use(weight)
    if bias is not None:
        scaled = scaled + in_use(bias)
    return constrain_sharding(cast(scaled, x.dtype))
