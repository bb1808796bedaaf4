"""The operands of a quantised dot: floating-point arrays of one element type, and hashable dimension numbers."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


Dims = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
"""The contracted dimensions of both operands, and their batch dimensions."""

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def prepare_operands(name: str, lhs: Any, rhs: Any, numbers: DimensionNumbers) -> tuple[jax.Array, jax.Array, Dims]:
    """Returns the operands of a dot in their common element type, and its dimension numbers as tuples.

    Raises:
        TypeError: If an operand is not an array of floating-point numbers.
    """
    for x in (lhs, rhs):
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            raise TypeError(
                f"`{name}` multiplies floating-point arrays, not {jnp.result_type(lhs)} and {jnp.result_type(rhs)}; "
                "convert both with `astype` first."
            )
    common = jnp.result_type(lhs, rhs)
    (left, right), (left_batch, right_batch) = numbers
    dims = (tuple(left), tuple(right)), (tuple(left_batch), tuple(right_batch))
    return jnp.asarray(lhs, common), jnp.asarray(rhs, common), dims
