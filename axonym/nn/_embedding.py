"""The embedding layer: a table of vectors, looked up by index."""

import equinox as eqx
import jax

from .. import random
from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, parse_axes
from ..named._dot import dot
from ..named._index import take
from ..named._named_call import enter_function_scope, named_call
from ._gather_parameter import gather_parameter
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
    def init(Vocab: Axis, Embed: AxisSpec, *, key: jax.Array, init_scale: float = 1.0) -> "Embedding":
        """Makes a table of random vectors.

        Args:
            Vocab: The vocabulary axis.
            Embed: The axes of a vector, one or several.
            key: A random key.
            init_scale: Standard deviation of the normal distribution, which is truncated at three of them.

        Returns:
            A layer sharded by the active mapping.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Vocab, Embed = nym.make_axes(vocab=10, embed=4)
            >>> layer = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
            >>> layer(nym.named([1, 2, 3], "pos")).shape
            (pos: 3, embed: 4)
        """
        axes = parse_axes(Embed)
        return Embedding(random.truncated_normal(key, (Vocab, *axes), -3, 3) * init_scale, Vocab, axes)

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
