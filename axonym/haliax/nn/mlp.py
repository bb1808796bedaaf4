"""`haliax.nn.mlp`: linear layers applied in sequence."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from ... import nn
from ...named._axis import Axis, AxisSpec
from ...named._named_call import named_call
from .._array import NamedArray, convert_result
from .activations import relu
from .linear import Linear


DEFAULT_WIDTH_NAME = "mlp"


class MLP(eqx.Module):
    """Linear layers applied in sequence, with an activation after each but the last; see `axonym.nn.MLP`.

    Attributes:
        activation: The function between the layers.
        layers: The linear layers.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mlp = hax.nn.MLP.init(*hax.make_axes(pixel=64, label=10), 32, 2, key=jax.random.key(0))
        >>> mlp.Out, mlp(hax.ones({"batch": 4, "pixel": 64})).shape
        (Axis(name='label', size=10), {'batch': 4, 'label': 10})
    """

    activation: Callable[[Any], Any] = eqx.field(static=True)
    layers: Sequence[Linear]

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[[Any], Any] = relu,
        *,
        out_first: bool = True,
        use_bias: bool = True,
        use_final_bias: bool = True,
        key: Any,
        dot_general: Any = None,
        init_scale: float = 1.0,
    ) -> "MLP":
        """Makes layers with random weights."""
        mlp: Any = convert_result(
            nn.MLP.init(
                Input,
                Output,
                width,
                depth,
                key=key,
                use_bias=use_bias,
                use_final_bias=use_final_bias,
                out_first=out_first,
                init_scale=init_scale,
            )
        )
        # Layers of Haliax keep `In` and `Out` as they were given: the hidden ones are one `Axis` each.
        widths = [layer.Out[0] for layer in mlp.layers[:-1]]
        layers = tuple(
            Linear(layer.weight, layer.bias, In, Out, dot_general)
            for layer, In, Out in zip(mlp.layers, [Input, *widths], [*widths, Output], strict=True)
        )
        return MLP(activation, layers)

    @property
    def In(self) -> AxisSpec:
        """The input axes."""
        return self.layers[0].In

    @property
    def Out(self) -> AxisSpec:
        """The output axes."""
        return self.layers[-1].Out

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layers."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)
