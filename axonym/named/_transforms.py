"""Functions over one named axis: `vmap` for all slices at once, `scan`, `fold` and `map` for one after another.

A named array takes part if it has the axis, a plain array if it has axes at all, which is then its first one. Inside,
the axis is gone; outside, it comes first in what is returned.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._ambient import mesh_axes, stated, undivided
from ._array import NamedArray
from ._axis import Axis, AxisSelector, axis_name, intern_names, position
from ._base import described, like


Predicate = Callable[[Any], bool]
Remat = bool | Callable[..., Any]

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


def is_array_with_axes(x: Any) -> bool:
    """Tells whether something is a plain array with at least one axis."""
    return isinstance(x, jax.Array | np.ndarray) and bool(x.shape)


def _is_named(x: Any) -> bool:
    return type(x) is NamedArray


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


class _Layout(NamedTuple):
    """What is static about arguments of which some arrays are cut along an axis and others given to every slice."""

    axis: Axis
    treedef: Any
    dims: tuple[int | None, ...]  # for each leaf where it has the axis, None if it is not cut
    others: tuple[tuple[int, type, Any], ...]  # leaves that are no arrays: where they are, of what type, themselves

    @property
    def cut_dims(self) -> tuple[int, ...]:
        """Where the axis is in each of the arrays that are cut."""
        return tuple(dim for dim in self.dims if dim is not None)

    def cut(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the plain arrays that are cut."""
        return [_plain(leaf) for leaf, dim in zip(leaves, self.dims, strict=True) if dim is not None]

    def rebuilt(self, leaves: Sequence[Any], slices: Sequence[Any]) -> Any:
        """Returns the arguments with slices, given as plain arrays, in place of what is cut."""
        supply, nodes = iter(slices), list(leaves)
        for at, dim in enumerate(self.dims):
            if dim is not None:
                nodes[at] = _without(leaves[at], dim, next(supply))
        for at, _, other in self.others:
            nodes[at] = other
        return jax.tree.unflatten(self.treedef, nodes)


def _plain(node: Any) -> Any:
    return node.array if _is_named(node) else node


def _without(node: Any, dim: int, array: Any) -> Any:
    return like(node, array, node.names[:dim] + node.names[dim + 1 :]) if _is_named(node) else array


