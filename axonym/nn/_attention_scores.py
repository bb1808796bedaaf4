"""Changes to the scores and weights of attention besides the softmax: the soft cap, sinks and dropout."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import random
from ..named._ambient import constrain_sharding, reshard_named
from ..named._array import NamedArray
from ..named._axis import Axis
from ..named._broadcasting import cached_jit
from ..named._elementwise._arithmetic import where
from ..named._elementwise._functions import tanh
from ..named._shape._rearrange import rearrange
from ..named._transforms import vmap
from ._activations import sigmoid
from ._inputs import cast_array


def find_lowest(scores: NamedArray) -> Any:
    """Returns the score of keys that a mask hides. It is finite, so a query without keys averages all of them."""
    return jnp.finfo(scores.dtype).min


def hide_scores(scores: NamedArray, mask: NamedArray) -> NamedArray:
    """Returns scores of which those that a mask hides are the lowest, with the axes in the same order."""
    if len(mask.names) == len(scores.names) and {*mask.names} == {*scores.names}:
        mask = rearrange(mask, scores.names)
    return where(mask, scores, find_lowest(scores))


def cap_scores(scores: NamedArray, soft_cap: float) -> NamedArray:
    """Returns scores that stay below a cap in absolute value."""
    return tanh(scores / soft_cap) * soft_cap


def apply_sinks(averages: NamedArray, log_sums: NamedArray, sinks: NamedArray) -> NamedArray:
    """Returns averages of which each sink takes a part, as a key with this score and a value of zero would.

    Args:
        averages: What attention returns without sinks.
        log_sums: The logarithm of the sum of the exponentials of the scores of each query.
        sinks: The scores of the sinks.
    """
    return averages * cast_array(sigmoid(log_sums - cast_array(sinks, log_sums.dtype)), averages.dtype)


def draw_kept(
    key: Any, rate: float, axes: tuple[Axis, ...], positions: tuple[Axis, ...], starts: tuple[Any, ...]
) -> NamedArray:
    """Draws the weights that dropout keeps, a boolean array with these axes.

    Each query and key position has a random key of its own, so that blocks of positions draw the same as all at once.

    Args:
        key: A random key.
        rate: Probability with which a weight is dropped.
        axes: The axes of the weights.
        positions: Those among them that are axes of positions.
        starts: Index of the first position along each of these.
    """
    names = [axis.name for axis in positions]
    rest = tuple(axis for axis in axes if axis.name not in names)
    return rearrange(
        cached_jit(_draw_by_position, 1 - rate, rest, positions)(key, *starts), tuple(axis.name for axis in axes)
    )


def _draw_by_position(
    probability: float, rest: tuple[Axis, ...], positions: tuple[Axis, ...], key: Any, *starts: Any
) -> NamedArray:
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    keys = _fold_in_positions(
        typed, [start + jnp.arange(axis.size) for axis, start in zip(positions, starts, strict=True)]
    )
    draw = vmap(lambda one: random.bernoulli(one, rest, probability), positions)
    return constrain_sharding(reshard_named(draw(NamedArray(keys, positions))))


def _fold_in_positions(key: Any, positions: list[Any]) -> Any:
    """Returns a random key for each combination of positions, as an array with one axis for each list of them."""
    if not positions:
        return key
    return jax.vmap(lambda at: _fold_in_positions(jax.random.fold_in(key, at), positions[1:]))(positions[0])
