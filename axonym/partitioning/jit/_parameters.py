"""The parameters of a function: which argument is called what, and the paths of the leaves of a call.

Arguments are named as in the function's signature, `state.weight` and not `args[0].weight`, however they are passed.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..specs._leaves import Leaf, describe_leaves


class Parameters:
    """The parameters of a function, which may have no signature, as some builtins."""

    __slots__ = ("_rest", "any_keyword", "any_position", "by_keyword", "named", "positional")

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Reads the signature."""
        kinds = inspect.Parameter
        try:
            kind_of = {name: one.kind for name, one in inspect.signature(fn).parameters.items()}
        except (TypeError, ValueError):
            kind_of = {"args": kinds.VAR_POSITIONAL, "kwargs": kinds.VAR_KEYWORD}
        self.positional = [
            n for n, kind in kind_of.items() if kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        self.named = [n for n, kind in kind_of.items() if kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
        self.by_keyword = {n for n in self.named if kind_of[n] != kinds.POSITIONAL_ONLY}
        self._rest = next((n for n, kind in kind_of.items() if kind == kinds.VAR_POSITIONAL), "args")
        self.any_position = kinds.VAR_POSITIONAL in kind_of.values()
        self.any_keyword = kinds.VAR_KEYWORD in kind_of.values()

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Runs over the arguments of a call with what they are called, in the order in which JAX flattens them."""
        for at, value in enumerate(args):
            known = at < len(self.positional)
            yield self.positional[at] if known else f"{self._rest}[{at - len(self.positional)}]", value
        for name in sorted(kwargs):
            yield name, kwargs[name]

    def place(self, name: str) -> int | None:
        """Returns where a parameter is among those by position, None if it is not."""
        return self.positional.index(name) if name in self.positional else None

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Leaf]:
        """Returns what is known of each leaf of a call; the first key of its path is the name of the argument."""
        return [
            leaf
            for name, value in self.arguments(args, kwargs)
            for leaf in describe_leaves(value, (ArgumentKey(name),))
        ]


class ArgumentKey:
    """The name of an argument as the first key of a path."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        """Keeps the name."""
        self.name = name

    def __str__(self) -> str:
        """Returns the name, as `keystr` writes it."""
        return self.name
