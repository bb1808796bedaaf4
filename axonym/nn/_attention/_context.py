"""Attention of positions that are sharded: keys that go around a ring of devices, or heads in exchange for positions.

Both run on the shards of each device, over all mesh axes of the arrays, so that queries, keys and values are sent only
as is written here. In a ring each device computes its queries with its own keys, sends the keys on and receives those
of its neighbor, until it has had all (Liu et al., 2023, https://arxiv.org/abs/2310.01889). The softmax is computed
online, and the backward pass goes around once more, with the gradients of the keys. With all-to-alls each device gets
all positions of a part of the heads (Jacobs et al., 2023, https://arxiv.org/abs/2309.14509). Mixed, groups of devices
exchange heads for the positions of the group, and the keys go around the groups (Fang & Zhao, 2024,
https://arxiv.org/abs/2405.07719).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ...named._arguments import check_choice, check_integer
from ...named._array import NamedArray, is_named_array
from ...named._axis import Axis, Names, parse_axes
from ...named._axis_layout import MeshAxes, get_entry_axes, round_up
from ...named._base import with_array
from ...named._creation import arange
from ...named._elementwise._functions import exp, logaddexp
from ...named._sharding import constrain_sharding, get_sharding, mapping_context
from ...named._static_result import is_array
from .._layer import cast_array
from .._map_shards import find_mesh_axes, list_free_mesh_axes, map_shards
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
from ._inputs import AttentionInputs
from ._mask import PlacedMask


MOST_GATHERED_BYTES = 64 * 2**20
"""With context "auto", keys and values that take more of a device when they are gathered go around a ring instead.

