"""Attention of positions that are sharded, for which keys go around a ring of devices.

Each device computes its queries with its own keys, sends the keys on and receives those of its neighbor, until it has
had all (Liu et al., 2023, https://arxiv.org/abs/2310.01889). The softmax is computed online, and the backward pass goes
around once more, with the gradients of the keys.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp

from ...named._array import NamedArray, is_named_array
from ...named._creation import arange
from ...named._elementwise._functions import exp, logaddexp
from ...named._shape._rearrange import rearrange
from .._layer import cast_array
from .._map_shards import count_devices
from ._blocked import (
    BlockAxes,
    BlockStarts,
    average_blocks,
    finish_averages,
    plan_blocks,
    prepare_operands,
    round_gradients,
    sum_gradients,
)
from ._context import find_ring, map_inputs
from ._inputs import AttentionInputs
from ._mask import PlacedMask
from ._splash import SplashShards


Results = tuple[NamedArray, NamedArray]
"""The averages of values, and the log-sum-exps of scores."""


class _Shards(Protocol):
    """Attention of the queries of a device to the keys of one; `SplashShards` and `_BlockedShards`."""

    def average(self, inputs: AttentionInputs, device: Any, step: Any) -> Results:
        """Returns the results for the keys that have gone on by some devices."""
        ...

    def differentiate(
        self, inputs: AttentionInputs, device: Any, step: Any, results: Results, gradients: Results
    ) -> AttentionInputs:
        """Returns the part of the gradients that comes from these keys, from the results for all keys."""
        ...


class _BlockedShards:
    """Attention of shards of queries and keys in blocks."""

    def __init__(self, axes: BlockAxes, starts: BlockStarts) -> None:
        self._axes, self._starts = axes, starts

    def average(self, inputs: AttentionInputs, device: Any, step: Any) -> Results:
        return average_blocks(self._axes, inputs, self._starts)

    def differentiate(
        self, inputs: AttentionInputs, device: Any, step: Any, results: Results, gradients: Results
    ) -> AttentionInputs:
        return sum_gradients(self._axes, (inputs, self._starts, *results), gradients)


class _Ring(NamedTuple):
    """A ring of devices, and how each computes.

    Attributes:
        shards: What computes its queries with the keys of one device.
        mesh_axes: The mesh axes along which the devices are.
    """

    shards: _Shards
    mesh_axes: tuple[str, ...]

    def count_devices(self) -> int:
        return jax.lax.axis_size(self.mesh_axes)

    def send(self, arrays: Any) -> Any:
        """Returns the arrays of the device before, which sends them here."""
        size = self.count_devices()
        pairs = [(device, (device + 1) % size) for device in range(size)]
        return jax.tree.map(lambda array: jax.lax.ppermute(array, self.mesh_axes, pairs), arrays)

    def average(self, operands: AttentionInputs, keys: list[NamedArray], step: Any) -> Results:
        """Returns the results for the keys that have gone on by some devices."""
        return self.shards.average(self._place_keys(operands, keys, step), self._find_device(), step)

    def differentiate(
        self, operands: AttentionInputs, keys: list[NamedArray], step: Any, results: Results, gradients: Results
    ) -> AttentionInputs:
        """Returns the part of the gradients that comes from the keys that have gone on by some devices."""
        shards = self._place_keys(operands, keys, step)
        return self.shards.differentiate(shards, self._find_device(), step, results, gradients)

    def _find_device(self) -> Any:
        return jax.lax.axis_index(self.mesh_axes)

    def _place_keys(self, operands: AttentionInputs, keys: list[NamedArray], step: Any) -> AttentionInputs:
        """Returns inputs with these keys, and the indices of the first query and key, for dropout."""
        operands = _put_keys(operands, keys)
        device = self._find_device()
        key_device = (device - step) % self.count_devices()
        assert operands.query_axis is not None
        first_query = device * operands.query.axis_size(operands.query_axis)
        first_key = key_device * operands.key.axis_size(operands.key_axis)
        return dataclasses.replace(operands, starts=(first_query, first_key))


def _take_keys(operands: AttentionInputs) -> list[NamedArray]:
    """Returns the arrays that are sent: those with the axis of keys."""
    leaves = jax.tree.leaves(operands, is_leaf=is_named_array)
    return [leaf for leaf in leaves if _has_axis(leaf, operands.key_axis)]


def _put_keys(operands: AttentionInputs, arrays: list[NamedArray]) -> AttentionInputs:
    """Returns inputs with these arrays."""
    remaining_arrays = iter(arrays)
    return jax.tree.map(
        lambda leaf: next(remaining_arrays) if _has_axis(leaf, operands.key_axis) else leaf,
        operands,
        is_leaf=is_named_array,
    )


def _has_axis(leaf: Any, name: str) -> bool:
    return is_named_array(leaf) and name in leaf.names


def attend_in_ring(inputs: AttentionInputs, *, is_mixed: bool, has_kernel: bool) -> NamedArray:
    """Computes attention while the keys go around the devices of the positions.

    Args:
        inputs: The inputs.
        is_mixed: Whether they go around groups of devices that exchange heads.
        has_kernel: Whether each device computes by splash attention; else it does so in blocks.
    """
    group, ring_axes = find_ring(inputs, is_mixed=is_mixed)
    mask = inputs.mask
    if mask is not None and not isinstance(mask, PlacedMask):
        # The place of a query or a key among those of all devices, which goes around with it.
        assert inputs.query_axis is not None
        QPos, KPos = inputs.query.resolve_axis(inputs.query_axis), inputs.key.resolve_axis(inputs.key_axis)
        q_positions = arange(QPos)
        k_positions = q_positions.rename({QPos.name: KPos.name}) if QPos.size == KPos.size else arange(KPos)
        mask = PlacedMask(mask, q_positions, k_positions)
    query, value = inputs.scale_query(), cast_array(inputs.value, inputs.query.dtype)
    operands = dataclasses.replace(inputs, query=query, value=value, scale=None, sinks=None, mask=mask)
    kernels = SplashShards(inputs, count_devices(ring_axes)) if has_kernel else None

    def average_local_keys(operands: AttentionInputs) -> Results:
        axes, starts = plan_blocks(operands)
        return average_blocks(axes, prepare_operands(operands, axes), starts)

    results = eqx.filter_eval_shape(average_local_keys, operands)
    if kernels is not None:
        operands = kernels.prepare(operands)

    def attend(operands: AttentionInputs) -> tuple[NamedArray, ...]:
        operands = group.take_parts(operands)
        # Positions and queries at once, or JAX would compute the masks of all blocks before a loop over layers around
        # this, for they are the same in each layer, and keep them: as many elements as scores.
        query, mask_operands = jax.lax.optimization_barrier((operands.query, operands.mask))
        operands = dataclasses.replace(operands, query=query, mask=mask_operands)
        shards = kernels
        if shards is None:
            axes, starts = plan_blocks(operands)
            shards, operands = _BlockedShards(axes, starts), prepare_operands(operands, axes)
        pairs = zip(_attend_ring(_Ring(shards, ring_axes), operands), results, strict=True)
        return tuple(group.return_part(rearrange(x, expected.names)) for x, expected in pairs)

    averages, log_sums = map_inputs(attend, operands, results)
    return finish_averages(averages, log_sums, inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_ring(ring: _Ring, operands: AttentionInputs) -> Results:
    """Returns the averages of values of all devices, and the logarithms of the sums of exponentials of scores."""
    return _attend_ring_forward(ring, operands)[0]


def _attend_ring_forward(ring: _Ring, operands: AttentionInputs) -> tuple[Results, Any]:
    def add_shard(state: Results, keys: list[NamedArray], step: Any) -> Results:
        averages, log_sums = state
        # As above: JAX would slice the queries for all pairs of blocks before the loop.
        query, keys = jax.lax.optimization_barrier((operands.query, keys))
        shard_averages, shard_log_sums = ring.average(dataclasses.replace(operands, query=query), keys, step)
        total = logaddexp(log_sums, shard_log_sums)
        averages = averages * exp(log_sums - total) + shard_averages * exp(shard_log_sums - total)
        return averages, total

    keys = _take_keys(operands)
    averages, log_sums = _go_around(ring, keys, ring.average(operands, keys, 0), add_shard)
    results = cast_array(averages, operands.value.dtype), log_sums
    return results, (operands, results)


def _attend_ring_backward(ring: _Ring, saved: Any, gradients: Results) -> tuple[AttentionInputs]:
    operands, results = saved

    def send_gradients(totals: AttentionInputs) -> AttentionInputs:
        """Returns the totals with those of keys from the device before, to which they come after a whole turn."""
        return _put_keys(totals, ring.send(_take_keys(totals)))

    def add_shard(totals: AttentionInputs, keys: list[NamedArray], step: Any) -> AttentionInputs:
        terms = ring.differentiate(operands, keys, step, results, gradients)
        return jax.tree.map(jnp.add, send_gradients(totals), terms)

    # After the gradients are known, or XLA would keep the first keys that a device receives in the forward pass.
    keys, gradients = jax.lax.optimization_barrier((_take_keys(operands), gradients))
    totals = _go_around(ring, keys, ring.differentiate(operands, keys, 0, results, gradients), add_shard)
    return (round_gradients(send_gradients(totals), operands),)


def _go_around(
    ring: _Ring, keys: list[NamedArray], state: Any, add_shard: Callable[[Any, list[NamedArray], Any], Any]
) -> Any:
    """Returns a state to which the keys of all other devices are added.

    Keys are sent on while a device computes with them, and not after the last step, which is therefore not in the loop.
    """
    devices = ring.count_devices()
    if devices == 1:
        return state

    def run_step(carry: Any, step: Any) -> tuple[Any, None]:
        state, keys = carry
        return (add_shard(state, keys, step), ring.send(keys)), None

    keys = ring.send(keys)
    if devices > 2:
        (state, keys), _ = jax.lax.scan(run_step, (state, keys), jnp.arange(1, devices - 1))
    return add_shard(state, keys, devices - 1)


_attend_ring.defvjp(_attend_ring_forward, _attend_ring_backward)
