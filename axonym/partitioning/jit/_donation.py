"""Which arguments of a compiled function are donated, by position, by name and by leaf, and warnings of donation."""

import contextlib
import operator
import warnings
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr

from ..._ground.errors import find_stacklevel, make_error
from ..._ground.jax_compat import is_traced
from ._arguments import ArgumentPartition, Signature, StaticArgs, fill_tree, is_array_type


_is_deleted = operator.methodcaller("is_deleted")


class Donation:
    """Which leaves of a call are donated.

    Args:
        signature: The signature of the function.
        by_position: For each positional argument a boolean, a tree of booleans or a function from a leaf to a boolean.
        by_name: The same for arguments by name.
    """

    def __init__(self, signature: Signature, by_position: Any, by_name: Mapping[str, Any] | None) -> None:
        self._signature = signature
        if by_position is None:
            by_position = ()
        elif not isinstance(by_position, Sequence) or isinstance(by_position, str):
            by_position = (by_position,)  # of a single argument
        self._by_position = tuple(by_position)
        if by_name is not None and not isinstance(by_name, Mapping):
            raise make_error(TypeError, f"`donate_kwargs` is a mapping from names to booleans, not {by_name!r}.")
        if len(self._by_position) > len(signature.positional) and not signature.any_position:
            raise make_error(
                ValueError,
                f"`donate_args` has {len(self._by_position)} entries; the function takes "
                f"{len(signature.positional)} arguments by position: {', '.join(signature.positional)}",
            )
        # Arguments specified by position may be passed by keyword.
        flags_by_name = dict(zip(signature.positional, self._by_position, strict=False))
        self._by_name = {name: flag for name, flag in flags_by_name.items() if name in signature.by_keyword}
        self._by_name |= by_name or {}
        unknown = [name for name in self._by_name if name not in signature.named]
        if unknown and not signature.any_keyword:
            known = ", ".join(signature.named)
            raise make_error(ValueError, f"`donate_kwargs` names {unknown[0]!r}; the function takes {known}")
        flags = jax.tree.leaves((self._by_position, self._by_name))
        for flag in flags:
            if not callable(flag) and not isinstance(flag, bool | np.bool_):
                raise make_error(
                    TypeError,
                    f"Donation is specified by booleans, trees of booleans or functions, not {flag!r}; give one "
                    "for each argument, not the positions of arguments.",
                )
        self._is_empty = not any(flags)
        self._warned_of: set[str] = set()
        self.depends_on_leaves = any(callable(flag) for flag in flags)

    def flag_leaves(self, treedef: Any, leaves: Sequence[Any]) -> tuple[bool, ...]:
        """Returns whether each leaf of `(args, kwargs)` is donated; their types suffice unless `depends_on_leaves`."""
        flags = [False] * len(leaves)
        if self._is_empty:
            return tuple(flags)

        def set_flags(flag: Any, positions: Any) -> None:
            for position in jax.tree.leaves(positions):
                flags[position] = bool(flag(leaves[position]) if callable(flag) else flag)

        args, kwargs = fill_tree(treedef)  # the leaves are positions
        for number, (name, arg) in enumerate(self._signature.name_arguments(args, kwargs)):
            by_position = number < min(len(args), len(self._by_position))
            spec = self._by_position[number] if by_position else self._by_name.get(name, False)
            if isinstance(spec, bool | np.bool_) and spec and isinstance(arg, int):
                self._warn_of_static(name, leaves[arg])
            try:
                # None in a tree of booleans is False.
                jax.tree.map(set_flags, spec, arg, is_leaf=lambda x: x is None)
            except ValueError as error:
                raise make_error(
                    ValueError, f"a tree of booleans for donation does not fit its argument: {error}"
                ) from None
        return tuple(flags)

    def _warn_of_static(self, name: str, leaf: Any) -> None:
        """Warns, once for each argument, if a donated argument is not an array."""
        kind = leaf if isinstance(leaf, type) else type(leaf)
        if not is_array_type(kind) and name not in self._warned_of:
            self._warned_of.add(name)
            warnings.warn(
                f"argument {name!r} is to be donated, but is of type {kind.__name__}; only arrays can be donated",
                RuntimeWarning,
                stacklevel=find_stacklevel(),
            )


def check_donated_once(leaves: Sequence[Any], partition: ArgumentPartition, signature: Signature, name: str) -> None:
    """Raises a ValueError if an array is donated twice, in this call or an earlier one.

    XLA would end the process for it on many devices.

    Arrays are compared by identity, which adds about 3 % to a donating call; to read the addresses of their buffers as
    well, on 8 devices, would take several times as long as the call. To ask whether they are deleted adds 0.2 us each.
    """
    _check_not_deleted(leaves, partition, signature, name)
    ids = list(map(id, leaves))
    donated = list(compress(ids, partition.donated))
    if len({*donated}) == len(donated) and {*donated}.isdisjoint(compress(ids, partition.kept)):
        return
    owners: dict[int, int] = {}
    for mask in (partition.donated, partition.kept):
        for position in compress(range(len(leaves)), mask):
            leaf = leaves[position]
            if not isinstance(leaf, jax.Array) or is_traced(leaf):
                continue
            if id(leaf) in owners:
                described = signature.describe_arguments(partition.treedef)
                path, same_path = (keystr(described[i].path) for i in (owners[id(leaf)], position))
                raise make_error(
                    ValueError,
                    f"`{name}` donates {path}, which is the same array as {same_path}; pass a copy for one of "
                    "them, made with `jax.numpy.copy`",
                )
            if mask is partition.donated:
                owners[id(leaf)] = position


def _check_not_deleted(leaves: Sequence[Any], partition: ArgumentPartition, signature: Signature, name: str) -> None:
    # NumPy arrays, shapes and tracers raise these errors; the loop below passes over them.
    with contextlib.suppress(AttributeError, jax.errors.ConcretizationTypeError):
        if not any(map(_is_deleted, compress(leaves, partition.donated))):
            return
    for position in compress(range(len(leaves)), partition.donated):
        leaf = leaves[position]
        if isinstance(leaf, jax.Array) and not is_traced(leaf) and leaf.is_deleted():
            path = keystr(signature.describe_arguments(partition.treedef)[position].path)
            raise make_error(
                ValueError,
                f"`{name}` donates {path}, which is deleted, because an earlier call donated it; pass what that "
                "call returned",
            )


def warn_unused_donation(donated: Sequence[Any], static: StaticArgs, signature: Signature, name: str) -> None:
    """Warns if the memory of donated arrays was not reused; called after a call that traced.

    JAX's own warning has shapes without paths, and on several devices with Auto mesh axes there is often none.
    """
    if any(getattr(jax.config, f"jax_{option}", False) for option in ("disable_jit", "debug_nans", "debug_infs")):
        return  # JAX does not donate then
    described = signature.describe_arguments(static.partition.treedef)
    paths = [keystr(leaf_info.path) for leaf_info in compress(described, static.partition.donated)]
    unused = [
        f"{path}, {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in zip(paths, donated, strict=True)
        if isinstance(leaf, jax.Array) and not is_traced(leaf) and not leaf.is_deleted()
    ]
    if unused:
        warnings.warn(
            f"`{name}` cannot reuse donated memory, because no result has the same shape, dtype and sharding or "
            f"because it does not use the argument: {'; '.join(unused)}",
            RuntimeWarning,
            stacklevel=find_stacklevel(),
        )
