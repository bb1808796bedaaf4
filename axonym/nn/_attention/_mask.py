"""`AttentionMask`, which states where queries attend to keys without an array of all pairs, and `causal_mask`.

A mask is an expression: leaves such as `AttentionMask.causal()`, combined by `&`, `|` and `~`. It is computed for a
block of queries and keys at a time, or bounded for many blocks with NumPy where its numbers are static.
"""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._ground.jax_compat import is_traced
from ...named._array import NamedArray, is_named_array
from ...named._axis import Axis, AxisSelector, axis_name, check_matching_sizes, parse_axes
from ...named._base import format_shape, with_array
from ...named._broadcasting import apply_broadcast, as_integer, widen_integers
from ...named._creation import arange, as_plain_number, make_from_indices
from ...named._shape._broadcast import broadcast_to


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
    nonzero_starts = {name: start for name, start in starts.items() if not (isinstance(start, int) and start == 0)}
    return make_from_indices(_compare_positions, parse_axes((QPos, KPos)), **nonzero_starts)


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
        q_positions: The position of each query, also of those in other blocks; None if it is its index.
        k_positions: The same for keys.
    """

    QPos: Axis | None
    KPos: Axis
    q_start: Any = 0
    k_start: Any = 0
    take: Callable[[NamedArray], NamedArray] | None = None
    q_positions: NamedArray | None = None
    k_positions: NamedArray | None = None

    def slice_array(self, x: NamedArray) -> NamedArray:
        """Returns the part of an array that belongs to the block."""
        return x if self.take is None else self.take(x)

    def query_positions(self) -> Any:
        """Returns the positions of the queries."""
        if self.q_positions is not None:
            return self.slice_array(self.q_positions)
        return self.q_start if self.QPos is None else arange(self.QPos, start=self.q_start)

    def key_positions(self) -> NamedArray:
        """Returns the positions of the keys."""
        if self.k_positions is not None:
            return self.slice_array(self.k_positions)
        return arange(self.KPos, start=self.k_start)


def check_position(value: Any) -> Any:
    """Returns an integer, a JAX scalar or a named array, which must have integers; differences of them have signs."""
    if is_named_array(value) and value.names and jnp.issubdtype(value.dtype, jnp.integer):
        return with_array(value, widen_integers(value.array))
    number = as_integer(value)
    if number is None:
        raise TypeError(f"The positions and sizes of a mask are integers, not {value!r}.")
    return number


def subtract_positions(first: Any, second: Any) -> Any:
    first, second = check_position(first), check_position(second)
    return first if isinstance(second, int) and second == 0 else combine_axes(jnp.subtract, first, second)


def add_positions(positions: Any, offset: Any) -> Any:
    return positions if isinstance(offset, int) and offset == 0 else combine_axes(jnp.add, offset, positions)


def is_within(queries: Any, keys: Any, size: Any) -> Any:
    return jnp.abs(queries - keys) < size


def combine_axes(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies an elementwise function; the result has the axes of all operands, if any is named."""
    named = [x for x in operands if is_named_array(x)]
    if not named:
        if any(isinstance(x, jax.Array) for x in operands):
            return fn(*operands)
        with jax.ensure_compile_time_eval():  # in `jit`, too, a function of Python numbers is a Python number
            return int(fn(*map(np.asarray, operands)))
    check_matching_sizes(*((x.names, x.array.shape) for x in named))
    axes = tuple({axis.name: axis for x in named for axis in x.axes}.values())
    if not any(len(x.names) == len(axes) for x in named):  # `apply_broadcast` needs one operand with all axes
        last = max(index for index, x in enumerate(operands) if is_named_array(x))
        operands = (*operands[:last], broadcast_to(operands[last], axes), *operands[last + 1 :])
    return apply_broadcast(fn, *operands)


