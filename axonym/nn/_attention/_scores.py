"""What attention, at once and in blocks, does to its scores: masks, soft caps, sinks and dropout."""

from typing import Any

import jax
import jax.numpy as jnp

from ... import random
from ..._ground.caches import cached_jit
from ...named._array import NamedArray
from ...named._axis import Axis
from ...named._elementwise._arithmetic import where
from ...named._elementwise._functions import tanh
from ...named._shape._rearrange import rearrange
from ...named._sharding import constrain_sharding, reshard_named
from ...named._transforms import vmap
from .._activations import sigmoid
from .._layer import cast_array


HIDDEN_BIAS = float(jnp.finfo(jnp.bfloat16).min)
"""A bias up to this one hides a key: minus infinity, and the lowest numbers of bfloat16, float32 and float64."""


def get_masked_score(scores: NamedArray) -> Any:
    """Returns the score of masked keys: finite, so that a query whose keys are all masked has finite gradients."""
    return jnp.finfo(scores.dtype).min


def mask_scores(scores: NamedArray, mask: NamedArray) -> NamedArray:
    """Sets masked scores to the dtype's minimum."""
    return fill_masked(scores, mask, get_masked_score(scores))


def fill_masked(x: NamedArray, mask: NamedArray, value: Any) -> NamedArray:
    """Returns an array, in the order of its axes, with a value where the mask is False."""
    # A mask with all axes of the array is put into their order, or `where` would return that of the mask.
    if len(mask.names) == len(x.names) and {*mask.names} == {*x.names}:
        mask = rearrange(mask, x.names)
    return where(mask, x, value)


def cap_scores(scores: NamedArray, soft_cap: float) -> NamedArray:
    """Limits the absolute value of scores smoothly."""
    return tanh(scores / soft_cap) * soft_cap


def apply_sinks(averages: NamedArray, log_sums: NamedArray, sinks: NamedArray) -> NamedArray:
    """Scales averages as if each sink were one more key, with the score of the sink and a value of zero.

    Args:
        averages: The result of attention without sinks.
        log_sums: The log-sum-exp of the scores of each query.
        sinks: The scores of the sinks.
    """
    return averages * cast_array(sigmoid(log_sums - cast_array(sinks, log_sums.dtype)), averages.dtype)


def draw_dropout_mask(
    key: Any, rate: float, axes: tuple[Axis, ...], positions: tuple[Axis, ...], starts: tuple[Any, ...]
) -> NamedArray:
    """Draws a boolean array with these axes, False for weights that are dropped.

    Each pair of a query and a key position has its own random key, so that blocks of positions draw the same as all
    positions at once.

    Args:
        key: A random key.
        rate: Probability with which a weight is dropped.
        axes: The axes of the weights.
        positions: Those among them that are axes of positions.
        starts: Index of the first position along each of these.
    """
    position_names = [axis.name for axis in positions]
    other_axes = tuple(axis for axis in axes if axis.name not in position_names)
    mask = cached_jit(_draw_by_position, 1 - rate, other_axes, positions)(key, *starts)
    return rearrange(mask, tuple(axis.name for axis in axes))


def _draw_by_position(
    probability: float, other_axes: tuple[Axis, ...], positions: tuple[Axis, ...], key: Any, *starts: Any
) -> NamedArray:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    indices = [start + jnp.arange(axis.size) for axis, start in zip(positions, starts, strict=True)]
    keys = NamedArray(_fold_in_positions(key, indices), positions)
    draw = vmap(lambda key: random.bernoulli(key, other_axes, probability), positions)
    return constrain_sharding(reshard_named(draw(keys)))


def _fold_in_positions(key: Any, indices: list[Any]) -> Any:
    """Returns a random key for each combination of positions, with one axis for each list of them."""
    if not indices:
        return key
    return jax.vmap(lambda index: _fold_in_positions(jax.random.fold_in(key, index), indices[1:]))(indices[0])
