"""The keys and values of earlier positions, kept for decoding."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..._ground.arguments import check_dtype, check_flag
from ..._ground.jax_compat import is_traced
from ...named._array import NamedArray
from ...named._axis import Axis, AxisSelector, AxisSpec, parse_axes, parse_one_axis
from ...named._axis_layout import round_up
from ...named._base import format_shape
from ...named._creation import arange, zeros
from ...named._elementwise._arithmetic import clip, maximum, minimum, where
from ...named._index import take
from ...named._named_call import named_call
from ...named._shape._broadcast import broadcast_axis, rename
from ...named._shape._slice import pad, updated_slice
from ...named._sharding import constrain_sharding
from .._layer import Layer, cast_array, check_input, widen_array
from .._map_shards import count_devices, find_mesh_axes


class KVCache(Layer):
    """The keys and values of earlier positions, so that decoding computes those of new positions alone.

    A cache has a fixed size, so that all steps run the same compiled program. Its arrays may have a layer axis as well,
    which `Stacked` slices as it does that of the parameters. In each layer, `extend` gives the keys and values that
    queries attend to. After the last layer, `update` stores the new ones of all layers at once, in place if the cache
    is donated.

    Prompts of different lengths are padded at their front: `padding` has their numbers of padded positions. These are
    masked, and positions count from the first one that is not padded.

    Attributes:
        key: Array with the axis of key positions and those given to `init`.
        value: Array with the same axes.
        length: Number of positions stored so far, padded ones included; an integer without axes.
        padding: Number of positions that are padded at the front of each sequence, or None.
        KPos: The axis of key positions.
        sliding_window: Whether only the newest `KPos.size` positions are kept, as a ring.
    """

    key: NamedArray
    value: NamedArray
    length: NamedArray
    padding: NamedArray | None
    KPos: Axis = eqx.field(static=True)
    sliding_window: bool = eqx.field(static=True)

    @staticmethod
    def init(
        KPos: Axis,
        axes: AxisSpec,
        dtype: Any = None,
        *,
        padding: NamedArray | None = None,
        sliding_window: bool = False,
    ) -> "KVCache":
        """Makes an empty cache.

        Args:
            KPos: The axis of key positions. Its size is the largest number of positions or, with `sliding_window`, the
                number of positions that a query attends to, its own included.
            axes: The other axes of keys and values, such as layers, batch, heads and the size of a head. The last one
                comes after `KPos` in memory and the others before it, the fastest order for products over the last one.
            dtype: dtype of keys and values; JAX's default float if None. With one of fewer bits, such as
                `float8_e4m3fn`, keys and values are rounded, and clipped if it has no infinity, here to 448 and -448;
                `dot_product_attention` returns that of the query.
            padding: Integer array with batch axes, the number of padded positions at the front of each sequence.
            sliding_window: Whether to keep only the newest positions, as a ring.

        Returns:
            A cache sharded by the active mapping.

        Raises:
            TypeError: If `KPos` has no size, `padding` is not a named array of integers, or `sliding_window` is not a
                boolean: the size of the window is that of `KPos`.
            ValueError: If `axes` has `KPos`, `padding` has an axis that is not in `axes`, or `dtype` is not a float.

        Example:
            >>> import axonym as nym
            >>> Batch, Pos, KPos, Heads, HeadDim = nym.make_axes(batch=2, pos=3, key_pos=8, heads=4, head_dim=5)
            >>> cache = nym.nn.KVCache.init(KPos, (Batch, Heads, HeadDim))
            >>> key = value = query = nym.ones((Batch, Pos, Heads, HeadDim))
            >>> keys, values, mask = cache.extend(key, value, Pos)
            >>> nym.nn.dot_product_attention(KPos, HeadDim, query, keys, values, mask).shape
            (batch: 2, heads: 4, pos: 3, head_dim: 5)
            >>> cache.update(key, value, Pos).length.item()
            3
        """
        KPos, other_axes = parse_one_axis(KPos), parse_axes(axes)
        check_flag("KVCache: `sliding_window`", sliding_window)
        check_dtype(dtype, "KVCache: `dtype`")
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"KVCache: `dtype` must be a float, which keys and values are, not {jnp.dtype(dtype)}")
        other_names = [axis.name for axis in other_axes]
        if KPos.name in other_names:
            raise ValueError(f"KVCache: `axes` has axis {KPos.name!r}, which is given as `KPos`; leave it out")
        if padding is not None:
            check_input("KVCache (padding)", padding, ())
            if not jnp.issubdtype(padding.dtype, jnp.integer):
                raise TypeError(f"KVCache: `padding` is a number of positions, an integer, not {padding.dtype}.")
            for name in padding.names:
                if name not in other_names:
                    raise ValueError(
                        f"KVCache: `padding` {format_shape(padding)} has axis {name!r}, which keys and values lack; "
                        "add it to `axes`"
                    )
        array_axes = (*other_axes[:-1], KPos, *other_axes[-1:])
        return KVCache(
            zeros(array_axes, dtype), zeros(array_axes, dtype), zeros((), int), padding, KPos, sliding_window
        )

    def positions(self, Pos: Axis) -> NamedArray:
        """Returns the positions that come next, for rotary or learned embeddings; padded ones are negative.

        Args:
            Pos: The axis of new positions.

        Returns:
            Integer array with `Pos`, after the axes of `padding` if there is padding.
        """
        indices = self.length + arange(Pos)
        return indices if self.padding is None else broadcast_axis(indices, self.padding.axes) - self.padding

    @named_call
    def extend(
        self, key: NamedArray, value: NamedArray, Pos: AxisSelector
    ) -> tuple[NamedArray, NamedArray, NamedArray]:
        """Returns the keys and values that queries at new positions attend to, and the mask; stores nothing.

        Args:
            key: Keys of the new positions, with `Pos` and the axes of the cache.
            value: Their values, with the same axes.
            Pos: The axis of new positions.

        Returns:
            Keys and values with the axis of key positions, and a boolean mask with `Pos`, the axis of key positions and
            the axes of `padding`. The axis of key positions has the size of the cache, except that several positions
            given to a sliding window are appended to it, and masked ones until its mesh axes divide the size.

        Raises:
            ValueError: If axes are missing, or there are more positions than the cache has room for.
        """
        NewPos = self._check_inputs(key, value, Pos)
        if self._is_written_at_once(NewPos):
            write = self._select_place if NewPos.size == 1 else self._write_slice
            indices = self._list_indices(self.length + NewPos.size, arange(self.KPos))
        else:
            write = self._append
            places = arange(self._extend_axis(NewPos))
            new_place = places - self.KPos.size
            new_indices = where(new_place < NewPos.size, self.length + new_place, -1)
            indices = where(new_place < 0, self._list_indices(self.length, places), new_indices)
        return write(self.key, key, NewPos), write(self.value, value, NewPos), self._make_mask(indices, NewPos)

    @named_call
    def update(self, key: NamedArray, value: NamedArray, Pos: AxisSelector) -> "KVCache":
        """Stores the keys and values of new positions.

        Args:
            key: Keys of the new positions, with `Pos` and the axes of the cache.
            value: Their values, with the same axes.
            Pos: The axis of new positions.

        Returns:
            A cache with the same axes and dtype. Within a compiled function, positions past the end of a cache without
            a sliding window overwrite its last ones; choose `KPos` large enough.

        Raises:
            ValueError: If axes are missing, or there are more positions than the cache has room for.
        """
        NewPos = self._check_inputs(key, value, Pos)
        write = self._write_slice if self._is_written_at_once(NewPos) else self._write_ring
        return KVCache(
            write(self.key, key, NewPos),
            write(self.value, value, NewPos),
            self.length + NewPos.size,
            self.padding,
            self.KPos,
            self.sliding_window,
        )

    def _check_inputs(self, key: NamedArray, value: NamedArray, Pos: AxisSelector) -> Axis:
        """Returns the axis of new positions."""
        for name, x, stored in (("key", key, self.key), ("value", value, self.value)):
            other_axes = [axis for axis in stored.axes if axis.name != self.KPos.name]
            check_input(f"KVCache ({name})", x, (Pos, *other_axes), (self.KPos.name,))
        NewPos = key.resolve_axis(Pos)
        # The length of a traced cache is not known, so it is only certain that the new positions have to fit.
        stored_count = 0 if is_traced(self.length.array) else self.length.item()
        if not self.sliding_window and stored_count + NewPos.size > self.KPos.size:
            raise ValueError(
                f"KVCache: axis {self.KPos.name!r} has size {self.KPos.size}, which {stored_count} stored positions "
                f"and {NewPos.size} new ones exceed; make it larger or give `sliding_window=True`"
            )
        return NewPos

    def _is_written_at_once(self, NewPos: Axis) -> bool:
        """Returns whether new positions are contiguous in the cache and overwrite none that their queries attend to."""
        return NewPos.size == 1 or not self.sliding_window

    def _extend_axis(self, NewPos: Axis) -> Axis:
        """Returns the axis of key positions with room for new ones, of a size that its mesh axes divide."""
        parts = count_devices(find_mesh_axes(self.KPos))
        return self.KPos.resize(round_up(self.KPos.size + NewPos.size, parts))

    def _list_indices(self, length: NamedArray, places: NamedArray) -> NamedArray:
        """Returns the index of the position that places have after `length` positions; it is negative if empty."""
        # Position `p` is in place `p % size`, so each place has the latest position with that remainder.
        last = length - 1
        return last - (last - places) % self.KPos.size

    def _make_mask(self, indices: NamedArray, NewPos: Axis) -> NamedArray:
        queries = broadcast_axis(self.length + arange(NewPos), indices.axes)
        mask = (indices <= queries) & (indices >= 0)
        if self.sliding_window:
            mask = mask & (indices > queries - self.KPos.size)
        if self.padding is None:
            return mask
        is_token = broadcast_axis(indices, self.padding.axes) >= self.padding
        return broadcast_axis(mask, self.padding.axes) & broadcast_axis(is_token, NewPos)

    def _find_start(self, NewPos: Axis) -> NamedArray:
        """Returns the first place of new positions that are contiguous in the cache."""
        return (
            self.length % self.KPos.size if self.sliding_window else minimum(self.length, self.KPos.size - NewPos.size)
        )

    def _write_slice(self, old: NamedArray, x: NamedArray, NewPos: Axis) -> NamedArray:
        return self._write_at(self._find_start(NewPos), old, x, NewPos)

    def _write_at(self, start: Any, old: NamedArray, x: NamedArray, NewPos: Axis) -> NamedArray:
        update = _saturate(rename(x, {NewPos: self.KPos.name}), old.dtype)
        return constrain_sharding(updated_slice(old, {self.KPos.name: start}, update))

    def _select_place(self, old: NamedArray, x: NamedArray, NewPos: Axis) -> NamedArray:
        """Returns what `_write_slice` does for a single position.

        On TPUs, XLA fuses a selection with the products that read it, but writes a copy for an updated slice.
        """
        is_new = arange(self.KPos) == self._find_start(NewPos)
        return constrain_sharding(where(is_new, _saturate(x[NewPos, 0], old.dtype), old))

    def _append(self, old: NamedArray, x: NamedArray, NewPos: Axis) -> NamedArray:
        room = pad(old, {self.KPos.name: (0, self._extend_axis(NewPos).size - self.KPos.size)})
        return self._write_at(self.KPos.size, room, x, NewPos)

    def _write_ring(self, old: NamedArray, x: NamedArray, NewPos: Axis) -> NamedArray:
        """Returns a ring in which each place has the newest position that belongs there."""
        last = self.length + NewPos.size - 1
        new_index = NewPos.size - 1 - (last - arange(self.KPos)) % self.KPos.size  # negative where nothing new belongs
        update = _saturate(take(x, NewPos, maximum(new_index, 0)), old.dtype)
        return constrain_sharding(where(new_index >= 0, update, old).rearrange(old.names))


def _saturate(x: NamedArray, dtype: Any) -> NamedArray:
    """Returns an array of a dtype; if that has no infinity, numbers out of its range are its largest, not NaN."""
    if x.dtype != dtype and np.isnan(np.asarray(np.inf, dtype)):
        x = clip(widen_array(x), float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max))
    return cast_array(x, dtype)
