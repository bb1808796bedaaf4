"""Parameters and optimizer state sharded over the data axis too: `fsdp`, and `sharded_optimizer` (ZeRO-1).

`fsdp` is `named_jit` with two mappings. In `sharded_optimizer` gradients and parameters are sharded like the state, the
optimizer updates the shards, and the updates are sharded like the parameters again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

import jax
from jax.sharding import AxisType

from .._ground.formats import format_value
from .._ground.jax_compat import is_tracing
from ..named._sharding import mapping_context
from ..partitioning._active_mesh import get_active_mesh
from ..partitioning._leaves import ShardedBy, require_complete_mapping
from ..partitioning._mapping import AxisMapping, ResourceMapping, current_mapping
from ..partitioning._shard import shard_tree
from ..partitioning.jit._named_jit import NamedJit, named_jit
from ._policy import Policy


Args = ParamSpec("Args")
R = TypeVar("R")


@overload
def fsdp(
    fn: Callable[Args, R],
    parameter_mapping: ResourceMapping,
    compute_mapping: ResourceMapping,
    *,
    policy: Policy | None = None,
    **options: Any,
) -> NamedJit[Args, R]: ...
@overload
def fsdp(
    parameter_mapping: ResourceMapping,
    compute_mapping: ResourceMapping,
    *,
    policy: Policy | None = None,
    **options: Any,
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def fsdp(  # pyright: ignore[reportInconsistentOverload]
    fn: Any = None,
    parameter_mapping: Any = None,
    compute_mapping: Any = None,
    *,
    policy: Policy | None = None,
    **options: Any,
) -> Any:
    """Compiles a function whose arguments and results are sharded one way and whose computation is sharded another.

    That is fully sharded data parallelism: parameters and optimizer state are sharded over the data axis between steps,
    and each layer gathers its own parameters when it uses them. It is `named_jit` with `parameter_mapping` for
    arguments and results, and `compute_mapping` active inside.

    A layer gathers each parameter from its shards under `parameter_mapping`, and the gradient is sharded the same way
    again: a reduce-scatter where the compiler has one. To gather all parameters once instead, do so and call the layers
    inside `with axis_mapping(compute_mapping)`, which takes parameters as they are.

    Args:
        fn: The function; left out, a decorator is returned.
        parameter_mapping: Mapping of arguments and results. It applies to the batch as well, so map its axis here too;
            no argument can have two axes on one mesh axis. For a batch of embeddings, which would have them, also give
            `in_axis_resources=(parameter_mapping, compute_mapping)`, an entry for each argument.
        compute_mapping: Mapping that is active while the function is traced.
        policy: In which types layers gather and use parameters, and into how many microbatches pipelines divide a
            batch.
        **options: The other options of `named_jit`. `in_axis_resources` and `out_axis_resources` replace
            `parameter_mapping` for arguments or results.

    Returns:
        A compiled function; see `named_jit`.

    Raises:
        TypeError: If one of the two mappings is missing, or `policy` is not a `Policy`.
        ValueError: When called, if gradients are to be added up in another type than that of computing on a mesh that
            is not all Explicit.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> compute = {"batch": "data", "mlp": "model"}
        >>> @nym.fsdp(compute | {"embed": "data"}, compute)
        ... def step(weight, batch):
        ...     return weight - nym.dot(batch, weight, axis="pixel").mean()
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     step(nym.ones({"pixel": 3, "embed": 8}), nym.ones({"batch": 8, "pixel": 3})).sharding.spec
        P(None, 'data')
    """
    mappings = [parameter_mapping, compute_mapping]
    if not callable(fn):  # a decorator gets the mappings alone, the first of them perhaps by position
        mappings = [mapping for mapping in (fn, *mappings) if mapping is not None]
        fn = None
    if len(mappings) != 2 or None in mappings:
        raise TypeError("`fsdp` takes two mappings: one for parameters, and one for computing.")
    parameter_mapping, compute_mapping = mappings
    options.setdefault("in_axis_resources", parameter_mapping)
    options.setdefault("out_axis_resources", parameter_mapping)
    return named_jit(fn, compute_mapping, policy=policy, **options)


class Optimizer(NamedTuple):
    """A pair of functions, which `sharded_optimizer` returns for optimizers that are not named tuples.

    Example:
        >>> from axonym.training import Optimizer
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
            write `mapping | {"embed": "data"}`. With `AxisMapping(..., uneven="replicate")` a small axis whose size
            is not divisible is replicated, and with a `fallback` plain arrays are sharded too.
        parameter_mapping: Mapping that shards the updates: if None, the active mapping or, inside `fsdp`, its
            `parameter_mapping`. On Explicit meshes, where shardings are part of the types, and outside jit without any
            mapping, updates are sharded like the parameters.

    Returns:
        An optimizer of the same type if it is a named tuple, as in Optax, and `axonym.training.Optimizer` if not.
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
    check_optimizer(optimizer, "sharded_optimizer")
    state_mapping = require_complete_mapping(mapping)
    updates_mapping = None if parameter_mapping is None else require_complete_mapping(parameter_mapping)

    def init(params: Any) -> ShardedBy[Any]:
        state = optimizer.init(shard_tree(params, state_mapping))
        return ShardedBy(shard_tree(state, state_mapping), state_mapping)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, ShardedBy[Any]]:
        if not isinstance(state, ShardedBy):
            raise TypeError(
                f"A `sharded_optimizer` updates the state that its own `init` made, a `ShardedBy`, not a "
                f"{type(state).__name__}."
            )
        update_shards, param_shards = shard_tree((updates, params), state_mapping)
        state_shards = shard_tree(state.tree, state_mapping)
        new_updates, new_state = optimizer.update(update_shards, state_shards, param_shards, **extra)
        new_updates = _shard_updates(new_updates, (params, updates), updates_mapping)
        return new_updates, ShardedBy(shard_tree(new_state, state_mapping), state_mapping)

    return replace_methods(optimizer, init, update)


