"""`offloaded_optimizer`: an optimizer whose state is in the memory of the host between updates."""

from typing import Any, TypeVar

import jax

from ._fsdp import Optimizer, check_optimizer, replace_methods


Transformation = TypeVar("Transformation")


def offloaded_optimizer(optimizer: Transformation) -> Transformation | Optimizer:
    """Returns an optimizer whose state is in the memory of the host between updates, so that a device holds more else.

    `init` puts the arrays of the state there. `update` copies them to the device, updates, and copies the new ones to
    the host, inside and outside jit alike. A state that the given optimizer's own `init` made stays on the device, so
    one step serves both, which `axonym.planner.plan(..., offload_state=True)` compares. Scalars, such as step counts,
    stay on the device. Wrap all of an optimizer, also `optax.chain` and `MultiSteps(...).gradient_transformation()`.

    On a single device, a step that donates the state donates the parameters as well, or returns the state first:
    otherwise JAX ends the process, see [known faults](../known-faults.md#donating-an-array-on-the-host).

    Args:
        optimizer: Anything with `init(params)` and `update(gradients, state, params)`, such as an Optax optimizer or
            one of `sharded_optimizer`.

    Returns:
        An optimizer of the same type if it is a named tuple, as in Optax, and `axonym.training.Optimizer` if not.

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
        return _move(inner.init(params), jax.memory.Space.Host)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        new_updates, new_state = inner.update(updates, _move(state, jax.memory.Space.Device), params, **extra)
        is_on_host = any(map(_is_on_host, jax.tree.leaves(state)))
        return new_updates, _move(new_state, jax.memory.Space.Host) if is_on_host else new_state

    return replace_methods(inner, init, update)


def _move(state: Any, memory: Any) -> Any:
    """Returns a state with its arrays in a memory, but for scalars."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.ndim == 0 or jax.typeof(leaf).memory_space == memory:
            return leaf
        return jax.device_put(leaf, memory)

    return jax.tree.map(move, state)


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.typeof(leaf).memory_space == jax.memory.Space.Host
