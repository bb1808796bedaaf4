"""Layers that are applied in order: the interface of `Stacked` and `BlockSeq`, and both of them."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._ground.arguments import check_integer
from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.jax_compat import is_traced
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, Names
from ..named._axis_layout import round_up
from ..named._base import with_array
from ..named._creation import zeros
from ..named._field import HasLeadingAxes
from ..named._index._at import take
from ..named._named_call import enter_scope, find_module_name
from ..named._shape._concatenate import stack
from ..named._sharding import constrain_sharding, find_stages
from ..named._static_result import is_array, pack_result, unpack_result
from ..named._transforms import (
    Remat,
    check_scan_result,
    checkpoint_loop,
    fold,
    is_array_with_axes,
    parse_remat,
    scan,
    slice_args,
    spread_keys,
    vmap,
)
from ..state_dict._from_state_dict import read_fields, read_layers
from ..state_dict._keys import eval_shapes
from ..state_dict._to_state_dict import write_layers
from ._layer import Layer, check_input
from ._pipeline import run_pipeline


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

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        """Returns the arrays of the layers by the number of the layer; see `axonym.state_dict.to_state_dict`."""
        return write_layers(self, prefix)


def call_layer(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Applies a layer: the function of `fold_via` that `fold` uses."""
    return layer(*args, **kwargs)


def parse_layer_init(container: str, Block: Any, module: Any, remat: Remat) -> Callable[..., Any]:
    """Returns the function that makes a layer; raises an error if the arguments of a container's `init` are wrong."""
    if not isinstance(Block, Axis) or not callable(module):
        raise make_error(
            TypeError,
            f"`{container}.init` takes the layer axis and the class of a layer, as in "
            f"`{container}.init(Axis('layers', 12), Block)`, not {format_value(Block)} and {format_value(module)}.",
        )
    parse_remat(remat)
    return getattr(module, "init", module)


def check_layer_index(index: int, Block: Axis) -> None:
    """Raises an IndexError if there is no such layer."""
    index = check_integer("the number of a layer", index)
    if not -Block.size <= index < Block.size:
        raise make_error(IndexError, f"there is no layer {index} in {Block}")


def check_same_layers(container: type[LayerStack[Any]], Block: Axis, others: tuple[Any, ...]) -> None:
    """Raises an error if others are not of this class, or have another layer axis."""
    for other in others:
        if not isinstance(other, container):
            raise make_error(
                TypeError, f"Layers along {Block} need another `{container.__name__}`, not {format_value(other)}."
            )
        if other.Block != Block:
            raise make_error(ValueError, f"layers along {Block} do not match layers along {other.Block}")


def split_layer_keys(args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis, function: str) -> Any:
    """Returns arguments whose random keys have one key for each layer.

    The argument `key` may be a legacy key. Its keys become plain arrays, which layers that call `jax.random` take.
    """
    key = kwargs.get("key")
    if isinstance(key, NamedArray) and key.names:
        check_input("Stacked (key)", key, axis)
    if isinstance(key, NamedArray) and key.names in ((), (axis.name,)):
        key = key.array
    if isinstance(key, jax.Array | np.ndarray):
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if key.ndim == (0 if is_typed else 1):  # an untyped key is itself an array with one axis
            key = jax.random.split(key, axis.size)
    if "key" in kwargs:
        kwargs = {**kwargs, "key": key}
    return spread_keys((args, kwargs), axis, function)