def check_optimizer(optimizer: Any, function: str) -> None:
    """Raises a TypeError of a function if what it is given is no optimizer."""
    for method in ("init", "update"):
        if not callable(getattr(optimizer, method, None)):
            raise TypeError(f"`{function}` takes something with `init` and `update`, not {format_value(optimizer)}.")


def replace_methods(optimizer: Any, init: Callable[..., Any], update: Callable[..., Any]) -> Any:
    """Returns an optimizer with other methods, of the same type if it is a named tuple, as in Optax."""
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
    ambient = mapping_context.value
    active = current_mapping()
    if ambient is not None and ambient.stored is not None:  # inside `fsdp`, its `parameter_mapping`
        active = ambient.stored
    structure = jax.tree.structure(updates)
    model = next((model for model in models if jax.tree.structure(model) == structure), None)
    if model is None:
        return updates if active is None else shard_tree(updates, active)
    if is_tracing() and AxisType.Explicit in mesh.axis_types:
        # The types of the parameters state how they are sharded over Explicit mesh axes, but not over Auto ones.
        if active is not None and AxisType.Auto in mesh.axis_types:
            updates = shard_tree(updates, active)
    elif active is not None:
        return shard_tree(updates, active)
    return jax.tree.map(_shard_like, updates, model)


def _shard_like(update: Any, parameter: Any) -> Any:
    """Returns an update with the sharding of its parameter, inside jit the one in its type."""
    if not isinstance(update, jax.Array) or not isinstance(parameter, jax.Array):
        return update
    if not is_tracing():
        return update if update.sharding == parameter.sharding else jax.device_put(update, parameter.sharding)
    target = jax.typeof(parameter).sharding
    is_typed = AxisType.Explicit in target.mesh.axis_types
    return jax.reshard(update, target) if is_typed and jax.typeof(update).sharding != target else update
