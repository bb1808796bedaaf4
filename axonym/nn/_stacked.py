"""Layers of one kind with their parameters stacked along a layer axis, applied by a scan."""

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
from ..named._named_call import enter_scope, find_module_name
from ..named._transforms import Remat, fold, is_array_with_axes, scan, vmap
from ._inputs import check_input
from ._layer import Layer


M = TypeVar("M", bound=eqx.Module)


class Stacked(Layer, HasLeadingAxes, Generic[M]):
    """Layers of the same kind, stored as one module whose arrays have a layer axis, and applied by a scan.

    A scan compiles one layer instead of all of them. With gradient checkpointing, only the values passed between layers
    are kept for the backward pass. Under FSDP, the parameters of each layer are gathered when it is applied.

    Attributes:
        stacked: The module; its arrays have the layer axis first.
        Block: The layer axis.
        gradient_checkpointing: Whether to recompute each layer in the backward pass, or a policy of
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
            module: The class of a layer; its `init` makes a layer.
            gradient_checkpointing: Whether to recompute each layer in the backward pass, or a policy of
                `jax.checkpoint_policies`.

        Returns:
            A function of the arguments of `module.init`. Each layer gets its slice of named arrays that have the layer
            axis, and of plain arrays along their first axis. A single random key given as `key` is split, so that each
            layer gets a plain key of its own.

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
        if not isinstance(Block, Axis) or not callable(module):
            raise TypeError(
                "`Stacked.init` takes the layer axis and the class of a layer, as in `Stacked.init(Axis('layers', 12), "
                f"Block)`, not {format_value(Block)} and {format_value(module)}."
            )
        make: Any = getattr(module, "init", module)

        def make_stacked(*args: Any, **kwargs: Any) -> "Stacked[M]":
            if "key" in kwargs:
                kwargs["key"] = _split_layer_keys(kwargs["key"], Block)
            return cls(vmap(make, Block)(*args, **kwargs), Block, gradient_checkpointing)

        return make_stacked

    def fold(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> Any:
        """Applies the layers in order; each takes the result of the layer before it.

        Args:
            init: The input of the first layer.
            *args: More arguments of every layer; each layer gets its slice of arrays that have the layer axis.
            unroll: How many layers to unroll, as for `jax.lax.scan`.
            **kwargs: More arguments, passed by keyword.

        Returns:
            The result of the last layer.
        """
        return self._bind_layers(fold, _call_layer, unroll)(init, *args, **kwargs)

    def scan(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> tuple[Any, Any]:
        """Applies the layers in order; each returns a pair of the input of the next layer and an output.

        Args:
            init: The input of the first layer.
            *args: More arguments of every layer; each layer gets its slice of arrays that have the layer axis.
            unroll: How many layers to unroll, as for `jax.lax.scan`.
            **kwargs: More arguments, passed by keyword.

        Returns:
            The carry returned by the last layer, and the outputs of all layers stacked along the layer axis.
        """
        return self._bind_layers(scan, _call_layer, unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: int | bool = 1) -> Callable[..., Any]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers."""
        return self._bind_layers(fold, _put_carry_first(fn), unroll)

    def scan_via(self, fn: Callable[..., Any], *, unroll: int | bool = 1) -> Callable[..., tuple[Any, Any]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers."""
        return self._bind_layers(scan, _put_carry_first(fn), unroll)

    def _leading_axes(self) -> Names:
        """Returns the name of the layer axis, the leading axis of the plain arrays in this module."""
        return (self.Block.name,)

    def _bind_layers(
        self, loop: Callable[..., Any], step: Callable[..., Any], unroll: int | bool
    ) -> Callable[..., Any]:
        """Returns a function of a carry that folds or scans a step over the layers."""

        def run_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            path = find_module_name(self)

            def call_step(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
                with enter_scope(path, layer):  # once more, because JAX adds names of the loop to those outside of it
                    return step(carry, layer, *args, **kwargs)

            run = loop(call_step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)
            with enter_scope(path, self):
                return run(init, self.stacked, *args, **kwargs)

        return run_layers

    def get_layer(self, index: int) -> M:
        """Returns one layer as a separate module.

        Raises:
            IndexError: If the index is out of range.
        """
        if not -self.Block.size <= index < self.Block.size:
            raise IndexError(f"there is no layer {index} in {self.Block}")
        return jax.tree.map(lambda x: _slice_layer(x, self.Block, index), self.stacked, is_leaf=is_named_array)

    def unstacked(self) -> list[M]:
        """Returns all layers as separate modules."""
        return [self.get_layer(index) for index in range(self.Block.size)]

    def map_layers(self, fn: Callable[..., Any], *others: "Stacked[Any]") -> "Stacked[Any]":
        """Returns the layers with a function applied to each, vectorised over the layer axis.

        Args:
            fn: Function of a layer, and of the corresponding layer of each of the others, that returns a layer.
            *others: More stacked layers with the same layer axis.

        Raises:
            TypeError: If one of the others is not a `Stacked`.
            ValueError: If the layer axes differ.
        """
        for other in others:
            if not isinstance(other, Stacked):
                raise TypeError(f"Layers along {self.Block} need another `Stacked`, not {format_value(other)}.")
            if other.Block != self.Block:
                raise ValueError(f"layers along {self.Block} do not match layers along {other.Block}")
        mapped = vmap(fn, self.Block)(self.stacked, *(other.stacked for other in others))
        return dataclasses.replace(self, stacked=mapped)


def _call_layer(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    return layer(carry, *args, **kwargs)


def _put_carry_first(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda carry, layer, /, *args, **kwargs: fn(layer, carry, *args, **kwargs)


def _slice_layer(x: Any, axis: Axis, index: int) -> Any:
    if isinstance(x, NamedArray):
        return x[axis, index] if x.has_axis(axis) else x
    return x[index] if is_array_with_axes(x) else x


def _split_layer_keys(key: Any, axis: Axis) -> Any:
    """Returns a plain key for each layer, made from one key or an array of keys, for layers that call `jax.random`."""
    if isinstance(key, NamedArray) and key.names:
        check_input("Stacked (key)", key, axis)
    if isinstance(key, NamedArray) and key.names in ((), (axis.name,)):
        key = key.array
    if not isinstance(key, jax.Array | np.ndarray):
        return key
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_single = key.ndim == (0 if typed else 1)  # an untyped key is itself an array with one axis
    return jax.random.split(key, axis.size) if is_single else key
