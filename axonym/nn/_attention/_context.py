"""Attention of positions that are sharded: what devices exchange, and heads that are exchanged for positions.

A ring, which `_ring.py` has, and exchanges run on the shards of each device, over all mesh axes of the arrays, so that
queries, keys and values are sent only as is written there. With all-to-alls each device gets all positions of a part of
the heads (Jacobs et al., 2023, https://arxiv.org/abs/2309.14509). Mixed, groups of devices exchange heads for the
positions of the group, and the keys go around the groups (Fang & Zhao, 2024, https://arxiv.org/abs/2405.07719).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..._ground.arguments import check_choice, check_integer
from ...named._array import NamedArray, is_named_array
from ...named._axis import Axis, Names, parse_axes
from ...named._axis_layout import MeshAxes, get_entry_axes, round_up
from ...named._base import with_array
from ...named._sharding import constrain_sharding, get_sharding, mapping_context
from ...named._static_result import is_array
from .._map_shards import count_devices, find_mesh_axes, list_free_mesh_axes, map_shards
from ._inputs import AttentionInputs
from ._mask import PlacedMask
from ._splash import find_splash_objection, find_splash_ring_obstacle


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


def gather_keys(inputs: AttentionInputs) -> AttentionInputs:
    """Returns inputs whose keys are whole if they share a mesh axis with the queries, as their scores cannot do."""
    key_mesh_axes = find_mesh_axes(inputs.key.resolve_axis(inputs.key_axis))
    if not {*key_mesh_axes} & {*find_context_axes(inputs)}:
        return inputs
    return inputs.rename_keys(f"{inputs.key_axis} (gathered)")  # which no mapping has


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

    def find_shards_obstacle(is_mixed: bool) -> str | None:
        kernel_obstacle = find_ring_kernel_obstacle(inputs, implementation, is_mixed=is_mixed)
        if implementation in ("plain", "jax"):
            return f"a ring computes as 'splash' or 'blocked' do, not as {implementation!r}"
        if implementation == "splash" and kernel_obstacle:
            return f"'splash' cannot compute the shards of a ring: {kernel_obstacle}"
        if context == "auto" and has_kernel and kernel_obstacle:
            return "it has no kernel, as gathered keys have"
        return None

    ring_obstacle = find_ring_obstacle(inputs) or find_shards_obstacle(is_mixed=False)
    mixed_obstacle = find_ring_obstacle(inputs) or find_heads_obstacle(inputs, _list_inner_axes(mesh_axes))
    obstacles = {
        "all_gather": None,
        "ring": ring_obstacle,
        "all_to_all": find_heads_obstacle(inputs, [mesh_axes]),
        "mixed": mixed_obstacle or find_shards_obstacle(is_mixed=True),
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
        if _count_sent_bytes(inputs, count_devices(mesh_axes)) < gathered_bytes:
            return ContextChoice("all_to_all", "it sends less than a gather of keys and values")
    elif obstacles["mixed"] is None:
        size = count_devices(_find_group(inputs, _list_inner_axes(mesh_axes)).mesh_axes)
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


def find_ring_kernel_obstacle(inputs: AttentionInputs, implementation: str, *, is_mixed: bool) -> str | None:
    """Returns why the devices of a ring do not compute by splash attention, None if they do.

    Args:
        inputs: The inputs.
        implementation: The implementation that is asked for.
        is_mixed: Whether the ring is one of groups that exchange heads.
    """
    if implementation == "blocked":
        return "'blocked' is asked for"
    if implementation == "auto" and (objection := find_splash_objection(inputs)):
        return objection
    return find_splash_ring_obstacle(inputs, count_devices(find_ring(inputs, is_mixed=is_mixed)[1]))


def _count_sent_bytes(inputs: AttentionInputs, size: int) -> float:
    """Returns how many bytes a device sends if groups of `size` devices exchange heads, and keys go around these."""
    devices = count_devices(find_context_axes(inputs))
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
    # Without `shard_shape` of JAX, which fails where some mesh axes are Manual.
    parts = [count_devices(get_entry_axes(entry)) for entry in sharding.spec.partitions]
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
        devices = " or ".join(str(count_devices(mesh_axes)) for mesh_axes in candidates)
        return f"query, key and value share no axis whose part on a device {devices} devices could divide ({sizes})"
    return None


def _find_obstacle(inputs: AttentionInputs) -> str | None:
    mesh = jax.sharding.get_abstract_mesh()
    if len(list_free_mesh_axes(mesh)) < len(mesh.axis_names):
        return "some mesh axes are Manual here"
    for name in inputs.contracted:
        if find_mesh_axes(inputs.query.resolve_axis(name)):
            return f"axis {name!r}, which is contracted, is sharded"
    devices, keys = count_devices(find_context_axes(inputs)), inputs.key.axis_size(inputs.key_axis)
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
    other_axes = [mesh_axis for axis in axes for mesh_axis in find_mesh_axes(axis) if count_devices((mesh_axis,)) > 1]
    group = _HeadGroup(*positions, tuple(dict.fromkeys(other_axes)))
    for mesh_axes in candidates:
        for axis in reversed(_list_shared_axes(inputs)):
            if axis.size % count_devices((*mesh_axes, *find_mesh_axes(axis))) == 0:
                return group._replace(mesh_axes=mesh_axes, heads=axis.name)
    return group


def find_ring(inputs: AttentionInputs, *, is_mixed: bool) -> tuple[_HeadGroup, tuple[str, ...]]:
    """Returns the group that each device is in, and the mesh axes along which keys go around.

    Args:
        inputs: The inputs.
        is_mixed: Whether they go around groups of devices that exchange heads.
    """
    mesh_axes = find_context_axes(inputs)
    group = _find_group(inputs, _list_inner_axes(mesh_axes) if is_mixed else [])
    return group, mesh_axes[: len(mesh_axes) - len(group.mesh_axes)]


def _list_inner_axes(mesh_axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns the last ones of these mesh axes, as many as possible first; the first one is left for a ring."""
    return [mesh_axes[start:] for start in range(1, len(mesh_axes))]


