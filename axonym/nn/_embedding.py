"""The embedding layer: a table of vectors, looked up by index."""

from typing import Any

import equinox as eqx
import jax

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._dot import dot
from ..named._index import take
from ..named._named_call import enter_function_scope, named_call
from ..tree_util import resize_axis
from ._gather_parameter import gather_parameter
from ._initializer import Initializer, draw_scaled_normal, initialize_weight
from ._inputs import check_input, format_layer_axes
from ._layer import Layer


class Embedding(Layer):
    """A table of vectors, one for each element of a vocabulary.

    Attributes:
        weight: Array with the vocabulary axis and the embedding axes.
        Vocab: The vocabulary axis.
        Embed: The axes of a vector.
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: tuple[Axis, ...] = eqx.field(static=True)

    @staticmethod
    def init(
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        key: jax.Array,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
        dtype: Any = None,
    ) -> "Embedding":
        """Makes a table of random vectors.

        Args:
            Vocab: The vocabulary axis.
            Embed: The axes of a vector, one or several.
            key: A random key.
            init_scale: Factor of the vectors.
            initializer: Draws the table: a function of `jax.nn.initializers`, for which the vocabulary is the input, so
                that its size is the fan-in, and the size of a vector the fan-out. If None, the table is drawn from a
                normal distribution of standard deviation 1, truncated at three of them.
            dtype: dtype of the table; JAX's default float dtype if None.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If the initializer is not a function that returns an array.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Vocab, Embed = nym.make_axes(vocab=10, embed=4)
            >>> layer = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
            >>> layer(nym.named([1, 2, 3], "pos")).shape
            (pos: 3, embed: 4)
        """
        axes = parse_axes(Embed)
        if initializer is None:
            weight = draw_scaled_normal(key, (Vocab, *axes), (), init_scale, dtype)
        else:
            weight = initialize_weight(initializer, key, Vocab, axes, (Vocab, *axes), dtype) * init_scale
        return Embedding(weight, Vocab, axes)

    @named_call
    def __call__(self, ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Looks up vectors.

        Args:
            ids: Integer array of any axes.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes of `ids`, then the embedding axes. As in JAX, ids past the end are clamped to the last
            one, and negative ids count from the end.

        Raises:
            TypeError: If `ids` is not a named array of integers.
            ValueError: If `ids` has an embedding axis.
        """
        check_input(
            f"Embedding ({format_layer_axes(self.Vocab)} -> {format_layer_axes(self.Embed)})",
            ids,
            (),
            tuple(axis.name for axis in self.Embed),
        )
        weight = gather_parameter(self.weight)
        with enter_function_scope("take", (self.Vocab.name,), tuple(axis.name for axis in self.Embed)):
            vectors = take(weight, self.Vocab, ids)
        return constrain_sharding(vectors)

    @named_call
    def unembed(self, x: NamedArray) -> NamedArray:
        """Computes a score for each element of the vocabulary: the product of vectors and the table.

        Args:
            x: Array with the embedding axes and any others.

        Returns:
            Array with the other axes of `x`, then the vocabulary axis.

        Raises:
            ValueError: If `x` lacks an embedding axis or has the vocabulary axis.
        """
        check_input(
            f"Embedding.unembed ({format_layer_axes(self.Embed)} -> {self.Vocab})", x, self.Embed, (self.Vocab.name,)
        )
        return constrain_sharding(dot(x, gather_parameter(self.weight), axis=self.Embed))

    def resize_vocab(self, size: int, *, key: jax.Array | None = None) -> "Embedding":
        """Returns the layer with another size of the vocabulary; see `axonym.tree_util.resize_axis`.

        Args:
            size: The new size: fewer vectors drop the last ones, more append some.
            key: A random key, with which new vectors are drawn from normal distributions with the mean and the standard
                deviation of the old ones; they are zero without it.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If the size is negative.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> layer = nym.nn.Embedding.init(*nym.make_axes(vocab=10, embed=4), key=jax.random.key(0))
            >>> layer.resize_vocab(12).weight.shape
            (vocab: 12, embed: 4)
        """
        return resize_axis(self, self.Vocab, size, key)
