"""Replicas that train on their own and exchange parameters every few steps: `diloco`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.arguments import check_callable, check_integer, check_number
from .._ground.errors import make_error
from .._ground.formats import format_value
from ..named._array import is_named_array
from ..named._axis import Axis
from ..named._axis_layout import get_axes_of_type
from ..named._base import get_plain_array, with_array
from ..named._creation import zeros_like
from ..named._static_result import is_array
from ..named._transforms import check_legacy_keys, fold_in_number, is_random_key, spread_keys, vmap
from ..partitioning._active_mesh import get_active_mesh
from ..partitioning._mapping import current_mapping
from ..partitioning._shard import shard_array


class LocalState(eqx.Module):
    """What replicas that train on their own have, and what they share; see `diloco`.

    Attributes:
        model: The parameters of each replica: named arrays with the axis of replicas, plain ones with one more first.
        state: What else each replica carries from step to step, such as the state of its optimizer.
        anchor: The parameters that all replicas had after the last exchange; of integers, which each replica keeps, the
            largest.
        momentum: The momentum of the exchanges, with the structure of `anchor`.
        count: How many steps were run.

    Example:
        >>> import axonym as nym
        >>> train_step = nym.diloco(lambda model, state, x: (model, state, x.sum()), replicas=2)
        >>> train_step.init(nym.ones({"embed": 3}), None).model.shape
        (replica: 2, embed: 3)
    """

    model: Any
    state: Any
    anchor: Any
    momentum: Any
    count: jax.Array


@dataclasses.dataclass(frozen=True)
class DiLoCo:
    """A train step of replicas that exchange parameters every few steps; see `diloco`.

    Attributes:
        step: The step of one replica.
        axis: The name of the axis of replicas, and of the mesh axis that it is sharded over.
        every: After how many steps replicas exchange parameters.
        batch_axis: The axis of a batch that is divided between replicas.
        learning_rate: That of an exchange.
        momentum: That of exchanges.
        replicas: The number of replicas; None for the size of the mesh axis.

    Example:
        >>> import axonym as nym
        >>> nym.diloco(lambda model, state, x: (model, state, x.sum()), every=36).every
        36
    """

    step: Callable[..., Any]
    axis: str
    every: int
    batch_axis: str
    learning_rate: float
    momentum: float
    replicas: int | None

    def init(self, model: Any, state: Any) -> LocalState:
        """Returns the state of all replicas, each of which has this model.

        The number of a replica is folded into its typed random keys.

        Args:
            model: The parameters.
            state: What else a step takes and returns, such as the state of an optimizer.

        Raises:
            TypeError: If an array may be a legacy random key.
            ValueError: If the number of replicas is neither given nor the size of an axis of the active mesh.

        Example:
            >>> import axonym as nym
            >>> train_step = nym.diloco(lambda model, state, x: (model, state, x.sum()), replicas=2)
            >>> train_step.init({"bias": nym.zeros({"mlp": 4})}, None).anchor
            {'bias': NamedArray(float32, mlp: 4, [0., 0., 0., 0.])}
        """
        replicas = self._find_axis()
        check_legacy_keys(((), {"model": model, "state": state}), "diloco")
        stack = functools.partial(_map_arrays, functools.partial(_stack_copies, replicas))
        momentum = _map_arrays(_make_momentum, model)
        return LocalState(stack(model), stack(state), model, momentum, jnp.zeros((), jnp.int32))

    def __call__(self, local_state: LocalState, *batch: Any) -> tuple[LocalState, Any]:
        """Runs a step of each replica, and exchanges parameters if enough were run.

        Args:
            local_state: The state of all replicas.
            *batch: The other arguments of a step. Named arrays with the batch axis are divided between replicas, each
                of which takes every n-th example; those that have the axis of replicas are taken as they are. Into
                other typed random keys, the number of the replica is folded.

        Returns:
            The new state, and the results of each replica: named arrays with the axis of replicas, plain ones with one
            more first.
        """
        if not isinstance(local_state, LocalState):
            raise make_error(
                TypeError,
                "A step of `diloco` takes a `LocalState`, which its method `init` makes, and a batch, not "
                f"{format_value(local_state)}.",
            )
        replicas = self._find_axis()
        split = functools.partial(_split_batch, replicas, self.batch_axis)
        batch, _ = spread_keys((jax.tree.map(split, batch, is_leaf=is_named_array), {}), replicas, "diloco")
        run = vmap(self._run_step, replicas)
        model, state, results = run(local_state.model, local_state.state, *batch)
        count = local_state.count + 1
        # Models may have leaves that are no arrays, such as activation functions.
        shared, static = eqx.partition((model, local_state.anchor, local_state.momentum), is_array)
        shared = jax.lax.cond(count % self.every == 0, self._exchange, lambda shared: shared, shared)
        model, anchor, momentum = eqx.combine(shared, static)
        return LocalState(model, state, anchor, momentum, count), results

    def _run_step(self, model: Any, state: Any, *batch: Any) -> tuple[Any, Any, Any]:
        results = self.step(model, state, *batch)
        if not isinstance(results, tuple) or len(results) != 3:
            raise make_error(
                TypeError,
                "The step of `diloco` returns a model, a state and any results, None if there are none, not "
                f"{format_value(results)}.",
            )
        return results

    def _exchange(self, shared: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Returns the parameters of replicas, what they share, and the momentum, after an exchange."""
        columns = [jax.tree.leaves(tree, is_leaf=is_named_array) for tree in shared]
        results = [self._exchange_array(*arrays) for arrays in zip(*columns, strict=True)]
        treedef = jax.tree.structure(shared[0], is_leaf=is_named_array)
        model, anchor, momentum = (treedef.unflatten([result[part] for result in results]) for part in range(3))
        return model, anchor, momentum

    def _exchange_array(self, copies: Any, parameter: Any, momentum: Any) -> tuple[Any, Any, Any]:
        replicas = self._find_axis()
        if is_random_key(parameter) or not is_array(get_plain_array(parameter)):
            return copies, parameter, momentum
        if not jnp.issubdtype(parameter.dtype, jnp.inexact):
            return copies, copies.max(replicas.name if is_named_array(copies) else 0), momentum
        mean = copies.mean(replicas.name) if is_named_array(copies) else copies.mean(0)
        gradient = parameter - mean
        momentum = self.momentum * momentum + gradient
        # Nesterov's momentum as Sutskever et al. (2013) write it, and PyTorch and optax compute it.
        parameter = parameter - self.learning_rate * (gradient + self.momentum * momentum)
        return _stack_copies(replicas, parameter), parameter, momentum

    def _find_axis(self) -> Axis:
        mesh = get_active_mesh()
        replicas, mapping = self.replicas, current_mapping()
        if mesh is not None and self.axis in mesh.axis_names:
            replicas = mesh.shape[self.axis] if replicas is None else replicas
            names = () if mapping is None else [name for name in mapping if self.axis in mapping.mesh_axes(name)]
            if mapping is not None and [*names] != [self.axis]:
                raise make_error(
                    ValueError,
                    f"`diloco` leaves mesh axis {self.axis!r} to the axis {self.axis!r} of replicas, and the mapping "
                    f"gives it to {', '.join(map(repr, names)) or 'none'}; map {{{self.axis!r}: {self.axis!r}}}, and "
                    "the batch to others.",
                )
        if replicas is None:
            have = "no mesh is active" if mesh is None else f"the mesh has {', '.join(map(repr, mesh.axis_names))}"
            raise make_error(
                ValueError,
                f"`diloco` takes the number of replicas from mesh axis {self.axis!r}, and {have}; set a mesh with this "
                "axis, or give `replicas`.",
            )
        return Axis(self.axis, replicas)