A ring needs memory for two shards of them. It sends more, the gradients of keys in 32 bits, and skips fewer blocks of a
causal mask.
"""


def find_context_axes(inputs: AttentionInputs) -> tuple[str, ...]:
    """Returns the mesh axes over which the positions of queries are sharded."""
    if inputs.query_axis is None:
        return ()
    return find_mesh_axes(inputs.query.resolve_axis(inputs.query_axis))


class ContextChoice(NamedTuple):
    """How devices exchange keys and values, None if positions are not sharded; and why."""

    context: str | None
    reason: str


def choose_context(inputs: AttentionInputs, context: str, implementation: str, has_kernel: bool) -> ContextChoice:
    """Returns how the devices that share the positions of a sequence exchange keys and values.

    Args:
        inputs: The inputs.
        context: What is asked for.
        implementation: The implementation that is asked for.
        has_kernel: Whether gathered keys are computed by a kernel, which the context "auto" prefers to a ring.

    Raises:
        ValueError: If the context asked for is unknown or cannot compute this.
    """
    check_choice("dot_product_attention: `context`", context, ("auto", "all_gather", "ring", "all_to_all", "mixed"))
    mesh_axes = find_context_axes(inputs)
    if not mesh_axes:
        return ContextChoice(None, "positions are not sharded")
    ring_obstacle = find_ring_obstacle(inputs)
    if implementation not in ("auto", "blocked"):
        ring_obstacle = f"a ring computes its blocks as 'blocked' does, not as {implementation!r}"
    elif context == "auto" and has_kernel:
        ring_obstacle = "it has no kernel, as gathered keys have"
    obstacles = {
        "all_gather": None,
        "ring": ring_obstacle,
        "all_to_all": find_heads_obstacle(inputs, [mesh_axes]),
        "mixed": ring_obstacle or find_heads_obstacle(inputs, _list_inner_axes(mesh_axes)),
    }
    if context != "auto":
        if obstacle := obstacles[context]:
            alternatives = " and ".join(repr(name) for name, obstacle in obstacles.items() if obstacle is None)
            raise ValueError(
                f"dot_product_attention: context {context!r} cannot compute this: {obstacle}; {alternatives} can"
            )
        return ContextChoice(context, "it is asked for")
    key_bytes = _count_device_bytes(inputs.key, inputs.key_axis) + _count_device_bytes(inputs.value, inputs.key_axis)
    gathered_bytes = _count_sent_bytes(inputs, 1)  # as many as in a ring
    if obstacles["all_to_all"] is None:
        if _count_sent_bytes(inputs, _count_devices(mesh_axes)) < gathered_bytes:
            return ContextChoice("all_to_all", "it sends less than a gather of keys and values")
    elif obstacles["mixed"] is None:
        size = _count_devices(_find_group(inputs, _list_inner_axes(mesh_axes)).mesh_axes)
        if _count_sent_bytes(inputs, size) < gathered_bytes:
            reason = f"with groups of {size} devices that exchange heads it sends less than a gather or a ring"
            return ContextChoice("mixed", reason)
    text = f"gathered keys and values take {key_bytes / 2**20:,.1f} MiB of a device"
    limit = f"{MOST_GATHERED_BYTES // 2**20} MiB"
    if key_bytes <= MOST_GATHERED_BYTES:
        return ContextChoice("all_gather", f"{text}, at most {limit}")
    if ring_obstacle is not None:
        return ContextChoice("all_gather", f"no ring is used: {ring_obstacle}")
    return ContextChoice("ring", f"{text}, more than {limit}")


def _count_sent_bytes(inputs: AttentionInputs, size: int) -> float:
    """Returns how many bytes a device sends if groups of `size` devices exchange heads, and keys go around these."""
    devices = _count_devices(find_context_axes(inputs))
    key_bytes = _count_device_bytes(inputs.key, inputs.key_axis) + _count_device_bytes(inputs.value, inputs.key_axis)
    key_bytes /= devices
    # A group exchanges queries, keys, values and results.
    exchanged_bytes = (2 * _count_device_bytes(inputs.query) + key_bytes) * (size - 1) / size
    return exchanged_bytes + key_bytes * (devices / size - 1)


def _count_device_bytes(x: NamedArray, gathered_axis: str = "") -> int:
    """Returns the bytes of an array on a device, with one of its axes whole."""
    return math.prod(_shape_shard(x, (gathered_axis,))) * x.dtype.itemsize


def _shape_shard(x: NamedArray, whole_axes: tuple[str | None, ...]) -> tuple[int, ...]:
    """Returns the shape of an array on a device, with some of its axes whole."""
    names = tuple("" if name in whole_axes else name for name in x.names)
    sharding = get_sharding(names, x.array.shape)
    if sharding is None:
        return x.array.shape
    # Without `shard_shape` of JAX 0.10.2, which fails where some mesh axes are Manual.
    parts = [_count_devices(get_entry_axes(entry)) for entry in sharding.spec.partitions]
    return tuple(size // number for size, number in zip(x.array.shape, parts, strict=True))


def find_ring_obstacle(inputs: AttentionInputs) -> str | None:
    """Returns why keys cannot go around a ring, None if they can."""
    return _find_obstacle(inputs) or inputs.find_foreign_axis()


def find_heads_obstacle(inputs: AttentionInputs, candidates: list[tuple[str, ...]]) -> str | None:
    """Returns why devices along none of these mesh axes can exchange heads for positions, None if some can."""
    if obstacle := _find_obstacle(inputs):
        return obstacle
    if not candidates:
        example = {inputs.query_axis: ("ring", "heads")}
        return (
            f"axis {inputs.query_axis!r} is mapped to one mesh axis; a ring and groups need one each, as in {example}"
        )
    if not _find_group(inputs, candidates).heads:
        sizes = ", ".join(f"{axis.name}: {axis.size}" for axis in _list_shared_axes(inputs))
        devices = " or ".join(str(_count_devices(mesh_axes)) for mesh_axes in candidates)
        return f"query, key and value share no axis whose part on a device {devices} devices could divide ({sizes})"
    return None


def _find_obstacle(inputs: AttentionInputs) -> str | None:
    mesh = jax.sharding.get_abstract_mesh()
    if len(list_free_mesh_axes(mesh)) < len(mesh.axis_names):
        return "some mesh axes are Manual here"
    for name in inputs.contracted:
        if find_mesh_axes(inputs.query.resolve_axis(name)):
            return f"axis {name!r}, which is contracted, is sharded"
    devices, keys = _count_devices(find_context_axes(inputs)), inputs.key.axis_size(inputs.key_axis)
    if keys % devices:
        return f"axis {inputs.key_axis!r} has size {keys}, which {devices} devices cannot divide"
    for label, x in inputs.list_score_operands():
        if {inputs.query_axis, inputs.key_axis}.issubset(x.names):
            return f"the {label} has both axes of positions, of which a device has one part"
    return None


class _HeadGroup(NamedTuple):
    """Devices that exchange heads for positions, or one device alone.

    Attributes:
        query_axis: Name of the axis of query positions.
        key_axis: Name of the axis of key positions.
        other_axes: The mesh axes along which devices have other scores of the same positions, such as those of a batch.
        mesh_axes: The mesh axes along which the devices of a group are.
        heads: The axis that they divide, empty if there is none.
    """

    query_axis: str | None
    key_axis: str
    other_axes: tuple[str, ...]
    mesh_axes: tuple[str, ...] = ()
    heads: str = ""

    def take_parts(self, inputs: AttentionInputs) -> AttentionInputs:
        """Returns inputs with the positions of the group and a part of the heads.

        Devices with other scores of the same positions get another random key. Dropout tells positions apart by itself.
        """
        key, key_axes = inputs.dropout_key, (*self.other_axes, *self.mesh_axes)
        if key is not None and key_axes:
            inputs = dataclasses.replace(inputs, dropout_key=jax.random.fold_in(key, jax.lax.axis_index(key_axes)))
        return jax.tree.map(self._take_part, inputs, is_leaf=is_named_array) if self.mesh_axes else inputs

    def _take_part(self, leaf: Any) -> Any:
        if not is_named_array(leaf):
            return leaf
        positions = next((name for name in (self.query_axis, self.key_axis) if name in leaf.names), None)
        if positions is None and self.heads not in leaf.names:
            return leaf
        if positions is None:
            dim = leaf.names.index(self.heads)
            part = leaf.array.shape[dim] // jax.lax.axis_size(self.mesh_axes)
            start = jax.lax.axis_index(self.mesh_axes) * part
            return with_array(leaf, jax.lax.dynamic_slice_in_dim(leaf.array, start, part, dim))
        if self.heads in leaf.names:
            return self._exchange(leaf, self.heads, positions)
        dim = leaf.names.index(positions)
        return with_array(leaf, jax.lax.all_gather(leaf.array, self.mesh_axes, axis=dim, tiled=True))

    def return_part(self, result: NamedArray) -> NamedArray:
        """Returns a result with the positions of a device and all heads."""
        if not self.mesh_axes:
            return result
        assert self.query_axis is not None
        return self._exchange(result, self.query_axis, self.heads)

    def _exchange(self, x: NamedArray, divided_axis: str, joined_axis: str) -> NamedArray:
        dims = x.names.index(divided_axis), x.names.index(joined_axis)
        return with_array(x, jax.lax.all_to_all(x.array, self.mesh_axes, *dims, tiled=True))


def _find_group(inputs: AttentionInputs, candidates: list[tuple[str, ...]]) -> _HeadGroup:
    """Returns the group along the first of these mesh axes that could divide an axis of query, key and value."""
    positions = inputs.query_axis, inputs.key_axis
    operands = [inputs.query, inputs.key, *(x for _, x in inputs.list_score_operands())]
    axes = dict.fromkeys(axis for x in operands for axis in x.axes if axis.name not in positions)
    other_axes = [mesh_axis for axis in axes for mesh_axis in find_mesh_axes(axis) if _count_devices((mesh_axis,)) > 1]
    group = _HeadGroup(*positions, tuple(dict.fromkeys(other_axes)))
    for mesh_axes in candidates:
        for axis in reversed(_list_shared_axes(inputs)):
            if axis.size % _count_devices((*mesh_axes, *find_mesh_axes(axis))) == 0:
                return group._replace(mesh_axes=mesh_axes, heads=axis.name)
    return group


def _list_inner_axes(mesh_axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns the last ones of these mesh axes, as many as possible first; the first one is left for a ring."""
    return [mesh_axes[start:] for start in range(1, len(mesh_axes))]


