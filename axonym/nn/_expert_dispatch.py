"""Sends tokens to their experts and back, on the plain arrays of one device, with all tokens kept or a capacity.

Each token has `k` choices. They are sorted by expert, all first choices before all second ones, so that the rows of one
expert are neighbours.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp


Product: TypeAlias = Callable[[Any, Any], Any]
"""Multiplies the rows of each expert with its matrix."""
ExpertFn: TypeAlias = Callable[[Product, Any], Any]
"""Applies the experts to rows by such a product."""


class SortedChoices(NamedTuple):
    """The choices of tokens, numbered by choice and then by token, and sorted by expert."""

    order: jax.Array  # the number of the choice at each place
    places: jax.Array  # the place of each choice
    starts: jax.Array  # the first place of each expert
    counts: jax.Array  # how many choices each expert has


def sort_choices(experts: Any, size: int) -> SortedChoices:
    """Sorts the choices of tokens by expert, where `experts` has an axis of tokens and one of choices."""
    chosen = experts.T.reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    counts = jnp.bincount(chosen, length=size)
    return SortedChoices(order, jnp.argsort(order), jnp.cumsum(counts) - counts, counts)


def combine_choices(rows: Any, slots: Any, is_kept: Any, weights: Any) -> Any:
    """Returns for each token the sum of the rows of its choices that are kept, times their weights."""
    tokens, choices = weights.shape
    chosen = jnp.where(is_kept[:, None], rows[jnp.where(is_kept, slots, 0)], 0).reshape(choices, tokens, -1)
    return jnp.einsum("ktd,tk->td", chosen, weights)


def select_experts(size: int, mesh_axes: tuple[str, ...], whole: Collection[str] = ()) -> jax.Array:
    """Returns the numbers of the experts of this device, and of those that differ from it in `whole` mesh axes only."""
    ids = jnp.arange(size).reshape(*(jax.lax.axis_size(axis) for axis in mesh_axes), -1)
    for dim, axis in enumerate(mesh_axes):
        if axis not in whole:
            ids = jax.lax.dynamic_index_in_dim(ids, jax.lax.axis_index(axis), dim)
    return ids.reshape(-1)


def mix_all_tokens(
    apply: ExpertFn, size: int, mesh_axes: tuple[str, ...], token_axes: Collection[str], x: Any, weights: Any, ids: Any
) -> Any:
    """Applies the experts of this device to all tokens that chose them.

    Tokens that are sharded over the mesh axes of the experts are gathered, and the sums scattered again.

    Args:
        apply: Function of the experts.
        size: The number of experts.
        mesh_axes: The mesh axes over which experts are sharded.
        token_axes: The mesh axes over which tokens are sharded.
        x: Array of tokens and vectors.
        weights: Array of tokens and choices.
        ids: The experts, in an array of the same shape.

    Returns:
        Array of tokens and vectors, which is to be added up over the mesh axes of the experts that tokens are not
        sharded over.
    """
    shared = tuple(axis for axis in mesh_axes if axis in token_axes)
    if shared:
        x, weights, ids = (jax.lax.all_gather(each, shared, tiled=True) for each in (x, weights, ids))
    choices, own = sort_choices(ids, size), select_experts(size, mesh_axes)
    first, counts = choices.starts[own[0]], choices.counts[own]
    total, at = counts.sum(), jnp.arange(ids.size)
    rows = x[choices.order[(at + first) % ids.size] % ids.shape[0]]
    if mesh_axes:  # rows of other devices must not reach the gradient, whatever a kernel makes of them
        rows = jnp.where((at < total)[:, None], rows, 0)
    rows = apply(lambda rows, weight: jax.lax.ragged_dot(rows, weight, counts), rows)
    slots = choices.places - first
    result = combine_choices(rows, slots, (slots >= 0) & (slots < total), weights)
    return jax.lax.psum_scatter(result, shared, tiled=True) if shared else result


def mix_within_capacity(
    apply: ExpertFn,
    size: int,
    mesh_axes: tuple[str, ...],
    token_axes: Collection[str],
    capacity: int,
    x: Any,
    weights: Any,
    ids: Any,
) -> tuple[Any, Any]:
    """Applies the experts of this device to the first tokens of each group that chose them, up to a capacity.

    The tokens of each expert travel to its device where tokens are sharded over the mesh axes of the experts.

    Args:
        apply: Function of the experts.
        size: The number of experts.
        mesh_axes: The mesh axes over which experts are sharded.
        token_axes: The mesh axes over which tokens are sharded.
        capacity: How many tokens of a group each expert takes.
        x: Array of groups, tokens and vectors.
        weights: Array of groups, tokens and choices.
        ids: The experts, in an array of the same shape.

    Returns:
        Array of groups, tokens and vectors, to be added up as in `mix_all_tokens`, and how many choices are dropped.
    """
    shared = tuple(axis for axis in mesh_axes if axis in token_axes)
    own = select_experts(size, mesh_axes, shared)
    choices = jax.vmap(lambda ids: sort_choices(ids, size))(ids)
    groups, tokens, _ = x.shape
    slots = jnp.arange(capacity)[None, None]
    taken = jnp.clip(choices.starts[:, own, None] + slots, max=choices.order.shape[1] - 1).reshape(groups, -1)
    taken = jnp.take_along_axis(choices.order, taken, 1) % tokens
    is_taken = (slots < choices.counts[:, own, None]).reshape(groups, -1, 1)
    rows = jnp.where(is_taken, jnp.take_along_axis(x, taken[..., None], 1), 0)
    rows = rows.reshape(groups, own.size, capacity, -1).swapaxes(0, 1)
    for axis in shared:
        rows = jax.lax.all_to_all(rows, axis, 0, 1, tiled=True)
    flat = rows.reshape(rows.shape[0], -1, rows.shape[-1])
    rows = apply(lambda rows, weight: jnp.einsum("esd,edf->esf", rows, weight), flat).reshape(*rows.shape[:3], -1)
    for axis in reversed(shared):
        rows = jax.lax.all_to_all(rows, axis, 1, 0, tiled=True)
    rows = rows.swapaxes(0, 1).reshape(groups, own.size * capacity, -1)
    chosen = ids.swapaxes(1, 2).reshape(groups, -1)
    position = choices.places - jnp.take_along_axis(choices.starts, chosen, 1)
    is_own = jnp.arange(size)[:, None] == own[None]
    index = jnp.argmax(is_own, 1)[chosen]  # among the experts that rows are for
    is_kept = (position < capacity) & is_own.any(1)[chosen]
    result = jax.vmap(combine_choices)(rows, index * capacity + position, is_kept, weights)
    return result, jnp.maximum(choices.counts - capacity, 0).sum()
