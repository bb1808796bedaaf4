"""`offloaded_optimizer`: an optimizer whose state is in the memory of the host between updates."""

from typing import Any, TypeVar

import jax

from ._fsdp import Optimizer, check_optimizer


Transformation = TypeVar("Transformation")


def offloaded_optimizer(optimizer: Transformation) -> Transformation | Optimizer:
    """Returns an optimizer whose state is in the memory of the host between updates, so that a device holds more else.

    `init` puts the arrays of the state there. `update` copies them to the device, updates, and copies the new ones to
    the host, inside and outside jit alike. A state that the given optimizer's own `init` made stays on the device, so
    one step serves both, which `axonym.planner.plan(..., offload_state=True)` compares. Scalars, such as step counts,
    stay on the device.

    Args:
        optimizer: Anything with `init(params)` and `update(gradients, state, params)`, such as an Optax optimizer or
            one of `sharded_optimizer`.

    Returns:
        An optimizer of the same type if it is a named tuple, as in Optax, and `axonym.partitioning.Optimizer` if not.

    Raises:
        TypeError: If `optimizer` lacks `init` or `update`.

    Example:
        >>> import axonym as nym
        >>> import optax
        >>> optimizer = nym.offloaded_optimizer(optax.adam(1e-3))
        >>> params = nym.ones({"embed": 8, "mlp": 4})
        >>> state = optimizer.init(params)
        >>> updates, state = nym.named_jit(optimizer.update)(params, state, params)
        >>> state[0].mu.array.sharding.memory_kind, updates.array.sharding.memory_kind
        ('pinned_host', 'device')
    """
    check_optimizer(optimizer, "offloaded_optimizer")
    inner: Any = optimizer

    def init(params: Any) -> Any:
        return jax.tree.map(lambda leaf: _move(leaf, is_on_host=True), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        fetched = jax.tree.map(lambda leaf: _move(leaf, is_on_host=False), state)
        new_updates, new_state = inner.update(updates, fetched, params, **extra)
        stored = jax.tree.map(lambda leaf, old: _move(leaf, _is_on_host(old)), new_state, state)
        return new_updates, stored

    if isinstance(inner, tuple) and hasattr(inner, "_replace"):
        return inner._replace(init=init, update=update)  # pyright: ignore[reportAttributeAccessIssue]
    return Optimizer(init, update)


def _move(leaf: Any, is_on_host: bool) -> Any:
    """Returns a leaf in the memory of the host or of the device; scalars, and what is no array, as they are."""
    if not isinstance(leaf, jax.Array) or leaf.ndim == 0 or _is_on_host(leaf) == is_on_host:
        return leaf
    return jax.device_put(leaf, jax.memory.Space.Host if is_on_host else jax.memory.Space.Device)


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.typeof(leaf).memory_space == jax.memory.Space.Host
