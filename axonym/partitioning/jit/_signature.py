"""The signature of a function: the name of each argument of a call, and the paths of its leaves.

Arguments are named as in the signature of the function, `state.weight` rather than `args[0].weight`, whether they are
passed by position or by keyword.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ..specs._leaves import Leaf, describe_leaves


class Signature:
    """The parameters of a function by kind; some builtins have no signature and take anything."""

    __slots__ = ("_rest", "any_keyword", "any_position", "by_keyword", "named", "positional")

    def __init__(self, fn: Callable[..., Any]) -> None:
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

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields the name and value of each argument of a call, in the order in which JAX flattens them."""
        for at, value in enumerate(args):
            known = at < len(self.positional)
            yield self.positional[at] if known else f"{self._rest}[{at - len(self.positional)}]", value
        for name in sorted(kwargs):
            yield name, kwargs[name]

    def describe_arguments(self, treedef: Any) -> list[Leaf]:
        """Describes each leaf of `(args, kwargs)`; its path begins with the name of the argument."""
        args, kwargs = fill_tree(treedef)
        return [
            leaf
            for name, value in self.name_arguments(args, kwargs)
            for leaf in describe_leaves(value, (ArgumentKey(name),))
        ]


def fill_tree(treedef: Any) -> Any:
    """Returns a tree of this structure whose leaves are their positions."""
    return jax.tree.unflatten(treedef, range(treedef.num_leaves))


class ArgumentKey:
    """The name of an argument as the first key of a path."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        """Returns the name, which `keystr` shows as it is."""
        return self.name
