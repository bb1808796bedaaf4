"""One block applied many times: the parameters of all layers in one array, scanned over a layer axis."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, Names, format_value
from ..named._field import HasLeadingAxes
from ..named._transforms import Remat, fold, is_array_with_axes, scan, vmap
from ._parameters import check_input


M = TypeVar("M", bound=eqx.Module)


class Stacked(eqx.Module, HasLeadingAxes, Generic[M]):
    """Layers of the same kind, held as one module whose arrays have a layer axis, and applied by a scan.

    A scan compiles one layer instead of all of them, and keeps only what passes between layers if gradients are
    checkpointed. Under FSDP each layer's parameters are gathered when its turn comes.

    Attributes:
        stacked: The module; every array in it has the layer axis first.
        Block: The layer axis.
        gradient_checkpointing: Whether each layer is computed again in the backward pass, or a policy of
            `jax.checkpoint_policies`.
    """

    stacked: M
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: Remat = eqx.field(static=True)

    @classmethod
    def init(
        cls, Block: Axis, module: type[M], *, gradient_checkpointing: Remat = False
    ) -> Callable[..., "Stacked[M]"]:
        """Returns a function that makes the layers.

        Args:
            Block: The layer axis.
            module: The class of a layer, with a function `init` that makes one.
            gradient_checkpointing: Whether each layer is computed again in the backward pass, or a policy of
                `jax.checkpoint_policies`.

        Returns:
            A function of the arguments of `module.init`. Arrays with the layer axis are cut, one slice for each layer,
            plain arrays with axes along their first one. A single random key given as `key` is split; each layer gets
            a plain one, which `jax.random` takes as well.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> import equinox as eqx
            >>> class Block(eqx.Module):
            ...     norm: nym.nn.RmsNorm
            ...
            ...     @staticmethod
            ...     def init(Embed, *, key):
            ...         return Block(nym.nn.RmsNorm.init(Embed))
            ...
            ...     def __call__(self, x):
            ...         return x + self.norm(x)
            >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
            >>> stack = nym.nn.Stacked.init(Layers, Block)(Embed, key=jax.random.key(0))
            >>> stack.stacked.norm.weight.shape, stack.fold(nym.ones(Embed)).shape
            ((layers: 3, embed: 4), (embed: 4))
        """
        make: Any = getattr(module, "init", module)

        def made(*args: Any, **kwargs: Any) -> "Stacked[M]":
            if "key" in kwargs:
                kwargs["key"] = _keys(kwargs["key"], Block)
            return cls(vmap(make, Block)(*args, **kwargs), Block, gradient_checkpointing)

        return made

    def fold(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> Any:
        """Applies the layers one after another: each takes what the one before returned.

        Args:
            init: What the first layer takes.
            *args: More arguments of every layer; arrays with the layer axis are cut, one slice for each.
            unroll: How many layers to unroll, as for `jax.lax.scan`.
            **kwargs: More arguments by keyword.

        Returns:
            What the last layer returns.
        """
        return self._folded(_called, unroll)(init, *args, **kwargs)

    def scan(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> tuple[Any, Any]:
        """Applies the layers one after another, where each returns a pair: what the next one takes, and a result.

        Args:
            init: What the first layer takes.
            *args: More arguments of every layer; arrays with the layer axis are cut, one slice for each.
            unroll: How many layers to unroll, as for `jax.lax.scan`.
            **kwargs: More arguments by keyword.

        Returns:
            What the last layer passes on, and the results of all layers, with the layer axis in front.
        """
        return self._scanned(_called, unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: int | bool = 1) -> Callable[..., Any]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers, in place of calling each."""
        return self._folded(_swapped(fn), unroll)

    def scan_via(self, fn: Callable[..., Any], *, unroll: int | bool = 1) -> Callable[..., tuple[Any, Any]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers, in place of calling each."""
        return self._scanned(_swapped(fn), unroll)

    def _leading_axes(self) -> Names:
        """Returns the name of the layer axis, which plain arrays have beside the axes that a layer declares."""
        return (self.Block.name,)

    def _folded(self, step: Callable[..., Any], unroll: int | bool) -> Callable[..., Any]:
        run = fold(step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)
        return lambda init, /, *args, **kwargs: run(init, self.stacked, *args, **kwargs)

    def _scanned(self, step: Callable[..., Any], unroll: int | bool) -> Callable[..., tuple[Any, Any]]:
        run = scan(step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)
        return lambda init, /, *args, **kwargs: run(init, self.stacked, *args, **kwargs)

    def get_layer(self, index: int) -> M:
        """Returns one layer as a module of its own.

        Raises:
            IndexError: If there is no such layer.
        """
        if not -self.Block.size <= index < self.Block.size:
            raise IndexError(f"there is no layer {index} in {self.Block}")
        return jax.tree.map(lambda x: _layer(x, self.Block, index), self.stacked, is_leaf=is_named_array)

    def unstacked(self) -> list[M]:
        """Returns all layers as modules of their own."""
        return [self.get_layer(index) for index in range(self.Block.size)]

    def map_layers(self, fn: Callable[..., Any], *others: "Stacked[Any]") -> "Stacked[Any]":
        """Returns the layers with a function applied to each, which is vectorised over the layer axis.

        Args:
            fn: Function of a layer, and of the layer in its place in each of the others, that returns a layer.
            *others: More stacked layers, as many as these.

        Raises:
            TypeError: If one of the others is not a `Stacked`.
            ValueError: If the layer axes differ.
        """
        for other in others:
            if not isinstance(other, Stacked):
                raise TypeError(
                    f"The layers along {self.Block} go with those of another `Stacked`, not {format_value(other)}."
                )
            if other.Block != self.Block:
                raise ValueError(f"layers along {self.Block} do not go with layers along {other.Block}")
        mapped = vmap(fn, self.Block)(self.stacked, *(other.stacked for other in others))
        return dataclasses.replace(self, stacked=mapped)


def _called(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    return layer(carry, *args, **kwargs)  # one function for all stacks: what is compiled for it is found again


def _swapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda carry, layer, /, *args, **kwargs: fn(layer, carry, *args, **kwargs)


def _layer(x: Any, axis: Axis, index: int) -> Any:
    if isinstance(x, NamedArray):
        return x[axis, index] if x.has_axis(axis) else x
    return x[index] if is_array_with_axes(x) else x


def _keys(key: Any, axis: Axis) -> Any:
    """Returns plain keys, one for each layer, from one key or an array of them: layers may call `jax.random`."""
    if isinstance(key, NamedArray) and key.names:
        check_input("Stacked (key)", key, axis)
    if isinstance(key, NamedArray) and key.names in ((), (axis.name,)):
        key = key.array
    if not isinstance(key, jax.Array | np.ndarray):
        return key
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    one = key.ndim == (0 if typed else 1)  # a key of the older kind is itself an array with one axis
    return jax.random.split(key, axis.size) if one else key