def _list_shared_axes(inputs: AttentionInputs) -> list[Axis]:
    """Returns the axes that query, key and value have, without the contracted ones."""
    names = {*inputs.key.names}.intersection(inputs.value.names).difference(inputs.contracted)
    return [axis for axis in inputs.query.axes if axis.name in names]


def _count_devices(mesh_axes: tuple[str, ...]) -> int:
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in mesh_axes)


def _map_inputs(
    fn: Callable[[AttentionInputs], tuple[NamedArray, ...]], inputs: AttentionInputs, results: tuple[NamedArray, ...]
) -> tuple[NamedArray, ...]:
    """Calls a function on the shards of the inputs, in which keys are sharded over positions as queries are.

    Args:
        fn: The function.
        inputs: The inputs.
        results: Arrays with the names of its results, by which these are sharded.
    """
    arrays, static = eqx.partition(inputs, is_array)
    leaves, treedef = jax.tree.flatten(arrays)
    names: list[Names] = []
    for leaf in jax.tree.leaves(inputs, is_leaf=is_named_array):
        if is_named_array(leaf):
            names.append(tuple(inputs.query_axis or "" if name == inputs.key_axis else name for name in leaf.names))
        elif is_array(leaf):
            names.append(("",) * leaf.ndim)

    def run(mesh_axes: MeshAxes, *shards: Any) -> tuple[Any, ...]:
        results = fn(eqx.combine(jax.tree.unflatten(treedef, shards), static))
        return tuple(result.array for result in results)

    mapped = map_shards(run, leaves, names, [result.names for result in results], check_vma=False)
    return tuple(with_array(result, array) for result, array in zip(results, mapped, strict=True))