def diloco(
    step: Callable[..., Any],
    axis: str = "replica",
    every: int = 36,
    *,
    batch_axis: str = "batch",
    learning_rate: float = 0.7,
    momentum: float = 0.9,
    replicas: int | None = None,
) -> DiLoCo:
    """Makes a train step of replicas that train on their own and exchange parameters every few steps.

    Nothing is sent over the mesh axis of replicas but once in `every` steps, so that it may be a slow network. Each
    replica updates its own parameters with its part of the batch. In an exchange, what they have changed on average is
    the gradient of an outer optimizer, Nesterov's, whose result all replicas go on with; optimizers of replicas keep
    their states. Source: DiLoCo (Douillard et al., 2023, https://arxiv.org/abs/2311.08105), whose outer learning rate
    and momentum are the defaults.

    Compile it by `named_jit` or `fsdp`, with a mapping that shards the axis of replicas over the mesh axis of its name,
    and the batch over others.

    Args:
        step: The step of one replica: a function of its model, its state and a batch that returns a new model, a new
            state and any results.
        axis: The name of the mesh axis of replicas, and of the axis that arrays get for them.
        every: After how many steps replicas exchange parameters.
        batch_axis: The axis of a batch that is divided between replicas.
        learning_rate: That of an exchange.
        momentum: That of exchanges.
        replicas: The number of replicas; if None, the size of the mesh axis.

    Returns:
        A function of a `LocalState`, which its method `init` makes, and a batch, that returns a new state and the
        results of each replica.

    Raises:
        TypeError: If `step` is not callable or a number is none.
        ValueError: If a number is out of its range.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> def step(weight, state, x):
        ...     gradient = jax.grad(lambda weight: nym.mean(nym.dot(x, weight, axis="embed") ** 2).scalar())(weight)
        ...     return weight - 0.1 * gradient, state, None
        >>> train_step = nym.diloco(step, every=2, replicas=2)
        >>> state = train_step.init(nym.ones({"embed": 3}), None)
        >>> state, _ = train_step(state, nym.arange({"batch": 4, "embed": 3}) / 10)
        >>> state.model.shape, int(state.count)
        ((replica: 2, embed: 3), 1)
    """
    check_callable("diloco", step)
    return DiLoCo(
        step,
        axis,
        check_integer("diloco: `every`", every, 1),
        batch_axis,
        check_number("diloco: `learning_rate`", learning_rate, above=0),
        check_number("diloco: `momentum`", momentum, least=0, below=1),
        None if replicas is None else check_integer("diloco: `replicas`", replicas, 1),
    )


