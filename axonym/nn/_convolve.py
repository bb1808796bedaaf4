"""Convolution of plain arrays whose axes have names: the arithmetic behind `Conv` and `ConvTranspose`."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..named._axis import Names
from ._window import Pairs


class Convolution(NamedTuple):
    """A convolution along axes, in the terms of `jax.lax.conv_general_dilated`."""

    spatial: Names
    inputs: Names
    """The input channels in `x`, and in the weight."""
    outputs: str
    kernels: Names
    """The axes of the weight along the spatial axes."""
    wrapped: Pairs
    """How much is added to each spatial axis by `mode` at first."""
    mode: str
    """The mode of `jax.numpy.pad`."""
    padding: Pairs
    """How much is then padded with zeros."""
    strides: tuple[int, ...]
    input_dilation: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolve_by_position(own: Names, of_weight: Names, plan: Convolution, x: Any, weight: Any) -> Any:
    """Convolves arrays, with all axes of `x` that are neither spatial nor channels merged into one batch axis."""
    core = (*plan.spatial, plan.inputs[0])
    batch = [dim for dim, name in enumerate(own) if name not in core]
    rest = [dim for dim, name in enumerate(own) if name in core]
    if len(batch) == 1:
        return _convolve_batch(own, of_weight, plan, x, weight)
    order = (*batch, *rest)
    moved = jnp.transpose(x, order)
    sizes = moved.shape[: len(batch)]
    merged = moved.reshape((math.prod(sizes), *moved.shape[len(batch) :]))
    result = _convolve_batch(("", *(own[dim] for dim in rest)), of_weight, plan, merged, weight)
    back = sorted(range(len(order)), key=order.__getitem__)
    return jnp.transpose(result.reshape((*sizes, *result.shape[1:])), back)


def _convolve_batch(own: Names, of_weight: Names, plan: Convolution, x: Any, weight: Any) -> Any:
    """Convolves an array that has one batch axis, wherever it is."""
    (batch,) = (dim for dim, name in enumerate(own) if name not in (*plan.spatial, plan.inputs[0]))
    if any(map(any, plan.wrapped)):
        wrapped = dict(zip(plan.spatial, plan.wrapped, strict=True))
        x = jnp.pad(x, [wrapped.get(name, (0, 0)) for name in own], plan.mode)
    left = (batch, own.index(plan.inputs[0]), *map(own.index, plan.spatial))
    right = (of_weight.index(plan.outputs), of_weight.index(plan.inputs[1]), *map(of_weight.index, plan.kernels))
    return jax.lax.conv_general_dilated(
        x,
        weight,
        plan.strides,
        plan.padding,
        plan.input_dilation,
        plan.dilation,
        jax.lax.ConvDimensionNumbers(left, right, left),
        plan.groups,
    )
