"""The arguments of a compiled function: their names, and which of them are static.

A call of `named_jit` has trees that hold arrays and anything else; `jax.jit` takes arrays and hashable static
arguments. `ArgumentPartition` depends on the tree structure and the leaf types alone and assigns each leaf to one of
three groups: donated arrays, kept arrays and static leaves. The arrays go to `jax.jit` as two flat tuples, which it
flattens fastest. The static leaves go there together with the tree structure, as a single `StaticArgs`. While JAX
traces, `StaticArgs.merge` rebuilds the trees.

Arguments are named as in the signature of the function, `state.weight` rather than `args[0].weight`, whether they are
passed by position or by keyword.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from itertools import compress
from typing import Any

import jax

from ..._ground.caches import get_static_value, make_static_key, needs_static_key, shared_object
from ..._ground.jax_compat import TRACER
from .._leaves import ARRAY_TYPES, LeafInfo, describe_leaves


_DYNAMIC_TYPES = (*ARRAY_TYPES, jax.Ref, TRACER)


class Signature:
    """The parameters of a function by kind; some builtins have no signature and take anything.

    Attributes:
        positional: The names of parameters that can be passed by position.
        named: The names of all parameters but `*args` and `**kwargs`.
        by_keyword: The names of parameters that can be passed by keyword.
        any_position: Whether there is `*args`.
        any_keyword: Whether there is `**kwargs`.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        try:
            kinds = {name: parameter.kind for name, parameter in inspect.signature(fn).parameters.items()}
        except (TypeError, ValueError):
            kinds = {"args": Parameter.VAR_POSITIONAL, "kwargs": Parameter.VAR_KEYWORD}
        by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        self.positional = [name for name, kind in kinds.items() if kind in by_position]
        self.named = [name for name, kind in kinds.items() if kind not in variadic]
        self.by_keyword = {name for name in self.named if kinds[name] != Parameter.POSITIONAL_ONLY}
        self.any_position = Parameter.VAR_POSITIONAL in kinds.values()
        self.any_keyword = Parameter.VAR_KEYWORD in kinds.values()
        self._variadic = next((name for name, kind in kinds.items() if kind == Parameter.VAR_POSITIONAL), "args")

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields the name and value of each argument of a call, in the order in which JAX flattens them."""
        count = len(self.positional)
        yield from zip(self.positional, args, strict=False)
        for number, value in enumerate(args[count:]):
            yield f"{self._variadic}[{number}]", value
        for name in sorted(kwargs):
            yield name, kwargs[name]

    def describe_arguments(self, treedef: Any) -> list[LeafInfo]:
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

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        """Returns the name, which `keystr` shows as it is."""
        return self.name


def is_array_type(kind: type) -> bool:
    """Returns whether leaves of this type are arrays to `jax.jit`; others are static."""
    return issubclass(kind, _DYNAMIC_TYPES)


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

    def __init__(
        self, treedef: Any, donated: tuple[bool, ...], static: tuple[bool, ...], static_types: tuple[type, ...]
    ) -> None:
        self.treedef, self.donated, self.static = treedef, donated, static
        pairs = zip(donated, static, strict=True)
        self.kept = tuple([not (is_donated or is_static) for is_donated, is_static in pairs])
        self.is_donating = any(donated)
        self._has_numbers = any(map(needs_static_key, static_types))
        self._last: StaticArgs | None = None
        self._make_static_args = shared_object(lambda *keys: StaticArgs(self, keys))
        self._only_kept = self._make_static_args() if all(self.kept) else None

    def split(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], "StaticArgs"]:
        """Returns the donated arrays, the kept arrays and the static argument; TypeError if a leaf is not hashable."""
        if self._only_kept is not None:
            # The most frequent case. This saves 0.5 of the 8 us that a call with one array takes.
            return (), tuple(leaves), self._only_kept
        donated, kept = tuple(compress(leaves, self.donated)), tuple(compress(leaves, self.kept))
        values = tuple(compress(leaves, self.static))
        if not self._has_numbers:
            return donated, kept, self._make_static_args(*values)
        # Making keys takes 1 us for a float and 8 us for a config of ten fields, and most calls pass the same objects.
        last = self._last
        if last is None or not all(map(operator.is_, values, last.values)):
            self._last = last = self._make_static_args(*map(make_static_key, values))
        return donated, kept, last


class StaticArgs:
    """The static leaves of a call and the tree structure of its arguments, as one static argument of `jax.jit`.

    It is compared by identity, so a partition makes only one for equal values, numbers being compared by their bits, as
    long as that one is in use. If it had an `__eq__` in Python, other threads could run while JAX searches its cache of
    compiled calls, which may crash (seen in jaxlib 0.12.0).
    """

    def __init__(self, partition: ArgumentPartition, keys: tuple[Any, ...]) -> None:
        self.partition, self.values = partition, tuple(map(get_static_value, keys))

    def merge_leaves(
        self, donated: Iterable[Any], kept: Iterable[Any], static: Iterable[Any] | None = None
    ) -> list[Any]:
        """Returns the leaves of the arguments, with other values for the static leaves if given."""
        donated, kept, static = iter(donated), iter(kept), iter(self.values if static is None else static)
        leaves: list[Any] = []
        for is_donated, is_static in zip(self.partition.donated, self.partition.static, strict=True):
            if is_static:
                leaves.append(next(static))
            else:
                leaves.append(next(donated if is_donated else kept))
        return leaves

    def merge(self, donated: Iterable[Any], kept: Iterable[Any], static: Iterable[Any] | None = None) -> Any:
        """Returns the arguments `(args, kwargs)`; see `merge_leaves`."""
        return jax.tree.unflatten(self.partition.treedef, self.merge_leaves(donated, kept, static))