def _map_arrays(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Maps named arrays and plain ones, and keeps other leaves.

    A named array is kept, too, if it has something else in place of its array, such as a `MaskedNode` of optax.
    """
    return jax.tree.map(
        lambda leaf: fn(leaf) if is_array(get_plain_array(leaf)) else leaf, tree, is_leaf=is_named_array
    )


def _make_momentum(x: Any) -> Any:
    if is_random_key(x):
        return x
    return zeros_like(x) if is_named_array(x) else jnp.zeros_like(x)


def _stack_copies(replicas: Axis, x: Any) -> Any:
    """Returns an array with one more axis, first, along which it is the same; the others stay sharded as they are.

    Random keys differ along it.
    """
    array = x.array if is_named_array(x) else jnp.asarray(x)
    mapping, sharding = current_mapping(), jax.typeof(array).sharding
    shape, dims = (replicas.size, *array.shape), tuple(range(1, array.ndim + 1))
    explicit_axes = get_axes_of_type(sharding.mesh, AxisType.Explicit)
    if explicit_axes:
        mesh_axes = () if mapping is None else mapping.mesh_axes(replicas.name)
        entry = tuple(axis for axis in mesh_axes if axis in explicit_axes)
        spec = PartitionSpec(entry or None, *sharding.spec.partitions)
        array = jax.lax.broadcast_in_dim(array, shape, dims, out_sharding=NamedSharding(sharding.mesh, spec))
    else:
        array = jax.lax.broadcast_in_dim(array, shape, dims)
        if mapping is not None and not is_named_array(x):  # named ones are sharded by the function that returns them
            array = shard_array(array, (replicas.name, *[""] * (array.ndim - 1)), mapping)
    copies = with_array(x, array, (replicas.name, *x.names)) if is_named_array(x) else array
    return vmap(fold_in_number, replicas)(copies, jnp.arange(replicas.size)) if is_random_key(x) else copies


def _split_batch(replicas: Axis, batch_axis: str, x: Any) -> Any:
    """Returns an array with the batch axis divided between replicas, unless it has their axis."""
    if is_array(x) and x.ndim and x.shape[0] != replicas.size:
        raise make_error(
            TypeError,
            f"`diloco` divides the named arrays of a batch between replicas; an array of shape {x.shape} is not named, "
            "use `named`.",
        )
    if not is_named_array(x) or batch_axis not in x.names or replicas.name in x.names:
        return x
    size = x.axis_size(batch_axis)
    if size % replicas.size:
        raise make_error(
            ValueError,
            f"`diloco` divides axis {batch_axis!r} of size {size} between {replicas.size} replicas, of which it is no "
            "multiple.",
        )
    # A replica takes every n-th example, so that the devices of the batch need no examples of others.
    return x.unflatten_axis(batch_axis, (Axis(batch_axis, size // replicas.size), replicas))
