"""`lift`: functions of plain arrays, made functions of named ones that run over the axes that they do not know."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ._ambient import get_mesh_axes, reshard_by_name
from ._array import NamedArray, is_named_array
from ._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    check_selected_once,
    check_unique_names,
    find_axis,
    format_axes,
    format_value,
    intern_names,
    parse_selection,
)
from ._base import with_array
from ._broadcasting import broadcast_names, check_matching_sizes
from ._cache import cached_plan
from ._gufunc import get_loop_spec
from ._transforms._cache import compiled
from ._transforms._layout import Other, is_array, other_leaves, unpacked


class _Plan(NamedTuple):
    """What is static about a call of a lifted function."""

    treedef: Any
    names: tuple[Names | None, ...]  # of each leaf, None if it is not named
    core: Names  # the axes that the function knows
    loop: tuple[Axis, ...]  # those that it does not know
    out_axes: Any
    others: tuple[tuple[int, type, Any], ...]  # leaves that are no arrays: where they are, of what type, themselves


def lift(
    fn: Callable[..., Any], *axes: AxisSelection, out_axes: AxisSelection | Sequence[AxisSelection] | None = None
) -> Callable[..., Any]:
    """Makes a function of plain arrays one of named arrays: the way to call what has no named counterpart.

    The function gets each named array with those of `axes` that it has, in the order given, and no others. Over all
    other axes it is vectorised; they broadcast by name as in arithmetic. It is compiled once for each signature, as
    long as it is the same function: give it a name outside of the loop that calls it.

    Args:
        fn: Function of plain arrays and anything else, which returns an array or a tree of arrays.
        *axes: The axes that it knows, as positions of its arrays; one by one, or a sequence of them.
        out_axes: The axes of what it returns: one selection, or a sequence with one for each array of several. If
            None, what it returns without axes has none of `axes`, and what has as many as were given has the same
            ones, whose sizes may be others.

    Returns:
        Function of the same arguments. The axes over which it is vectorised are in front in every result. Arguments
        that are not named are given to every call as they are.

    Raises:
        ValueError: When called, if an axis is not there, the others do not broadcast, or `out_axes` is needed or does
            not fit.
        TypeError: When called, if no argument is named.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> x = nym.named([[3.0, 1.0, 2.0], [6.0, 4.0, 5.0]], ("batch", "pos"))
        >>> nym.lift(jnp.median, "pos")(x)
        NamedArray(float32, batch: 2, [2., 5.])
        >>> nym.lift(jnp.diff, "pos")(x).shape
        (batch: 2, pos: 2)
        >>> nym.lift(jnp.outer, "pos", "k", out_axes=("pos", "k"))(x, nym.ones({"k": 4})).shape
        (batch: 2, pos: 3, k: 4)
    """
    axes = tuple(axis for selection in axes for axis in parse_selection(selection))
    core = intern_names(tuple(map(axis_name, axes)))
    check_selected_once(core)
    wanted = None if out_axes is None else _hashable(out_axes)

    def lifted(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        names = tuple(leaf.names if is_named_array(leaf) else None for leaf in leaves)
        loop = _loop_axes(tuple((x.names, tuple(x.array.shape)) for x in leaves if is_named_array(x)), axes)
        plan = _Plan(treedef, names, core, loop, wanted, other_leaves(leaves))
        for at, _, _ in plan.others:
            leaves[at] = None
        return unpacked(compiled(_run, fn, plan)(leaves))

    return lifted


def _hashable(out_axes: Any) -> Any:
    """Returns a selection, or a sequence of them, with tuples in place of lists and mappings."""
    if isinstance(out_axes, Mapping):
        return parse_selection(out_axes)
    if isinstance(out_axes, str | Axis) or not isinstance(out_axes, Sequence):
        return out_axes
    return tuple(map(_hashable, out_axes))


@cached_plan
def _loop_axes(operands: tuple[tuple[Names, tuple[int, ...]], ...], axes: tuple[AxisSelector, ...]) -> tuple[Axis, ...]:
    """Returns the axes of named arrays that are not among those of the function, after checking both."""
    if not operands:
        raise TypeError("A lifted function needs a named array among its arguments; make one with `axonym.named`.")
    check_matching_sizes(*operands)
    for axis in axes:
        having = [operand for operand in operands if axis_name(axis) in operand[0]]
        for names, sizes in having or operands:  # of arrays that all lack the axis, the first says so
            find_axis(names, sizes, axis)
    core = tuple(map(axis_name, axes))
    left = [[pair for pair in zip(*operand, strict=True) if pair[0] not in core] for operand in operands]
    size_of = dict(pair for pairs in left for pair in pairs)
    loop = broadcast_names(*((tuple(name for name, _ in pairs), tuple(size for _, size in pairs)) for pairs in left))
    return tuple(Axis(name, size_of[name]) for name in loop)


def _run(fn: Callable[..., Any], plan: _Plan, leaves: Sequence[Any]) -> Any:
    arrays = [_in_order(leaf, plan) for leaf in leaves]
    call: Any = functools.partial(_vectorised, fn, plan)
    template = next(leaf for leaf in leaves if is_named_array(leaf))
    mesh = jax.typeof(template.array).sharding.mesh
    if AxisType.Explicit in mesh.axis_types:
        # On an Explicit mesh many functions have no rule for shardings; the compiler has one for all.
        named = ((leaf.names, leaf.array) for leaf in leaves if is_named_array(leaf))
        spec = get_loop_spec(named, tuple(axis.name for axis in plan.loop))
        call = jax.sharding.auto_axes(call, out_sharding=NamedSharding(mesh, PartitionSpec(*spec)))
    return _named(fn, call(arrays), plan, template)


def _in_order(leaf: Any, plan: _Plan) -> Any:
    """Returns the plain array of an argument, its loop axes in front and the axes of the function behind."""
    if not is_named_array(leaf):
        return leaf
    target = (*(axis.name for axis in plan.loop), *plan.core)
    return jnp.transpose(leaf.array, tuple(leaf.names.index(name) for name in target if name in leaf.names))


def _vectorised(fn: Callable[..., Any], plan: _Plan, arrays: Sequence[Any]) -> Any:
    run: Any = functools.partial(_called, fn, plan)
    for axis in reversed(plan.loop):
        dims = [0 if names and axis.name in names else None for names in plan.names]
        spmd = get_mesh_axes(axis.name, axis.size) or None
        run = jax.vmap(run, in_axes=(dims,), axis_size=axis.size, spmd_axis_name=spmd)
    return run(arrays)


def _called(fn: Callable[..., Any], plan: _Plan, arrays: Sequence[Any]) -> Any:
    nodes = list(arrays)
    for at, _, other in plan.others:
        nodes[at] = other
    args, kwargs = jax.tree.unflatten(plan.treedef, nodes)
    return jax.tree.map(lambda x: x if is_array(x) else _other(fn, x), fn(*args, **kwargs), is_leaf=is_named_array)


def _other(fn: Callable[..., Any], x: Any) -> Other:
    if is_named_array(x):
        raise TypeError(f"`{_name(fn)}` returned a named array; `lift` is for functions of plain arrays.")
    return Other(x)


def _named(fn: Callable[..., Any], results: Any, plan: _Plan, template: NamedArray) -> Any:
    arrays, treedef = jax.tree.flatten(results)
    loop = tuple(axis.name for axis in plan.loop)
    outs = _selections(fn, arrays, treedef, plan)
    found = []
    for array, out in zip(arrays, outs, strict=True):
        sizes = tuple(array.shape[len(loop) :])
        names = intern_names((*loop, *_out_names(fn, sizes, plan.core, out)))
        check_unique_names(names)
        found.append(with_array(template, reshard_by_name(array, names), names))
    return jax.tree.unflatten(treedef, found)


def _selections(fn: Callable[..., Any], arrays: Sequence[Any], treedef: Any, plan: _Plan) -> Sequence[Any]:
    """Returns what `out_axes` says of each array that the function returned."""
    if plan.out_axes is None:
        return [None] * len(arrays)
    if jax.tree_util.treedef_is_leaf(treedef):
        return [plan.out_axes]
    if not isinstance(plan.out_axes, tuple) or len(plan.out_axes) != len(arrays):
        raise ValueError(
            f"`{_name(fn)}` returned {len(arrays)} arrays: `out_axes` must be a sequence of {len(arrays)} selections, "
            f"not {format_value(plan.out_axes)}"
        )
    return plan.out_axes


def _out_names(fn: Callable[..., Any], sizes: tuple[int, ...], core: Names, out: AxisSelection | None) -> Names:
    """Returns the names of the axes that the function itself returned."""
    if out is None and len(sizes) in (0, len(core)):
        return core if sizes else ()
    if out is None:
        raise ValueError(
            f"`{_name(fn)}` over {format_axes(core)} returned an array of shape {sizes}; name its axes with `out_axes`"
        )
    axes = parse_selection(out)
    if len(axes) != len(sizes):
        raise ValueError(
            f"`{_name(fn)}` returned an array of shape {sizes}, `out_axes` has {len(axes)} names for it: "
            f"{format_axes(tuple(map(axis_name, axes)))}"
        )
    for axis, size in zip(axes, sizes, strict=True):
        if isinstance(axis, Axis) and axis.size != size:
            raise ValueError(f"`{_name(fn)}` returned axis {axis.name!r} with size {size}, not {axis.size}")
    return tuple(map(axis_name, axes))


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
