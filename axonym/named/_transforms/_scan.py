"""`scan`, `fold` and `map`: a function of slices, applied to one slice after another."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp

from .._ambient import replicate_dims, reshard_named
from .._array import is_named_array
from .._axis import AxisSelection, AxisSelector, format_value
from .._base import format_shape, is_traced
from ._cache import compiled
from ._checkpoint_policy import Policy, Remat, checkpointed, policy_of
from ._layout import Layout, Part, axes_of, is_array_with_axes, laid_out, packed, plain, unpacked


P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


def scan(
    f: Callable[P, tuple[C, R]],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Part = is_array_with_axes,
) -> Callable[P, tuple[C, R]]:
    """Runs a function over the slices of a named axis, or several, one after another, with a carry; see `jax.lax.scan`.

    Args:
        f: Function of the carry and of slices of the arguments, which returns the next carry and a result.
        axis: The axis to run along, or several of them, the first one outermost.
        remat: Whether to compute each step again in the backward pass, but for what a policy keeps: a
            `ScanCheckpointPolicy`, one of `jax.checkpoint_policies`, or `"nested"`, `"offload"`, `"full"` or
            `"recompute"` (which keep nothing) and `"save_all"`.
        reverse: Whether to start at the end.
        unroll: How many steps to unroll, as for `jax.lax.scan`.
        is_scanned: Which plain arrays are cut, and where if not along their first axis; see `vmap`.

    Returns:
        Function of the first carry and the arguments, which returns the last carry and the results of all steps, with
        the axis in front.

    Raises:
        ValueError: When called, if no argument has an axis given by name, or sizes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> total, partial = nym.scan(lambda carry, v: (carry + v, carry + v), "i")(nym.named(0, ()), x)
        >>> total.item(), partial.array
        (6, Array([0, 1, 3, 6], dtype=int32))
    """
    axes, loop = axes_of(axis), _Loop.of("scan", _pair, remat, reverse, unroll)

    def scanned(init: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _run(f, loop, axes, is_scanned, init, (args, kwargs))

    return scanned


def _pair(f: Callable[..., Any], carry: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    returned = f(carry, *args, **kwargs)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError("The function given to `scan` must return a pair: the next carry and a result.")
    return returned


def fold(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Part = is_array_with_axes,
) -> Callable[P, R]:
    """Runs a function over the slices of a named axis, one after another, and keeps only the carry; see `scan`.

    Args:
        fn: Function of the carry and of slices of the arguments, which returns the next carry.
        axis: The axis to run along, or several of them, the first one outermost.
        remat: As for `scan`.
        reverse: As for `scan`.
        unroll: As for `scan`.
        is_scanned: As for `scan`.

    Returns:
        Function of the first carry and the arguments, which returns the last carry.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> nym.fold(lambda carry, v: carry + v, "i")(nym.named(0, ()), x).item()
        6
    """
    axes, loop = axes_of(axis), _Loop.of("fold", _carry_only, remat, reverse, unroll)

    def folded(init: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _run(fn, loop, axes, is_scanned, init, (args, kwargs))[0]

    return folded


def _carry_only(fn: Callable[..., Any], carry: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, None]:
    return fn(carry, *args, **kwargs), None


def map(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: Part = is_array_with_axes,
) -> Callable[P, R]:
    """Applies a function to the slices of a named axis one after another; `vmap` does so all at once.

    Args:
        fn: Function of slices of the arguments.
        axis: The axis to run along, or several of them, the first one outermost.
        remat: As for `scan`.
        reverse: As for `scan`.
        unroll: As for `scan`.
        is_mapped: Which plain arrays are cut, and where if not along their first axis; see `vmap`.

    Returns:
        Function of the arguments, whose results have the axis in front.

    Example:
        >>> import axonym as nym
        >>> nym.map(lambda v: v * v, "i")(nym.arange(nym.Axis("i", 4))).array
        Array([0, 1, 4, 9], dtype=int32)
    """
    axes, loop = axes_of(axis), _Loop.of("map", _result_only, remat, reverse, unroll)

    def mapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return _run(fn, loop, axes, is_mapped, None, (args, kwargs))[1]

    return mapped


def _result_only(fn: Callable[..., Any], carry: None, /, *args: Any, **kwargs: Any) -> tuple[None, Any]:
    return None, fn(*args, **kwargs)


class _Loop(NamedTuple):
    """How a loop runs: for whom, what makes a pair of what the function returns, and the options of `scan`."""

    function: str
    step: Callable[..., tuple[Any, Any]]
    policy: Policy
    reverse: bool
    unroll: int | None  # None for all steps: True would be found in the cache as 1

    @classmethod
    def of(cls, function: str, step: Callable[..., Any], remat: Remat, reverse: bool, unroll: int | bool) -> Self:
        """Returns the loop with these options."""
        steps = (None if unroll else 1) if isinstance(unroll, bool) else unroll
        return cls(function, step, policy_of(remat), reverse, steps)


def _run(
    fn: Callable[..., Any], loop: _Loop, axes: tuple[AxisSelector, ...], part: Part, init: Any, arguments: Any
) -> tuple[Any, Any]:
    if not axes:
        args, kwargs = arguments
        return loop.step(fn, init, *args, **kwargs)
    leaves, layout = laid_out(arguments, axes[0], part, loop.function)
    inner = (axes[1:], part) if axes[1:] else ((), None)
    traced = any(is_traced(plain(leaf)) for leaf in leaves) or any(is_traced(leaf) for leaf in jax.tree.leaves(init))
    carry, results = compiled(_scan, fn, loop, inner, layout, traced=traced)(init, leaves)
    return carry, unpacked(results)


def _scan(
    fn: Callable[..., Any],
    loop: _Loop,
    inner: tuple[tuple[AxisSelector, ...], Part],
    layout: Layout,
    init: Any,
    leaves: Sequence[Any],
) -> tuple[Any, Any]:
    def body(carry: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        after, results = _run(fn, loop, *inner, carry, layout.rebuilt(leaves, slices))
        _check_carry(loop.function, carry, after)
        return _carried(after), packed(results, layout.axis.name)

    arrays = [_in_front(array, dim) for array, dim in zip(layout.cut(leaves), layout.cut_dims, strict=True)]
    scan = functools.partial(jax.lax.scan, reverse=loop.reverse, unroll=True if loop.unroll is None else loop.unroll)
    return checkpointed(scan, body, loop.policy, layout.axis.size)(_carried(init), arrays)


def _check_carry(function: str, before: Any, after: Any) -> None:
    """Raises a TypeError if a step changes the axes of what it carries; JAX finds everything else."""
    nodes, treedef = jax.tree.flatten(before, is_leaf=is_named_array)
    others, other_treedef = jax.tree.flatten(after, is_leaf=is_named_array)
    for node, other in zip(nodes, others, strict=True) if treedef == other_treedef else ():
        if (is_named_array(node) or is_named_array(other)) and _axes(node) != _axes(other):
            raise TypeError(
                f"The carry of `{function}` is {_shown(node)} before a step and {_shown(other)} after it; it must have "
                "the same axes, in the same order, all the way."
            )


def _axes(node: Any) -> Any:
    return (node.names, node.array.shape) if is_named_array(node) else None


def _shown(node: Any) -> str:
    return f"a named array {format_shape(node)}" if is_named_array(node) else format_value(node)


def _carried(carry: Any) -> Any:
    """Returns a carry sharded by its names on an Explicit mesh, where JAX wants the same sharding from every step."""
    return jax.tree.map(lambda x: reshard_named(x) if is_named_array(x) else x, carry, is_leaf=is_named_array)


def _in_front(array: Any, dim: int) -> Any:
    """Returns an array with an axis first and on no mesh axis, as `jax.lax.scan` needs it."""
    array = jnp.moveaxis(array, dim, 0) if dim else array
    return array if jax.typeof(array).sharding.spec[0] is None else replicate_dims(array, (0,))
