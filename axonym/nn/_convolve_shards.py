"""Convolution of named arrays, in which each device convolves its shards.

XLA's partitioner gives wrong results and gradients for some sharded convolutions, so the communication is stated here:
elements at the borders of shards along spatial axes, and sums over sharded input channels.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..named._ambient import reshard_by_name
from ..named._axis import Names, intern_names
from ..named._axis_layout import AxisLayout
from ..named._base import N, with_array
from ..named._broadcasting import cached_jit, get_array
from ..named._operation import run_operation, use_operand_layout
from ._convolve import Convolution, convolve_by_position
from ._halo import Halo, add_halo, plan_halo
from ._map_shards import find_layout, shard_map_by_name


class Division(NamedTuple):
    """How a convolution is divided among devices."""

    x: Names
    """The names by which an array is sharded, with "" for the dimensions that each device needs as a whole."""
    weight: Names
    result: Names
    halos: dict[str, Halo]
    """What devices exchange along spatial axes that stay sharded."""
    contracted: Names
    """The axes that are summed over and sharded."""
    plan: Convolution
    """The convolution of the shards of one device."""


def convolve(x: N, weight: N, plan: Convolution) -> N:
    """Returns the convolution of named arrays; its axes are those of `x`, the output channels in place of the input."""
    names = intern_names(tuple(plan.outputs if name == plan.inputs[0] else name for name in x.names))
    call = cached_jit(_convolve_arrays, x.names, weight.names, names, plan)
    return with_array(x, call(get_array(x), get_array(weight)), names)


def _convolve_arrays(x_names: Names, weight_names: Names, names: Names, plan: Convolution, x: Any, weight: Any) -> Any:
    dtype = jnp.result_type(x, weight)
    arrays = x.astype(dtype), weight.astype(dtype)
    shapes = [jax.ShapeDtypeStruct(array.shape, dtype) for array in arrays]  # without their shardings
    shape = jax.eval_shape(functools.partial(convolve_by_position, x_names, weight_names, plan), *shapes).shape
    outputs = tuple(name if name == plan.outputs else "" for name in weight_names)
    with use_operand_layout((x_names, weight_names), arrays):
        layout = find_layout((x_names, outputs, names), (x.shape, weight.shape, shape))
        if layout.mesh is None:
            return _convolve_whole_windows(x_names, weight_names, names, plan, *arrays)
        operands = (x_names, x.shape), (weight_names, weight.shape), (names, shape)
        sizes = [dict(zip(*operand, strict=True)) for operand in operands]
        division = _divide(x_names, weight_names, names, plan, layout, sizes)
        arrays = [reshard_by_name(*pair) for pair in zip(arrays, (division.x, division.weight), strict=True)]
        compute = functools.partial(_convolve_shards, x_names, weight_names, division, layout)
        (result,) = shard_map_by_name(compute, layout, (division.x, division.weight), (division.result,))(*arrays)
        return reshard_by_name(result, names)


def _convolve_whole_windows(
    x_names: Names, weight_names: Names, names: Names, plan: Convolution, x: Any, weight: Any
) -> Any:
    """Leaves a convolution to the compiler, with the dimensions replicated that it cannot shard correctly.

    That is the way without a mapping on an Auto mesh, where shardings are not known; without a mesh nothing changes.
    """
    whole = {*x_names, *weight_names, *names} if plan.groups > 1 else {*plan.spatial}
    compute = functools.partial(convolve_by_position, x_names, weight_names, plan)
    return run_operation(compute, [x_names, weight_names], names, x, weight, whole=whole, misses_auto_shards=True)


def _divide(
    x_names: Names,
    weight_names: Names,
    names: Names,
    plan: Convolution,
    layout: AxisLayout,
    sizes: list[dict[str, int]],
) -> Division:
    halos = _plan_halos(plan, layout, *sizes)
    sharded_by = {name: "" for name in plan.spatial if name not in halos}
    groups, inputs, outputs = plan.groups, plan.inputs[0], plan.outputs
    if groups > 1:  # the devices divide the groups, by input or output channels
        divided = outputs if layout.count_shards((outputs,)) > 1 else inputs
        if groups % layout.count_shards((divided,)):
            divided = ""
        groups //= layout.count_shards((divided,))
        inputs = outputs = divided
    elif {*layout.list_mesh_axes((inputs,))} & {*layout.list_mesh_axes((outputs,))}:
        inputs = ""
    sharded_by |= {plan.inputs[0]: inputs, plan.outputs: outputs}
    channels = {plan.outputs: outputs} | ({plan.inputs[1]: inputs} if plan.groups == 1 else {})
    padding = dict(zip(plan.spatial, plan.padding, strict=True)) | {name: halos[name].padding for name in halos}
    return Division(
        x=tuple(sharded_by.get(name, name) for name in x_names),
        weight=tuple(channels.get(name, "") for name in weight_names),
        result=tuple(sharded_by.get(name, name) for name in names),
        halos=halos,
        contracted=(inputs,) if plan.groups == 1 else (),
        plan=plan._replace(groups=groups, padding=tuple(padding.values())),
    )


def _plan_halos(
    plan: Convolution, layout: AxisLayout, x: dict[str, int], weight: dict[str, int], result: dict[str, int]
) -> dict[str, Halo]:
    """Returns the halos of the spatial axes that stay sharded."""
    halos = {}
    for place, axis in enumerate(plan.spatial):
        window = plan.dilation[place] * (weight[plan.kernels[place]] - 1) + 1
        steps = window, plan.strides[place], plan.padding[place][0], plan.input_dilation[place]
        halo = plan_halo(layout.count_shards((axis,)), x[axis], result[axis], *steps)
        if halo is not None and not any(plan.wrapped[place]):
            halos[axis] = halo
    return halos


def _convolve_shards(
    x_names: Names, weight_names: Names, division: Division, layout: AxisLayout, x: Any, weight: Any
) -> tuple[Any]:
    """Convolves the shards of one device."""
    for axis, halo in division.halos.items():
        x = add_halo(x, x_names.index(axis), halo, layout, axis, 0)
    result = convolve_by_position(x_names, weight_names, division.plan, x, weight)
    contracted = layout.list_mesh_axes(division.contracted)
    return (jax.lax.psum(result, contracted) if contracted else result,)