def _list_shared_axes(inputs: AttentionInputs) -> list[Axis]:
    """Returns the axes that query, key and value have, without the contracted ones."""
    names = {*inputs.key.names}.intersection(inputs.value.names).difference(inputs.contracted)
    return [axis for axis in inputs.query.axes if axis.name in names]


def map_inputs(
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


def _find_whole_group(inputs: AttentionInputs) -> _HeadGroup:
    return _find_group(inputs, [find_context_axes(inputs)])


def shape_part(inputs: AttentionInputs) -> AttentionInputs:
    """Returns the shapes of what a device gets of the inputs for its part of the heads."""
    group = _find_whole_group(inputs)
    devices = count_devices(group.mesh_axes)

    def shape_array(leaf: Any) -> Any:
        if not is_named_array(leaf):
            return leaf
        shape = _shape_shard(leaf, (inputs.query_axis, inputs.key_axis))
        pairs = zip(leaf.names, shape, strict=True)
        sizes = [size // devices if name == group.heads else size for name, size in pairs]
        return with_array(leaf, jax.ShapeDtypeStruct(tuple(sizes), leaf.dtype))

    return _keep_known_positions(jax.tree.map(shape_array, inputs, is_leaf=is_named_array), inputs)


def _keep_known_positions(part: AttentionInputs, inputs: AttentionInputs) -> AttentionInputs:
    """Returns a part of the inputs in which positions that are known, as some kernels need them, still are."""
    if not (isinstance(inputs.mask, PlacedMask) and isinstance(part.mask, PlacedMask) and inputs.mask.is_known):
        return part
    mask = PlacedMask(part.mask.mask, inputs.mask.q_positions, inputs.mask.k_positions)
    return dataclasses.replace(part, mask=mask)


def attend_by_heads(inputs: AttentionInputs, run: Callable[[AttentionInputs], NamedArray]) -> NamedArray:
    """Computes attention of all positions and a part of the heads on each device of the positions.

    Args:
        inputs: The inputs.
        run: Computes attention on one device.
    """
    group = _find_whole_group(inputs)

    def run_part(part: AttentionInputs) -> NamedArray:
        return run(_keep_known_positions(part, inputs))

    def attend(shards: AttentionInputs) -> tuple[NamedArray, ...]:
        return (group.return_part(run_part(group.take_parts(shards))),)

    with mapping_context(None):  # as on a device
        results = eqx.filter_eval_shape(lambda part: (run_part(part),), shape_part(inputs))
    [result] = map_inputs(attend, inputs, results)
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
    with jax.ensure_compile_time_eval():  # known at a trace, for kernels that skip the blocks which a mask hides
        return NamedArray(jax.device_put(np.concatenate(order)), (Pos,))
