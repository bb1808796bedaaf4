"""Pipelines: layers on several stages of devices, through which microbatches pass one after another.

The stage is one more axis of arrays. The layers of each stage, and the values that are in it, have this axis, and the
layers are mapped over it, so that whatever they do works as without stages. In each turn every stage computes with its
layers, and sends the results to the next one (Huang et al., 2019, https://arxiv.org/abs/1811.06965). Under `grad` the
turns run backwards.

With several groups of layers on each stage (Narayanan et al., 2021, https://arxiv.org/abs/2104.04473, section 2.2), as
many microbatches as there are stages go around them all, before the next ones follow: what the last stage sends, the
first one needs in the next turn.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from .._ground.errors import make_error
from .._ground.formats import suggest_name
from .._ground.jax_compat import take_mapped_slice
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis
from ..named._axis_layout import MeshAxes, count_parts, get_entry_axes
from ..named._base import get_plain_array, with_array
from ..named._named_call import enter_function_scope
from ..named._reduced_types import get_reduced_axes, set_reduced_axes
from ..named._shape._flatten import flatten_axes, unflatten_axis
from ..named._shape._rearrange import rearrange
from ..named._sharding import (
    constrain_sharding,
    gather_parameter,
    get_out_sharding,
    get_sharding,
    mapping_context,
    reshard_by_name,
)
from ..named._stages import STAGE, PipelineSchedule, StagePlan, make_schedule
from ..named._static_result import is_array
from ..named._transforms import (
    Remat,
    fold_in_number,
    is_array_with_axes,
    is_random_key,
    scan,
    slice_args,
    vmap,
)
from ._map_shards import map_shards


_PART, _GROUP, _TURN, _ROUND = "axonym microbatches", "axonym groups", "axonym turns", "axonym rounds"


def run_pipeline(
    step: Callable[..., tuple[Any, Any]],
    plan: StagePlan,
    Block: Axis,
    repeats: int,
    init: Any,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    remat: Remat,
    unroll: int | bool,
) -> tuple[Any, Any]:
    """Applies layers in stages.

    Args:
        step: Function of the carry, a layer and the other arguments, which returns the next carry and a result.
        plan: The stages.
        Block: The layer axis.
        repeats: The number of groups of layers on each stage. The arrays of the layers are in the order of stages,
            groups and the layers of a group; all other arrays with the layer axis are in the order of the layers.
        init: The initial carry.
        arguments: The layers and the other arguments, by position and by name.
        remat: What is recomputed in the backward pass of each layer.
        unroll: How many layers to unroll.

    Returns:
        The final carry, and the results of all layers along the layer axis.

    Raises:
        ValueError: If no array of the carry has the axis of the microbatches, or its size does not fit.
    """
    StageBlock = Axis(Block.name, Block.size // (plan.stages * repeats))
    init_leaves, init_treedef = jax.tree.flatten(init, is_leaf=is_named_array)
    sliced = slice_args(arguments, Block, is_array_with_axes, "Stacked")
    sliced_leaves = list(zip(sliced.leaves, sliced.dims, strict=True))

    def is_split(leaf: Any) -> bool:
        return is_named_array(leaf) and plan.axis in leaf.names

    _check_carry(init_leaves, plan, Block)
    with mapping_context(plan.computing):
        size = next(leaf.axis_size(plan.axis) for leaf in init_leaves if is_split(leaf))
        schedule = make_schedule(plan.stages, plan.microbatches, repeats, plan.axis, size, _count_shards(plan))

    # Arguments for each example go along with the carry.
    constants = [leaf for leaf, dim in sliced_leaves if dim is None and is_split(leaf)]
    moving_leaves = init_leaves + constants

    def run_stage(work: NamedArray, layers: list[NamedArray], state: list[NamedArray]) -> Any:
        """Applies the layers of one stage to one microbatch."""
        moved = [_restore_leaf(leaf, x) for leaf, x in zip(moving_leaves, state, strict=True)]
        carry, moved_constants = moved[: len(init_leaves)], iter(moved[len(init_leaves) :])
        slices = iter([with_array(x, take_mapped_slice(x.array, work.array), x.names[1:]) for x in layers])
        leaves: list[Any] = []
        for leaf, dim in sliced_leaves:
            if dim is None:
                leaves.append(next(moved_constants) if is_split(leaf) else leaf)
                continue
            layer_leaf = _restore_leaf(leaf, next(slices))
            if is_random_key(layer_leaf):
                layer_leaf = fold_in_number(layer_leaf, schedule.find_microbatch(work.array))
            leaves.append(layer_leaf)
        args, kwargs = jax.tree.unflatten(sliced.treedef, leaves)
        run = scan(step, StageBlock, remat=remat, unroll=unroll)
        carry, results = run(jax.tree.unflatten(init_treedef, carry), *args, **kwargs)
        return [_name_leaf(leaf) for leaf in jax.tree.leaves(carry, is_leaf=is_named_array)], results

    def run_turns(layers: list[NamedArray], feed: list[NamedArray]) -> Any:
        def run_turn(state: list[NamedArray], turn: NamedArray, feed: list[NamedArray]) -> Any:
            state = _advance(state, feed, turn, schedule)
            numbers = NamedArray(reshard_by_name(turn.array - jnp.arange(plan.stages), (STAGE,)), (STAGE,))
            works = with_array(numbers, jnp.clip(numbers.array, 0, schedule.works - 1))
            is_used = with_array(numbers, numbers.array == works.array)
            selected = [_select_work(x, works, schedule) for x in layers]
            map_stages = vmap(run_stage, Axis(STAGE, plan.stages), args=(True, False))
            used_state, used_layers = ([_stop_unused(x, is_used) for x in xs] for xs in (state, selected))
            carry, results = map_stages(works, used_layers, used_state)
            return carry + state[len(carry) :], (carry, results)

        Turns = Axis(_TURN, schedule.turns)
        # Real values, since functions such as the logarithm may fail for zeros.
        state = [with_array(x, jax.lax.stop_gradient(x.array[0]), x.names[1:]) for x in feed]
        return scan(run_turn, Turns)(state, NamedArray(jnp.arange(Turns.size), (Turns,)), feed)[1]

    with mapping_context(plan.computing):
        parts = [_split_batch(_name_leaf(leaf), plan) for leaf in moving_leaves]
        feed = [_spread_over_turns(x, schedule) for x in parts]
    parameter_scopes = [
        jax.tree_util.keystr(path[:-1], simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(arguments[0][0], is_leaf=is_named_array)
    ]
    layers: list[NamedArray] = []
    layer_leaves = [leaf for leaf, dim in sliced_leaves if dim is not None]
    for position, (leaf, dim) in enumerate(sliced_leaves):
        if dim is None:
            continue
        is_parameter = position < len(parameter_scopes)
        x = _name_leaf(leaf)
        x = rearrange(x, (x.names[dim], ...))
        with mapping_context(plan.storing if is_parameter else plan.computing):
            x = _split_layers(x, schedule, StageBlock, is_parameter)
            x = _split_batch(x, plan) if is_split(x) else x
        if is_parameter:
            with mapping_context(plan.gathering), jax.named_scope(parameter_scopes[position]):
                x = gather_parameter(x)
        layers.append(x)
    with mapping_context(plan.computing):
        batch_axes = _find_batch_axes(parts)
        typed_layers = [
            _type_reduced(x, batch_axes) if is_named_array(leaf) else x
            for leaf, x in zip(layer_leaves, layers, strict=True)
        ]
        is_typed = any(get_reduced_axes(x.array) for x in typed_layers)
        if is_typed and not _has_gradients(run_turns, typed_layers, feed):
            typed_layers = [with_array(x, set_reduced_axes(x.array, ())) for x in layers]
        try:
            carries, results = run_turns(typed_layers, feed)
        except ValueError as error:
            if repr(plan.axis) in str(error):
                error.add_note(
                    f"In a pipeline, axis {plan.axis!r} of arrays is a microbatch; pass arrays that have it as "
                    "arguments of the layers, not from around them."
                )
            raise
        carries = [_take_last_stage(x, schedule) for x in carries]
        carries = [_merge_parts(x, plan, adds_integers=False) for x in carries]
        results = jax.tree.map(
            lambda leaf: _collect_results(leaf, schedule, plan, Block) if is_array(get_plain_array(leaf)) else leaf,
            results,
            is_leaf=is_named_array,
        )
    carries = [_restore_leaf(leaf, constrain_sharding(x)) for leaf, x in zip(init_leaves, carries, strict=True)]
    return jax.tree.unflatten(init_treedef, carries), results


def _check_carry(leaves: list[Any], plan: StagePlan, Block: Axis) -> None:
    names = [name for leaf in leaves if is_named_array(leaf) for name in leaf.names]
    if plan.axis not in names:
        has_names = f"its axes are {', '.join(map(repr, dict.fromkeys(names)))}" if names else "it has no named arrays"
        raise make_error(
            ValueError,
            f"a pipeline along {Block} divides axis {plan.axis!r} into microbatches, which no array of the carry has: "
            f"{has_names}; name one of the carry in `microbatches`, or map the layer axis to None"
            f"{suggest_name(plan.axis, names)}",
        )
    if any(map(is_random_key, leaves)):
        raise make_error(
            TypeError,
            f"a pipeline along {Block} cannot carry a random key from layer to layer; pass keys as arguments, which "
            "are folded for each layer and microbatch",
        )


def _count_shards(plan: StagePlan) -> int:
    """Returns over how many devices each microbatch has to be divisible."""
    if plan.is_uneven_replicated:
        return 1
    sharding = get_sharding((plan.axis,), (0,))
    return 1 if sharding is None else count_parts(get_entry_axes(sharding.spec.partitions[0]), sharding.mesh)


def _name_leaf(leaf: Any) -> NamedArray:
    """Returns a leaf as a named array; the dimensions of a plain one get names that no mapping has."""
    if is_named_array(leaf):
        return leaf
    array = jnp.asarray(leaf)
    return NamedArray(array, tuple(f"axonym dimension {dim}" for dim in range(array.ndim)))


def _restore_leaf(leaf: Any, x: NamedArray) -> Any:
    """Returns an array with or without names, as its leaf is."""
    return x if is_named_array(leaf) else x.array


def _split_layers(x: NamedArray, schedule: PipelineSchedule, StageBlock: Axis, is_parameter: bool) -> NamedArray:
    """Returns an array whose first axis, that of the layers, is divided into stages, groups and layers of a group."""
    Stages, Groups = Axis(STAGE, schedule.stages), Axis(_GROUP, schedule.repeats)
    if get_reduced_axes(x.array):  # by `microbatch` around this
        array = jnp.reshape(x.array, (schedule.stages, schedule.repeats, StageBlock.size, *x.array.shape[1:]))
        return with_array(x, array, (STAGE, _GROUP, *x.names))
    if is_parameter or schedule.repeats == 1:
        return constrain_sharding(unflatten_axis(x, x.names[0], (Stages, Groups, StageBlock)))
    x = unflatten_axis(x, x.names[0], (Groups, Axis("axonym order", schedule.stages), StageBlock))
    x = rearrange(x, ("axonym order", ...))
    return constrain_sharding(with_array(x, x.array, (STAGE, *x.names[1:])))


def _split_batch(x: NamedArray, plan: StagePlan) -> NamedArray:
    """Returns an array with an axis of microbatches first, of which each has every `microbatches`-th example."""
    if plan.axis not in x.names:
        return with_array(x, jnp.broadcast_to(x.array, (plan.microbatches, *x.array.shape)), (_PART, *x.names))
    size = x.axis_size(plan.axis)
    x = unflatten_axis(x, plan.axis, (Axis(plan.axis, size // plan.microbatches), Axis(_PART, plan.microbatches)))
    if STAGE in x.names:
        return constrain_sharding(x)
    return constrain_sharding(rearrange(x, (_PART, ...)))


def _find_batch_axes(parts: list[NamedArray]) -> set[str]:
    """Returns the mesh axes over which microbatches are sharded."""
    mesh_axes: set[str] = set()
    for part in parts:
        sharding = get_sharding(part.names, part.array.shape)
        if sharding is not None:
            mesh_axes.update(axis for entry in sharding.spec.partitions for axis in get_entry_axes(entry))
    return mesh_axes


def _type_reduced(x: NamedArray, batch_axes: set[str]) -> NamedArray:
    """Returns a parameter typed so that its gradient is added up over the devices of the batch after the last turn."""
    mesh = jax.sharding.get_abstract_mesh()
    is_explicit = all(axis_type == AxisType.Explicit for axis_type in mesh.axis_types)
    if not is_explicit or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return with_array(x, set_reduced_axes(x.array, batch_axes | get_reduced_axes(x.array)))


def _has_gradients(run_turns: Callable[..., Any], layers: list[NamedArray], feed: list[NamedArray]) -> bool:
    """Returns whether JAX has rules for all that layers do with parameters of these types, in both passes."""

    def differentiate(layers: list[NamedArray], feed: list[NamedArray]) -> Any:
        def select_floats(layers: list[NamedArray], feed: list[NamedArray]) -> Any:
            return eqx.filter(run_turns(layers, feed), eqx.is_inexact_array)

        results, transpose = eqx.filter_vjp(select_floats, layers, feed)
        return eqx.filter(transpose(results), eqx.is_array)

    try:
        eqx.filter_eval_shape(differentiate, layers, feed)
    except Exception:  # in words that differ; a fault of a layer is raised by the caller
        return False
    return True


def _spread_over_turns(x: NamedArray, schedule: PipelineSchedule) -> NamedArray:
    """Returns the microbatches at the turns in which they enter the first stage; elsewhere there are zeros.

    They have the axis of stages, or each turn would add up their gradients over the stages.
    """
    stages, microbatches, repeats = schedule.stages, schedule.microbatches, schedule.repeats
    names, shape = (_PART, STAGE, *x.names[1:]), (microbatches, stages, *x.array.shape[1:])
    dims = [dim for dim in range(len(shape)) if dim != 1]
    array = jax.lax.broadcast_in_dim(x.array, shape, dims, out_sharding=get_out_sharding(names, shape))
    array = constrain_sharding(with_array(x, array, names)).array
    if repeats > 1:
        array = array.reshape(-1, stages, *array.shape[1:])
        array = jnp.pad(array, [(0, 0), (0, (repeats - 1) * stages)] + [(0, 0)] * (array.ndim - 2))
        array = array.reshape(-1, *array.shape[2:])
    array = jnp.pad(array, [(0, stages - 1)] + [(0, 0)] * (array.ndim - 1))
    return with_array(x, array, (_TURN, STAGE, *x.names[1:]))


def _advance(
    state: list[NamedArray], feed: list[NamedArray], turn: NamedArray, schedule: PipelineSchedule
) -> list[NamedArray]:
    """Returns what each stage computes with: what the stage before it sends, or a new microbatch for the first."""
    is_new = (turn.array < schedule.works) & (schedule.find_group(turn.array) == 0)

    def advance(mesh_axes: MeshAxes, is_new: Any, *arrays: Any) -> tuple[Any, ...]:
        pairs = [(stage, (stage + 1) % schedule.stages) for stage in range(schedule.stages)]
        enters = is_new & (jax.lax.axis_index(mesh_axes[STAGE]) == 0)
        received = [jax.lax.ppermute(array, mesh_axes[STAGE], pairs) for array in arrays[: len(state)]]
        return tuple(jnp.where(enters, new, old) for new, old in zip(arrays[len(state) :], received, strict=True))

    names = [x.names for x in state]
    arrays = [is_new, *(x.array for x in state), *(x.array for x in feed)]
    with enter_function_scope("send", ("stages",)):
        advanced = map_shards(advance, arrays, [(), *names, *names], names)
    return [with_array(x, array) for x, array in zip(state, advanced, strict=True)]


def _stop_unused(x: NamedArray, is_used: NamedArray) -> NamedArray:
    """Returns an array that has no gradient in stages whose results nobody uses.

    Layers run there with values that they were not meant for. Their gradients, infinite perhaps, times the zeros of
    those of the results would be NaN.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return with_array(x, _mask_tangent(x.array, is_used.array, get_out_sharding(x.names, x.array.shape)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _mask_tangent(array: Any, is_used: Any, sharding: Any) -> Any:
    """Returns the array as it is. A `select` of arrays themselves would copy the parameters of a stage in each turn."""
    return array


@_mask_tangent.defjvp
def _(sharding: Any, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (array, is_used), (tangent, _) = primals, tangents

    def mask(is_used: Any, tangent: Any) -> Any:
        is_used_array = jax.lax.broadcast_in_dim(is_used, array.shape, (0,), out_sharding=sharding)
        return jax.lax.select(is_used_array, tangent, jnp.zeros_like(tangent))

    # Recomputed, or JAX would keep a mask as large as the parameters for each turn.
    return array, jax.checkpoint(mask, prevent_cse=False)(is_used, tangent)


def _select_work(x: NamedArray, works: NamedArray, schedule: PipelineSchedule) -> NamedArray:
    """Returns what the layers of each stage have for its work: those of a group, and of a microbatch."""
    dim = x.names.index(_GROUP)
    groups = [jax.lax.index_in_dim(x.array, group, dim, keepdims=False) for group in range(schedule.repeats)]
    array, names = groups[0], (*x.names[:dim], *x.names[dim + 1 :])
    group_numbers = schedule.find_group(works.array)
    # JAX can slice and select, but not index, arrays that are `reduced`.
    for number, group in enumerate(groups[1:], 1):
        sharding = get_out_sharding(names, array.shape)
        is_selected = jax.lax.broadcast_in_dim(group_numbers == number, array.shape, (0,), out_sharding=sharding)
        array = jax.lax.select(is_selected, group, array)
    if _PART not in names:
        return with_array(x, array, names)
    part_dim = names.index(_PART)

    def select_part(mesh_axes: MeshAxes, works: Any, array: Any) -> tuple[Any]:
        microbatch = schedule.find_microbatch(works[0])
        return (jax.lax.dynamic_index_in_dim(array, microbatch, part_dim, keepdims=False),)

    part_names = (*names[:part_dim], *names[part_dim + 1 :])
    [array] = map_shards(select_part, [works.array, array], [works.names, names], [part_names])
    return with_array(x, array, part_names)


def _take_last_stage(x: NamedArray, schedule: PipelineSchedule) -> NamedArray:
    """Returns what the last stage has computed of each microbatch with its last group of layers."""
    stages, microbatches, repeats = schedule.stages, schedule.microbatches, schedule.repeats

    def take(mesh_axes: MeshAxes, array: Any) -> tuple[Any]:
        array = array[stages - 1 :, 0]
        if repeats > 1:
            array = array.reshape(-1, repeats, stages, *array.shape[1:])[:, -1]
            array = array.reshape(microbatches, *array.shape[2:])
        is_last = jax.lax.axis_index(mesh_axes[STAGE]) == stages - 1
        total = jax.lax.psum(jnp.where(is_last, array, jnp.zeros_like(array)), mesh_axes[STAGE])
        return (total.astype(array.dtype),)  # booleans are added up as integers

    names = (_PART, *x.names[2:])
    with enter_function_scope("last", ("stages",)):
        [array] = map_shards(take, [x.array], [x.names], [names])
    return with_array(x, array, names)


def _merge_parts(x: NamedArray, plan: StagePlan, *, adds_integers: bool) -> NamedArray:
    """Returns an array with the examples of all microbatches, in the order of its axes.

    Without the axis of examples it is the average over microbatches, and for booleans, whether any is true. Integers
    are added up, as counts among the results, or are those of the last microbatch, as a number of the layer in the
    carry.
    """
    if plan.axis in x.names:
        names = [name for name in x.names if name != _PART]
        dim = names.index(plan.axis) + 1
        x = rearrange(x, (*names[:dim], _PART, *names[dim:]))
        return flatten_axes(x, (plan.axis, _PART), plan.axis)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.mean(_PART)
    if x.dtype == jnp.bool_:
        return x.any(_PART)
    return x.sum(_PART).astype(x.dtype) if adds_integers else x[_PART, -1]


def _collect_results(leaf: Any, schedule: PipelineSchedule, plan: StagePlan, Block: Axis) -> Any:
    """Returns the results of all layers, from those of each turn."""
    x = _name_leaf(leaf)
    x = with_array(x, x.array, (_TURN, STAGE, Block.name, *x.names[3:]))
    stages, microbatches, repeats = schedule.stages, schedule.microbatches, schedule.repeats

    def collect(mesh_axes: MeshAxes, array: Any) -> tuple[Any]:
        stage = jax.lax.axis_index(mesh_axes[STAGE])
        return (jax.lax.dynamic_slice_in_dim(array, stage, schedule.works),)

    [array] = map_shards(collect, [x.array], [x.names], [x.names])
    rounds = schedule.works // (repeats * stages) if repeats > 1 else 1
    axes = (Axis(_ROUND, rounds), Axis(_GROUP, repeats), Axis(_PART, microbatches // rounds))
    x = unflatten_axis(with_array(x, array), _TURN, axes)
    x = rearrange(flatten_axes(x, (_ROUND, _PART), _PART), (_GROUP, STAGE, Block.name, _PART, ...))
    x = _merge_parts(x, plan, adds_integers=True)
    with mapping_context(plan.collecting):
        return _restore_leaf(leaf, constrain_sharding(flatten_axes(x, (_GROUP, STAGE, Block.name), Block.name)))
