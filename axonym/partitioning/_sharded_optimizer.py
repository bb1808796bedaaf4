"""Optimizer state that is sharded by a mapping of its own: ZeRO-1, for any optimizer with `init` and `update`.

Gradients and parameters are sharded like the state, the optimizer updates the shards, and the updates are sharded like
the parameters again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar, overload

import jax
from jax.sharding import AxisType

from .._jax_compat import is_tracing
from ..named._ambient import context
from ..named._format import format_value
from .mapping._mapping import AxisMapping, ResourceMapping, current_mapping
from .sharding._shard import shard_tree
from .specs._active_mesh import get_active_mesh
from .specs._sharded_by import ShardedBy, require_complete_mapping


class Optimizer(NamedTuple):
    """A pair of functions, which `sharded_optimizer` returns for optimizers that are not named tuples.

    Example:
        >>> from axonym.partitioning import Optimizer
        >>> Optimizer(lambda params: None, lambda grads, state, params: (grads, state)).init({})
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


class _Pair(Protocol):
    """A named tuple of `init` and `update`, such as an Optax optimizer."""

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

    The results are the same as without sharding. `update` shards gradients and parameters like the state, so that the
    sum of the gradients over the data axis becomes a reduce-scatter; each device updates its shard; the updates are
    gathered to the sharding of the parameters.

    Args:
        optimizer: Anything with `init(params)` and `update(gradients, state, params)`, such as an Optax optimizer.
        mapping: From names to mesh axes, for the state. It is complete: nothing of the active mapping is added, so
            write `{**mapping, "embed": "data"}`. With `AxisMapping(..., uneven="replicate")` a small axis whose size
            is not divisible is replicated, and with a `fallback` plain arrays are sharded too.
        parameter_mapping: Mapping that shards the updates: if None, the active mapping or, inside `fsdp`, its
            `parameter_mapping`. On Explicit meshes, where shardings are part of the types, and outside jit without any
            mapping, updates are sharded like the parameters.

    Returns:
        An optimizer of the same type if it is a named tuple, as in Optax, and `axonym.partitioning.Optimizer` if not.
        Its state is a `ShardedBy` that holds the state of the optimizer in `tree`.

    Raises:
        TypeError: If `optimizer` lacks `init` or `update`, or a mapping is None or not a mapping. When called, if the
            state was not made by `init`.
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
    updates_mapping = None if parameter_mapping is None else require_complete_mapping(parameter_mapping)

    def init(params: Any) -> ShardedBy[Any]:
        return ShardedBy(shard_tree(optimizer.init(shard_tree(params, own)), own), own)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, ShardedBy[Any]]:
        if not isinstance(state, ShardedBy):
            raise TypeError(
                f"A `sharded_optimizer` updates the state that its own `init` made, a `ShardedBy`, not a "
                f"{type(state).__name__}."
            )
        shards = shard_tree((updates, params), own)
        changed, inner = optimizer.update(shards[0], shard_tree(state.tree, own), shards[1], **extra)
        return _shard_updates(changed, (params, updates), updates_mapping), ShardedBy(shard_tree(inner, own), own)

    if isinstance(optimizer, tuple) and hasattr(optimizer, "_replace"):
        return optimizer._replace(init=init, update=update)  # pyright: ignore[reportAttributeAccessIssue]
    return Optimizer(init, update)


def _shard_updates(updates: Any, models: tuple[Any, ...], mapping: AxisMapping | None) -> Any:
    """Returns updates sharded by a mapping or, if it is None, like the first model with their structure."""
    mesh = get_active_mesh()
    if mesh is None:
        return updates
    if mapping is not None:
        return shard_tree(updates, mapping)
    ambient, is_inside = context.value, is_tracing()
    stored = None if ambient is None else ambient.stored  # inside `fsdp`, its `parameter_mapping`
    active = current_mapping() if stored is None else stored
    model = next((one for one in models if jax.tree.structure(one) == jax.tree.structure(updates)), None)
    is_typed = is_inside and AxisType.Explicit in mesh.axis_types and model is not None
    if active is not None and not (is_typed and AxisType.Auto not in mesh.axis_types):
        updates = shard_tree(updates, active)
    if model is None or (active is not None and not is_typed):
        return updates
    return jax.tree.map(_shard_like, updates, model)


def _shard_like(update: Any, parameter: Any) -> Any:
    """Returns an update with the sharding of its parameter, inside jit the one in its type."""
    if not isinstance(update, jax.Array) or not isinstance(parameter, jax.Array):
        return update
    if not is_tracing():
        return update if update.sharding == parameter.sharding else jax.device_put(update, parameter.sharding)
    own, target = jax.typeof(update).sharding, jax.typeof(parameter).sharding
    is_typed = AxisType.Explicit in target.mesh.axis_types
    return jax.reshard(update, target) if is_typed and own != target else update
