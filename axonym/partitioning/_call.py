"""How a call of a compiled function is passed to `jax.jit`: which leaves are arrays, and what is static.

The leaves that are arrays go in as flat tuples, donated and kept apart; all the rest is one static token. Results with
leaves that are no arrays come out as a node whose structure carries them.
"""

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
from jax.tree_util import keystr

from ._leaves import ARRAYS, Leaf


_DYNAMIC = (*ARRAYS, jax.Ref)


class Plan:
    """How the leaves of one tree structure are passed: which are donated, kept and static.

    Args:
        treedef: The structure.
        leaves: Leaves of it; what matters is which of them are arrays.
        donate: Whether each leaf is donated, if it is an array.
        described: The names and places of the leaves; empty if they are not sharded on entry.
    """

    __slots__ = ("_alone", "_donated", "_kept", "_static", "described", "key", "token", "treedef", "where")

    def __init__(self, treedef: Any, leaves: Sequence[Any], donate: Sequence[bool], described: list[Leaf]) -> None:
        """Sorts the leaves; see the class."""
        arrays = [isinstance(leaf, _DYNAMIC) for leaf in leaves]
        donated = tuple(at for at, array in enumerate(arrays) if array and donate[at])
        kept = tuple(at for at, array in enumerate(arrays) if array and not donate[at])
        static = tuple(at for at, array in enumerate(arrays) if not array)
        self.treedef, self.described = treedef, described
        self.where = donated, kept, static
        self.key = (treedef, donated, static, tuple(type(leaves[at]) for at in static))
        self._donated, self._kept, self._static = (_picker(positions, len(leaves)) for positions in self.where)
        self.token: Callable[[tuple[Any, ...]], Token] = functools.lru_cache(4096)(functools.partial(Token, self))
        self._alone = Token(self, ()) if len(kept) == len(leaves) else None  # what nearly all calls need

    def passed(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], "Token"]:
        """Returns the donated arrays, the kept ones, and the token for the rest.

        Raises:
            TypeError: If a static leaf cannot be hashed.
        """
        if self._alone is not None:
            return (), tuple(leaves), self._alone
        return self._donated(leaves), self._kept(leaves), self.token(self._static(leaves))


def _picker(positions: tuple[int, ...], count: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a fast function that picks some of `count` values, in order."""
    if len(positions) == count:
        return tuple
    if len(positions) < 2:
        return lambda values: tuple([values[at] for at in positions])
    return itemgetter(*positions)


class Token:
    """What is static about a call: the plan and the values of the static leaves. Hashed once, compared by content."""

    __slots__ = ("_hash", "_key", "plan", "values")

    def __init__(self, plan: Plan, values: tuple[Any, ...]) -> None:
        """Hashes the values of the static leaves.

        Raises:
            TypeError: If one of them cannot be hashed.
        """
        self.plan, self.values = plan, values
        self._key = (plan.key, values)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        """Returns the hash of what is static."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Compares what is static."""
        return self is other or (isinstance(other, Token) and self._key == other._key)

    def joined(self, donated: Sequence[Any], kept: Sequence[Any], static: Sequence[Any] | None = None) -> Any:
        """Returns the arguments put together again, with something else in place of what is static if given."""
        parts = zip(self.plan.where, (donated, kept, self.values if static is None else static), strict=True)
        leaves = {at: leaf for where, values in parts for at, leaf in zip(where, values, strict=True)}
        return jax.tree.unflatten(self.plan.treedef, [leaves[at] for at in range(len(leaves))])


class _Rest:
    """What a traced function returned besides arrays, compared by identity."""

    __slots__ = ("leaves", "treedef")

    def __init__(self, treedef: Any, leaves: list[Any]) -> None:
        self.treedef, self.leaves = treedef, leaves


@jax.tree_util.register_pytree_node_class
class Mixed:
    """A result with leaves that are no arrays: its arrays, and the rest as part of the structure."""

    __slots__ = ("arrays", "rest")

    def __init__(self, arrays: tuple[Any, ...], rest: _Rest) -> None:
        """Keeps both."""
        self.arrays, self.rest = arrays, rest

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Rest]:
        """Returns the arrays and the rest."""
        return self.arrays, self.rest

    @classmethod
    def tree_unflatten(cls, rest: _Rest, arrays: tuple[Any, ...]) -> "Mixed":
        """Puts arrays and rest together."""
        return cls(tuple(arrays), rest)


def packed(result: Any) -> Any:
    """Returns a result that `jax.jit` can return: as it is if it holds arrays only, `Mixed` otherwise."""
    leaves, treedef = jax.tree.flatten(result)
    arrays = tuple(leaf for leaf in leaves if _is_value(leaf))
    if len(arrays) == len(leaves):
        return result
    return Mixed(arrays, _Rest(treedef, [Mixed if _is_value(leaf) else leaf for leaf in leaves]))


def unpacked(result: Any) -> Any:
    """Returns a result as the function returned it, whether `packed` had to change it or not."""
    if type(result) is not Mixed:
        return result
    supply = iter(result.arrays)
    leaves = [next(supply) if leaf is Mixed else leaf for leaf in result.rest.leaves]
    return jax.tree.unflatten(result.rest.treedef, leaves)


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, ARRAYS) and not isinstance(leaf, jax.ShapeDtypeStruct)


def unhashable(described: Sequence[Leaf], leaves: Sequence[Any], error: TypeError) -> TypeError:
    """Returns the error for the static leaf that cannot be hashed, or the one given if there is none."""
    for about, leaf in zip(described, leaves, strict=True):
        try:
            hash(leaf)
        except TypeError:
            if not isinstance(leaf, ARRAYS):
                return TypeError(
                    f"{keystr(about.path)} is no array, so it is static, but a {type(leaf).__name__} cannot be hashed; "
                    "pass an array or something that can be hashed"
                )
    return error