class AttentionMask(eqx.Module):
    """States which queries attend to which keys, without an array of all pairs.

    Masks are made by `causal`, `prefix`, `sliding_window`, `segment_ids` and `explicit`, and combined by `&`, `|` and
    `~`; a named boolean array may be one of the operands. `dot_product_attention` takes them as `mask`. Its kernels get
    them as flags where they can, and the blocked implementation computes them a block at a time.

    Positions and sizes may be Python numbers, JAX scalars, or named arrays with other axes of the scores, such as one
    position for each element of the batch. Python numbers let implementations skip blocks that no query attends to. A
    mask is a pytree with these numbers as leaves, so `jax.jit` traces them if the mask is an argument; `named_jit` and
    Equinox's transformations do not.

    Example:
        >>> import axonym as nym
        >>> mask = nym.nn.AttentionMask.causal() | nym.nn.AttentionMask.prefix(2)
        >>> mask.materialize(*nym.make_axes(pos=3, key_pos=3)).array
        Array([[ True,  True, False],
               [ True,  True, False],
               [ True,  True,  True]], dtype=bool)
    """

    @staticmethod
    def causal(q_start: Any = 0, k_start: Any = 0) -> "AttentionMask":
        """Makes the mask with which a query attends to the keys at its own position and before.

        Args:
            q_start: Position of the first query.
            k_start: Position of the first key.
        """
        return _CausalMask(subtract_positions(q_start, k_start))

    @staticmethod
    def prefix(length: Any, k_start: Any = 0) -> "AttentionMask":
        """Makes the mask with which every query attends to the keys at positions below `length`.

        With a length for each element of the batch, this hides padding. Together with `causal` by `|`, it is the mask
        of a prefix language model (Raffel et al., 2020).

        Args:
            length: The number of positions, a number or a named integer array.
            k_start: Position of the first key.
        """
        return _PrefixMask(subtract_positions(length, k_start))

    @staticmethod
    def sliding_window(size: Any, q_start: Any = 0, k_start: Any = 0) -> "AttentionMask":
        """Makes the mask with which a query attends to keys fewer than `size` positions away, on both sides.

        Together with `causal` by `&`, a query attends to its own position and the `size - 1` before (Beltagy et al.,
        2020; Jiang et al., 2023).

        Args:
            size: The number of positions, at least 1.
            q_start: Position of the first query.
            k_start: Position of the first key.

        Raises:
            ValueError: If `size` is a Python number below 1.
        """
        if isinstance(size, int) and size < 1:
            raise ValueError(f"the size of a sliding window is at least 1, the position of the query, not {size}")
        return _SlidingWindowMask(check_position(size), subtract_positions(q_start, k_start))

    @staticmethod
    def segment_ids(query_ids: NamedArray, key_ids: NamedArray | None = None) -> "AttentionMask":
        """Makes the mask with which a query attends to the keys of its own segment, such as a packed document.

        Args:
            query_ids: Integer array with the axis of query positions and any other axes of the query.
            key_ids: The same for the keys; if None, `query_ids` with its axis renamed.

        Raises:
            TypeError: If the ids are not named arrays.
        """
        for ids in (query_ids, *(() if key_ids is None else (key_ids,))):
            if not is_named_array(ids):
                raise TypeError(f"The segment ids of a mask are named arrays, not {type(ids).__name__}; use `named`.")
        return _SegmentMask(query_ids, key_ids)

    @staticmethod
    def explicit(mask: NamedArray) -> "AttentionMask":
        """Makes a mask from a boolean array, to combine it with others.

        Args:
            mask: Boolean array with any axes of the scores, True where a query attends to a key.

        Raises:
            TypeError: If it is not a named array of booleans.
        """
        return _ExplicitMask(check_boolean(mask))

    def materialize(self, QPos: Axis, KPos: Axis) -> NamedArray:
        """Returns the mask as an array.

        Args:
            QPos: The axis of query positions.
            KPos: The axis of key positions.

        Returns:
            Boolean array with both axes, preceded by other axes of the arrays in the mask.

        Raises:
            ValueError: If an array in the mask lacks its axis of positions, or has one of another size.
        """
        query, key = parse_axes((QPos, KPos))
        mask = self.bind_axes(query, key).compute_block(MaskBlock(query, key))
        other_axes = [axis for axis in mask.axes if axis.name not in (query.name, key.name)]
        return broadcast_to(mask, (*other_axes, query, key))

    def bind_axes(self, QPos: AxisSelector | None, KPos: AxisSelector) -> "AttentionMask":
        """Returns the mask with the ids of keys that follow from those of queries."""
        return self

    @abc.abstractmethod
    def compute_block(self, block: MaskBlock) -> NamedArray:
        """Returns the mask for a block of queries and keys, with only the axes that it depends on."""

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        """Returns whether any query may attend to any key, and whether every query attends to every key.

        Args:
            queries: The first and the last position of the queries, two numbers or NumPy arrays.
            keys: The same for the keys.

        Returns:
            Two booleans or NumPy arrays. For a single query and key both are the mask if its numbers are static; they
            are True and False if it is not known before the program runs.
        """
        return True, False

    def is_needed(self, block: MaskBlock) -> Any:
        """Returns whether any query of a block may attend to any key: a traced boolean, True if that is not known."""
        return True

    @property
    def allows_same_index(self) -> bool:
        """Whether each query is known to attend to the key with its own index."""
        return False

    @property
    def arrays(self) -> tuple[NamedArray, ...]:
        """The named arrays in the mask."""
        return tuple(leaf for leaf in jax.tree.leaves(self, is_leaf=is_named_array) if is_named_array(leaf))

    def __and__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        """Makes the mask with which a query attends where both masks allow it."""
        return _CombinedMask("&", self, as_attention_mask(other))

    def __or__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        """Makes the mask with which a query attends where either mask allows it."""
        return _CombinedMask("|", self, as_attention_mask(other))

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> "AttentionMask":
        """Makes the mask with which a query attends where this one does not allow it."""
        return _InvertedMask(self)


