"""Gathers of stored parameters in few bits: devices round their shards, and send those.

`gather_dtype` of a `Policy` asks for them. The stored parameter, the master copy, stays exact, and its gradient
is that of a gather without rounding, a straight-through estimate (Bengio et al., 2013,
https://arxiv.org/abs/1308.3432).

Elements of 8 bits have scales, as in ZeRO++ (Wang et al., 2023, https://arxiv.org/abs/2306.10209): one for each element
along the gathered axes, which the other axes share. So a device needs nothing from others to choose its scales, and
these are gathered like the parameter.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.caches import cached_plan
from ..named._reduced_types import set_reduced_axes
from ._gather import find_gathered_axes


GATHERED = "gathered"
"""The name by which checkpoint policies save what is gathered, before it is converted back."""

_SMALLEST_BLOCK = 64
"""Elements that share a scale of 32 bits, at least: with fewer, scales add more than a sixteenth to what is sent."""


class _RoundedGatherPlan(NamedTuple):
    """How a parameter is rounded and gathered.

    Attributes:
        stored: The spec of the parameter.
        target: The spec that it is gathered to.
        gathered_axes: The mesh axes over which dimensions are gathered.
        dtype: The element type in which it is sent.
    """

    stored: PartitionSpec
    target: PartitionSpec
    gathered_axes: dict[int, tuple[str, ...]]
    dtype: Any

    def gather(self, array: Any) -> tuple[Any, ...]:
        """Returns what devices send, gathered: rounded elements and, if these have 8 bits, their scales."""

        def gather_shards(shard: Any) -> tuple[Any, ...]:
            parts = (shard.astype(self.dtype),) if self.dtype.itemsize > 1 else self._scale_down(shard)
            for dim, mesh_axes in self.gathered_axes.items():
                parts = tuple(jax.lax.all_gather(part, mesh_axes, axis=dim, tiled=True) for part in parts)
            return parts

        return jax.shard_map(gather_shards, in_specs=self.stored, out_specs=self.target, check_vma=False)(array)

    def _scale_down(self, shard: Any) -> tuple[Any, Any]:
        """Returns a shard in 8 bits, and its scales."""
        is_integer = self.dtype == jnp.int8
        bound = 127 if is_integer else float(jnp.finfo(self.dtype).max)
        shared_dims = [dim for dim in range(shard.ndim) if dim not in self.gathered_axes]
        wide = shard.astype(jnp.float32)
        # NaN and infinity become the scale, so that all elements that share it are NaN.
        scale = jnp.max(jnp.abs(wide), shared_dims, keepdims=True) / bound
        scale = jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)  # of zeros
        quotient = jnp.clip(wide / scale, -bound, bound)
        return (jnp.round(quotient) if is_integer else quotient).astype(self.dtype), scale

    def widen(self, parts: tuple[Any, ...], dtype: Any) -> Any:
        """Returns what was gathered as numbers of another type."""
        if len(parts) == 1:
            return parts[0].astype(dtype)

        def scale_up(rounded: Any, scale: Any) -> Any:
            return (rounded.astype(jnp.float32) * scale).astype(dtype)

        # Each device has scales of its own for its part of an axis that stays sharded.
        return jax.shard_map(scale_up, in_specs=self.target, out_specs=self.target, check_vma=False)(*parts)


def gather_rounded(
    array: Any,
    stored: NamedSharding,
    computing: NamedSharding,
    dtype: Any,
    batch_axes: frozenset[str],
    gather_exact: Callable[[Any], Any],
) -> Any:
    """Returns a parameter that is gathered in few bits, or as it is where that does not send less.

    Args:
        array: The parameter.
        stored: Its sharding.
        computing: The sharding that it is gathered to.
        dtype: The element type in which it is sent.
        batch_axes: The mesh axes over which the result is `reduced`.
        gather_exact: The gather without rounding, whose result has the same type. It is differentiated instead.
    """
    plan = _plan_rounded_gather(array.shape, array.dtype, stored, computing, dtype)
    if plan is None:
        return gather_exact(array)
    parts = plan.gather(set_reduced_axes(jax.lax.stop_gradient(array), ()))

    @jax.custom_jvp
    def widen(array: Any, *parts: Any) -> Any:
        widened = plan.widen(parts, array.dtype)
        return set_reduced_axes(widened, batch_axes) if batch_axes else widened

    @widen.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return widen(*primals), gather_exact(tangents[0])

    return widen(array, *[checkpoint_name(part, GATHERED) for part in parts])


@cached_plan
def _plan_rounded_gather(
    shape: tuple[int, ...], array_dtype: Any, stored: NamedSharding, computing: NamedSharding, dtype: Any
) -> _RoundedGatherPlan | None:
    """Returns how a parameter is gathered in few bits, None if it is gathered as it is."""
    gathered_axes = find_gathered_axes(stored.spec, computing.spec)
    is_manual = AxisType.Manual in computing.mesh.axis_types
    is_rounded = jnp.issubdtype(array_dtype, jnp.floating) and dtype.itemsize < array_dtype.itemsize
    if not gathered_axes or is_manual or not is_rounded:
        return None
    block_shape = computing.shard_shape(shape)
    block_size = prod(size for dim, size in enumerate(block_shape) if dim not in gathered_axes)
    if dtype.itemsize == 1 and block_size < _SMALLEST_BLOCK:
        return None
    return _RoundedGatherPlan(PartitionSpec(*stored.spec.partitions), computing.spec, gathered_axes, dtype)
