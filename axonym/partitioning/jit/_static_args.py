"""How a call of a compiled function is passed to `jax.jit`: which leaves are arrays, and what is static.

Arguments that hold arrays only go in whole, as they are. Of others the leaves that are arrays go in as flat tuples,
donated and kept apart, and all the rest is one static token. Results with leaves that are no arrays come out as a node
whose structure carries them.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
from jax.tree_util import keystr

from ..specs._leaves import ARRAYS, Leaf


_DYNAMIC = (*ARRAYS, jax.Ref)

WHOLE: Any = object()
"""Stands for the token where arguments are passed whole, with nothing in them that is static."""


class PerhapsStatic(Exception):
    """What is traced may be static, a Python number for one, and must not be passed as an array."""


class Plan:
    """How the leaves of one tree structure are passed: which are donated, kept and static.

    Args:
        treedef: The structure.
        leaves: Leaves of it; what matters is which of them are arrays.
        donate: Whether each leaf is donated, if it is an array.
        described: The names and places of the leaves; None if they are not sharded on entry.

    Attributes:
        in_place: The mesh, and the shapes and shardings of leaves that were on it where they have to be; None at first.
    """

    __slots__ = (
        "_alone",
        "_donated",
        "_kept",
        "_static",
        "_whole",
        "described",
        "in_place",
        "key",
        "token",
        "treedef",
        "where",
    )

    def __init__(
        self, treedef: Any, leaves: Sequence[Any], donate: Sequence[bool], described: list[Leaf] | None = None
    ) -> None:
        """Sorts the leaves; see the class."""
        arrays = [isinstance(leaf, _DYNAMIC) for leaf in leaves]
        donated = tuple(at for at, array in enumerate(arrays) if array and donate[at])
        kept = tuple(at for at, array in enumerate(arrays) if array and not donate[at])
        static = tuple(at for at, array in enumerate(arrays) if not array)
        self.treedef, self.described = treedef, described
        self.in_place: tuple[Any, list[Any], list[Any]] | None = None
        self.where = donated, kept, static
        self.key = (treedef, donated, static, tuple(type(leaves[at]) for at in static))
        self._donated, self._kept, self._static = (_picker(positions, len(leaves)) for positions in self.where)
        self.token: Callable[[tuple[Any, ...]], StaticArgs] = functools.lru_cache(4096)(
            functools.partial(StaticArgs, self)
        )
        self._alone = StaticArgs(self, ()) if len(kept) == len(leaves) else None
        self._whole = self._alone is not None and described is None

    def passed(self, leaves: Sequence[Any], call: Any) -> tuple[tuple[Any, Any, Any], "StaticArgs"]:
        """Returns what `jax.jit` gets, the donated arrays, the kept ones and what is static, and the token for that.

        Args:
            leaves: The leaves of a call.
            call: The arguments that they are the leaves of.

        Raises:
            TypeError: If a static leaf cannot be hashed.
        """
        if self._alone is None:
            token = self.token(self._static(leaves))
            return (self._donated(leaves), self._kept(leaves), token), token
        if self._whole and not any(map(_perhaps_number, [leaf for leaf in leaves if not leaf.shape])):
            return ((), call, WHOLE), self._alone
        return ((), tuple(leaves), self._alone), self._alone


def _picker(positions: tuple[int, ...], count: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a fast function that picks some of `count` values, in order."""
    if len(positions) == count:
        return tuple
    if len(positions) < 2:
        return lambda values: tuple([values[at] for at in positions])
    return itemgetter(*positions)


class StaticArgs:
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
        return self is other or (isinstance(other, StaticArgs) and self._key == other._key)

    def joined(self, donated: Sequence[Any], kept: Sequence[Any], static: Sequence[Any] | None = None) -> Any:
        """Returns the arguments put together again, with something else in place of what is static if given."""
        parts = zip(self.plan.where, (donated, kept, self.values if static is None else static), strict=True)
        leaves = {at: leaf for where, values in parts for at, leaf in zip(where, values, strict=True)}
        return jax.tree.unflatten(self.plan.treedef, [leaves[at] for at in range(len(leaves))])


def token_of_whole(call: Any, jitted: Any) -> tuple[tuple[Any, ...], StaticArgs]:
    """Returns the leaves of arguments that were passed whole, and the token that says the same.

    Args:
        call: The arguments as they are traced.
        jitted: The function that was called with them.

    Raises:
        PerhapsStatic: If one of them is static, or may have been a Python number.
    """
    leaves, treedef = jax.tree.flatten(call)
    if any(map(_perhaps_number, leaves)) or not all_arrays(_given(jitted)):
        raise PerhapsStatic
    return tuple(leaves), StaticArgs(Plan(treedef, leaves, [False] * len(leaves)), ())


def _given(jitted: Any) -> Any:
    """Returns what a function that is being traced was called with; None if it was not called, but staged.

    JAX takes all that has a `dtype` for an array until the program runs, a configuration for one, and shows tracers
    only, so this looks in the frame of the call: to pass it along would cost every call, this only those that trace.
    """
    frame, code = sys._getframe(), type(jitted).__call__.__code__
    while frame is not None:
        if frame.f_code is code and (found := frame.f_locals)["self"] is jitted:
            return found["args"], found["kwargs"]
        frame = frame.f_back
    return None


def _perhaps_number(leaf: Any) -> bool:
    """Tells whether a leaf has the type that `jax.jit` gives to a Python number, or is one."""
    if not isinstance(leaf, ARRAYS):
        return not isinstance(leaf, jax.Ref)
    return not leaf.shape and (leaf.dtype == bool or getattr(leaf, "weak_type", False))


def all_arrays(call: Any) -> bool:
    """Tells whether nothing among the leaves of a call is static."""
    return all(isinstance(leaf, _DYNAMIC) for leaf in jax.tree.leaves(call))


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