class _Ring(NamedTuple):
    """A ring of devices, and the axes of the blocks in which each computes.

    Attributes:
        axes: The axes of a block.
        mesh_axes: The mesh axes along which the devices are.
    """

    axes: BlockAxes
    mesh_axes: tuple[str, ...]

    def count_devices(self) -> int:
        return jax.lax.axis_size(self.mesh_axes)

    def send(self, arrays: Any) -> Any:
        """Returns the arrays of the device before, which sends them here."""
        size = self.count_devices()
        pairs = [(device, (device + 1) % size) for device in range(size)]
        return jax.tree.map(lambda array: jax.lax.ppermute(array, self.mesh_axes, pairs), arrays)

    def take_keys(self, operands: AttentionInputs) -> list[NamedArray]:
        """Returns the arrays that are sent: those with the axis of keys."""
        leaves = jax.tree.leaves(operands, is_leaf=is_named_array)
        return [leaf for leaf in leaves if self._has_keys(leaf)]

    def put_keys(self, operands: AttentionInputs, arrays: list[NamedArray]) -> AttentionInputs:
        """Returns inputs with these arrays."""
        remaining_arrays = iter(arrays)
        return jax.tree.map(
            lambda leaf: next(remaining_arrays) if self._has_keys(leaf) else leaf, operands, is_leaf=is_named_array
        )

    def place_keys(self, operands: AttentionInputs, arrays: list[NamedArray], step: Any) -> AttentionInputs:
        """Returns inputs with the arrays that a device has after some steps, and where they start, for dropout."""
        operands = self.put_keys(operands, arrays)
        device = jax.lax.axis_index(self.mesh_axes)
        key_device = (device - step) % self.count_devices()
        assert operands.query_axis is not None
        queries, keys = operands.query.axis_size(operands.query_axis), operands.key.axis_size(operands.key_axis)
        return dataclasses.replace(operands, starts=(device * queries, key_device * keys))

    def _has_keys(self, leaf: Any) -> bool:
        return is_named_array(leaf) and self.axes.KPos.name in leaf.names