class _CausalMask(AttentionMask):
    offset: Any

    @property
    def allows_same_index(self) -> bool:
        return isinstance(self.offset, int) and self.offset >= 0

    def compute_block(self, block: MaskBlock) -> NamedArray:
        has_indices = block.q_positions is None and block.k_positions is None
        if block.QPos is not None and has_indices and not is_named_array(self.offset):
            # As one array of both axes, of which each device computes its own shard.
            return causal_mask(block.QPos, block.KPos, add_positions(self.offset, block.q_start), block.k_start)
        return combine_axes(
            jnp.greater_equal, add_positions(block.query_positions(), self.offset), block.key_positions()
        )

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        if not isinstance(self.offset, int):
            return True, False
        return queries[1] + self.offset >= keys[0], queries[0] + self.offset >= keys[1]


class _PrefixMask(AttentionMask):
    length: Any

    def compute_block(self, block: MaskBlock) -> NamedArray:
        return combine_axes(jnp.greater, self.length, block.key_positions())

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        if not isinstance(self.length, int):
            return True, False
        any_query = queries[0] == queries[0]  # the shape of the result, where bounds are arrays
        return (keys[0] < self.length) & any_query, (keys[1] < self.length) & any_query


class _SlidingWindowMask(AttentionMask):
    size: Any
    offset: Any

    @property
    def allows_same_index(self) -> bool:
        return isinstance(self.size, int) and isinstance(self.offset, int) and abs(self.offset) < self.size

    def compute_block(self, block: MaskBlock) -> NamedArray:
        queries, keys = add_positions(block.query_positions(), self.offset), block.key_positions()
        return combine_axes(is_within, queries, keys, self.size)

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        if not (isinstance(self.size, int) and isinstance(self.offset, int)):
            return True, False
        smallest, largest = queries[0] + self.offset - keys[1], queries[1] + self.offset - keys[0]
        return (smallest < self.size) & (largest > -self.size), (smallest > -self.size) & (largest < self.size)


class _SegmentMask(AttentionMask):
    query_ids: NamedArray
    key_ids: NamedArray | None

    @property
    def allows_same_index(self) -> bool:
        return self.key_ids is not None and self.key_ids.array is self.query_ids.array

    def bind_axes(self, QPos: AxisSelector | None, KPos: AxisSelector) -> AttentionMask:
        query, key = None if QPos is None else axis_name(QPos), axis_name(KPos)
        if self.key_ids is None:
            if query is None or query not in self.query_ids.names:
                axis = "the axis of query positions" if query is None else f"the axis of query positions {query!r}"
                raise ValueError(f"the segment ids {format_shape(self.query_ids)} lack {axis}; give `key_ids` as well")
            return _SegmentMask(self.query_ids, self.query_ids.rename({query: key}))
        if key not in self.key_ids.names:
            raise ValueError(f"the segment ids {format_shape(self.key_ids)} of keys lack their axis {key!r}")
        return self

    def compute_block(self, block: MaskBlock) -> NamedArray:
        assert self.key_ids is not None, "`bind_axes` comes first"
        return combine_axes(jnp.equal, block.slice_array(self.query_ids), block.slice_array(self.key_ids))


class _ExplicitMask(AttentionMask):
    mask: NamedArray

    def compute_block(self, block: MaskBlock) -> NamedArray:
        return block.slice_array(self.mask)


class _CombinedMask(AttentionMask):
    operator: str = eqx.field(static=True)
    first: AttentionMask
    second: AttentionMask

    @property
    def allows_same_index(self) -> bool:
        if self.operator == "&":
            return self.first.allows_same_index and self.second.allows_same_index
        return self.first.allows_same_index or self.second.allows_same_index

    def bind_axes(self, QPos: AxisSelector | None, KPos: AxisSelector) -> AttentionMask:
        return _CombinedMask(self.operator, self.first.bind_axes(QPos, KPos), self.second.bind_axes(QPos, KPos))

    def compute_block(self, block: MaskBlock) -> NamedArray:
        combine = jnp.logical_and if self.operator == "&" else jnp.logical_or
        return combine_axes(combine, self.first.compute_block(block), self.second.compute_block(block))

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        first_any, first_every = self.first.bound_block(queries, keys)
        second_any, second_every = self.second.bound_block(queries, keys)
        if self.operator == "&":
            return first_any & second_any, first_every & second_every
        return first_any | second_any, first_every | second_every


