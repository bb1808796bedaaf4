"""`haliax.nn.linear.MoELinear`: the linear layer of experts, with one bias for all of them."""

from typing import Any

import equinox as eqx
import jax

from ... import nn
from ...named._axis import Axis, AxisSpec, parse_axes, parse_one_axis
from ...named._named_call import named_call
from ...named._sharding import constrain_sharding, gather_parameter
from .._array import NamedArray, convert_result


class MoELinear(eqx.Module):
    """A linear map for each expert, applied to rows that are sorted by expert; see `axonym.nn.MoELinear`.

    Its bias has the output axis alone: all experts share it.

    Attributes:
        weight: Array with the expert axis, the input axis and the output axis.
        bias: Array with the output axis, or None.
        Experts: The expert axis.
        In: The axis contracted.
        Out: The axis of the result in its place.
        use_gmm: Has no effect: the compiler chooses how the product is computed.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> layer = hax.nn.MoELinear.init(*hax.make_axes(experts=2, embed=4, mlp=8), key=jax.random.key(0))
        >>> layer(hax.ones({"token": 3, "embed": 4}), hax.named([1, 2], "experts")).shape
        {'token': 3, 'mlp': 8}
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: AxisSpec = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    use_gmm: bool = eqx.field(static=True, default=False)

    @staticmethod
    def init(
        Experts: Axis,
        In: Axis,
        Out: Axis,
        *,
        key: Any,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        use_gmm: bool = False,
    ) -> "MoELinear":
        """Makes a layer with random weights."""
        layer = nn.MoELinear.init(
            Experts, In, Out, key=key, use_bias=use_bias, out_first=out_first, init_scale=init_scale
        )
        bias = None if layer.bias is None else layer.bias[Experts, 0]  # all experts start with the same one, zero
        return MoELinear(convert_result(layer.weight), convert_result(bias), Experts, In, Out, use_gmm)  # pyright: ignore[reportArgumentType]

    @property
    def out_first(self) -> bool:
        """Whether the output axis of the weight comes before its input axis."""
        outputs = parse_axes(self.Out)
        return not outputs or self.weight.names[-1] != outputs[-1].name

    @named_call
    def __call__(self, inputs: NamedArray, group_sizes: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies to each row the map of its expert; `group_sizes` has the number of rows of each."""
        experts = parse_one_axis(self.Experts)
        layer = nn.MoELinear(self.weight, None, experts, parse_axes(self.In), parse_axes(self.Out))
        product: Any = convert_result(layer(inputs, group_sizes))
        if self.bias is None:
            return product
        return constrain_sharding(product + gather_parameter(self.bias))