def _laid_out(tree: Any, axis: AxisSelector, takes_part: Predicate, function: str) -> tuple[list[Any], _Layout]:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_named)
    dims = tuple(_dim(leaf, axis, takes_part) for leaf in leaves)
    found = [(leaf, _plain(leaf).shape[dim]) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    size = _common_size(found, axis, function)
    others = [(at, type(x), x) for at, x in enumerate(leaves) if not _is_named(x) and not _is_array(x)]
    for at, _, _ in others:
        leaves[at] = None
    return leaves, _Layout(Axis(axis_name(axis), size), treedef, dims, tuple(others))


def _common_size(found: list[tuple[Any, int]], axis: AxisSelector, function: str) -> int:
    name = axis_name(axis)
    if isinstance(axis, Axis):
        size = axis.size
    elif not found:
        raise ValueError(f"`{function}` over axis {name!r}: no argument has it; give an `Axis` with its size")
    else:
        size = next((size for leaf, size in found if _is_named(leaf)), found[0][1])
    for leaf, here in found:
        if here != size:
            shown = described(leaf) if _is_named(leaf) else f"a plain array of shape {leaf.shape}"
            raise ValueError(f"`{function}` over axis {name!r} of size {size} got {shown}, which has {here} there")
    return size


def _dim(node: Any, axis: AxisSelector, takes_part: Predicate) -> int | None:
    if _is_named(node):
        name = axis_name(axis)
        return position(node.names, node.array.shape, axis) if name in node.names else None
    return 0 if is_array_with_axes(node) and takes_part(node) else None


@jax.tree_util.register_static
class _Other:
    """A result that is no array, carried through JAX as part of the structure of the results."""

    def __init__(self, value: Any) -> None:
        """Keeps it."""
        self.value = value


def _packed(results: Any, axis: str) -> Any:
    """Returns what a body returned with the names that the results of all slices will have."""
    return jax.tree.map(lambda node: _with_axis(node, axis), results, is_leaf=_is_named)


def _with_axis(node: Any, axis: str) -> Any:
    if not _is_named(node):
        return node if _is_array(node) else _Other(node)
    if axis in node.names:
        raise ValueError(f"the result {described(node)} has axis {axis!r} already, which it gains here")
    return like(node, node.array, intern_names((axis, *node.names)))


def _unpacked(results: Any) -> Any:
    return jax.tree.map(
        lambda node: node.value if isinstance(node, _Other) else node,
        results,
        is_leaf=lambda node: isinstance(node, _Other) or _is_named(node),
    )


def vmap(
    fn: Callable[P, R],
    axis: AxisSelector | Sequence[AxisSelector],
    *,
    default: Predicate = is_array_with_axes,
) -> Callable[P, R]:
    """Vectorises a function over a named axis, or several; see `jax.vmap`.

    Args:
        fn: Function of any trees of arrays; inside, named arrays lack the axis.
        axis: The axis, or a sequence of axes, outermost first. An `Axis` gives the size where no argument has it.
        default: Which plain arrays take part, along their first axis: by default all that have one.

    Returns:
        Function of the same arguments. Arrays that it returns have the axis in front, anything else is as it was. On a
        mesh over which the mapping in force shards the axis, constraints inside apply to each slice and the axis stays
        sharded.

    Raises:
        ValueError: When called, if no argument has an axis given by name, or sizes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> nym.vmap(lambda row: row.sum("embed"), "batch")(x)
        NamedArray(float32, batch: 2, [3., 3.])
    """
    axes = (axis,) if isinstance(axis, str | Axis) else tuple(axis)
    mapped: Any = fn
    for one in reversed(axes):
        mapped = functools.partial(_mapped, mapped, one, default)
    return mapped


def _mapped(fn: Callable[..., Any], axis: AxisSelector, default: Predicate, /, *args: Any, **kwargs: Any) -> Any:
    leaves, layout = _laid_out((args, kwargs), axis, default, "vmap")
    name, size = layout.axis.name, layout.axis.size

    def body(*slices: Any) -> Any:
        args, kwargs = layout.rebuilt(leaves, slices)
        return _packed(fn(*args, **kwargs), name)

    results = jax.vmap(
        body,
        in_axes=layout.cut_dims,
        axis_size=size,
        spmd_axis_name=mesh_axes(name, size) or None,
    )(*layout.cut(leaves))
    return _unpacked(results)


def scan(
    f: Callable[P, tuple[C, R]],
    axis: AxisSelector,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Predicate = is_array_with_axes,
) -> Callable[P, tuple[C, R]]:
    """Runs a function over the slices of a named axis, one after another, with a carry; see `jax.lax.scan`.

    Args:
        f: Function of the carry and of slices of the arguments, which returns the next carry and a result.
        axis: The axis to run along.
        remat: Whether to compute each step again in the backward pass, or a policy of `jax.checkpoint_policies`.
        reverse: Whether to start at the end.
        unroll: How many steps to unroll, as for `jax.lax.scan`.
        is_scanned: Which plain arrays are cut along their first axis: by default all that have one.

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
    loop = _Loop.of("scan", _pair, remat, reverse, unroll)

    def scanned(init: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _run(f, loop, axis, is_scanned, init, (args, kwargs))

    return scanned


def _pair(f: Callable[..., Any], carry: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    returned = f(carry, *args, **kwargs)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError("The function given to `scan` must return a pair: the next carry and a result.")
    return returned


def fold(
    fn: Callable[P, R],
    axis: AxisSelector,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Predicate = is_array_with_axes,
) -> Callable[P, R]:
    """Runs a function over the slices of a named axis, one after another, and keeps only the carry; see `scan`.

    Args:
        fn: Function of the carry and of slices of the arguments, which returns the next carry.
        axis: The axis to run along.
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
    loop = _Loop.of("fold", _carry_only, remat, reverse, unroll)

    def folded(init: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _run(fn, loop, axis, is_scanned, init, (args, kwargs))[0]

    return folded


def _carry_only(fn: Callable[..., Any], carry: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, None]:
    return fn(carry, *args, **kwargs), None


def map(
    fn: Callable[P, R],
    axis: AxisSelector,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: Predicate = is_array_with_axes,
) -> Callable[P, R]:
    """Applies a function to the slices of a named axis one after another; `vmap` does so all at once.

    Args:
        fn: Function of slices of the arguments.
        axis: The axis to run along.
        remat: As for `scan`.
        reverse: As for `scan`.
        unroll: As for `scan`.
        is_mapped: Which plain arrays are cut along their first axis: by default all that have one.

    Returns:
        Function of the arguments, whose results have the axis in front.

    Example:
        >>> import axonym as nym
        >>> nym.map(lambda v: v * v, "i")(nym.arange(nym.Axis("i", 4))).array
        Array([0, 1, 4, 9], dtype=int32)
    """
    loop = _Loop.of("map", _result_only, remat, reverse, unroll)

    def mapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return _run(fn, loop, axis, is_mapped, None, (args, kwargs))[1]

    return mapped


def _result_only(fn: Callable[..., Any], carry: None, /, *args: Any, **kwargs: Any) -> tuple[None, Any]:
    return None, fn(*args, **kwargs)


class _Loop(NamedTuple):
    """How a loop runs: for whom, what makes a pair of what the function returns, and the options of `scan`."""

    function: str
    step: Callable[..., tuple[Any, Any]]
    remat: Remat
    reverse: bool
    unroll: int | None  # None for all steps: True would be found in the cache as 1

    @classmethod
    def of(cls, function: str, step: Callable[..., Any], remat: Remat, reverse: bool, unroll: int | bool) -> Self:
        """Returns the loop with these options."""
        steps = (None if unroll else 1) if isinstance(unroll, bool) else unroll
        return cls(function, step, remat, reverse, steps)


def _run(
    fn: Callable[..., Any], loop: _Loop, axis: AxisSelector, takes_part: Predicate, init: Any, arguments: Any
) -> tuple[Any, Any]:
    leaves, layout = _laid_out(arguments, axis, takes_part, loop.function)
    carry, results = _compiled(fn, loop, layout)(init, leaves)
    return carry, _unpacked(results)


def _scan(fn: Callable[..., Any], loop: _Loop, layout: _Layout, init: Any, leaves: Sequence[Any]) -> tuple[Any, Any]:
    def body(carry: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        args, kwargs = layout.rebuilt(leaves, slices)
        carry, results = loop.step(fn, carry, *args, **kwargs)
        return _carried(carry), _packed(results, layout.axis.name)

    return jax.lax.scan(
        _rematerialised(body, loop.remat),
        _carried(init),
        [_in_front(array, dim) for array, dim in zip(layout.cut(leaves), layout.cut_dims, strict=True)],
        length=layout.axis.size,
        reverse=loop.reverse,
        unroll=True if loop.unroll is None else loop.unroll,
    )


def _carried(carry: Any) -> Any:
    """Returns a carry sharded by its names on an Explicit mesh, where JAX wants the same sharding from every step."""
    return jax.tree.map(lambda x: stated(x) if _is_named(x) else x, carry, is_leaf=_is_named)


_compilers: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _compiled(fn: Callable[..., Any], loop: _Loop, layout: _Layout) -> Callable[..., tuple[Any, Any]]:
    """Returns the loop over a function, compiled once for a function, its options and what is static.

    Outside of jit, `jax.lax.scan` compiles anew for each new body. What was compiled for a function goes with it.
    """
    try:
        compiler = _compilers.get(fn)
        if compiler is None:
            compiler = functools.lru_cache(maxsize=256)(functools.partial(_compile, weakref.ref(fn)))
            _compilers[fn] = compiler
        return compiler(loop, layout)
    except TypeError:  # the function, or an argument that is no array, cannot be hashed or referred to weakly
        return functools.partial(_scan, fn, loop, layout)


def _compile(fn: Callable[[], Any], loop: _Loop, layout: _Layout) -> Callable[..., tuple[Any, Any]]:
    def scan(init: Any, leaves: Sequence[Any]) -> tuple[Any, Any]:
        return _scan(fn(), loop, layout, init, leaves)

    return jax.jit(scan, inline=True)


def _rematerialised(body: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    if remat is False:
        return body
    return jax.checkpoint(body, prevent_cse=False, policy=None if remat is True else remat)


def _in_front(array: Any, dim: int) -> Any:
    """Returns an array with an axis first and on no mesh axis, as `jax.lax.scan` needs it."""
    return undivided(jnp.moveaxis(array, dim, 0) if dim else array, (0,))
