"""`haliax.nn.linear`: the linear layer, with a replaceable `dot_general` and the axes as they were given."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax

from ... import nn
from ...named._ambient import constrain_sharding
from ...named._axis import Axis, AxisSpec, parse_axes
from ...named._named_call import named_call
from ...nn._gather_parameter import gather_parameter
from .._adapt import check_reparam, make_getattr
from .._array import NamedArray, convert_result
from .._axis_order import dot


class Linear(eqx.Module):
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
        reparam_cls: Any = None,
    ) -> "Linear":
        """Makes a layer with random weights.

        Raises:
            NotImplementedError: If a `reparam_cls` is given; muP is not there yet.
        """
        check_reparam(reparam_cls)
        layer = nn.Linear.init(In, Out, key=key, use_bias=use_bias, out_first=out_first, init_scale=init_scale)
        return Linear(convert_result(layer.weight), convert_result(layer.bias), In, Out, dot_general)  # pyright: ignore[reportArgumentType]

    @property
    def out_first(self) -> bool:
        """Whether the output axes of the weight come before its input axes."""
        outputs = parse_axes(self.Out)
        return not outputs or self.weight.names[-1] != outputs[-1].name

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

    def _with_axes(self, In: AxisSpec, Out: AxisSpec, like: "Linear") -> "Linear":
        layer = nn.Linear(self.weight, self.bias, parse_axes(self.In), parse_axes(self.Out))
        layer = layer.with_axes(parse_axes(In), parse_axes(Out), like.out_first)
        return dataclasses.replace(self, weight=layer.weight, bias=layer.bias, In=In, Out=Out)

    @named_call
    def __call__(self, inputs: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer."""
        if self.dot_general is None:
            return nn.Linear(self.weight, self.bias, parse_axes(self.In), parse_axes(self.Out))(inputs)  # pyright: ignore[reportReturnType]
        product = dot(inputs, gather_parameter(self.weight), axis=self.In, dot_general=self.dot_general)
        return constrain_sharding(product if self.bias is None else product + gather_parameter(self.bias))


def _merge_axes(axes: AxisSpec, name: str) -> Axis:
    return Axis(name, math.prod(axis.size for axis in parse_axes(axes)))


__getattr__ = make_getattr("haliax.nn.linear", "MoELinear ragged_dot gmm_sharded")
