"""Which arguments of a compiled function give up their memory: booleans by position, by name and by leaf."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np


class Donation:
    """Says of each leaf of a call whether it is donated.

    Args:
        fn: The function, whose signature tells which keyword stands for which position.
        by_position: For each positional argument a boolean, a tree of booleans or a function from a leaf to a boolean.
        by_name: The same for arguments by name.

    Raises:
        TypeError: If something else than booleans and functions is given.
        ValueError: If an argument is given that the function does not take.
    """

    def __init__(self, fn: Callable[..., Any], by_position: Any, by_name: Mapping[str, Any] | None) -> None:
        """Sorts what is given by parameter; see the class."""
        self._by_position = _positions(by_position)
        self._positional, named, takes = _parameters(fn)
        if by_name is not None and not isinstance(by_name, Mapping):
            raise TypeError(f"`donate_kwargs` goes from names to booleans, {by_name!r} does not.")
        if len(self._by_position) > len(self._positional) and inspect.Parameter.VAR_POSITIONAL not in takes:
            raise ValueError(
                f"`donate_args` has {len(self._by_position)} entries; the function takes {len(self._positional)} "
                f"arguments by position: {', '.join(self._positional)}"
            )
        self._by_name = {**dict(zip(self._positional, self._by_position, strict=False)), **(by_name or {})}
        unknown = [name for name in self._by_name if name not in named]
        if unknown and inspect.Parameter.VAR_KEYWORD not in takes:
            raise ValueError(f"`donate_kwargs` names {unknown[0]!r}; the function takes {', '.join(named)}")
        given = jax.tree.leaves((self._by_position, self._by_name))
        for flag in given:
            _check_flag(flag)
        self._none = not any(given)
        self.depends_on_leaves = any(callable(flag) for flag in given)

    def flags(self, treedef: Any, leaves: Sequence[Any]) -> tuple[bool, ...]:
        """Returns whether each leaf of `(args, kwargs)` is donated; only functions look at `leaves`."""
        flags = [False] * len(leaves)
        if self._none:
            return tuple(flags)
        args, kwargs = jax.tree.unflatten(treedef, range(len(leaves)))
        names = self._positional[len(self._by_position) :]
        specs = [*self._by_position, *(self._by_name.get(name, False) for name in names)]
        pairs = [
            *zip(specs, args, strict=False),
            *((self._by_name.get(name, False), value) for name, value in kwargs.items()),
        ]
        for spec, arg in pairs:
            try:
                jax.tree.map(lambda flag, part: _mark(flag, part, leaves, flags), spec, arg, is_leaf=_is_none)
            except ValueError as error:
                raise ValueError(f"a tree of booleans for donation does not fit its argument: {error}") from None
        return tuple(flags)


def _mark(flag: Any, part: Any, leaves: Sequence[Any], flags: list[bool]) -> None:
    for at in jax.tree.leaves(part):
        flags[at] = bool(flag(leaves[at]) if callable(flag) else flag)


def _is_none(x: Any) -> bool:
    return x is None


def _check_flag(flag: Any) -> None:
    if not callable(flag) and not isinstance(flag, bool | np.bool_):
        raise TypeError(
            f"What is donated is said by booleans, trees of booleans or functions, {flag!r} is none of them; "
            "give one for each argument, not the numbers of arguments."
        )


def _positions(by_position: Any) -> tuple[Any, ...]:
    if by_position is None:
        return ()
    several = isinstance(by_position, Sequence) and not isinstance(by_position, str)
    return tuple(by_position) if several else (by_position,)


def _parameters(fn: Callable[..., Any]) -> tuple[list[str], list[str], set[Any]]:
    """Returns the parameters of a function that can be given by position and those by name, and which kinds it has."""
    kinds = inspect.Parameter
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return [], [], {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
    of_kind = {name: one.kind for name, one in parameters.items()}
    positional = [n for n, kind in of_kind.items() if kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = [n for n, kind in of_kind.items() if kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    return positional, named, set(of_kind.values())
