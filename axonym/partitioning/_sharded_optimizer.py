"""Optimizer state that is sharded by a mapping of its own: ZeRO-1, for any optimizer with `init` and `update`.

Gradients and parameters are cut as the state is, the optimizer works on the parts, and its updates go back to where
the gradients came from. Nothing here knows an optimizer library: what is wrapped is two functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar, overload

import jax
from jax.sharding import AxisType

from .._jax_compat import is_tracing
from ..named._ambient import context
from ..named._axis import format_value
from .mapping._axis_mapping import AxisMapping, ResourceMapping, current_mapping
from .sharding._shard import shard_tree
from .specs._active_mesh import get_active_mesh
from .specs._leaves import ShardedBy, require_complete_mapping


class Optimizer(NamedTuple):
    """What `sharded_optimizer` returns for an optimizer that is no pair of functions: such a pair.

    Example:
        >>> from axonym.partitioning import Optimizer
        >>> Optimizer(lambda params: None, lambda grads, state, params: (grads, state)).init({})
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


class _Pair(Protocol):
    """A named tuple of `init` and `update`, as those of Optax are."""

    @property
    def init(self) -> Callable[..., Any]: ...
    @property
    def update(self) -> Callable[..., Any]: ...
    def _replace(self, **fields: Any) -> Self: ...


class _Methods(Protocol):
    """An object with methods `init` and `update`."""

    def init(self, params: Any) -> Any: ...
    def update(self, updates: Any, state: Any, params: Any = None) -> Any: ...


Transformation = TypeVar("Transformation", bound=_Pair)


@overload
def sharded_optimizer(
    optimizer: Transformation, mapping: ResourceMapping, parameter_mapping: ResourceMapping | None = None
) -> Transformation: ...
@overload
def sharded_optimizer(
    optimizer: _Methods, mapping: ResourceMapping, parameter_mapping: ResourceMapping | None = None
) -> Optimizer: ...
def sharded_optimizer(
    optimizer: Any, mapping: ResourceMapping, parameter_mapping: ResourceMapping | None = None
) -> Any:
    """Returns an optimizer whose state is sharded by a mapping of its own, over the data axis too: ZeRO-1.

    The values are those of the optimizer itself. `update` cuts gradients and parameters as the state is cut, which
    makes a reduce-scatter of the sum of the gradients over the data axis; each device updates its part; the updates
    are gathered to where the parameters are.

    Args:
        optimizer: Anything with `init(params)` and `update(gradients, state, params)`, such as those of Optax.
        mapping: From names to mesh axes, for the state. It is complete: nothing of the mapping in force is added, so
            write `{**mapping, "embed": "data"}`. With `AxisMapping(..., uneven="replicate")` a small axis that does
            not divide is left whole, and with a `fallback` plain arrays are sharded too.
        parameter_mapping: Where the updates go: if None, the mapping in force or, inside `fsdp`, that of its
            parameters. Where shardings are part of the types, on Explicit meshes, and outside jit without any mapping,
            updates go where the parameters are.

    Returns:
        An optimizer of the same type if it is a named tuple, as Optax's are, `axonym.partitioning.Optimizer` if not.
        Its state is a `ShardedBy` that holds the optimizer's own in `tree`.

    Raises:
        TypeError: If `optimizer` lacks `init` or `update`, or a mapping is none. When called, if the state is not one
            that `init` made.
        ValueError: When called, if an array cannot be sharded by the mapping; the message names it.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import optax
        >>> optimizer = nym.sharded_optimizer(optax.adam(1e-3), {"mlp": "model", "embed": "data"})
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with jax.set_mesh(mesh), nym.axis_mapping(batch="data", mlp="model"):
        ...     params = nym.ones({"embed": 8, "mlp": 4})
        ...     updates, state = nym.named_jit(optimizer.update)(params, optimizer.init(params), params)
        >>> state.tree[0].mu.sharding.spec, updates.sharding.spec
        (P('data', 'model'), P(None, 'model'))
    """
    for needed in ("init", "update"):
        if not callable(getattr(optimizer, needed, None)):
            raise TypeError(
                f"`sharded_optimizer` takes something with `init` and `update`, not {format_value(optimizer)}."
            )
    own = require_complete_mapping(mapping)
    back = None if parameter_mapping is None else require_complete_mapping(parameter_mapping)

    def init(params: Any) -> ShardedBy[Any]:
        return ShardedBy(shard_tree(optimizer.init(shard_tree(params, own)), own), own)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, ShardedBy[Any]]:
        if not isinstance(state, ShardedBy):
            raise TypeError(
                f"A `sharded_optimizer` updates the state that its own `init` made, a `ShardedBy`, not a "
                f"{type(state).__name__}."
            )
        parts = shard_tree((updates, params), own)
        changed, inner = optimizer.update(parts[0], shard_tree(state.tree, own), parts[1], **extra)
        return _returned(changed, (params, updates), back), ShardedBy(shard_tree(inner, own), own)

    if isinstance(optimizer, tuple) and hasattr(optimizer, "_replace"):
        return optimizer._replace(init=init, update=update)  # pyright: ignore[reportAttributeAccessIssue]
    return Optimizer(init, update)


def _returned(updates: Any, models: tuple[Any, ...], mapping: AxisMapping | None) -> Any:
    """Returns updates where the mapping says or, if it is None, where parameters and gradients are, as far as known.

    Args:
        updates: The updates, with the structure of one of the models.
        models: Trees that lie where the updates go.
        mapping: Where they go.
    """
    mesh = get_active_mesh()
    if mesh is None:
        return updates
    if mapping is not None:
        return shard_tree(updates, mapping)
    in_force, inside = _mapping_of_parameters(), is_tracing()
    model = next((one for one in models if jax.tree.structure(one) == jax.tree.structure(updates)), None)
    typed = inside and AxisType.Explicit in mesh.axis_types and model is not None
    if in_force is not None and not (typed and AxisType.Auto not in mesh.axis_types):
        updates = shard_tree(updates, in_force)
    if model is None or (in_force is not None and not typed):
        return updates
    return jax.tree.map(_beside, updates, model)


def _mapping_of_parameters() -> AxisMapping | None:
    """Returns the mapping of parameters between their uses: the one in force, or that of arguments inside `fsdp`."""
    ambient = context.value
    stored = None if ambient is None else ambient.stored
    return current_mapping() if stored is None else stored


def _beside(update: Any, array: Any) -> Any:
    """Returns an update with the sharding of its parameter: its own outside jit, the one in its type inside."""
    if not isinstance(update, jax.Array) or not isinstance(array, jax.Array):
        return update
    if not is_tracing():
        return update if update.sharding == array.sharding else jax.device_put(update, array.sharding)
    now, stated = jax.typeof(update).sharding, jax.typeof(array).sharding
    typed = AxisType.Explicit in stated.mesh.axis_types
    return jax.reshard(update, stated) if typed and now != stated else update
