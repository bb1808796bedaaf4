"""The multi-layer perceptron: linear layers with an activation between them."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from .. import random
from ..named._arguments import check_function, check_integer
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec
from ..named._named_call import named_call
from ._activations import relu
from ._initializer import Initializer
from ._layer import Layer
from ._linear import Linear


class MLP(Layer):
    """Linear layers applied in sequence, with an activation after each but the last.

    Attributes:
        layers: The linear layers.
        activation: The function between them.
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Any], Any] = eqx.field(static=True)

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[[Any], Any] = relu,
        *,
        key: jax.Array,
        use_bias: bool = True,
        use_final_bias: bool = True,
        out_first: bool = True,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        dtype: Any = None,
    ) -> "MLP":
        """Makes layers with random weights.

        Args:
            Input: The input axes.
            Output: The output axes.
            width: Size of the hidden axes, which are named `mlp` and `mlp2` in turn; or an `Axis` with another name.
            depth: Number of hidden layers; 0 gives a single linear layer.
            activation: Function of a named array.
            key: A random key.
            use_bias: Whether hidden layers add a bias.
            use_final_bias: Whether the last layer adds a bias.
            out_first: As for `Linear.init`.
            init_scale: As for `Linear.init`.
            initializer: As for `Linear.init`.
            bias_initializer: As for `Linear.init`.
            dtype: As for `Linear.init`.

        Returns:
            Layers sharded by the active mapping.

        Raises:
            TypeError: If `activation` is not a function, or `width` or `depth` not an integer.
            ValueError: If `depth` is negative, `width` is not positive, or an axis is both input and output of a layer.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Pixel, Label = nym.make_axes(pixel=64, label=10)
            >>> mlp = nym.nn.MLP.init(Pixel, Label, 32, 2, key=jax.random.key(0))
            >>> mlp(nym.ones({"batch": 4, "pixel": 64})).shape
            (batch: 4, label: 10)
        """
        depth = check_integer("MLP: `depth`", depth, 0)
        check_function("MLP: `activation`", activation, "axonym.nn.relu")
        hidden = width if isinstance(width, Axis) else Axis("mlp", check_integer("MLP: `width`", width, 1))
        names: Sequence[Axis] = (hidden, hidden.alias(f"{hidden.name}2"))
        axes: list[AxisSpec] = [Input, *(names[i % 2] for i in range(depth)), Output]
        keys = random.split(key, depth + 1)
        layers = tuple(
            Linear.init(
                axes[i],
                axes[i + 1],
                key=keys[i],
                use_bias=use_final_bias if i == depth else use_bias,
                out_first=out_first,
                init_scale=init_scale,
                initializer=initializer,
                bias_initializer=bias_initializer,
                dtype=dtype,
            )
            for i in range(depth + 1)
        )
        return MLP(layers, activation)

    @property
    def In(self) -> tuple[Axis, ...]:
        """The input axes."""
        return self.layers[0].In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The output axes."""
        return self.layers[-1].Out

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layers.

        Args:
            x: Array with the input axes and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the other axes of `x`, then the output axes.

        Raises:
            ValueError: If `x` lacks an input axis.
        """
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)
