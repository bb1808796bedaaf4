"""The two products that are the gradient of a `dot_general`, for element types that differ from that of the result.

JAX's own gradient of a product multiplies in the element type of the result.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ._operands import Dims


def multiply_gradient(
    gradient: jax.Array, lhs: jax.Array, rhs: jax.Array, dims: Dims, precision: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of a product for its operands, in float32, from the gradient of its result."""
    (left, right), (left_batch, right_batch) = dims
    batches, own = len(left_batch), lhs.ndim - len(left)  # the gradient has `own` dimensions of the left operand first
    of_left, of_right = tuple(range(batches, own)), tuple(range(own, gradient.ndim))
    return (
        _multiply_transposed(gradient, of_right, lhs, left, left_batch, rhs, right, right_batch, precision),
        _multiply_transposed(gradient, of_left, rhs, right, right_batch, lhs, left, left_batch, precision),
    )


def _multiply_transposed(
    gradient: jax.Array,
    summed: tuple[int, ...],
    operand: jax.Array,
    contracted: tuple[int, ...],
    batch: tuple[int, ...],
    other: jax.Array,
    other_contracted: tuple[int, ...],
    other_batch: tuple[int, ...],
    precision: Any,
) -> jax.Array:
    """Returns the gradient for one operand: the product with the other one, summed over the other's own dimensions."""
    free, other_free = _find_free(operand, contracted, batch), _find_free(other, other_contracted, other_batch)
    by_other = sorted(range(len(contracted)), key=other_contracted.__getitem__)
    order = (*batch, *free, *(contracted[at] for at in by_other))  # the dimensions of the operand in the product
    product = jax.lax.dot_general(
        gradient,
        other,
        ((summed, other_free), (tuple(range(len(batch))), other_batch)),
        precision=precision,
        preferred_element_type=jnp.float32,
        out_sharding=_permute_sharding(operand, order),
    )
    return jnp.transpose(product, tuple(map(order.index, range(operand.ndim))))


def _find_free(x: jax.Array, contracted: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.ndim) if dim not in contracted and dim not in batch)


def _permute_sharding(x: jax.Array, order: tuple[int, ...]) -> NamedSharding | None:
    """Returns the sharding of an array with its dimensions in another order, None unless a mesh axis is Explicit."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*(sharding.spec[dim] for dim in order)))
