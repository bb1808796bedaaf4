"""`haliax.nn.normalization`: layer normalisation, softmax and related functions."""

from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp

from ... import nn
from ...named._ambient import constrain_sharding
from ...named._axis import AxisSpec, parse_axes
from ...named._creation import ones, zeros
from ...named._elementwise._arithmetic import rsqrt
from ...named._named_call import named_call
from ...named._reduce._sum import mean as compute_mean, var as compute_variance
from ...nn._gather_parameter import gather_parameter
from .._adapt import adapt
from .._array import convert_result


softmax = adapt(nn.softmax, "a=x")
log_softmax = adapt(nn.log_softmax, "a=x")
logsumexp = adapt(nn.logsumexp, "a=x")


class LayerNormBase(eqx.Module):
    """Base class of the normalisations: a weight, a bias and the axes normalised over.

    Attributes:
        axis: The axes, as they were given.
        weight: Array with these axes, or None.
        bias: Array with these axes, or None.
        eps: Added to the variance.
        dtype: The dtype to compute in, at least float32 if None.

    Example:
        >>> import axonym.haliax as hax
        >>> issubclass(hax.nn.RmsNorm, hax.nn.normalization.LayerNormBase)
        True
    """

    axis: AxisSpec = eqx.field(static=True)
    weight: Any
    bias: Any
    eps: float = eqx.field(static=True, default=1e-5)
    dtype: Any = eqx.field(static=True, default=None)

    @classmethod
    def init(
        cls, axis: AxisSpec, eps: float = 1e-5, *, use_weight: bool = True, use_bias: bool = True, dtype: Any = None
    ) -> Self:
        """Makes a layer with weight 1 and bias 0."""
        weight = convert_result(ones(axis)) if use_weight else None
        return cls(axis, weight, convert_result(zeros(axis)) if use_bias else None, eps, dtype)

    def _normalize(self, kind: Any, x: Any) -> Any:
        axes = parse_axes(self.axis)
        if self.dtype is None:
            return kind(self.weight, self.bias, axes, self.eps)(x)
        result = x.astype(self.dtype)
        if kind is nn.LayerNorm:
            result = result - result.mean(axes)
        result = result * rsqrt((result * result).mean(axes) + self.eps)
        result = result if self.weight is None else result * gather_parameter(self.weight)
        result = result if self.bias is None else result + gather_parameter(self.bias)
        return constrain_sharding(result.astype(x.dtype))


class LayerNorm(LayerNormBase):
    """Subtracts the mean, divides by the standard deviation, then applies weight and bias.

    Example:
        >>> import axonym.haliax as hax
        >>> layer = hax.nn.LayerNorm.init(hax.Axis("embed", 2))
        >>> layer(hax.named([[1.0, 3.0]], ("batch", "embed"))).array.round(3)
        Array([[-1.,  1.]], dtype=float32)
    """

    @named_call
    def __call__(self, x: Any) -> Any:
        """Normalises."""
        return self._normalize(nn.LayerNorm, x)


class RmsNorm(LayerNormBase):
    """Divides by the root mean square, then applies weight and bias.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.RmsNorm.init(hax.Axis("embed", 2)).bias.shape
        {'embed': 2}
    """

    @named_call
    def __call__(self, x: Any) -> Any:
        """Normalises."""
        return self._normalize(nn.RmsNorm, x)


def standardize(
    x: Any, axis: Any, *, mean: Any = None, variance: Any = None, epsilon: float = 1e-5, where: Any = None
) -> Any:
    """Subtracts the mean and divides by the standard deviation; see `jax.nn.standardize`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.standardize(hax.named([1.0, 3.0], "i"), "i").array.round(3)
        Array([-1.,  1.], dtype=float32)
    """
    mean = compute_mean(x, axis, where=where) if mean is None else mean
    variance = compute_variance(x, axis, where=where) if variance is None else variance
    return (x - mean) * rsqrt(variance + jnp.asarray(epsilon, x.dtype))
