"""Embeddings of the elements of a vocabulary, and one-hot vectors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype
from .._ground.caches import cached_jit
from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, Names, intern_names, parse_axes, parse_one_axis
from ..named._base import format_shape
from ..named._broadcasting import as_integer, get_array, widen_integers
from ..named._dot import dot
from ..named._index import take
from ..named._named_call import enter_function_scope, named_call
from ..named._sharding import constrain_sharding, gather_parameter, reshard_by_name
from ..tree_util import resize_axis
from ._layer import Layer, check_input, format_layer_axes, read_known_values
from ._linear import Initializer, draw_scaled_normal, initialize_weight
from ._map_shards import find_mesh_axes


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
            TypeError: If the initializer is not a function that returns an array, or an axis has no size.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Vocab, Embed = nym.make_axes(vocab=10, embed=4)
            >>> layer = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
            >>> layer(nym.named([1, 2, 3], "pos")).shape
            (pos: 3, embed: 4)
        """
        Vocab, axes = parse_one_axis(Vocab), parse_axes(Embed)
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
            Array with the axes of `ids`, then the embedding axes. Negative ids count from the end. Within a compiled
            function, where ids are not known, those out of range count as the nearest one, as in JAX;
            `axonym.take(layer.weight, Vocab, ids, mode="fill")` makes their vectors NaN.

        Raises:
            TypeError: If `ids` is not a named array of integers.
            ValueError: If `ids` has an embedding axis.
            IndexError: If an id that is known is out of range.
        """
        layer = f"Embedding ({format_layer_axes(self.Vocab)} -> {format_layer_axes(self.Embed)})"
        check_input(layer, ids, (), tuple(axis.name for axis in self.Embed))
        values, size = read_known_values(ids), self.Vocab.size
        if values is not None and ids.size and (values.min() < -size or values.max() >= size):
            bad_id = values.max() if values.max() >= size else values.min()
            raise IndexError(
                f"{layer}: id {bad_id} in {format_shape(ids)} is out of range for {size} elements; compare the "
                "vocabulary with that of the tokenizer, or enlarge it with `resize_vocab`"
            )
        weight = gather_parameter(self.weight, may_be_reduced=not find_mesh_axes(self.Vocab))
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


def one_hot(x: Any, Class: Axis, *, dtype: Any = None) -> NamedArray:
    """Returns 1 at the position that each integer gives along a new last axis, and 0 elsewhere; see `jax.nn.one_hot`.

    Args:
        x: Named array of integers with any axes, or an integer.
        Class: The new axis.
        dtype: dtype of the result; JAX's default float dtype if None.

    Returns:
        Array with the axes of `x`, then the new axis, sharded by the active mapping. An integer outside of the axis
        gives zeros everywhere.

    Raises:
        TypeError: If `x` is neither a named array of integers nor an integer, or `Class` is not an `Axis`.
        ValueError: If `x` has the new axis already.

    Example:
        >>> import axonym as nym
        >>> nym.nn.one_hot(nym.named([2, -1], "batch"), nym.Axis("label", 3)).array
        Array([[0., 0., 1.],
               [0., 0., 0.]], dtype=float32)
    """
    if not isinstance(Class, Axis):
        raise TypeError(f"`one_hot` takes the new axis as an `Axis` with a size, not {format_value(Class)}.")
    if not isinstance(x, NamedArray):
        if as_integer(x) is None:
            raise TypeError(f"`one_hot` takes a named array of integers or an integer, not {format_value(x)}.")
        x = NamedArray(jnp.asarray(x), ())
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"`one_hot` takes integers, not {x.dtype}.")
    if Class.name in x.names:
        raise ValueError(f"`one_hot`: the input {format_shape(x)} has axis {Class.name!r} already; `rename` it")
    names = intern_names((*x.names, Class.name))
    check_dtype(dtype)
    dtype = jnp.result_type(float if dtype is None else dtype)
    return constrain_sharding(NamedArray(cached_jit(_compute_one_hot, names, Class.size, dtype)(get_array(x)), names))


def _compute_one_hot(names: Names, size: int, dtype: Any, x: jax.Array) -> jax.Array:
    return reshard_by_name(jax.nn.one_hot(widen_integers(x), size, dtype=dtype), names)
