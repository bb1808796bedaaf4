"""The maximal update parametrization (muP) of linear layers and embeddings, and its learning rates for Adam.

The formulas are those of Yang et al., 2022, "Tensor Programs V", table 8, for a width relative to that of a base model.
"""

import math
from typing import Any

import equinox as eqx
import jax

from .._ground.arguments import check_integer
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, AxisSpec
from ._embedding import Embedding
from ._linear import Linear, check_init_scale, count_fan


class InputLinear(Linear):
    """A `Linear` whose input has the same size in models of all widths, such as pixels, under muP.

    It is initialized as `Linear`, and Adam's learning rate does not depend on the width.

    Attributes:
        weight: Array with the output axes and the input axes.
        bias: Array with the output axes, or None.
        In: The axes contracted.
        Out: The axes of the result in their place.
    """

    @staticmethod
    def init(In: AxisSpec, Out: AxisSpec, *, key: jax.Array, **options: Any) -> "InputLinear":
        """Makes a layer with random weights; arguments as for `Linear.init`.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Pixel, Mlp = nym.make_axes(pixel=4, mlp=8)
            >>> layer = nym.nn.InputLinear.init(Pixel, Mlp, key=jax.random.key(0))
            >>> nym.nn.mup_learning_rates(layer).weight
            1.0
        """
        return InputLinear(**vars(Linear.init(In, Out, key=key, **options)))


class HiddenLinear(Linear):
    """A `Linear` whose input and output grow with the width of the model, under muP.

    It is initialized as `Linear`, with variance 1 / inputs. Adam's learning rate for the weight is divided by the
    width, inputs / `base_width`.

    Attributes:
        weight: Array with the output axes and the input axes.
        bias: Array with the output axes, or None.
        In: The axes contracted.
        Out: The axes of the result in their place.
        base_width: The number of inputs of this layer in the base model.
    """

    base_width: int = eqx.field(static=True, default=1)

    @staticmethod
    def init(In: AxisSpec, Out: AxisSpec, *, key: jax.Array, base_width: int = 1, **options: Any) -> "HiddenLinear":
        """Makes a layer with random weights.

        Args:
            In: The input axes, one or several.
            Out: The output axes, one or several.
            key: A random key.
            base_width: The number of inputs of this layer in the base model, whose learning rate is transferred; 1
                gives table 8 as it is printed.
            **options: Other arguments of `Linear.init`.

        Raises:
            ValueError: If `base_width` is not positive, or an axis is both input and output.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp = nym.make_axes(embed=256, mlp=8)
            >>> layer = nym.nn.HiddenLinear.init(Embed, Mlp, key=jax.random.key(0), base_width=64)
            >>> nym.nn.mup_learning_rates(layer).weight, nym.nn.mup_learning_rates(layer).bias
            (0.25, 1.0)
        """
        check_integer("HiddenLinear: `base_width`", base_width, 1)
        return HiddenLinear(**vars(Linear.init(In, Out, key=key, **options)), base_width=base_width)


