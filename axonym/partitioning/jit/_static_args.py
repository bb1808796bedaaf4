"""How a call of a compiled function reaches `jax.jit`: arrays as flat tuples, and everything static as one argument.

A call of `named_jit` has trees that hold arrays and anything else; `jax.jit` takes arrays and hashable static
arguments. `ArgumentPartition` depends on the tree structure and the leaf types alone and assigns each leaf to one of
three groups: donated arrays, kept arrays and static leaves. The arrays go to `jax.jit` as two flat tuples, which it
flattens fastest. The static leaves go there together with the tree structure, as a single `StaticArgs`. While JAX
traces, `StaticArgs.merge` rebuilds the trees.
"""

import operator
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import jax

from ..._jax_compat import TRACER
from ...named._cache import get_static_value, make_static_key, needs_static_key, shared_object
from ..specs._leaves import ARRAYS


_ARRAY_TYPES = (*ARRAYS, jax.Ref, TRACER)


def is_array_type(kind: type) -> bool:
    """Returns whether leaves of this type are arrays to `jax.jit`; others are static."""
    return issubclass(kind, _ARRAY_TYPES)


class ArgumentPartition:
    """Which leaves of a tree structure are donated arrays, which are kept arrays, and which are static.

    Args:
        treedef: The tree structure.
        donated: For each leaf, whether it is a donated array.
        static: For each leaf, whether it is static.
        static_types: The types of the static leaves.

    Attributes:
        kept: For each leaf, whether it is an array that is not donated.
    """

    __slots__ = (
        "__weakref__",
        "_has_numbers",
        "_last",
        "_make_static_args",
        "_only_kept",
        "donated",
        "is_donating",
        "kept",
        "static",
        "treedef",
    )

    def __init__(
        self, treedef: Any, donated: tuple[bool, ...], static: tuple[bool, ...], static_types: tuple[type, ...]
    ) -> None:
        self.treedef, self.donated, self.static = treedef, donated, static
        self.kept = tuple([not flag and not static for flag, static in zip(donated, static, strict=True)])
        self.is_donating = any(donated)
        self._has_numbers = any(map(needs_static_key, static_types))
        self._last: StaticArgs | None = None
        self._make_static_args = shared_object(lambda *keys: StaticArgs(self, keys))
        self._only_kept = self._make_static_args() if all(self.kept) else None

    def split(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], "StaticArgs"]:
        """Returns the donated arrays, the kept arrays and the static argument; TypeError if a leaf is not hashable."""
        if self._only_kept is not None:  # the most frequent case; takes 0.5 us less, of 8 us for a call with one array
            return (), tuple(leaves), self._only_kept
        donated, kept = tuple(compress(leaves, self.donated)), tuple(compress(leaves, self.kept))
        values = tuple(compress(leaves, self.static))
        if not self._has_numbers:
            return donated, kept, self._make_static_args(*values)
        last = self._last  # making keys takes 1 us for a float and 8 us for a config of ten fields; most stay the same
        if last is None or not all(map(operator.is_, values, last.values)):
            self._last = last = self._make_static_args(*map(make_static_key, values))
        return donated, kept, last


class StaticArgs:
    """The static leaves of a call and the tree structure of its arguments, as one static argument of `jax.jit`.

    A partition has one for equal values, numbers by their bits, while JAX or a compiled function holds it; both compare
    it by identity. A `__eq__` in Python would let other threads run while JAX searches its cache of compiled calls,
    which may crash (seen in jaxlib 0.10.2 and 0.12.0).
    """

    __slots__ = ("__weakref__", "partition", "values")

    def __init__(self, partition: ArgumentPartition, keys: tuple[Any, ...]) -> None:
        self.partition, self.values = partition, tuple(map(get_static_value, keys))

    def merge_leaves(
        self, donated: Iterable[Any], kept: Iterable[Any], static: Iterable[Any] | None = None
    ) -> list[Any]:
        """Returns the leaves of the arguments, with other values for the static leaves if given."""
        arrays, others = (iter(donated), iter(kept)), iter(self.values if static is None else static)
        partition = self.partition
        return [
            next(others) if is_static else next(arrays[is_kept])
            for is_kept, is_static in zip(partition.kept, partition.static, strict=True)
        ]

    def merge(self, donated: Iterable[Any], kept: Iterable[Any], static: Iterable[Any] | None = None) -> Any:
        """Returns the arguments `(args, kwargs)`; see `merge_leaves`."""
        return jax.tree.unflatten(self.partition.treedef, self.merge_leaves(donated, kept, static))