def attend_in_ring(inputs: AttentionInputs, *, is_mixed: bool = False) -> NamedArray:
    """Computes attention while the keys go around the devices of the positions.

    Args:
        inputs: The inputs.
        is_mixed: Whether they go around groups of devices that exchange heads.
    """
    mesh_axes = find_context_axes(inputs)
    group = _find_group(inputs, _list_inner_axes(mesh_axes) if is_mixed else [])
    ring_axes = mesh_axes[: len(mesh_axes) - len(group.mesh_axes)]
    mask = inputs.mask
    if mask is not None and not isinstance(mask, PlacedMask):
        # The place of a query or a key among those of all devices, which goes around with it.
        assert inputs.query_axis is not None
        QPos, KPos = inputs.query.resolve_axis(inputs.query_axis), inputs.key.resolve_axis(inputs.key_axis)
        q_positions = arange(QPos)
        k_positions = q_positions.rename({QPos.name: KPos.name}) if QPos.size == KPos.size else arange(KPos)
        mask = PlacedMask(mask, q_positions, k_positions)
    operands = dataclasses.replace(inputs, query=inputs.scale_query(), scale=None, sinks=None, mask=mask)

    def average_local_keys(operands: AttentionInputs) -> tuple[NamedArray, ...]:
        axes, starts = plan_blocks(operands)
        return average_blocks(axes, prepare_operands(operands, axes), starts)

    def attend(operands: AttentionInputs) -> tuple[NamedArray, ...]:
        operands = group.take_parts(operands)
        # Positions and queries at once, or JAX would compute the masks of all blocks before a loop over layers around
        # this, for they are the same in each layer, and keep them: as many elements as scores.
        query, mask_operands = jax.lax.optimization_barrier((operands.query, operands.mask))
        operands = dataclasses.replace(operands, query=query, mask=mask_operands)
        axes, starts = plan_blocks(operands)
        results: tuple[NamedArray, ...] = _attend_ring(_Ring(axes, ring_axes), prepare_operands(operands, axes), starts)
        return tuple(map(group.return_part, results))

    averages, log_sums = _map_inputs(attend, operands, eqx.filter_eval_shape(average_local_keys, operands))
    may_lack_keys = mask is not None and not mask.allows_same_index
    return finish_averages(averages, log_sums, inputs.value, inputs.key_axis, inputs.sinks, may_lack_keys)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_ring(ring: _Ring, operands: AttentionInputs, starts: BlockStarts) -> tuple[NamedArray, NamedArray]:
    """Returns the averages of values of all devices, and the logarithms of the sums of exponentials of scores."""
    return _attend_ring_forward(ring, operands, starts)[0]


def _attend_ring_forward(ring: _Ring, operands: AttentionInputs, starts: BlockStarts) -> tuple[Any, Any]:
    def add_shard(state: Any, step: Any) -> tuple[Any, None]:
        averages, log_sums, keys = state
        # As above: JAX would slice the queries for all pairs of blocks before this loop.
        query, keys = jax.lax.optimization_barrier((operands.query, ring.send(keys)))
        shard = ring.place_keys(dataclasses.replace(operands, query=query), keys, step)
        shard_averages, shard_log_sums = average_blocks(ring.axes, shard, starts)
        total = logaddexp(log_sums, shard_log_sums)
        averages = averages * exp(log_sums - total) + shard_averages * exp(shard_log_sums - total)
        return (averages, total, keys), None

    keys = ring.take_keys(operands)
    initial = (*average_blocks(ring.axes, ring.place_keys(operands, keys, 0), starts), keys)
    (averages, log_sums, _), _ = jax.lax.scan(add_shard, initial, jnp.arange(1, ring.count_devices()))
    averages = cast_array(averages, operands.value.dtype)
    return (averages, log_sums), (operands, starts, averages, log_sums)


