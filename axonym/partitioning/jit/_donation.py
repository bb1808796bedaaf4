"""Which arguments of a compiled function give up their memory: booleans by position, by name and by leaf.

What is donated and cannot be used again is said by path, in the call that traces the function.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from ..._jax_compat import is_tracing
from ..mapping._stacklevel import user_stacklevel
from ..specs._leaves import ARRAYS, Leaf
from ._parameters import Parameters


class Donation:
    """Says of each leaf of a call whether it is donated.

    Args:
        parameters: The parameters of the function, which tell which keyword stands for which position.
        by_position: For each positional argument a boolean, a tree of booleans or a function from a leaf to a boolean.
        by_name: The same for arguments by name.

    Raises:
        TypeError: If something else than booleans and functions is given.
        ValueError: If an argument is given that the function does not take.
    """

    def __init__(self, parameters: Parameters, by_position: Any, by_name: Mapping[str, Any] | None) -> None:
        """Sorts what is given by parameter; see the class."""
        self._by_position, self._parameters = _positions(by_position), parameters
        positional, named = parameters.positional, parameters.named
        if by_name is not None and not isinstance(by_name, Mapping):
            raise TypeError(f"`donate_kwargs` goes from names to booleans, {by_name!r} does not.")
        if len(self._by_position) > len(positional) and not parameters.any_position:
            raise ValueError(
                f"`donate_args` has {len(self._by_position)} entries; the function takes {len(positional)} "
                f"arguments by position: {', '.join(positional)}"
            )
        by_both = zip(positional, self._by_position, strict=False)
        self._by_name = {**{n: flag for n, flag in by_both if n in parameters.by_keyword}, **(by_name or {})}
        unknown = [name for name in self._by_name if name not in named]
        if unknown and not parameters.any_keyword:
            raise ValueError(f"`donate_kwargs` names {unknown[0]!r}; the function takes {', '.join(named)}")
        given = jax.tree.leaves((self._by_position, self._by_name))
        for flag in given:
            _check_flag(flag)
        self.none = not any(given)
        self._said: set[str] = set()
        self.depends_on_leaves = any(callable(flag) for flag in given)

    def flags(self, treedef: Any, leaves: Sequence[Any]) -> tuple[bool, ...]:
        """Returns whether each leaf of `(args, kwargs)` is donated; only functions look at `leaves`."""
        flags = [False] * len(leaves)
        if self.none:
            return tuple(flags)
        args, kwargs = jax.tree.unflatten(treedef, range(len(leaves)))
        for at, (name, arg) in enumerate(self._parameters.arguments(args, kwargs)):
            by_position = at < min(len(args), len(self._by_position))
            spec = self._by_position[at] if by_position else self._by_name.get(name, False)
            if isinstance(spec, bool | np.bool_) and spec and isinstance(arg, int):
                self._check_array(name, leaves[arg])
            try:
                jax.tree.map(lambda flag, part: _mark(flag, part, leaves, flags), spec, arg, is_leaf=_is_none)
            except ValueError as error:
                raise ValueError(f"a tree of booleans for donation does not fit its argument: {error}") from None
        return tuple(flags)

    def _check_array(self, name: str, leaf: Any) -> None:
        """Warns, once for each argument, if a leaf that is donated as a whole argument is no array."""
        if not isinstance(leaf, (*ARRAYS, jax.Ref)) and name not in self._said:
            self._said.add(name)
            warnings.warn(
                f"argument {name!r}, of type {type(leaf).__name__}, is to be donated; only arrays have memory to give",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )


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


class _Watch(threading.local):
    """What happened since a function that donates was called in this thread."""

    traced = False
    staged = False
    silent = False


class _Silence:
    """Keeps JAX from its own warning about donation while threads ask for that; filters of warnings are global."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._filters: Any = None

    def begin(self) -> None:
        with self._lock:
            self._asked += 1
            if self._asked == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", message="Some donated buffers were not usable")

    def end(self) -> None:
        with self._lock:
            self._asked -= 1
            if not self._asked:
                self._filters.__exit__(None, None, None)


watch = _Watch()
_silence = _Silence()


def trace_donates() -> None:
    """Notes that a function that donates was traced, and keeps JAX from saying without paths what will be said here.

    Nothing is noted where the memory of the arguments is not the function's: if it is not compiled, or if JAX keeps it
    to look for NaNs in a second run.
    """
    if any(getattr(jax.config, f"jax_{name}", False) for name in ("disable_jit", "debug_nans", "debug_infs")):
        return
    watch.traced = True
    if not (watch.staged or watch.silent):
        watch.silent = True
        _silence.begin()


def was_traced() -> bool:
    """Tells whether a function that donates was traced since the last time, and lets JAX warn again."""
    traced, watch.traced = watch.traced, False
    if watch.silent:
        watch.silent = False
        _silence.end()
    return traced


def check_memory(leaves: Sequence[Any], flags: Sequence[bool], described: Sequence[Leaf], name: str) -> None:
    """Refuses memory that is donated twice, or donated and used: XLA ends the process for that.

    Args:
        leaves: The leaves of a call.
        flags: Whether each is donated.
        described: What is known of each.
        name: What the function is called.

    Raises:
        ValueError: If an array that is donated shares memory with another one.
    """
    owners: dict[tuple[Any, int], int] = {}
    for donated in (True, False):
        for at, leaf in enumerate(leaves):
            if flags[at] is not donated or not isinstance(leaf, jax.Array) or not leaf.nbytes:
                continue
            for place in _places(leaf):
                if place in owners and owners[place] != at:
                    one, other = (keystr(described[i].path) for i in (owners[place], at))
                    raise ValueError(
                        f"`{name}` is given the memory of {one}, which is the memory of {other} as well: an array that "
                        "was moved may share memory with the one that it was; copy one of them with `jax.numpy.copy`"
                    )
                if donated:
                    owners[place] = at


def _places(array: jax.Array) -> list[tuple[Any, int]]:
    """Returns where in the memory of each device an array is, as far as JAX tells."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    try:
        return [(shard.device, shard.data.unsafe_buffer_pointer()) for shard in array.addressable_shards]
    except (AttributeError, NotImplementedError, RuntimeError):
        return []


@contextlib.contextmanager
def only_staged() -> Iterator[None]:
    """Leaves what is traced inside to JAX's own warnings, because there is no memory yet."""
    before, watch.staged = watch.staged, True
    try:
        yield
    finally:
        watch.staged = before
        was_traced()


def say_unused(donated: Sequence[Any], described: Sequence[Leaf], name: str) -> None:
    """Warns if some of the memory that a function was given was not used again.

    Args:
        donated: The arrays given, after the call.
        described: What is known of each.
        name: What the function is called.
    """
    if is_tracing():  # the memory is that of the program around
        return
    left = [
        f"{keystr(about.path)}, {leaf.dtype}{list(leaf.shape)}"
        for about, leaf in zip(described, donated, strict=True)
        if isinstance(leaf, jax.Array) and not leaf.is_deleted()
    ]
    if left:
        warnings.warn(
            f"`{name}` is given memory that it cannot use again, because no result has the same shape, dtype and "
            f"sharding or because it does not use the argument: {'; '.join(left)}",
            RuntimeWarning,
            stacklevel=user_stacklevel(),
        )
