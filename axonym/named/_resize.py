"""Functions along an axis whose size they change, so that the result is not sharded along it."""

from collections.abc import Callable, Hashable
from typing import Any

import jax

from ._ambient import replicate_dims, reshard_by_name
from ._axis import Names
from ._base import N, with_array
from ._broadcasting import cached_jit


def apply_resizing(fn: Callable[..., Any], x: N, index: int, **options: Hashable) -> N:
    """Applies a positional function along the axis at a position, whose size it changes."""
    return with_array(x, cached_jit(_compute_resized, fn, x.names, index, *options.items())(x.array))


def _compute_resized(fn: Callable[..., Any], names: Names, index: int, *rest: Any) -> Any:
    *options, array = rest
    result = fn(replicate_dims(array, (index,)), axis=index, **dict(options))
    return jax.tree.map(lambda one: reshard_by_name(one, unname_axis(names, index)), result)


def unname_axis(names: Names, index: int) -> Names:
    """Returns the names with "" for an axis that must not be sharded."""
    return (*names[:index], "", *names[index + 1 :])


def reshard_like(array: Any, other: Any) -> Any:
    """Returns `other` with the sharding of `array` on an Explicit mesh."""
    spec = jax.typeof(array).sharding.spec
    return jax.reshard(other, spec) if any(spec) or any(jax.typeof(other).sharding.spec) else other