class _InvertedMask(AttentionMask):
    mask: AttentionMask

    def bind_axes(self, QPos: AxisSelector | None, KPos: AxisSelector) -> AttentionMask:
        return _InvertedMask(self.mask.bind_axes(QPos, KPos))

    def compute_block(self, block: MaskBlock) -> NamedArray:
        return ~self.mask.compute_block(block)

    def bound_block(self, queries: tuple[Any, Any], keys: tuple[Any, Any]) -> tuple[Any, Any]:
        is_any, is_every = self.mask.bound_block(queries, keys)
        return is_every ^ True, is_any ^ True


class PlacedMask(AttentionMask):
    """A mask for queries and keys in any order: each has its position in an array, which other masks compare.

    Attributes:
        mask: The mask of positions.
        q_positions: The position of each query.
        k_positions: The position of each key.
    """

    mask: AttentionMask
    q_positions: NamedArray
    k_positions: NamedArray

    @property
    def is_known(self) -> bool:
        """Whether the positions are known when a program is traced, and those of all elements of the batch."""
        for x in (self.q_positions, self.k_positions):
            if is_traced(x.array) or not isinstance(x.array, jax.Array):
                return False
            if len(x.names) > 1 or not x.array.is_fully_addressable:
                return False
        return True

    @property
    def allows_same_index(self) -> bool:
        return self.mask.allows_same_index and self.q_positions.array is self.k_positions.array

    def bind_axes(self, QPos: AxisSelector | None, KPos: AxisSelector) -> AttentionMask:
        return PlacedMask(self.mask.bind_axes(QPos, KPos), self.q_positions, self.k_positions)

    def compute_block(self, block: MaskBlock) -> NamedArray:
        return self.mask.compute_block(
            dataclasses.replace(block, q_positions=self.q_positions, k_positions=self.k_positions)
        )

    def is_needed(self, block: MaskBlock) -> Any:
        queries, keys = block.slice_array(self.q_positions).array, block.slice_array(self.k_positions).array
        return self.mask.bound_block((queries.min(), queries.max()), (keys.min(), keys.max()))[0]


def as_attention_mask(mask: AttentionMask | NamedArray) -> AttentionMask:
    """Returns a mask as it is, and a named boolean array as an explicit mask."""
    return mask if isinstance(mask, AttentionMask) else AttentionMask.explicit(mask)


def check_boolean(mask: Any) -> NamedArray:
    """Returns a mask that is a named array of booleans; raises a TypeError for anything else."""
    if not is_named_array(mask):
        raise TypeError(f"A mask is an `AttentionMask` or a named boolean array, not {type(mask).__name__}.")
    if mask.dtype != bool:
        raise TypeError(
            f"`mask` must be boolean, not {mask.dtype}; make it so with `mask > 0`, or add numbers to the scores "
            "with `bias`."
        )
    return mask


def split_conjunction(mask: AttentionMask) -> list[AttentionMask]:
    """Returns the masks that are combined by `&`."""
    if isinstance(mask, _CombinedMask) and mask.operator == "&":
        return [*split_conjunction(mask.first), *split_conjunction(mask.second)]
    return [mask]


def combine_masks(masks: Sequence[AttentionMask]) -> AttentionMask | None:
    """Returns the masks combined by `&`, None if there are none."""
    return functools.reduce(operator.and_, masks) if masks else None


def is_static_mask(mask: AttentionMask) -> bool:
    """Returns whether all numbers of a mask are Python numbers, so that `bound_block` is exact."""
    return all(isinstance(leaf, int) for leaf in jax.tree.leaves(mask))


def get_causal_offset(mask: AttentionMask) -> int | None:
    """Returns the position of the first query from that of the first key if the mask is causal, and both are static."""
    return mask.offset if isinstance(mask, _CausalMask) and isinstance(mask.offset, int) else None


def get_window_size(mask: AttentionMask) -> int | None:
    """Returns the size of a sliding window that is static, with queries and keys that start together."""
    if not isinstance(mask, _SlidingWindowMask) or not isinstance(mask.size, int):
        return None
    return mask.size if isinstance(mask.offset, int) and mask.offset == 0 else None


def get_segment_ids(mask: AttentionMask) -> tuple[NamedArray, NamedArray] | None:
    """Returns the segment ids of queries and keys if the mask is made of them."""
    return (mask.query_ids, mask.key_ids) if isinstance(mask, _SegmentMask) and mask.key_ids is not None else None