def _attend_ring_backward(
    ring: _Ring, saved: Any, gradients: tuple[NamedArray, NamedArray]
) -> tuple[AttentionInputs, None]:
    operands, starts, averages, log_sums = saved

    def compute_gradients(keys: list[NamedArray], step: Any) -> AttentionInputs:
        shard = ring.place_keys(operands, keys, step)
        return sum_gradients(ring.axes, (shard, starts, averages, log_sums), gradients)

    def send_gradients(totals: AttentionInputs) -> AttentionInputs:
        """Returns the totals with those of keys from the device before, to which they come after a whole turn."""
        return ring.put_keys(totals, ring.send(ring.take_keys(totals)))

    def add_shard(state: Any, step: Any) -> tuple[Any, None]:
        totals, keys = state
        totals, keys = send_gradients(totals), ring.send(keys)
        return (jax.tree.map(jnp.add, totals, compute_gradients(keys, step)), keys), None

    keys = ring.take_keys(operands)
    initial = compute_gradients(keys, 0), keys
    (totals, _), _ = jax.lax.scan(add_shard, initial, jnp.arange(1, ring.count_devices()))
    return round_gradients(send_gradients(totals), operands), None


_attend_ring.defvjp(_attend_ring_forward, _attend_ring_backward)


def _find_whole_group(inputs: AttentionInputs) -> _HeadGroup:
    return _find_group(inputs, [find_context_axes(inputs)])


def shape_part(inputs: AttentionInputs) -> AttentionInputs:
    """Returns the shapes of what a device gets of the inputs for its part of the heads."""
    group = _find_whole_group(inputs)
    devices = _count_devices(group.mesh_axes)

    def shape_array(leaf: Any) -> Any:
        if not is_named_array(leaf):
            return leaf
        shape = _shape_shard(leaf, (inputs.query_axis, inputs.key_axis))
        pairs = zip(leaf.names, shape, strict=True)
        sizes = [size // devices if name == group.heads else size for name, size in pairs]
        return with_array(leaf, jax.ShapeDtypeStruct(tuple(sizes), leaf.dtype))

    return jax.tree.map(shape_array, inputs, is_leaf=is_named_array)


def attend_by_heads(inputs: AttentionInputs, run: Callable[[AttentionInputs], NamedArray]) -> NamedArray:
    """Computes attention of all positions and a part of the heads on each device of the positions.

    Args:
        inputs: The inputs.
        run: Computes attention on one device.
    """
    group = _find_whole_group(inputs)

    def attend(inputs: AttentionInputs) -> tuple[NamedArray, ...]:
        return (group.return_part(run(group.take_parts(inputs))),)

    with mapping_context(None):  # as on a device
        results = eqx.filter_eval_shape(lambda inputs: (run(inputs),), shape_part(inputs))
    [result] = _map_inputs(attend, inputs, results)
    return constrain_sharding(result)


def zigzag_positions(Pos: Axis, parts: int) -> NamedArray:
    """Returns an order of positions in which each device of a ring has as much to do under a causal mask.

    The sequence is divided into two chunks for each device. Device i gets chunk i and chunk 2 `parts` - 1 - i, so that
    all devices have equally many pairs of a query and a key before it (Llama Team, 2024,
    https://arxiv.org/abs/2407.21783, section 3.3.2). Select tokens by it, and pass it as `positions` to attention and
    to rotary embeddings.

    Args:
        Pos: The axis of positions.
        parts: The number of devices that share the positions.

    Returns:
        Integer array: the position that comes to each place.

    Raises:
        ValueError: If the size of the axis is not divisible by 2 `parts`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.zigzag_positions(nym.Axis("pos", 8), 2).array
        Array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
    """
    [Pos] = parse_axes((Pos,))
    parts = check_integer("zigzag_positions: `parts`", parts, 1)
    if Pos.size % (2 * parts):
        raise ValueError(
            f"zigzag_positions: axis {Pos.name!r} has size {Pos.size}, which is not divisible into 2 chunks for each "
            f"of {parts} devices; the next size that is so is {round_up(Pos.size, 2 * parts)}"
        )
    chunks = np.arange(Pos.size, dtype=np.int32).reshape(2 * parts, -1)
    order = [chunk for part in range(parts) for chunk in (chunks[part], chunks[2 * parts - 1 - part])]
    return NamedArray(jnp.asarray(np.concatenate(order)), (Pos,))
