"""`haliax.nn.linear`: the linear layer, with a replaceable `dot_general` and the axes as they were given."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax

from ... import nn
from ...named._axis import Axis, AxisSpec, parse_axes
from ...named._named_call import named_call
from ...nn._linear import replace_linear_axes
from .._array import NamedArray, convert_result
from ..state_dict import ModuleWithStateDictSerialization
from . import mup
from .moe_linear import MoELinear as MoELinear
from .ragged_dot import ragged_dot as ragged_dot


gmm_sharded = ragged_dot


class Linear(ModuleWithStateDictSerialization, mup.ReparamEnabled):
    """A linear map from input axes to output axes, with a bias; see `axonym.nn.Linear`.

    Attributes:
        weight: Array with the output axes and the input axes.
        bias: Array with the output axes, or None.
        In: The axes contracted, as they were given.
        Out: The axes of the result in their place, as they were given.
        dot_general: Replacement for `jax.lax.dot_general`, or None.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> layer = hax.nn.Linear.init(*hax.make_axes(embed=4, mlp=8), key=jax.random.key(0))
        >>> layer.Out, layer(hax.ones({"batch": 2, "embed": 4})).shape
        (Axis(name='mlp', size=8), {'batch': 2, 'mlp': 8})
    """

    weight: NamedArray
    bias: NamedArray | None
    In: AxisSpec = eqx.field(static=True)
    Out: AxisSpec = eqx.field(static=True)
    dot_general: Any = None
    _reparam_cls: type[mup.AbstractLinearReparam] = eqx.field(static=True, default=mup.LinearStandardParam)

    @staticmethod
    def init(
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: Any,
        use_bias: bool = True,
        out_first: bool = True,
        dot_general: Any = None,
        init_scale: float = 1.0,
        reparam_cls: type[mup.AbstractLinearReparam] = mup.LinearStandardParam,
    ) -> "Linear":
        """Makes a layer with random weights, scaled by the parametrization."""
        # `axonym.nn.Linear` divides by the root of the inputs, which the parametrization may or may not do.
        scale = init_scale * reparam_cls.init_scale(In, Out) * math.sqrt(mup.count_elements(In))
        layer = nn.Linear.init(In, Out, key=key, use_bias=use_bias, out_first=out_first, init_scale=scale)
        return Linear(convert_result(layer.weight), convert_result(layer.bias), In, Out, dot_general, reparam_cls)  # pyright: ignore[reportArgumentType]

    @property
    def reparam(self) -> mup.AbstractLinearReparam:
        """The parametrization."""
        return self._reparam_cls(self.In, self.Out)

    @staticmethod
    def input_reparam(use_mup: bool = True) -> type[mup.AbstractLinearReparam]:
        """Returns the parametrization of an input layer."""
        return mup.InputLinearMup if use_mup else mup.LinearStandardParam

    @staticmethod
    def hidden_reparam(use_mup: bool = True) -> type[mup.AbstractLinearReparam]:
        """Returns the parametrization of a hidden layer."""
        return mup.HiddenLinearMup if use_mup else mup.LinearStandardParam

    @staticmethod
    def output_reparam(use_mup: bool = True) -> type[mup.AbstractLinearReparam]:
        """Returns the parametrization of an output layer."""
        return mup.OutputLinearMup if use_mup else mup.LinearStandardParam

    @property
    def out_first(self) -> bool:
        """Whether the output axes of the weight come before its input axes."""
        return self._as_layer().out_first

    def flatten_for_export(self) -> "Linear":
        """Returns the layer with its input axes merged into one and its output axes likewise, for export.

        The merged axes are called `__IN__` and `__OUT__`; a layer of one `Axis` each stays.
        """
        if isinstance(self.In, Axis) and isinstance(self.Out, Axis):
            return self
        return self._with_axes(_merge_axes(self.In, "__IN__"), _merge_axes(self.Out, "__OUT__"), self)

    def unflatten_from_export(self, template: "Linear") -> "Linear":
        """Returns the layer with the merged axes split into those of a template, whose values are not used."""
        return self._with_axes(template.In, template.Out, template)

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        """Returns weight and bias by name; the weight is multiplied by the scale that muP applies to the inputs."""
        return super(Linear, self._scale_weight(self.reparam.active_scale)).to_state_dict(prefix)

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> "Linear":
        """Returns the layer with the weight and the bias of a state dict; the inverse of `to_state_dict`."""
        return super().from_state_dict(state_dict, prefix)._scale_weight(1 / self.reparam.active_scale)

    def _scale_weight(self, scale: float) -> "Linear":
        return self if scale == 1 else dataclasses.replace(self, weight=self.weight * scale)

    def _with_axes(self, In: AxisSpec, Out: AxisSpec, like: "Linear") -> "Linear":
        layer = replace_linear_axes(self._as_layer(), parse_axes(In), parse_axes(Out), like.out_first)
        return dataclasses.replace(self, weight=layer.weight, bias=layer.bias, In=In, Out=Out)

    @named_call
    def __call__(self, inputs: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer."""
        if self.reparam.active_scale != 1:
            inputs = inputs * self.reparam.active_scale
        return self._as_layer()(inputs)  # pyright: ignore[reportReturnType]

    def _as_layer(self) -> nn.Linear:
        return nn.Linear(self.weight, self.bias, parse_axes(self.In), parse_axes(self.Out), self.dot_general)


def _merge_axes(axes: AxisSpec, name: str) -> Axis:
    return Axis(name, math.prod(axis.size for axis in parse_axes(axes)))
