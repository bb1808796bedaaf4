"""Layers of one kind with their parameters stacked along a layer axis, applied by a scan."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, Names
from ..named._creation import zeros
from ..named._field import HasLeadingAxes
from ..named._named_call import enter_scope, find_module_name
from ..named._transforms import Remat, fold, is_array_with_axes, scan, spread_keys, vmap
from ..state_dict._from_state_dict import read_layers
from ..state_dict._keys import eval_shapes
from ..state_dict._to_state_dict import write_layers
from ._layer_stack import (
    B,
    C,
    LayerStack,
    M,
    P,
    R,
    check_layer_index,
    check_same_layers,
    parse_layer_init,
    split_layer_keys,
)


class Stacked(LayerStack[M], HasLeadingAxes):
    """Layers of the same kind, stored as one module whose arrays have a layer axis, and applied by a scan.

    A scan compiles one layer instead of all of them. With gradient checkpointing, only the values passed between layers
    are kept for the backward pass. Under FSDP, the parameters of each layer are gathered when it is applied.

    Attributes:
        stacked: The module; its arrays have the layer axis first.
        Block: The layer axis.
        gradient_checkpointing: What the backward pass recomputes: True for each layer, or a policy as for `remat` of
            `scan`, such as a `ScanCheckpointPolicy`, `"offload"` or one of `jax.checkpoint_policies`.
    """

    stacked: M
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: Remat = eqx.field(static=True)

    def __init__(self, stacked: M, Block: Axis, gradient_checkpointing: Remat = False) -> None:
        """Makes the layers of a module whose arrays have the layer axis; `init` makes them from a class."""
        self.stacked, self.Block, self.gradient_checkpointing = stacked, Block, gradient_checkpointing

    @classmethod
    def init(
        cls, Block: Axis, module: Callable[..., B], *, gradient_checkpointing: Remat = False
    ) -> Callable[..., "Stacked[B]"]:
        """Returns a function that makes the layers.

        Args:
            Block: The layer axis.
            module: The class of a layer; its `init` makes a layer.
            gradient_checkpointing: What the backward pass recomputes, as for the attribute.

        Returns:
            A function of the arguments of `module.init`. Each layer gets its slice of named arrays that have the layer
            axis, and of plain arrays along their first axis. A single random key given as `key` is split, so that each
            layer gets a plain key of its own, and other random keys are folded as by `fold`. The arrays of the layers
            have the layer axis first, and are sharded by the active mapping along it, too.

        Raises:
            TypeError: If `Block` is not an axis, `module` is not callable, or the policy has the wrong type. When
                called, if an argument other than `key` may be a legacy random key.
            ValueError: If the policy is a string that names none.

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
        make = parse_layer_init("Stacked", Block, module, gradient_checkpointing)

        def make_stacked(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = split_layer_keys(args, kwargs, Block, "Stacked.init")
            stacked = vmap(make, Block)(*args, **kwargs)
            return cls(_shard_layers(stacked), Block, gradient_checkpointing)

        return make_stacked

    def fold_via(
        self, fn: Callable[Concatenate[M, C, P], C], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], C]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers; see `fold`."""
        return self._bind_layers(fold, fn, unroll)

    def scan_via(
        self, fn: Callable[Concatenate[M, C, P], tuple[C, R]], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], tuple[C, R]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers; see `scan`."""
        return self._bind_layers(scan, fn, unroll)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Returns a function that applies `fn(layer, *args)` to all layers at once; see `vmap`.

        Example:
            >>> import axonym as nym
            >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
            >>> stack = nym.nn.Stacked.init(Layers, nym.nn.RmsNorm)(Embed)
            >>> stack.vmap_via(lambda norm, x: norm(x).sum())(nym.ones(Embed)).shape
            (layers: 3)
        """

        def apply_layers(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = spread_keys((args, kwargs), self.Block, "Stacked")
            path = find_module_name(self)

            def apply_layer(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
                with enter_scope("", layer):
                    return fn(layer, *args, **kwargs)

            with enter_scope(path, self):
                return vmap(apply_layer, self.Block)(self.stacked, *args, **kwargs)

        return apply_layers

    def _leading_axes(self) -> Names:
        """Returns the name of the layer axis, the leading axis of the plain arrays in this module."""
        return (self.Block.name,)

    def _bind_layers(self, loop: Callable[..., Any], fn: Callable[..., Any], unroll: int | bool) -> Callable[..., Any]:
        """Returns a function of a carry that folds or scans a function of a layer and the carry over the layers."""

        def run_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = spread_keys((args, kwargs), self.Block, "Stacked")
            path = find_module_name(self)

            def call_step(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
                with enter_scope(path, layer):  # once more, because JAX adds names of the loop to those outside of it
                    return fn(layer, carry, *args, **kwargs)

            run = loop(call_step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)
            with enter_scope(path, self):
                return run(init, self.stacked, *args, **kwargs)

        return run_layers

    def get_layer(self, index: int) -> M:
        """Returns one layer as a separate module.

        Raises:
            IndexError: If the index is out of range.
        """
        check_layer_index(index, self.Block)
        return jax.tree.map(lambda x: _slice_layer(x, self.Block, index), self.stacked, is_leaf=is_named_array)

    def map_layers(self, fn: Callable[..., Any], *others: "Stacked[Any]") -> "Stacked[Any]":
        """Returns the layers with a function applied to each, vectorised over the layer axis.

        Args:
            fn: Function of a layer, and of the corresponding layer of each of the others, that returns a layer.
            *others: More stacked layers with the same layer axis.

        Raises:
            TypeError: If one of the others is not a `Stacked`.
            ValueError: If the layer axes differ.
        """
        check_same_layers(Stacked, self.Block, others)
        mapped = vmap(fn, self.Block)(self.stacked, *(other.stacked for other in others))
        return dataclasses.replace(self, stacked=mapped)

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        """Returns the arrays of the layers by the number of the layer; see `axonym.state_dict.to_state_dict`."""
        return write_layers(self, prefix)

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        """Returns the layers with the arrays of a state dict; see `axonym.state_dict.from_state_dict`."""
        old, treedef = jax.tree.flatten(self.stacked, is_leaf=is_named_array)
        found: list[Any] = [None] * len(old)
        layers = eval_shapes(type(self).unstacked, self)
        for index, layer in enumerate(read_layers(layers, state_dict, prefix)):
            leaves = jax.tree.leaves(layer, is_leaf=is_named_array)
            found = [_add_layer(*each, self.Block, index) for each in zip(old, found, leaves, strict=True)]
        leaves = [jnp.stack(leaf) if isinstance(leaf, list) else leaf for leaf in found]
        return dataclasses.replace(self, stacked=_shard_layers(jax.tree.unflatten(treedef, leaves)))


def _add_layer(old: Any, found: Any, new: Any, axis: Axis, index: int) -> Any:
    """Returns what has been found of a leaf of stacked layers with the leaf of the next layer.

    Named arrays are written into the stacked array at once, so that at no time both are there for all layers.
    """
    if is_named_array(old) and old.has_axis(axis):
        stacked = constrain_sharding(zeros(old.axes, new.dtype)) if found is None else found
        return _set_layer(stacked, new, index, axis)
    if not is_named_array(old) and getattr(old, "shape", ()):
        return [*(found or ()), new]
    return new if found is None else found


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _set_layer(stacked: NamedArray, layer: NamedArray, index: int, axis: Axis) -> NamedArray:
    return stacked.at[axis, index].set(layer)


def _shard_layers(stacked: Any) -> Any:
    """Returns layers sharded by their names: within `vmap`, the layer axis could not be sharded."""
    return jax.tree.map(lambda x: constrain_sharding(x) if is_named_array(x) else x, stacked, is_leaf=is_named_array)


def _slice_layer(x: Any, axis: Axis, index: int) -> Any:
    if isinstance(x, NamedArray):
        return x[axis, index] if x.has_axis(axis) else x
    return x[index] if is_array_with_axes(x) else x