class Stacked(LayerStack[M], HasLeadingAxes):
    """Layers of the same kind, stored as one module whose arrays have a layer axis, and applied by a scan.

    A scan compiles one layer instead of all of them. With gradient checkpointing, only the values passed between layers
    are kept for the backward pass. Under FSDP, the parameters of each layer are gathered when it is applied.

    Attributes:
        stacked: The module; its arrays have the layer axis first.
        Block: The layer axis.
        gradient_checkpointing: What the backward pass recomputes: True for each layer, or a policy as for `remat` of
            `scan`, such as a `ScanCheckpointPolicy`, `"offload"` or one of `jax.checkpoint_policies`.
        interleaving: The numbers of stages, and of groups of layers on each, for which the layers are stored; see
            `interleave`.
    """

    stacked: M
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: Remat = eqx.field(static=True)
    interleaving: tuple[int, int] = eqx.field(static=True)

    # Written out, because to type checkers the abstract fields of the base class come first.
    def __init__(
        self,
        stacked: M,
        Block: Axis,
        gradient_checkpointing: Remat = False,
        interleaving: tuple[int, int] = (1, 1),
    ) -> None:
        """Makes the layers of a module whose arrays have the layer axis; `init` makes them from a class."""
        self.stacked, self.Block, self.gradient_checkpointing = stacked, Block, gradient_checkpointing
        self.interleaving = interleaving

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
                return vmap(apply_layer, self.Block)(_order_stacked(self), *args, **kwargs)

        return apply_layers

    def _leading_axes(self) -> Names:
        """Returns the name of the layer axis, the leading axis of the plain arrays in this module."""
        return (self.Block.name,)

    def _bind_layers(self, loop: Callable[..., Any], fn: Callable[..., Any], unroll: int | bool) -> Callable[..., Any]:
        """Returns the function of a carry that `fold_via` or `scan_via` returns; `loop` is `fold` or `scan`."""

        def run_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = spread_keys((args, kwargs), self.Block, "Stacked")
            path = find_module_name(self)

            def call_step(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
                # Once more, since JAX puts the names of the loop between the path and the names of operations.
                with enter_scope(path, layer):
                    return fn(layer, carry, *args, **kwargs)

            def scan_step(carry: Any, layer: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
                result = call_step(carry, layer, *args, **kwargs)
                return (result, None) if loop is fold else check_scan_result(result)

            with enter_scope(path, self):
                plan = find_stages(self.Block.name, self.Block.size)
                if plan is None:
                    run = loop(call_step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)
                    return run(init, _order_stacked(self), *args, **kwargs)
                stages, repeats = self.interleaving
                if repeats > 1 and stages != plan.stages:
                    raise make_error(
                        ValueError,
                        f"layers along {self.Block} are interleaved for {stages} stages, but the mapping divides them "
                        f"into {plan.stages}; call `interleave({plan.stages}, {repeats})`",
                    )
                arguments = (self.stacked, *args), kwargs
                remat = self.gradient_checkpointing
                result = run_pipeline(scan_step, plan, self.Block, repeats, init, arguments, remat, unroll)
                return result[0] if loop is fold else result

        return run_layers

    def interleave(self, stages: int, repeats: int) -> Self:
        """Returns the layers stored in the order for a pipeline in which each stage has several groups of layers.

        Group `g` of stage `s` has the layers of group number `stages * g + s`, counted in order. With `repeats` groups
        the stages wait less for each other, and microbatches are sent `repeats` times as often; see
        `PipelineSchedule`. Without a pipeline the layers are brought into their order, which takes a copy of their
        arrays.

        Args:
            stages: The number of stages.
            repeats: The number of groups of layers on each of them; 1 stores the layers in order.

        Returns:
            The same layers, whose methods all count layers in the order in which they are applied.

        Raises:
            TypeError: If a number is not an integer.
            ValueError: If the layers cannot be divided so.

        Example:
            >>> import axonym as nym
            >>> Layers, Embed = nym.make_axes(layers=8, embed=4)
            >>> stack = nym.nn.Stacked(nym.arange(Layers), Layers)
            >>> stack.interleave(2, 2).stacked.array
            Array([0, 1, 4, 5, 2, 3, 6, 7], dtype=int32)
        """
        stages = check_integer("interleave: `stages`", stages, 1)
        repeats = check_integer("interleave: `repeats`", repeats, 1)
        if self.Block.size % (stages * repeats):
            raise make_error(
                ValueError,
                f"layers along {self.Block} cannot be divided into {repeats} groups for each of {stages} stages; the "
                f"next number of layers that can be is {round_up(self.Block.size, stages * repeats)}",
            )
        interleaving = (stages, repeats) if repeats > 1 else (1, 1)
        if interleaving == self.interleaving:
            return self
        places = np.argsort(_order_layers(self.Block.size, *self.interleaving))  # of each layer
        indices = places[_order_layers(self.Block.size, *interleaving)]

        def reorder(x: Any) -> Any:
            if isinstance(x, NamedArray):
                if not x.has_axis(self.Block):
                    return x
                reordered = constrain_sharding(take(x, self.Block, indices))
                is_placed = not is_traced(x.array) and isinstance(x.array, jax.Array)
                return with_array(x, jax.device_put(reordered.array, x.array.sharding)) if is_placed else reordered
            return x[indices] if is_array_with_axes(x) else x

        stacked = jax.tree.map(reorder, self.stacked, is_leaf=is_named_array)
        return dataclasses.replace(self, stacked=stacked, interleaving=interleaving)

    def get_layer(self, index: int) -> M:
        """Returns one layer as a separate module.

        Raises:
            IndexError: If the index is out of range.
        """
        check_layer_index(index, self.Block)
        index = int(np.argsort(_order_layers(self.Block.size, *self.interleaving))[index])

        def slice_layer(x: Any) -> Any:
            if isinstance(x, NamedArray):
                return x[self.Block, index] if x.has_axis(self.Block) else x
            return x[index] if is_array_with_axes(x) else x

        return jax.tree.map(slice_layer, self.stacked, is_leaf=is_named_array)

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
        modules = [stack.interleave(*self.interleaving).stacked for stack in others]
        return dataclasses.replace(self, stacked=vmap(fn, self.Block)(self.stacked, *modules))

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        """Returns the layers with the arrays of a state dict; see `axonym.state_dict.from_state_dict`."""
        templates, treedef = jax.tree.flatten(self.stacked, is_leaf=is_named_array)
        stacked_leaves: list[Any] = [None] * len(templates)
        layers = eval_shapes(type(self).unstacked, self)
        for index, layer in enumerate(read_layers(layers, state_dict, prefix)):
            leaves = jax.tree.leaves(layer, is_leaf=is_named_array)
            stacked_leaves = [
                _add_layer(template, stacked, leaf, self.Block, index)
                for template, stacked, leaf in zip(templates, stacked_leaves, leaves, strict=True)
            ]
        stacked_leaves = [jnp.stack(leaf) if isinstance(leaf, list) else leaf for leaf in stacked_leaves]
        stacked = _shard_layers(jax.tree.unflatten(treedef, stacked_leaves))
        return dataclasses.replace(self, stacked=stacked, interleaving=(1, 1)).interleave(*self.interleaving)


def _order_stacked(layers: Stacked[M]) -> M:
    """Returns the module whose arrays have the layers in the order in which they are applied."""
    return layers.stacked if layers.interleaving == (1, 1) else layers.interleave(1, 1).stacked


def _order_layers(size: int, stages: int, repeats: int) -> np.ndarray:
    """Returns the number of the layer at each place."""
    return np.arange(size).reshape(repeats, stages, -1).swapaxes(0, 1).reshape(-1)


def _add_layer(template: Any, stacked: Any, leaf: Any, axis: Axis, index: int) -> Any:
    """Adds the leaf of a layer to `stacked`, which has those of the layers before it, and is None for the first layer.

    Each named array is written into the stacked one as soon as it is read, so that memory never holds all layers twice.
    """
    if is_named_array(template) and template.has_axis(axis):
        if stacked is None:
            stacked = constrain_sharding(zeros(template.axes, leaf.dtype))
        return _set_layer(stacked, leaf, index, axis)
    if not is_named_array(template) and getattr(template, "shape", ()):
        return [*(stacked or ()), leaf]
    return leaf if stacked is None else stacked


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _set_layer(stacked: NamedArray, layer: NamedArray, index: int, axis: Axis) -> NamedArray:
    return stacked.at[axis, index].set(layer)


def _shard_layers(stacked: Any) -> Any:
    """Returns layers sharded by their names: within `vmap`, the layer axis could not be sharded."""
    return jax.tree.map(lambda x: constrain_sharding(x) if is_named_array(x) else x, stacked, is_leaf=is_named_array)


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
            sliced = slice_args(arguments, Block, is_array_with_axes, "BlockSeq.init")
            layer_arguments = [sliced.insert_slices(slices) for slices in sliced.split_slices()]
            return cls(tuple(make(*args, **kwargs) for args, kwargs in layer_arguments), Block, gradient_checkpointing)

        return make_blocks

    def fold_via(
        self, fn: Callable[Concatenate[M, C, P], C], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], C]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers; see `fold`."""

        def call_step(layer: Any, carry: Any, /, *args: Any, **kwargs: Any) -> Any:
            return fn(layer, carry, *args, **kwargs), None

        def fold_layers(init: Any, /, *args: Any, **kwargs: Any) -> Any:
            if find_stages(self.Block.name, self.Block.size) is not None:
                return self._stack_layers().fold_via(fn)(init, *args, **kwargs)
            carry, _ = self._run_layers(call_step, init, args, kwargs)
            return carry

        return fold_layers

    def scan_via(
        self, fn: Callable[Concatenate[M, C, P], tuple[C, R]], *, unroll: int | bool = 1
    ) -> Callable[Concatenate[C, P], tuple[C, R]]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers; see `scan`."""

        def scan_layers(init: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if find_stages(self.Block.name, self.Block.size) is not None:
                return self._stack_layers().scan_via(fn)(init, *args, **kwargs)
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
        call_fn: Callable[..., Any] = fn  # to type checkers, slices of arguments are not `P`

        def apply_layers(*args: Any, **kwargs: Any) -> Any:
            arguments = spread_keys((args, kwargs), self.Block, "BlockSeq")
            sliced = slice_args(arguments, self.Block, is_array_with_axes, "BlockSeq.vmap")
            with enter_scope(find_module_name(self), self):
                layer_arguments = [sliced.insert_slices(slices) for slices in sliced.split_slices()]
                pairs = zip(self.blocks, layer_arguments, strict=True)
                return _stack_results([call_fn(layer, *args, **kwargs) for layer, (args, kwargs) in pairs], self.Block)

        return apply_layers

    def _stack_layers(self) -> Stacked[M]:
        """Returns the layers as the stages of a pipeline take them."""
        structure = jax.tree.structure(self.blocks[0])
        if any(jax.tree.structure(layer) != structure for layer in self.blocks):
            raise make_error(
                ValueError,
                f"layers along {self.Block} are the stages of a pipeline, which need layers of the same kind and axes; "
                "map the layer axis to None for a `BlockSeq` of different ones",
            )
        return Stacked(_stack_results([*self.blocks], self.Block), self.Block, self.gradient_checkpointing)

    def _run_layers(self, step: Callable[..., Any], init: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """Returns the final carry, and the result of each layer."""
        arguments = spread_keys((args, kwargs), self.Block, "BlockSeq")
        sliced = slice_args(arguments, self.Block, is_array_with_axes, "BlockSeq")

        def call_step(index: int, carry: Any, slices: Any) -> tuple[Any, Any]:
            args, kwargs = sliced.insert_slices(slices)
            carry, result = check_scan_result(step(self.blocks[index], carry, *args, **kwargs))
            return carry, pack_result(result)

        with enter_scope(find_module_name(self), self):
            run = checkpoint_loop(call_step, parse_remat(self.gradient_checkpointing), sliced.split_slices())
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

    structures = {jax.tree.structure(result, is_leaf=is_named_array) for result in results}
    if len(structures) != 1:
        raise ValueError(
            f"layers along {Block} return results of {len(structures)} structures; only one can be stacked"
        )
    return jax.tree.map(stack_leaves, *results, is_leaf=is_named_array)