class OutputLinear(Linear):
    """A `Linear` whose input grows with the width of the model, and whose output does not, such as labels, under muP.

    The weight has variance 1 / `base_width`, and its products are divided by the width, inputs / `base_width`.
    Adam's learning rate does not depend on the width.

    Attributes:
        weight: Array with the output axes and the input axes.
        bias: Array with the output axes, or None.
        In: The axes contracted.
        Out: The axes of the result in their place.
        base_width: The number of inputs of this layer in the base model.
    """

    base_width: int = eqx.field(static=True, default=1)

    @staticmethod
    def init(
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        init_scale: float = 1.0,
        base_width: int = 1,
        **options: Any,
    ) -> "OutputLinear":
        """Makes a layer with random weights.

        Args:
            In: The input axes, one or several.
            Out: The output axes, one or several.
            key: A random key.
            init_scale: Factor of the weights; 0 is also common.
            base_width: The number of inputs of this layer in the base model, at which it equals `Linear`; 1 gives table
                8 as it is printed.
            **options: Other arguments of `Linear.init`.

        Raises:
            ValueError: If `base_width` is not positive, or an axis is both input and output.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Label = nym.make_axes(embed=256, label=8)
            >>> layer = nym.nn.OutputLinear.init(Embed, Label, key=jax.random.key(0), base_width=64)
            >>> layer.multiplier
            0.25
        """
        check_integer("OutputLinear: `base_width`", base_width, 1)
        check_init_scale(init_scale)
        scale = init_scale * math.sqrt(count_fan(In) / base_width)
        layer = Linear.init(In, Out, key=key, init_scale=scale, **options)
        return OutputLinear(**vars(layer), base_width=base_width)

    @property
    def multiplier(self) -> float:
        """The factor of the products, `base_width` / inputs."""
        return self.base_width / count_fan(self.In)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer; see `Linear`."""
        return super().__call__(x * self.multiplier, key=key)


class MupEmbedding(Embedding):
    """An `Embedding` under muP: scores by `unembed` are divided by the width.

    The width is the number of elements of a vector / `base_width`. Vectors have the same variance in all widths, and
    Adam's learning rate does not depend on the width.

    Attributes:
        weight: Array with the vocabulary axis and the embedding axes.
        Vocab: The vocabulary axis.
        Embed: The axes of a vector.
        base_width: The number of elements of a vector in the base model.
    """

    base_width: int = eqx.field(static=True, default=1)

    @staticmethod
    def init(Vocab: Axis, Embed: AxisSpec, *, key: jax.Array, base_width: int = 1, **options: Any) -> "MupEmbedding":
        """Makes a table of random vectors.

        Args:
            Vocab: The vocabulary axis.
            Embed: The axes of a vector, one or several.
            key: A random key.
            base_width: The number of elements of a vector in the base model, at which it equals `Embedding`.
            **options: Other arguments of `Embedding.init`.

        Raises:
            ValueError: If `base_width` is not positive.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Vocab, Embed = nym.make_axes(vocab=10, embed=256)
            >>> nym.nn.MupEmbedding.init(Vocab, Embed, key=jax.random.key(0), base_width=64).multiplier
            0.25
        """
        check_integer("MupEmbedding: `base_width`", base_width, 1)
        return MupEmbedding(**vars(Embedding.init(Vocab, Embed, key=key, **options)), base_width=base_width)

    @property
    def multiplier(self) -> float:
        """The factor of the scores, `base_width` / elements of a vector."""
        return self.base_width / count_fan(self.Embed)

    def unembed(self, x: NamedArray) -> NamedArray:
        """Computes a score for each element of the vocabulary; see `Embedding`."""
        return super().unembed(x * self.multiplier)


def mup_learning_rates(tree: Any) -> Any:
    """Returns the factor of Adam's learning rate for each parameter of a model, by Yang et al., 2022, table 8.

    It is `base_width` / inputs for the weights of `HiddenLinear`, and 1 for all others.

    Args:
        tree: A model, or any tree of modules; shapes suffice.

    Returns:
        A tree with a number in the place of each array, named or plain, and None in the place of other leaves. It is a
        prefix of the tree of updates, so `jax.tree.map(operator.mul, factors, updates)` scales them. It can also serve
        as the labels of `optax.multi_transform`: pass `lambda _: factors`, since Optax calls labels that are callable.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import operator
        >>> Embed, Mlp = nym.make_axes(embed=4, mlp=8)
        >>> layer = nym.nn.HiddenLinear.init(Embed, Mlp, key=jax.random.key(0))
        >>> factors, updates = nym.nn.mup_learning_rates(layer), jax.tree.map(jax.numpy.ones_like, layer)
        >>> jax.tree.map(operator.mul, factors, updates).weight["mlp", 0].array
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """

    def get_unit_rate(leaf: Any) -> float | None:
        is_parameter = is_named_array(leaf) or eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
        return 1.0 if is_parameter else None

    def find_rates(node: Any) -> Any:
        rates = jax.tree.map(get_unit_rate, node, is_leaf=is_named_array)
        if not isinstance(node, HiddenLinear):
            return rates
        return eqx.tree_at(lambda layer: layer.weight, rates, node.base_width / count_fan(node.In))

    return jax.tree.map(find_rates, tree, is_leaf=lambda node: isinstance(node, HiddenLinear) or is_named_array(node))
