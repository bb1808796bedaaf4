"""The block of queries and keys for which a mask is computed, and comparisons of their positions; `causal_mask`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, parse_axes
from ..named._broadcasting import apply_broadcast, check_matching_sizes
from ..named._creation import arange, as_plain_number, make_from_indices
from ..named._shape._broadcast import broadcast_to


def causal_mask(QPos: Axis, KPos: Axis, q_start: Any = 0, k_start: Any = 0) -> NamedArray:
    """Makes the mask that lets a query attend to the keys at its own position and before.

    `AttentionMask.causal()` is the same without an array of all pairs.

    Args:
        QPos: The axis of query positions.
        KPos: The axis of key positions, which needs another name.
        q_start: Position of the first query; it may be traced.
        k_start: Position of the first key; it may be traced.

    Returns:
        Boolean array with both axes, True where a query attends to a key.

    Example:
        >>> import axonym as nym
        >>> nym.nn.causal_mask(*nym.make_axes(pos=2, key_pos=2)).array
        Array([[ True, False],
               [ True,  True]], dtype=bool)
    """
    starts = {"q_start": as_plain_number(q_start), "k_start": as_plain_number(k_start)}
    given = {name: start for name, start in starts.items() if not (isinstance(start, int) and start == 0)}
    return make_from_indices(_compare_positions, parse_axes((QPos, KPos)), **given)


def _compare_positions(sizes: tuple[int, int], positions: list[Any], q_start: Any = None, k_start: Any = None) -> Any:
    queries, keys = positions
    return (queries if q_start is None else queries + q_start) >= (keys if k_start is None else keys + k_start)


@dataclasses.dataclass(frozen=True)
class MaskBlock:
    """The queries and keys for which a mask is computed: all of them, or a block along both axes of positions.

    Attributes:
        QPos: The axis of queries, with the size of the block; None if there is a single query without an axis.
        KPos: The axis of keys, with the size of the block.
        q_start: Index of the first query.
        k_start: Index of the first key.
        take: Returns the part of an array that belongs to the block; None if the block is everything.
    """

    QPos: Axis | None
    KPos: Axis
    q_start: Any = 0
    k_start: Any = 0
    take: Callable[[NamedArray], NamedArray] | None = None

    def slice_array(self, x: NamedArray) -> NamedArray:
        """Returns the part of an array that belongs to the block."""
        return x if self.take is None else self.take(x)

    def query_positions(self) -> Any:
        """Returns the indices of the queries."""
        return self.q_start if self.QPos is None else arange(self.QPos, start=self.q_start)

    def key_positions(self) -> NamedArray:
        """Returns the indices of the keys."""
        return arange(self.KPos, start=self.k_start)


def check_position(value: Any) -> Any:
    """Returns an integer, a JAX scalar or a named array, which must have integers."""
    number = value if is_named_array(value) and value.names else as_plain_number(value)
    if not jnp.issubdtype(jnp.result_type(getattr(number, "array", number)), jnp.integer):
        raise TypeError(f"The positions and sizes of a mask are integers, not {value!r}.")
    return int(number) if isinstance(number, np.integer) else number


def subtract_positions(first: Any, second: Any) -> Any:
    first, second = check_position(first), check_position(second)
    return first if isinstance(second, int) and second == 0 else combine_axes(jnp.subtract, first, second)


def add_positions(positions: Any, offset: Any) -> Any:
    return positions if isinstance(offset, int) and offset == 0 else combine_axes(jnp.add, offset, positions)


def is_within(queries: Any, keys: Any, size: Any) -> Any:
    return jnp.abs(queries - keys) < size


def combine_axes(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies an elementwise function; the result has the axes of all operands, if any is named."""
    named = select_named(*operands)
    if not named:
        return fn(*operands) if any(isinstance(x, jax.Array) for x in operands) else int(fn(*map(np.asarray, operands)))
    check_matching_sizes(*((x.names, x.array.shape) for x in named))
    axes = tuple({axis.name: axis for x in named for axis in x.axes}.values())
    if not any(len(x.names) == len(axes) for x in named):
        at = max(i for i, x in enumerate(operands) if is_named_array(x))
        operands = (*operands[:at], broadcast_to(operands[at], axes), *operands[at + 1 :])
    return apply_broadcast(fn, *operands)


def select_named(*values: Any) -> tuple[NamedArray, ...]:
    return tuple(value for value in values if is_named_array(value))
