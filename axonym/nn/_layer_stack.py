"""Layers that are applied in order: the interface of `Stacked` and `BlockSeq`, and what both need to make layers."""

import abc
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..named._arguments import check_integer
from ..named._array import NamedArray
from ..named._axis import Axis
from ..named._format import format_value
from ..named._traceback import strip_library_frames
from ..named._transforms import Remat, parse_remat, spread_keys
from ._inputs import check_input
from ._layer import Layer


M = TypeVar("M", bound=eqx.Module)
B = TypeVar("B", bound=eqx.Module)
C = TypeVar("C")
R = TypeVar("R")
P = ParamSpec("P")


class LayerStack(Layer, Generic[M]):
    """Layers along a layer axis, applied in order: the interface of `Stacked` and `BlockSeq`.

    Annotate a field with it in a model that takes either.

    Attributes:
        Block: The layer axis.
        gradient_checkpointing: What the backward pass recomputes; see `remat` of `scan`.

    Example:
        >>> import axonym as nym
        >>> import equinox as eqx
        >>> class Model(eqx.Module):
        ...     blocks: nym.nn.LayerStack[nym.nn.RmsNorm]
        ...
        ...     def __call__(self, x):
        ...         return self.blocks.fold(x)
        >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
        >>> for kind in (nym.nn.Stacked, nym.nn.BlockSeq):
        ...     Model(kind.init(Layers, nym.nn.RmsNorm)(Embed))(nym.ones(Embed)).shape
        (embed: 4)
        (embed: 4)
    """

    Block: eqx.AbstractVar[Axis]
    gradient_checkpointing: eqx.AbstractVar[Remat]

    def fold(self, init: C, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> C:
        """Applies the layers in order; each takes the result of the layer before it.

        Args:
            init: The input of the first layer.
            *args: More arguments of every layer; each layer gets its slice of arrays that have the layer axis, and
                random keys that lack it with the number of the layer folded in.
            unroll: How many layers to unroll, as for `jax.lax.scan`; `BlockSeq` unrolls all of them.
            **kwargs: More arguments, passed by keyword.

        Returns:
            The result of the last layer.

        Raises:
            TypeError: If an argument may be a legacy random key, a plain uint32 array such as `jax.random.PRNGKey`
                returns; pass `jax.random.key(seed)`.
        """
        return self.fold_via(call_layer, unroll=unroll)(init, *args, **kwargs)

    def scan(self, init: C, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> tuple[C, Any]:
        """Applies the layers in order; each returns a pair of the input of the next layer and an output.

        Args:
            init: The input of the first layer.
            *args: More arguments of every layer; each layer gets its slice of arrays that have the layer axis, and
                random keys that lack it with the number of the layer folded in.
            unroll: How many layers to unroll, as for `jax.lax.scan`; `BlockSeq` unrolls all of them.
            **kwargs: More arguments, passed by keyword.

        Returns:
            The carry returned by the last layer, and the outputs of all layers stacked along the layer axis.

        Raises:
            TypeError: If an argument may be a legacy random key, as for `fold`.
        """
        return self.scan_via(call_layer, unroll=unroll)(init, *args, **kwargs)

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Applies each layer to the same arguments.

        Args:
            *args: Arguments of every layer; each layer gets its slice of arrays that have the layer axis, or of plain
                arrays along their first axis, and random keys that lack it with the number of the layer folded in.
            **kwargs: More arguments, passed by keyword.

        Returns:
            The results of all layers stacked along the layer axis.

        Raises:
            TypeError: If an argument may be a legacy random key, as for `fold`.
        """
        return self.vmap_via(call_layer)(*args, **kwargs)

    @abc.abstractmethod
    def fold_via(
        self, fn: Callable[Concatenate[M, C, P], C], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], C]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers; see `fold`."""

    @abc.abstractmethod
    def scan_via(
        self, fn: Callable[Concatenate[M, C, P], tuple[C, R]], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], tuple[C, R]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers; see `scan`."""

    @abc.abstractmethod
    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Returns a function that applies `fn(layer, *args)` to each layer, and stacks the results; see `vmap`."""

    @abc.abstractmethod
    def get_layer(self, index: int) -> M:
        """Returns one layer as a separate module.

        Raises:
            IndexError: If the index is out of range.
        """

    def unstacked(self) -> list[M]:
        """Returns all layers as separate modules."""
        return [self.get_layer(index) for index in range(self.Block.size)]

    @abc.abstractmethod
    def map_layers(self, fn: Callable[..., Any], *others: Any) -> Any:
        """Returns the layers with a function applied to each.

        Args:
            fn: Function of a layer, and of the corresponding layer of each of the others, that returns a layer.
            *others: More layers of the same class with the same layer axis.

        Raises:
            TypeError: If one of the others is of another class.
            ValueError: If the layer axes differ.
        """


def call_layer(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Applies a layer: the function of `fold_via` that `fold` uses."""
    return layer(*args, **kwargs)


def parse_layer_init(container: str, Block: Any, module: Any, remat: Remat) -> Callable[..., Any]:
    """Returns the function that makes a layer; raises an error if the arguments of a container's `init` are wrong."""
    if not isinstance(Block, Axis) or not callable(module):
        raise strip_library_frames(
            TypeError(
                f"`{container}.init` takes the layer axis and the class of a layer, as in "
                f"`{container}.init(Axis('layers', "
                f"12), Block)`, not {format_value(Block)} and {format_value(module)}."
            )
        )
    parse_remat(remat)
    return getattr(module, "init", module)


def check_layer_index(index: int, Block: Axis) -> None:
    """Raises an IndexError if there is no such layer."""
    index = check_integer("the number of a layer", index)
    if not -Block.size <= index < Block.size:
        raise strip_library_frames(IndexError(f"there is no layer {index} in {Block}"))


def check_same_layers(container: type[LayerStack[Any]], Block: Axis, others: tuple[Any, ...]) -> None:
    """Raises an error if others are not of this class, or have another layer axis."""
    for other in others:
        if not isinstance(other, container):
            raise strip_library_frames(
                TypeError(f"Layers along {Block} need another `{container.__name__}`, not {format_value(other)}.")
            )
        if other.Block != Block:
            raise strip_library_frames(ValueError(f"layers along {Block} do not match layers along {other.Block}"))


def split_layer_keys(args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis, function: str) -> Any:
    """Returns arguments with keys for each layer, the plain arrays that layers take which call `jax.random`.

    The argument `key` may be a legacy key.
    """
    key = kwargs.get("key")
    if isinstance(key, NamedArray) and key.names:
        check_input("Stacked (key)", key, axis)
    if isinstance(key, NamedArray) and key.names in ((), (axis.name,)):
        key = key.array
    if isinstance(key, jax.Array | np.ndarray):
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        is_single = key.ndim == (0 if typed else 1)  # an untyped key is itself an array with one axis
        key = jax.random.split(key, axis.size) if is_single else key
    return spread_keys((args, kwargs if "key" not in kwargs else {**kwargs, "key": key}), axis, function)
