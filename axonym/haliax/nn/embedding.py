"""`haliax.nn.embedding`: a table of vectors, with Haliax's scale."""

import dataclasses
from typing import Any, Self

import equinox as eqx
import jax

from ... import nn
from ...named._axis import Axis, AxisSpec, axis_name, parse_axes
from ...named._named_call import named_call
from ...tree_util import resize_axis
from .._array import NamedArray, convert_result
from . import mup


class Embedding(eqx.Module, mup.ReparamEnabled):
    """A table of vectors, one for each element of a vocabulary; see `axonym.nn.Embedding`.

    Attributes:
        weight: Array with the vocabulary axis and the embedding axes.
        Vocab: The vocabulary axis.
        Embed: The axes of a vector, as they were given.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> layer = hax.nn.Embedding.init(*hax.make_axes(vocab=10, embed=4), key=jax.random.key(0))
        >>> layer.embed(hax.named([1, 2], "pos")).shape, layer.resize_embeddings(12).Vocab
        ({'pos': 2, 'embed': 4}, Axis(name='vocab', size=12))
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: AxisSpec = eqx.field(static=True)
    _reparam_cls: type[mup.AbstractEmbeddingReparam] = eqx.field(static=True, default=mup.EmbeddingStandardParam)

    @staticmethod
    def init(
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        init_scale: float = 1,
        key: Any,
        initializer_range: float | None = None,
        reparam_cls: type[mup.AbstractEmbeddingReparam] = mup.EmbeddingStandardParam,
    ) -> "Embedding":
        """Makes a table of random vectors, with standard deviation `init_scale` times that of the parametrization."""
        scale = (init_scale if initializer_range is None else initializer_range) * reparam_cls.init_scale(Vocab, Embed)
        layer = nn.Embedding.init(Vocab, Embed, key=key, init_scale=scale)
        return Embedding(convert_result(layer.weight), Vocab, Embed, reparam_cls)  # pyright: ignore[reportArgumentType]

    @property
    def reparam(self) -> mup.AbstractEmbeddingReparam:
        """The parametrization."""
        return self._reparam_cls(self.Embed, self.Vocab)

    def _as_layer(self) -> nn.Embedding:
        return nn.Embedding(self.weight, self.Vocab, parse_axes(self.Embed))

    @named_call
    def embed(self, input_ids: NamedArray) -> NamedArray:
        """Looks up vectors."""
        return self._as_layer()(input_ids)  # pyright: ignore[reportReturnType]

    def __call__(self, input_ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Looks up vectors."""
        return self.embed(input_ids)

    @named_call
    def unembed(self, input_embeds: NamedArray) -> NamedArray:
        """Computes a score for each element of the vocabulary."""
        if self.reparam.unembed_active_scale != 1:
            input_embeds = input_embeds * self.reparam.unembed_active_scale
        return self._as_layer().unembed(input_embeds)  # pyright: ignore[reportReturnType]

    def resize_embeddings(self, new_size: int, key: Any = None) -> Self:
        """Returns the layer with another size of the vocabulary; see `axonym.tree_util.resize_axis`."""
        weight = resize_axis(self.weight, axis_name(self.Vocab), new_size, key=key)
        return dataclasses.replace(self, weight=weight, Vocab=self.Vocab.resize(new_size))
