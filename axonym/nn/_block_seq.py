"""Layers in a Python sequence, applied by a Python loop."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._array import is_named_array
from ..named._axis import Axis
from ..named._format import format_value
from ..named._named_call import enter_scope, find_module_name
from ..named._shape._concatenate import stack
from ..named._static_result import is_array, pack_result, unpack_result
from ..named._transforms import (
    Remat,
    check_scan_result,
    checkpoint_loop,
    is_array_with_axes,
    parse_remat,
    slice_args,
    spread_keys,
)
from ..state_dict._from_state_dict import read_fields
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


class BlockSeq(LayerStack[M]):
    """Layers in a Python sequence, applied one after another: `Stacked` without its scan.

    Each layer has arrays of its own and is compiled for itself, so layers may be of different kinds or sizes. Compiling
    takes time in proportion to their number.

    Attributes:
        blocks: The layers.
        Block: The layer axis, which has their number as its size; the results of layers are stacked along it.
        gradient_checkpointing: What the backward pass recomputes, as for `Stacked`.

    Raises:
        ValueError: If the number of layers is not the size of the axis.

    Example:
        >>> import axonym as nym
        >>> Layers, Embed = nym.make_axes(layers=2, embed=4)
        >>> layers = nym.nn.BlockSeq((nym.nn.RmsNorm.init(Embed), nym.nn.LayerNorm.init(Embed)), Layers)
        >>> layers.fold(nym.ones(Embed)).shape, layers.vmap(nym.ones(Embed)).shape
        ((embed: 4), (layers: 2, embed: 4))
    """

    blocks: tuple[M, ...]
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: Remat = eqx.field(static=True)

    def __init__(self, blocks: Iterable[M], Block: Axis, gradient_checkpointing: Remat = False) -> None:
        """Checks the number of layers; `init` makes them from a class."""
        if not isinstance(blocks, Iterable) or not isinstance(Block, Axis):
            raise TypeError(
                "`BlockSeq` takes layers and the layer axis, as in `BlockSeq((first, second), Axis('layers', 2))`, not "
                f"{format_value(blocks)} and {format_value(Block)}."
            )
        parse_remat(gradient_checkpointing)
        self.blocks, self.Block, self.gradient_checkpointing = tuple(blocks), Block, gradient_checkpointing
        if len(self.blocks) != Block.size:
            raise ValueError(
                f"`BlockSeq` along {Block} was given {len(self.blocks)} layers; give as many as the axis has"
            )

    @classmethod
    def init(
        cls, Block: Axis, module: Callable[..., B], *, gradient_checkpointing: Remat = False
    ) -> Callable[..., "BlockSeq[B]"]:
        """Returns a function that makes layers of the same kind; see `Stacked.init`, which takes the same arguments.

        Args:
            Block: The layer axis.
            module: The class of a layer; its `init` makes a layer.
            gradient_checkpointing: What the backward pass recomputes, as for `Stacked`.

        Returns:
            A function of the arguments of `module.init`. Each layer gets its slice of arrays that have the layer axis,
            and a key of its own; its parameters are those that `Stacked.init` gives it.

        Raises:
            TypeError: If `Block` is not an axis, `module` is not callable, or the policy has the wrong type.
            ValueError: If the policy is a string that names none.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
            >>> make = nym.nn.BlockSeq.init(Layers, nym.nn.Linear)
            >>> layers = make(Embed, Embed.alias("mlp"), key=jax.random.key(0))
            >>> layers.get_layer(-1).weight.shape
            (mlp: 4, embed: 4)
        """
        make = parse_layer_init("BlockSeq", Block, module, gradient_checkpointing)

        def make_blocks(*args: Any, **kwargs: Any) -> Any:
            arguments = split_layer_keys(args, kwargs, Block, "BlockSeq.init")
            given = slice_args(arguments, Block, is_array_with_axes, "BlockSeq.init")
            each = [given.insert_slices(slices) for slices in given.split_slices()]
            return cls(tuple(make(*args, **kwargs) for args, kwargs in each), Block, gradient_checkpointing)

        return make_blocks

    def fold_via(
        self, fn: Callable[Concatenate[M, C, P], C], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], C]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers; see `fold`."""
        call_fn: Callable[..., Any] = fn

        def fold_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self._run_layers(lambda *args, **kwargs: (call_fn(*args, **kwargs), None), init, args, kwargs)[0]

        return fold_layers

    def scan_via(
        self, fn: Callable[Concatenate[M, C, P], tuple[C, R]], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], tuple[C, R]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers; see `scan`."""

        def scan_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            carry, results = self._run_layers(fn, init, args, kwargs)
            return carry, _stack_results(results, self.Block)

        return scan_layers

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Returns a function that applies `fn(layer, *args)` to each layer, and stacks the results; see `vmap`.

        Example:
            >>> import axonym as nym
            >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
            >>> layers = nym.nn.BlockSeq.init(Layers, nym.nn.RmsNorm)(Embed)
            >>> nym.nn.Stacked(layers.vmap_via(lambda layer: layer)(), Layers).stacked.weight.shape
            (layers: 3, embed: 4)
        """
        call_fn: Callable[..., Any] = fn

        def apply_layers(*args: Any, **kwargs: Any) -> Any:
            arguments = spread_keys((args, kwargs), self.Block, "BlockSeq")
            given = slice_args(arguments, self.Block, is_array_with_axes, "BlockSeq.vmap")
            with enter_scope(find_module_name(self), self):
                each = [given.insert_slices(slices) for slices in given.split_slices()]
                pairs = zip(self.blocks, each, strict=True)
                return _stack_results([call_fn(layer, *args, **kwargs) for layer, (args, kwargs) in pairs], self.Block)

        return apply_layers

    def _run_layers(self, step: Callable[..., Any], init: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """Returns the final carry, and the result of each layer."""
        arguments = spread_keys((args, kwargs), self.Block, "BlockSeq")
        given = slice_args(arguments, self.Block, is_array_with_axes, "BlockSeq")
        path = find_module_name(self)

        def call_layer(index: int, carry: Any, slices: Any) -> tuple[Any, Any]:
            args, kwargs = given.insert_slices(slices)
            with enter_scope("", self):  # names of what is recomputed
                carry, result = check_scan_result(step(self.blocks[index], carry, *args, **kwargs))
            return carry, pack_result(result)

        with enter_scope(path, self):
            run = checkpoint_loop(call_layer, parse_remat(self.gradient_checkpointing), given.split_slices())
            carry, results = run(init)
        return carry, [unpack_result(result) for result in results]

    def get_layer(self, index: int) -> M:
        """Returns one layer.

        Raises:
            IndexError: If the index is out of range.
        """
        check_layer_index(index, self.Block)
        return self.blocks[index]

    def map_layers(self, fn: Callable[..., Any], *others: "BlockSeq[Any]") -> "BlockSeq[Any]":
        """Returns the layers with a function applied to each.

        Args:
            fn: Function of a layer, and of the corresponding layer of each of the others, that returns a layer.
            *others: More layers with the same layer axis.

        Raises:
            TypeError: If one of the others is not a `BlockSeq`.
            ValueError: If the layer axes differ.
        """
        check_same_layers(BlockSeq, self.Block, others)
        mapped = map(fn, self.blocks, *(other.blocks for other in others))
        return dataclasses.replace(self, blocks=tuple(mapped))

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        """Returns the arrays of the layers by the number of the layer; see `axonym.state_dict.to_state_dict`."""
        return write_layers(self, prefix)

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        """Returns the layers with the arrays of a state dict; see `axonym.state_dict.from_state_dict`."""
        return dataclasses.replace(self, blocks=read_fields(self.blocks, state_dict, prefix))


def _stack_results(results: list[Any], Block: Axis) -> Any:
    """Returns a tree of the results of all layers, stacked along the layer axis, which comes first."""

    def stack_leaves(first: Any, *others: Any) -> Any:
        if is_named_array(first):
            return stack(Block, (first, *others))
        if is_array(first):
            return jnp.stack((first, *others))
        if any(other is not first and other != first for other in others):
            raise ValueError(f"layers along {Block} return different values that are not arrays; return arrays")
        return first

    trees = {jax.tree.structure(result, is_leaf=is_named_array) for result in results}
    if len(trees) != 1:
        raise ValueError(f"layers along {Block} return results of {len(trees)} structures; only one can be stacked")
    return jax.tree.map(stack_leaves, *results, is_leaf=is_named_array)
