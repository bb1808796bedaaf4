"""`haliax.nn.normalization`: layer normalisation, softmax and related functions."""

import dataclasses
import math
from typing import Any, Self

import equinox as eqx

from ... import nn
from ...named._axis import Axis, AxisSpec, parse_axes
from ...named._creation import ones, zeros
from ...named._named_call import named_call
from ...nn._layer import replace_axes
from .._adapt import adapt
from .._array import convert_result
from ..state_dict import ModuleWithStateDictSerialization


# Haliax's name of the parameter = Axonym's.
softmax = adapt(nn.softmax, spelling="a=x")
log_softmax = adapt(nn.log_softmax, spelling="a=x")
logsumexp = adapt(nn.logsumexp, spelling="a=x")
standardize = adapt(nn.standardize)


class LayerNormBase(ModuleWithStateDictSerialization):
    """Base class of the normalisations: a weight, a bias and the axes normalised over.

    Attributes:
        axis: The axes, as they were given.
        weight: Array with these axes, or None.
        bias: Array with these axes, or None.
        eps: Added to the variance.
        dtype: The dtype to compute in, at least float32 if None.
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
        return kind(self.weight, self.bias, parse_axes(self.axis), self.eps, self.dtype)(x)

    def flatten_for_export(self) -> Self:
        """Returns the layer with several axes merged into one, `__OUT`; a single `Axis`, not in a tuple, stays."""
        size = math.prod(axis.size for axis in parse_axes(self.axis))
        return self if isinstance(self.axis, Axis) else self._with_axis(Axis("__OUT", size))

    def unflatten_from_export(self, template: Self) -> Self:
        """Returns the layer with the merged axis split into those of a template."""
        return self._with_axis(template.axis)

    def _with_axis(self, axis: AxisSpec) -> Self:
        old, new = parse_axes(self.axis), parse_axes(axis)
        weight, bias = (None if x is None else replace_axes(x, old, new) for x in (self.weight, self.bias))
        return dataclasses.replace(self, axis=axis, weight=weight, bias=bias)


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
